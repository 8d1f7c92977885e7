"""The rows of a step on one rank: trainers get the gradient of `op.loss` on the whole step, off policy."""

from __future__ import annotations

import functools
import math
from typing import Any

import example_loops
import pytest
import support
import three_policy_losses
import torch
from off_policy_step import LABELS, NAN, B, T, budgets, in_pieces, operator, step
from thread_ranks import on_ranks, try_on_ranks
from torch import Tensor

from fibration import (
    Attribute,
    BatchError,
    Fibration,
    Hierarchy,
    MarkovKernel,
    Policy,
    RanksError,
    Stratum,
    TrainerError,
    centred,
    clip_gate,
    log_prob,
    log_ratio,
    reward,
    strata,
    token_mean,
    total,
    trajectory_mean,
    uniform,
    zero_gate,
)
from fibration.runtime.operator import Operator
from fibration.trainers.intake import check_policies, wanted
from fibration.trainers.window import Window, check_metrics, named, warned


def gradient(op: Operator, s: dict[str, Tensor], advantages: Tensor, parameters: Any = None, **labels: Any) -> Tensor:
    """Minus that of `op.loss` on the whole step."""
    new = s["new"].clone().requires_grad_()
    labels = labels or {name: LABELS[name] for name in wanted(op.hierarchy)}
    op.loss(new, s["old"], advantages, op.index(mask=s["mask"], **labels), parameters).loss.backward()
    assert new.grad is not None
    return -new.grad


def shares(values: Any, ranks: int, rank: int) -> Any:
    """A rank's rows: every `ranks`-th, so that prompt groups and domains lie on all of them."""
    return values[rank::ranks]


def windows(ranks: int | None, work: Any, op: Operator | None = None, given: Any = None, **of: Any) -> list[Any]:
    """`work(window, its part of the step)` in one process, or on every rank.

    `given(part)` makes further arguments of the window. `of`: another step, its labels, or the rows of a rank.
    """
    whole, labels, rows = of.get("step") or step(), of.get("labels", LABELS), of.get("rows", shares)

    def run(group: Any) -> Any:
        take = (lambda values: values) if group is None else (lambda values: rows(values, ranks, group.rank))
        mine, named = ({name: take(values) for name, values in one.items()} for one in (whole, labels))
        more = {"parameters": budgets(), "advantages": mine["advantages"], **(given(mine) if given else {})}
        tensors = mine["mask"], mine["old"], more.pop("advantages")
        return work(Window(op or operator(), *tensors, named, group=group, **more), mine)

    return [run(None)] if ranks is None else on_ranks(ranks, run)


@pytest.mark.sampled
@pytest.mark.parametrize("form", ["[B]", "[B, 1]", "[B, T]"])
@pytest.mark.parametrize("mask", [torch.bool, torch.int64, torch.float32])
def test_coefficients_are_the_gradient_of_the_loss(form, mask):
    s, op = step(), operator()
    advantages = s["advantages"].reshape({"[B]": (B,)}.get(form, (B, 1)))
    if form == "[B, T]":
        advantages = advantages.expand(B, T).where(s["mask"], NAN)
    window = Window(op, s["mask"].to(mask), s["old"], advantages, LABELS, parameters=budgets())
    found = window.coefficients(s["new"])
    example_loops.every_regime(found.metrics)
    assert torch.equal(found.values, gradient(op, s, s["advantages"], budgets()))
    assert window.coef is found and (found.values[~s["mask"]] == 0).all()


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_each_rank_has_its_part_of_the_whole_steps_coefficients(ranks):
    whole = gradient(operator(), step(), step()["advantages"], budgets())
    parts = windows(ranks, lambda window, mine: window.coefficients(mine["new"]))
    for rank, part in enumerate(parts):
        example_loops.every_regime(part.metrics)
        assert torch.allclose(part.values, shares(whole, ranks, rank), rtol=1e-12, atol=1e-15)
        assert part.objective == parts[0].objective


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_rank_may_have_no_rows_or_no_tokens(ranks):
    """Rows without a token, or no rows at all."""
    whole = gradient(operator(), step(), step()["advantages"], budgets())

    def run(window: Window, mine: dict[str, Tensor]) -> Any:
        found = window.coefficients(mine["new"])
        return found, window.compare(mine["new"])

    for cut in (torch.tensor([5, 22]), torch.tensor([], dtype=torch.long)):  # of the last rank
        rest = torch.tensor([i for i in range(B) if i not in cut.tolist()])

        def rows(values: Any, ranks: int, rank: int, cut: Tensor = cut, rest: Tensor = rest) -> Any:
            at = cut if rank == ranks - 1 else rest[rank :: ranks - 1]
            return values[at] if isinstance(values, Tensor) else [values[i] for i in at]

        for rank, (part, passes) in enumerate(windows(ranks, run, rows=rows)):
            assert torch.allclose(part.values, rows(whole, ranks, rank), rtol=1e-12, atol=1e-15)
            example_loops.every_regime(part.metrics)
            assert set(passes.values()) == {0.0}


@pytest.mark.parametrize("ranks", [None, 1, 3])
@pytest.mark.parametrize("rows", [4, 0])
def test_a_step_without_a_token_has_no_gradient(ranks, rows):
    nothing = torch.full((rows, T), NAN)

    def work(group: Any) -> None:
        labels = {name: given[:rows] for name, given in LABELS.items()}
        window = Window(operator(), nothing > 0, nothing, nothing[:, 0], labels, group=group)
        for log_probs in (nothing, None):
            found = window.coefficients(log_probs)
            assert found.values.shape == (rows, T) and not found.values.any() and found.objective == 0
            assert found.metrics == {} == window.compare(nothing)
            assert named(found.scalars()) == {"fibration/objective": 0}

    work(None) if ranks is None else on_ranks(ranks, work)


@pytest.mark.parametrize("ranks", [None, 1, 2])
def test_rows_of_one_key_are_one_trajectory(ranks):
    whole = gradient(operator(), step(), step()["advantages"], budgets())
    pieces = {name: in_pieces(t) for name, t in step().items()}
    labels = {**{k: in_pieces(v) for k, v in LABELS.items()}, "trajectory": in_pieces([("uid", i) for i in range(B)])}
    parts = windows(ranks, lambda window, mine: window.coefficients(mine["new"]), step=pieces, labels=labels)
    found = torch.empty(2 * B, T, dtype=torch.float64)
    for rank, part in enumerate(parts):
        example_loops.every_regime(part.metrics)
        found[rank :: len(parts)] = part.values
    assert torch.allclose(found.reshape(B, 2, T).sum(1), whole, rtol=1e-10, atol=1e-14)


@pytest.mark.sampled
@pytest.mark.parametrize("shape", ["[B]", "[B, 1]", "[B, T]"])
@pytest.mark.parametrize("per", ["row", "token"])
def test_weights_are_multiplied_into_the_advantages(per, shape):
    s, op = step(), operator()
    weights = s["weights"].clone()
    weights[3], weights[:, 2] = 0.0, 0.0
    weights = weights.where(s["mask"], NAN)
    if shape != "[B, T]":
        weights = weights[:, :1].nan_to_num(0.7)
    weights = weights[:, 0] if shape == "[B]" else weights
    a = s["advantages"] if per == "row" else s["advantages"][:, None].expand(B, T)
    expected = s["advantages"][:, None] * (weights if weights.ndim == 2 else weights[:, None])
    found = Window(op, s["mask"], s["old"], a, LABELS, weights=weights, parameters=budgets()).coefficients(s["new"])
    example_loops.every_regime(found.metrics)
    assert torch.equal(found.values, gradient(op, s, expected.expand(B, T), budgets()))
    behind = gradient(op, s, s["advantages"], budgets()) * (weights if weights.ndim == 2 else weights[:, None])
    assert not torch.allclose(found.values, behind.nan_to_num(0.0), rtol=0.05)  # it does not commute
    assert int(found.metrics["trajectory/+/passed"].count) == B - 2  # what weighs nothing is an element still


def test_half_precision_is_multiplied_in_float32():
    s, op = step(torch.bfloat16), operator()
    window = Window(op, s["mask"], s["old"], s["advantages"], LABELS, weights=s["weights"], parameters=budgets())
    found = window.coefficients(s["new"]).values
    product = s["advantages"].float()[:, None] * s["weights"].float()
    index = op.index(mask=s["mask"], **LABELS)
    assert window.advantages.dtype == found.dtype == torch.float32
    assert torch.equal(found, op.coefficients(s["new"], s["old"], product, index, budgets()).values)
    assert (found != 0).any()


@pytest.mark.sampled
@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_fresh_step_needs_no_log_probs(kept, dtype):
    """`r = 1`, whatever the trainer kept: `c = μ·A`."""
    s, op = step(dtype), operator()
    window = Window(op, s["mask"], s["old"] if kept else None, s["advantages"], LABELS, parameters=budgets())
    found = window.coefficients(None)
    lengths, rows = s["mask"].sum(1, keepdim=True), int(s["mask"].any(1).sum())
    expected = torch.where(s["mask"], s["advantages"][:, None].double() / (lengths * rows), 0.0)
    assert torch.allclose(found.values.double(), expected, rtol=1e-6 if found.values.dtype == torch.float32 else 1e-14)
    assert float(found.objective) == pytest.approx(float(expected.sum()), rel=1e-5)
    assert float(found.metrics["trajectory/+/passed"]) == float(found.metrics["gated_ratio/max"]) == 1


def test_missing_old_log_probs_are_those_of_the_first_pass():
    s, op = step(), operator()
    window = Window(op, s["mask"], None, s["advantages"], LABELS, parameters=budgets())
    fresh = window.coefficients(None).values
    assert window.compare(s["new"]) == {}  # with nothing
    assert torch.equal(window.coefficients(s["new"]).values, fresh)
    assert window.compare(s["old"])["pass/changed/trajectory"] > 0


def test_a_score_estimator_has_its_gradient_without_log_probs():
    s, op = step(), operator("cispo")
    expected = gradient(op, {**s, "new": s["old"]}, s["advantages"])
    for old in (s["old"], None):
        assert torch.equal(Window(op, s["mask"], old, s["advantages"], {}).coefficients(None).values, expected)


PLACES = torch.arange(B * T).reshape(B, T)
FINER: dict[str, dict[str, Tensor]] = {  # labels per token, and masks of leaves
    "fiberpo_turns": {"turn": PLACES // 3 + 1000 * (PLACES // T)},
    "fiberpo_experts": {"expert": PLACES % 5},
    "fiberpo_modal": {"image_token": PLACES % 3 == 0},
}


@pytest.mark.sampled
@pytest.mark.parametrize("ranks", [None, 2])
@pytest.mark.parametrize("name", FINER)
def test_strata_that_cross_the_rows_or_lie_below_them_and_several_leaves_are_exact(name, ranks):
    s, op = step(), operator(name)
    labels = {**FINER[name], **{stratum: LABELS[stratum] for stratum in wanted(op.hierarchy) if stratum in LABELS}}
    tight = {p: 0.02 for p in op.hierarchy.parameters if p.startswith("C_")}

    def work(window: Window, mine: dict[str, Tensor]) -> Any:
        return window.coefficients(mine["new"]), window.compare(mine["second"])

    parts = windows(ranks, work, op, lambda _: {"parameters": tight}, labels=labels)
    expected, passes = gradient(op, s, s["advantages"], tight, **labels), compared(op, tight, **labels)
    for stratum in (s.name for s in op.hierarchy.order if s not in op.hierarchy.leaves):
        assert float(parts[0][0].metrics[f"{stratum}/+/zeroed"]) + float(parts[0][0].metrics[f"{stratum}/-/zeroed"]) > 0
    for rank, (found, differences) in enumerate(parts):
        assert torch.allclose(found.values, shares(expected, len(parts), rank), rtol=1e-10, atol=1e-14)
        assert differences == pytest.approx(passes, rel=1e-12)


def test_attributes_reach_the_index():
    token, trajectory = strata("token trajectory")
    weight = Attribute("weight", on=token)
    h = Hierarchy(
        name="weighed",
        fibrations=[Fibration(token, trajectory, MarkovKernel(weight / total(weight, over=trajectory)))],
        gates={trajectory: clip_gate(0.05), token: clip_gate(0.2)},
        decomposition=log_ratio(),
        objective=token_mean(),
    )
    s, op, given = step(), support.operator(h), {"weight": 1.0 + PLACES % 4}
    found = Window(op, s["mask"], s["old"], s["advantages"], {}, attributes=given).coefficients(s["new"])
    index = op.index(mask=s["mask"], attributes=given)
    assert torch.equal(found.values, op.coefficients(s["new"], s["old"], s["advantages"], index).values)


def test_the_rows_may_have_another_name_than_trajectory():
    token, sample, task = strata("token sample task")
    h = Hierarchy(
        name="samples",
        fibrations=[Fibration(token, sample, uniform()), Fibration(sample, task, uniform())],
        gates={task: clip_gate(0.05), sample: clip_gate(0.05), token: clip_gate(0.2)},
        decomposition=log_ratio(),
        objective=trajectory_mean(),
        rows=sample,
    )
    s, op = step(), support.operator(h)
    expected = gradient(op, s, s["advantages"], task=LABELS["domain"])
    for keys in ({}, {"sample": list(range(B))}):
        window = Window(op, s["mask"], s["old"], s["advantages"], {"task": LABELS["domain"], **keys})
        found = window.coefficients(s["new"])
        assert torch.allclose(found.values, expected, rtol=1e-12, atol=1e-15)


# ---------------------------------------------------------------- pass 2 against pass 1


def compared(op: Operator, parameters: Any, **labels: Any) -> dict[str, float]:
    """By `op.levels` of the whole step in one process, element by element."""
    s = step()
    index = op.index(mask=s["mask"], **labels)
    one, two = (
        op.levels(s[name] - s["old"], index, parameters, advantages=s["advantages"]) for name in ("new", "second")
    )
    counts: dict[str, list[int]] = {}
    removed = [str(s) for s, gate in op.hierarchy.gates.items() if gate == zero_gate()]
    for (stratum, channel), read in one.residual.items():
        if stratum in removed:
            continue
        pairs = ((read, one.gated[stratum, channel]), (two.residual[stratum, channel], two.gated[stratum, channel]))
        words = [
            ["passed" if g == r else "zeroed" if g == 0 else "other" for r, g in zip(*p, strict=True)] for p in pairs
        ]
        known = counts.setdefault(stratum, [0, 0])
        known[0] += sum(a != b for a, b in zip(*words, strict=True))
        known[1] += len(read)
    difference = (s["second"] - s["new"])[s["mask"]].abs()
    total, size = (sum(c[i] for c in counts.values()) for i in (0, 1))
    return {
        "pass/log_prob_difference": float(difference.mean()),
        "pass/log_prob_difference_max": float(difference.max()),
        "pass/changed": total / size,
        **{f"pass/changed/{stratum}": n / size for stratum, (n, size) in counts.items()},
    }


@pytest.mark.sampled
@pytest.mark.parametrize("ranks", [None, 1, 2, 3])
def test_the_two_passes_are_compared_over_the_whole_step(ranks):
    expected = compared(operator(), budgets(), **LABELS)
    assert all(share > 0 for share in expected.values())

    def run(window: Window, mine: dict[str, Tensor]) -> Any:
        window.coefficients(mine["new"])
        return window.compare(mine["second"]), window.compare(mine["new"])

    parts = windows(ranks, run)
    for found, same in parts:
        assert found == parts[0][0]  # the same bits on every rank
        assert found == pytest.approx(expected, rel=1e-12)
        changed = [name for name in found if "changed" in name]
        assert [found[name] for name in changed] == [expected[name] for name in changed]
        assert same == dict.fromkeys(expected, 0.0)


def test_every_token_of_a_long_step_is_compared():
    mask, old = torch.ones(40, 50), torch.zeros(40, 50)
    window = Window(operator("gspo"), mask, old, torch.ones(40), {})
    window.coefficients(old)
    found = window.compare(old + 0.5)  # which gates of rows clip
    assert found["pass/changed/trajectory"] == found["pass/changed"] == 1  # `gspo` has no gate of tokens


@pytest.mark.parametrize("name", ["gspo", "grpo", "dapo"])
def test_the_comparison_of_passes_gives_gates_their_advantages(name):
    s, op = step(), operator(name)
    window = Window(op, s["mask"], s["old"], s["advantages"][:, None], {}, weights=s["weights"][:, :1].nan_to_num(1))
    window.coefficients(s["new"])
    expected = compared(op, None)
    assert window.compare(s["second"]) == pytest.approx(expected, rel=1e-12) and expected["pass/changed"] > 0


def test_a_fresh_step_is_compared_with_the_old_log_probs():
    s = step()
    window = Window(operator(), s["mask"], s["old"], s["advantages"], LABELS, parameters=budgets())
    window.coefficients(None)
    found = window.compare(s["new"])
    assert found["pass/log_prob_difference"] == pytest.approx(float((s["new"] - s["old"])[s["mask"]].abs().mean()))
    regimes = [
        float(m)
        for k, m in window.coefficients(s["new"]).metrics.items()
        if k.startswith("trajectory/") and k.endswith("/passed")
    ]
    assert found["pass/changed/trajectory"] == pytest.approx(1 - sum(regimes) / 2)


def test_nothing_is_compared_before_there_are_coefficients():
    s = step()
    assert Window(operator(), s["mask"], s["old"], s["advantages"], LABELS).compare(s["new"]) == {}


@pytest.mark.parametrize("share", [0.01, 0.011])
def test_a_warning_names_the_worst_stratum_once(share):
    found = {"pass/log_prob_difference": 1.6e-5, "pass/log_prob_difference_max": 0.24, "pass/changed": 0.009}
    found |= {"pass/changed/token": 0.0005, "pass/changed/domain": share}
    if share == 0.01:
        assert not warned(found)
        return
    with pytest.warns(UserWarning, match=r"1.1% of the elements of domain .* 1.6e-05 nats on average, by 2.4e-01"):
        assert warned(found)
    assert warned(found, True)  # an error, if it warned again
    assert warned({}, True) and not warned({})


def test_metrics_have_the_documented_names():
    s = step()
    window = Window(operator(), s["mask"], s["old"], s["advantages"], LABELS, parameters=budgets())
    levels, every, some = (
        window.coefficients(s["new"], metrics=asked) for asked in ("levels", "all", ["trajectory", "gated_ratio"])
    )
    logged = named(every.scalars())
    wanted = {f"fibration/{k}": float(m) for k, m in every.metrics.items() if math.isfinite(float(m))}
    assert logged == {**wanted, "fibration/objective": float(every.objective)}
    assert named(levels.scalars()) == {k: v for k, v in logged.items() if "[" not in k} != logged
    assert logged["fibration/trajectory/+/rolled_back"] > 0 and "fibration/trajectory/+/passed[domain=math]" in logged
    chosen = ("trajectory/", "gated_ratio/", "objective")
    assert some.scalars() == {k: v for k, v in levels.scalars().items() if k.startswith(chosen)} != levels.scalars()
    passes = {**window.compare(s["second"]), "extra_forwards": 3.0}
    assert named(passes) == {f"fibration/{k}": v for k, v in passes.items()}
    with pytest.raises(TrainerError, match=r"actor.metrics='some'") as error:
        check_metrics(operator().hierarchy, "some", "actor.metrics")
    assert "'domain'" in str(error.value) and "'levels', 'all'" in str(error.value)


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"mask": torch.ones(B)}, "the mask of a window"),
        ({"advantages": torch.ones(B, 2)}, r"advantages have shape \[24, 2\]"),
        ({"advantages": torch.ones(B, dtype=torch.int64)}, "advantages: torch.int64"),
        ({"advantages": [1.0] * B}, "advantages: a list"),
        ({"weights": torch.ones(T)}, r"importance weights have shape \[10\]"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(change, says):
    given = {"mask": step()["mask"], "advantages": step()["advantages"], "weights": None, **change}
    with pytest.raises(TrainerError, match=says):
        Window(operator(), given["mask"], step()["old"], given["advantages"], LABELS, weights=given["weights"])


def test_tensors_that_do_not_fit_on_one_rank_are_refused_on_all_ranks():
    def work(group: Any) -> None:
        s = step()
        old = None if group.rank == 1 else s["old"]
        Window(operator(), s["mask"], old, s["advantages"], LABELS, group=group)

    ran = try_on_ranks(2, work)
    assert all(isinstance(error, RanksError) and "old log-probs" in str(error) for error in ran.errors)

    def compare(group: Any) -> None:
        s = step()
        window = Window(operator(), s["mask"], s["old"], s["advantages"], LABELS, group=group)
        window.coefficients(s["new"])
        window.compare(s["new"][: B - group.rank])

    ran = try_on_ranks(2, compare)
    assert all(isinstance(error, TrainerError) and "log-probs of pass 2" in str(error) for error in ran.errors)


def test_weights_per_token_are_refused_if_a_gate_reads_the_advantage_of_a_row():
    s = step()
    window = Window(operator("gspo"), s["mask"], s["old"], s["advantages"], {}, weights=s["weights"])
    with pytest.raises(BatchError, match="the advantages vary within a trajectory") as caught:
        window.coefficients(s["new"])
    assert caught.value.__notes__ == [
        "the importance weights are part of the advantages: give one weight per row if a gate above the tokens reads "
        "advantages"
    ]
    alike = s["weights"][:, :1].nan_to_num(1).expand(B, T)  # per token, and the same in a row
    window = Window(operator("gspo"), s["mask"], s["old"], s["advantages"], {}, weights=alike)
    expected = gradient(operator("gspo"), s, s["advantages"] * alike[:, 0])
    assert torch.allclose(window.coefficients(s["new"]).values, expected, rtol=1e-14)


def test_a_stratum_may_be_named_group():
    token, trajectory, called = strata("token trajectory group")
    h = Hierarchy(
        name="named",
        fibrations=[Fibration(token, trajectory, uniform()), Fibration(trajectory, called, uniform())],
        gates={
            called: clip_gate(0.05),
            trajectory: clip_gate(0.05),
            token: clip_gate(0.2),
        },
        decomposition=log_ratio(),
        objective=trajectory_mean(),
    )
    s, op, labels = step(), support.operator(h), {"group": LABELS["domain"]}
    found = Window(op, s["mask"], s["old"], s["advantages"], labels).coefficients(s["new"]).values
    assert torch.equal(found, gradient(op, s, s["advantages"], **labels))
    with pytest.raises(TrainerError, match="the stratum 'group' of 'named' has the name of the ranks' argument"):
        on_ranks(1, lambda group: Window(op, s["mask"], s["old"], s["advantages"], labels, group=group))


# ---------------------------------------------------------------- further policies


def of_three() -> Operator:
    return support.operator(three_policy_losses.of_three)


def right(s: dict[str, Tensor]) -> Tensor:
    index = of_three().index(mask=s["mask"], **LABELS)
    given = {"policies": {"rollout": s["rollout"]}}
    return of_three().coefficients(s["new"], s["old"], s["advantages"], index, budgets(), **given).values


@pytest.mark.sampled
@pytest.mark.parametrize("ranks", [None, 1, 2, 3])
def test_log_probs_of_the_sampling_policy_are_those_of_the_whole_step(ranks):
    s, whole = step(), right(step())
    dropped = s["mask"] & (whole == 0)
    assert 0 < int(dropped.sum()) < int(s["mask"].sum())
    without = gradient(operator(), s, s["advantages"], budgets())
    assert not torch.allclose(whole[~dropped], without[~dropped], rtol=0.01)

    def work(window: Window, mine: dict[str, Tensor]) -> Any:
        found = window.coefficients(mine["new"])
        example_loops.every_regime(found.metrics)
        return found, window.compare(mine["second"])

    expected = compared(operator(), budgets(), **LABELS)  # gates read no policy
    given = lambda mine: {"policies": {"rollout": mine["rollout"]}}  # noqa: E731
    for rank, (found, passes) in enumerate(windows(ranks, work, of_three(), given)):
        assert torch.allclose(found.values, shares(whole, ranks or 1, rank), rtol=1e-10, atol=1e-14)
        assert passes == pytest.approx(expected, rel=1e-12)


def test_a_fresh_step_of_three_policies_has_importance_weights():
    s = step()
    window = Window(of_three(), s["mask"], s["old"], s["advantages"], LABELS, policies={"rollout": s["rollout"]})
    assert torch.equal(window.coefficients(None).values, right({**s, "new": s["old"]}))
    window = Window(of_three(), s["mask"], None, s["advantages"], LABELS, policies={"rollout": s["rollout"]})
    with pytest.raises(TrainerError, match=r"reads log-probs of old and rollout, and a fresh step"):
        window.coefficients(None)
    assert torch.equal(window.coefficients(s["old"]).values, right({**s, "new": s["old"]}))


@pytest.mark.parametrize("ranks", [None, 2])
def test_penalties_are_not_multiplied_by_importance_weights(ranks):
    """Nor are they 0 where the advantage is: `c` has `-μ·x` of `x²/2`, beside what weighted advantages give."""
    s, x = step(), log_prob(three_policy_losses.current) - log_prob(Policy("reference"))
    op = support.operator(operator().hierarchy.replace(name="near", penalties={"kl": x * x / 2}))
    s = {**s, "advantages": torch.where(torch.arange(len(s["advantages"])) % 2 == 0, s["advantages"], 0)}

    def values(made: Operator, given: Any) -> list[Tensor]:
        return windows(ranks, lambda window, mine: window.coefficients(mine["new"]).values, made, given, step=s)

    weighed = lambda mine: {"weights": mine["weights"]}  # noqa: E731
    both = values(op, lambda mine: {**weighed(mine), "policies": {"reference": mine["rollout"]}}), values(operator(), weighed)
    lengths = s["mask"].sum(1, keepdim=True)
    slopes = (s["new"] - s["rollout"]) / lengths.clamp(min=1) / (lengths > 0).sum()
    whole = torch.where(s["mask"].bool(), -slopes, 0)
    assert whole[1::2].abs().max() > 1e-4
    for rank, (found, plain) in enumerate(zip(*both, strict=True)):
        assert torch.allclose(found - plain, shares(whole, ranks or 1, rank), rtol=1e-9, atol=1e-14)


@functools.cache
def of_rewards() -> Operator:
    """Less what drifted from a reference, beside the others of a domain, which lie on several ranks."""
    x = log_prob(Policy("old")) - log_prob(Policy("reference"))
    left = reward - total(x, over=Stratum("trajectory"))
    made = centred(left, over=Stratum("domain"), leave_one_out=True)
    return support.operator(operator().hierarchy.replace(name="of_rewards", advantages=made))


@pytest.mark.sampled
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ranks", [None, 2])
def test_advantages_are_computed_from_the_rewards_of_the_whole_step(ranks, weighted):
    s, op = step(), of_rewards()

    def given(mine: dict[str, Tensor]) -> dict[str, Any]:
        more = {"weights": mine["weights"]} if weighted else {}
        return {"policies": {"reference": mine["rollout"]}, "advantages": None, "rewards": mine["advantages"], **more}

    def work(window: Window, mine: dict[str, Tensor]) -> Any:
        return window.coefficients(mine["new"]).values, window.advantages, window.compare(mine["second"])

    sums = torch.where(s["mask"], s["old"] - s["rollout"], 0).sum(1)
    left = s["advantages"] - sums
    made = torch.zeros(B, dtype=torch.float64)
    for domain in ("math", "code", "maps"):
        rows = [i for i in range(B) if LABELS["domain"][i] == domain and s["mask"][i].any()]
        made[rows] = left[rows] - (left[rows].sum() - left[rows]) / (len(rows) - 1)
    if weighted:
        made = made[:, None] * s["weights"]
    whole = gradient(operator(), s, made, budgets())
    assert whole.abs().max() > 1e-3
    for rank, (found, advantages, passes) in enumerate(windows(ranks, work, op, given)):
        expected = shares(made, ranks or 1, rank)
        assert torch.allclose(advantages, expected, rtol=0, atol=1e-12, equal_nan=True)  # of weights that are masked
        assert torch.allclose(found, shares(whole, ranks or 1, rank), rtol=1e-9, atol=1e-14)
        assert passes["pass/changed"] > 0


def test_rewards_without_a_formula_for_advantages_are_refused():
    s = step()
    with pytest.raises(TrainerError, match="rewards for 'fiberpo_domain', which has no formula of advantages"):
        Window(operator(), s["mask"], s["old"], None, LABELS, rewards=s["advantages"])
    with pytest.raises(TrainerError, match="both advantages and rewards are given"):
        Window(of_rewards(), s["mask"], s["old"], s["advantages"], LABELS, rewards=s["advantages"])
    nothing = torch.zeros_like(s["mask"])
    window = Window(of_rewards(), nothing, s["old"], None, LABELS, rewards=s["advantages"])
    assert not window.coefficients(s["new"]).values.any()


def test_correcting_twice_for_the_sampling_policy_is_refused():
    s = step()
    given = {"weights": s["weights"], "policies": {"rollout": s["rollout"]}}
    with pytest.raises(TrainerError, match=r"'of_three' reads log_prob\(rollout\), and weights are given too"):
        Window(of_three(), s["mask"], s["old"], s["advantages"], LABELS, **given)


def test_a_policy_that_the_trainer_lacks_is_named():
    check_policies(of_three().hierarchy, {"rollout": "what sampled"})
    check_policies(operator().hierarchy, {})
    with pytest.raises(TrainerError, match=r"reads log_prob\(rollout\), and the trainer has no log-probs"):
        check_policies(of_three().hierarchy, {"reference": "a frozen model"})
