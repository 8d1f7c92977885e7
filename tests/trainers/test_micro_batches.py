"""Micro-batches of a step: each has its part of the whole step's gradient, after as few forward passes as possible."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import support
import torch
from off_policy_step import LABELS, NAN, B, T, budgets, in_pieces, operator, step
from thread_ranks import on_ranks, try_on_ranks
from torch import Tensor

from fibration import (
    Hierarchy,
    TrainerError,
    clip_gate,
    exp,
    log_ratio,
    mean,
    strata,
    token_log_ratio,
    token_mean,
)
from fibration.trainers.intake import wanted
from fibration.trainers.micro_batches import MicroBatches
from fibration.trainers.window import Window, named

NEAR = {"rtol": 1e-12, "atol": 1e-14}
EVERY = range(B)


def fours(rows: Sequence[int] = EVERY) -> list[list[int]]:
    return [list(rows[i : i + 4]) for i in range(0, len(rows), 4)]


@dataclass
class Case:
    """`ranks`: of every rank, the rows of its micro-batches. `needed`: of every rank, the places that come before."""

    ranks: list[list[list[int]]]
    needed: list[tuple[int, ...]]
    hierarchy: str = "fiberpo_domain"  # its domains are the rows 0 to 7, 8 to 15 and 16 to 23
    policies: tuple[str, ...] = ()
    parameters: Callable[[], Any] = field(default=lambda: None)


token, prompt_group = strata("token prompt_group")
# A token without advantage has no gradient. Its ratio counts in the weights of its group.
WEIGHED = Hierarchy(
    name="weighed",
    gates={token: clip_gate(0.2)},
    decomposition=log_ratio(),
    groups=[prompt_group],
    objective=token_mean().weigh(exp(mean(token_log_ratio, over=prompt_group))),
)
SHUFFLED = [(7 * i + 3) % B for i in EVERY]
HALVES = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11, 12, 13, 14, 15]], [[16, 17], [18, 19], [20, 21, 22, 23]]
CASES = {
    "row-local": Case([fours(SHUFFLED)], [()], "gspo"),
    "row-local, frozen sums": Case([fours(SHUFFLED)], [()], "geometric_mask", ("rollout",)),
    "row-local, two ranks": Case([fours(SHUFFLED[:16]), fours(SHUFFLED[16:])], [(), ()], "gspo"),
    "one micro-batch": Case([[list(EVERY)]], [()], parameters=budgets),
    "one micro-batch on each of two ranks": Case([[SHUFFLED[:12]], [SHUFFLED[12:]]], [(), ()], parameters=budgets),
    "whole domains": Case([[list(range(i, i + 8)) for i in (8, 0, 16)]], [()], parameters=budgets),
    "domains in halves": Case([fours()], [(1, 3, 5)], parameters=budgets),
    "halves in another order": Case([[fours()[i] for i in (0, 2, 4, 5, 3, 1)]], [(3, 4, 5)], parameters=budgets),
    "no domain apart": Case([fours(SHUFFLED)], [(1, 2, 3, 4, 5)], parameters=budgets),
    "whole groups": Case([fours()], [()], "real"),
    "domains on two ranks": Case(
        [fours(list(EVERY)[::2]), fours(list(EVERY)[1::2])], [(1, 2), (1, 2)], parameters=budgets
    ),
    "domains in sets of different sizes": Case([*HALVES], [(1, 2), (1, 2)], parameters=budgets),
    "a batch": Case([fours()], [(1, 2, 3, 4, 5)], "clip_cov"),
    "a group in two": Case([[fours()[0], [4, 5, 7], [6], *fours()[2:]]], [(2,)], "weighed"),
}


def part(values: Any, rows: Sequence[int]) -> Any:
    return values[torch.as_tensor(rows)] if isinstance(values, Tensor) else [values[i] for i in rows]


def window_of(case: Case, rows: Sequence[int], group: Any = None, advantages: Tensor | None = None) -> Window:
    op, s = support.operator(WEIGHED, "torch") if case.hierarchy == WEIGHED.name else operator(case.hierarchy), step()
    return Window(
        op,
        part(s["mask"], rows),
        part(s["old"], rows),
        part(s["advantages"] if advantages is None else advantages, rows),
        {name: part(LABELS[name], rows) for name in wanted(op.hierarchy)},
        policies={name: part(s[name], rows) for name in case.policies},
        parameters=case.parameters(),
        group=group,
    )


def places(micro_batches: Sequence[Sequence[int]]) -> list[Tensor]:
    """Of consecutive rows of a window."""
    return list(torch.arange(sum(map(len, micro_batches))).split([len(m) for m in micro_batches]))


def trained(batches: MicroBatches, first: Tensor, second: Tensor) -> tuple[Tensor, float]:
    """Coefficients and the objective, where `first` are log-probs before the step, `second` of its trained passes."""
    for place in batches.needed:
        batches.add(place, part(first, batches.rows[place]))
    values, objective = torch.full_like(second, NAN), 0.0
    for rows in batches.rows:
        assert not batches.done
        found, share = batches.coefficients(part(second, rows))
        values[rows] = found
        objective += float(share)
    assert batches.done
    return values, objective


@pytest.mark.parametrize("name", CASES)
def test_the_parts_add_up_to_the_gradient_of_the_whole_step(name):
    case, s = CASES[name], step()
    whole = window_of(case, EVERY).coefficients(s["new"])
    assert whole.values.any()

    def run(group: Any) -> Any:
        mine = case.ranks[0 if group is None else group.rank]
        rows = [i for m in mine for i in m]
        batches = MicroBatches(window_of(case, rows, group), places(mine))
        new = part(s["new"], rows)
        values, objective = trained(batches, new, new)
        torch.testing.assert_close(values, part(whole.values, rows), **NEAR)
        return batches.needed, objective, batches.measure()

    ranks = len(case.ranks)
    found = [run(None)] if ranks == 1 else on_ranks(ranks, run)
    assert [needed for needed, *_ in found] == case.needed
    assert sum(o for _, o, _ in found) / ranks == pytest.approx(float(whole.objective), rel=1e-12)
    for needed, _, measured in found:
        apart = {key: measured.pop(key) for key in list(measured) if key.startswith("pass/")}
        assert bool(apart) == bool(needed) and set(apart.values()) <= {0.0}
        assert measured == pytest.approx(every_row(whole), rel=1e-11, abs=1e-13, nan_ok=True)


def every_row(whole: Any) -> dict[str, float]:
    """The metrics of a step that trains on all of its rows."""
    return {**whole.scalars(), "rows_trained": 1.0}


def test_coefficients_of_coupled_micro_batches_are_computed_once():
    """They are of the trained pass of that one, and of the passes before of the others."""
    case, s = CASES["domains in halves"], step()
    firsts = torch.tensor([i for i in EVERY if i % 8 < 4])
    mixed = s["new"].clone()
    mixed[firsts] = s["second"][firsts]
    batches = MicroBatches(window_of(case, EVERY), places(case.ranks[0]))
    values, objective = trained(batches, s["new"], s["second"])
    window = window_of(case, EVERY)
    right = window.coefficients(mixed)
    torch.testing.assert_close(values, right.values, **NEAR)
    assert objective == pytest.approx(float(right.objective), rel=1e-12)
    wanted = {**every_row(right), **window.compare(s["second"])}
    assert batches.measure() == pytest.approx(wanted, rel=1e-11, abs=1e-13, nan_ok=True)
    assert wanted["pass/changed"] > 0.01


@pytest.mark.parametrize("ranks", [None, 2])
@pytest.mark.parametrize("name", ["gspo", "grpo"])
def test_rows_of_one_trajectory_are_trained_on_together(name, ranks):
    """If the loss couples the tokens of a trajectory."""
    s, op = step(), operator(name)
    whole = op.coefficients(s["new"], s["old"], s["advantages"], op.index(mask=s["mask"])).values
    pieces = {key: in_pieces(t) for key, t in s.items()}
    keys, wanted = in_pieces(list(EVERY)), in_pieces(whole).where(pieces["mask"], 0)

    def run(group: Any) -> None:
        rows = list(range(2 * B) if group is None else range(group.rank, 2 * B, 2))
        mine = {key: part(t, rows) for key, t in pieces.items()}
        window = Window(
            op, mine["mask"], mine["old"], mine["advantages"], {"trajectory": part(keys, rows)}, group=group
        )
        plan = list(torch.arange(len(rows)).split(3))
        batches = MicroBatches(window, plan)
        assert batches.needed == (tuple(range(1, len(plan))) if name == "gspo" else ())
        values, _ = trained(batches, mine["new"], mine["new"])
        torch.testing.assert_close(values, part(wanted, rows), **NEAR)

    run(None) if ranks is None else on_ranks(ranks, run)


def test_independent_rows_need_no_plan():
    """They come in any order, as wide as their longest row, and are given with their log-probs."""
    case, s = CASES["row-local, frozen sums"], step()
    whole = window_of(case, EVERY).coefficients(s["new"])
    batches = MicroBatches(window_of(case, EVERY))
    for rows in (torch.tensor(m) for m in fours(SHUFFLED)):
        width = int(s["mask"][rows].nonzero()[:, 1].amax()) + 1
        with torch.autocast("cpu"):
            found, _ = batches.coefficients(s["new"][rows, :width], rows)
        torch.testing.assert_close(found, whole.values[rows, :width], **NEAR)
    assert batches.done
    assert batches.measure() == pytest.approx(every_row(whole), rel=1e-11, abs=1e-13, nan_ok=True)


def test_a_fresh_step_has_the_coefficients_of_ratio_one():
    case, s = CASES["no domain apart"], step()
    right = window_of(case, EVERY).coefficients(None)
    batches = MicroBatches(window_of(case, EVERY), places(fours()), fresh=True)
    assert batches.needed == ()
    values, objective = trained(batches, s["new"], s["second"])
    assert torch.equal(values, right.values) and objective == float(right.objective)
    assert batches.measure()["pass/log_prob_difference"] > 0


def test_training_on_part_of_a_window_uses_the_log_probs_of_all_of_it():
    case, s = CASES["domains in halves"], step()
    whole = window_of(case, EVERY).coefficients(s["new"])
    batches = MicroBatches(window_of(case, EVERY), places(fours()), [4, 5, 4])
    assert batches.needed == (0, 1, 2, 3, 5) and batches.is_whole
    for place in batches.needed:
        batches.add(place, s["new"][4 * place : 4 * place + 4])
    for place in (4, 5, 4):
        found, _ = batches.coefficients(s["new"][4 * place : 4 * place + 4])
        torch.testing.assert_close(found, whole.values[4 * place : 4 * place + 4], **NEAR)
    assert batches.done


def test_an_error_of_one_rank_is_raised_on_all_ranks_at_the_end():
    case, s = CASES["row-local, two ranks"], step()

    def run(group: Any) -> None:
        rows = [i for m in case.ranks[group.rank] for i in m]
        batches = MicroBatches(window_of(case, rows, group), places(case.ranks[group.rank]))
        new = part(s["new"], rows)
        if group.rank == 1:
            new[0] = torch.inf
        trained(batches, new, new)  # ranks that wait for gradients get them
        batches.measure()

    for error in try_on_ranks(2, run).errors:
        assert "rank 1: " in str(error) and "inf" in str(error)
    alone = window_of(CASES["row-local"], EVERY)
    with pytest.raises(Exception, match="inf"):
        MicroBatches(alone).coefficients(torch.full((4, T), torch.inf), torch.arange(4))


def test_other_rows_than_planned_are_refused():
    case, s = CASES["domains in halves"], step()
    batches = MicroBatches(window_of(case, EVERY), places(fours()))
    with pytest.raises(TrainerError, match=r"micro-batch 1 of a step has rows \[4, 5, 6, 7\]") as error:
        batches.coefficients(s["new"][4:8], torch.arange(4, 8))
    assert "rows [0, 1, 2, 3], as planned" in str(error.value)
    for place in batches.needed:
        batches.add(place, s["new"][4 * place : 4 * place + 4])
    for m in fours():
        batches.coefficients(s["new"][m], torch.tensor(m))
    with pytest.raises(TrainerError, match="6 micro-batches in a step"):
        batches.coefficients(s["new"][:4], torch.arange(4))


def test_a_step_without_tokens_needs_no_forward_pass():
    case, nothing = CASES["no domain apart"], torch.full((8, T), NAN)
    op = operator(case.hierarchy)
    labels = {name: given[:8] for name, given in LABELS.items()}
    batches = MicroBatches(Window(op, nothing > 0, nothing, nothing[:, 0], labels), places(fours(range(8))))
    values, objective = trained(batches, nothing, nothing)
    assert batches.needed == () and not values.any() and objective == 0
    assert batches.measure() == {"objective": 0, "rows_trained": 1}


# ---------------------------------------------------------------- dead rows


def equal_rewards() -> Tensor:
    """Advantages of the step: 0 in rows 4, 5 and 8 to 15, so that the second domain has none, and the first one some."""
    dead = torch.tensor([i in (4, 5) or 8 <= i < 16 for i in EVERY])
    return torch.where(dead, 0.0, step()["advantages"])


# Of every rank: how many rows each micro-batch has in its trained pass. Rows 5 and 22 have no tokens.
LIVE = {
    "row-local": [[3, 2, 2, 1, 3, 3]],
    "row-local, frozen sums": [[3, 2, 2, 1, 3, 3]],
    "row-local, two ranks": [[3, 2, 2, 1], [3, 3]],
    "whole domains": [[1, 7, 7]],
    "domains in halves": [[4, 3, 1, 1, 4, 3]],
    "domains in sets of different sizes": [[4, 3, 1], [2, 2, 3]],
    "no domain apart": [[4, 3, 2, 1, 3, 3]],  # all of the first micro-batch, which decides the others
    "one micro-batch on each of two ranks": [[12], [12]],
    "a batch": [[4, 2, 1, 1, 4, 3]],
    "a group in two": [[4, 2, 1, 1, 1, 4, 3]],  # row 4 has no advantage, and its ratios weigh on 6 and 7
}


@pytest.mark.sampled
@pytest.mark.parametrize("name", LIVE)
def test_dead_rows_are_left_out_and_change_nothing(name):
    """Coefficients of others, and `J`, are those of the whole step. Metrics cover the rows with log-probs.

    A stand-in, the one row of a micro-batch without a coefficient, is in no metric of trained rows.
    """
    case, s, advantages = CASES[name], step(), equal_rewards()
    new, filled = s["new"], s["mask"].any(1)
    whole = window_of(case, EVERY, None, advantages).coefficients(new)

    def run(group: Any) -> Any:
        mine = case.ranks[0 if group is None else group.rank]
        rows = [i for m in mine for i in m]
        batches = MicroBatches(window_of(case, rows, group, advantages), places(mine), skip_dead=True)
        for place in batches.needed:
            batches.add(place, part(part(new, rows), batches.rows[place]))
        values, objective, passed, trained = torch.zeros(len(rows), T, dtype=new.dtype), 0.0, [], []
        for m in batches.rows:
            live = batches.live()
            found, share = batches.coefficients(part(part(new, rows), m[live]), m[live])
            values[m[live]] = found
            objective += float(share)
            passed.append([rows[i] for i in m[live]])
            stands_in = len(passed[-1]) == 1 and not whole.values[passed[-1]].any()
            trained += [row for row in passed[-1] if filled[row] and not stands_in]
        torch.testing.assert_close(values, part(whole.values, rows), **NEAR)
        before = [rows[i] for place in batches.needed for i in batches.rows[place]]
        return [len(m) for m in passed], objective, {*before, *trained}, len(trained), batches.measure()

    ranks = len(case.ranks)
    found = [run(None)] if ranks == 1 else on_ranks(ranks, run)
    assert [passed for passed, *_ in found] == LIVE[name]
    assert sum(o for _, o, *_ in found) / ranks == pytest.approx(float(whole.objective), rel=1e-12)
    known = sorted(set().union(*(known for _, _, known, _, _ in found)))
    measured = window_of(case, known, None, advantages).coefficients(part(new, known)).scalars()
    if filled[known].sum() != filled.sum():  # rows of two sets have two names
        measured = {f"live/{metric}": number for metric, number in measured.items()}
    share = sum(trained for *_, trained, _ in found) / int(filled.sum())
    measured |= {"objective": float(whole.objective), "rows_trained": share}
    measured.pop("live/objective", None)
    for *_, own in found:
        assert not any(own.pop(key) for key in list(own) if key.startswith("pass/"))
        assert own == pytest.approx(measured, rel=1e-11, abs=1e-13, nan_ok=True)


@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize("ranks", [None, 2])
def test_a_rank_or_a_step_without_live_rows_has_a_row_in_each_pass(ranks, fresh):
    """With two ranks, the first one has the live rows."""
    case, s = CASES["row-local"], step()
    old = s["old"].clone()

    def run(group: Any) -> Any:
        rows = [5, 0, 1, 2, 3, 4, *range(6, 12)] if group is None or group.rank else list(range(12, 24))
        advantages = torch.where(torch.arange(B) < 12, 0.0, s["advantages"])
        window = window_of(case, rows, group, advantages)
        batches, passed = MicroBatches(window, places(fours(rows)), fresh=fresh, skip_dead=True), []
        for m in batches.rows:
            live = batches.live()
            found, _ = batches.coefficients(part(part(s["new"], rows), m[live]))
            assert window.mask[m[live]].any() and bool(found.any()) == (rows[0] == 12)
            passed.append(int(live.sum()))
        return passed, batches.measure()

    (passed, measured), *others = [run(None)] if ranks is None else on_ranks(2, run)[::-1]
    assert passed == [1, 1, 1] and measured["rows_trained"] == (0 if ranks is None else 11 / 22)
    if ranks is None and not fresh:  # no row is trained
        assert measured == {"objective": 0, "rows_trained": 0}
    assert all(passed == [4, 4, 3] for passed, _ in others)
    torch.testing.assert_close(s["old"], old, rtol=0, atol=0, equal_nan=True)  # it is the trainer's


def test_rows_without_tokens_are_not_trained_rows():
    """Padding, in a trained pass or left out: the rows of a step are those with tokens."""
    case, s = CASES["row-local"], step()
    for skip in (True, False):
        batches = MicroBatches(window_of(case, EVERY), places(fours()), skip_dead=skip)
        for m in batches.rows:
            live = batches.live()
            assert live.sum() == (s["mask"][m].any(1).sum() if skip else len(m))
            batches.coefficients(s["new"][m[live]])
        assert batches.measure()["rows_trained"] == 1


# ---------------------------------------------------------------- names in a log


def test_metrics_that_are_not_finite_are_logged(caplog):
    """Under their names, and counted: trainers leave NaN out of means over steps."""
    assert named({"kl": 0.5}) == {"fibration/kl": 0.5}
    assert not caplog.messages
    found = named({"kl": math.inf, "live/tv": math.nan, "objective": 1.0})
    assert list(found) == ["fibration/kl", "fibration/live/tv", "fibration/objective", "fibration/nonfinite"]
    assert found["fibration/kl"] == math.inf and math.isnan(found["fibration/live/tv"])
    assert found["fibration/nonfinite"] == 2
    assert caplog.messages == ["metrics of this step are not finite: kl, live/tv"]


def test_a_step_that_explodes_logs_its_metrics():
    """Log ratios whose ratios are beyond float64, at a token that the clip stops."""
    case, s = CASES["row-local"], step()
    far = s["new"].clone()
    far[0] = s["old"][0] + 800
    batches = MicroBatches(window_of(case, EVERY), places(fours()))
    trained(batches, far, far)
    found = named(batches.measure())
    wrong = [name for name, number in found.items() if not math.isfinite(number)]
    assert "fibration/tv" in wrong and found["fibration/nonfinite"] == len(wrong)
