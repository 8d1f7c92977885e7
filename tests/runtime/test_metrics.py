"""Metrics: shares that add up to 1, sums that add up over ranks, and values of a plain recount."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from support import SPECS, Batch, operator, packed, prompt_group, spec, spread_batch, token, trajectory

from fibration import (
    Fibration,
    Gate,
    Hierarchy,
    aggregate_gate,
    clip_gate,
    count,
    exp,
    identity_gate,
    log_prob,
    log_ratio,
    minimum,
    policies,
    residual,
    tanh,
    trajectory_mean,
    uniform,
    zero_gate,
)
from fibration.runtime.batch import Outputs
from fibration.runtime.calls import Given
from fibration.runtime.metrics import FEW, Extreme, Mean

old, rollout = policies("old rollout")
REGIMES = ("passed", "rolled_back", "zeroed", "limited", "attenuated")


def measured(op, batch):
    layout = packed(op, batch)
    zero = layout.tensor(np.zeros(batch.tokens))
    result = op.coefficients(
        layout.tensor(batch.x), zero, layout.tensor(batch.advantages), layout.index, batch.parameters
    )
    return result.metrics


def seen(op, batch):
    layout = packed(op, batch)
    advantages = layout.tensor(batch.advantages)
    levels = op.levels(layout.tensor(batch.x), layout.index, batch.parameters, advantages=advantages)
    return {k: (levels.residual[k].numpy(), levels.gated[k].numpy()) for k in levels.residual}, layout


def batch_for(name, scale=0.3, seed=0, lengths=(3, 1, 4, 2, 5, 2, 3, 4)):
    return spread_batch(lengths=lengths, seed=seed, scale=scale, per_row=name == "gspo")


def keys_of(hierarchy):
    """(metric prefix, stratum, channel)."""
    for s in hierarchy.order:
        for c in hierarchy.decomposition.channels:
            yield f"{s.name}/{c}" if c else s.name, s.name, c


def regime_counts(stratum, r, g, budget=None, k=None, epsilon=None):
    """A plain recount from what a gate of FiberPO read."""
    size = np.abs(r)
    if stratum == "token":
        return {"passed": (size <= epsilon).sum(), "limited": (size > epsilon).sum()}
    strip = (size > budget) & (size < (1 + 1 / k) * budget)
    return {
        "passed": (size <= budget).sum(),
        "rolled_back": strip.sum(),
        "zeroed": (size >= (1 + 1 / k) * budget).sum(),
    }


@pytest.mark.parametrize("scale", [0.05, 0.2, 0.5])
@pytest.mark.parametrize("name", ["fiberpo", "fiberpo_domain"])
def test_metrics_equal_a_plain_recount(name, scale):
    op = operator(spec(name))
    budgets = {"+": 0.11, "-": 0.07}
    values = {p: budgets for p in spec(name).parameters if p.startswith("C_")} | {"epsilon": 0.04}
    batch = replace(batch_for(name, scale), parameters=values)
    metrics = measured(op, batch)
    levels, layout = seen(op, batch)
    clipped = np.zeros(batch.tokens, bool)
    for key, stratum, channel in keys_of(spec(name)):
        r, g = levels[stratum, channel]
        k = None if stratum == "token" else layout.index.count("token", stratum).numpy()
        expected = regime_counts(stratum, r, g, budgets[channel], k, 0.04)
        for regime in REGIMES:
            assert float(metrics[f"{key}/{regime}"].sum) == expected.get(regime, 0), (key, regime)
        assert float(metrics[f"{key}/drift"]) == pytest.approx(np.abs(r).mean(), rel=1e-13)
        assert float(metrics[f"{key}/drift_max"]) == np.abs(r).max()
        if stratum == "token":
            clipped |= r != g
    assert float(metrics["token/clipped"]) == clipped.mean()
    gated = op.gate(layout.tensor(batch.x), layout.index, values).numpy()
    assert float(metrics["gated_ratio/max"]) == gated.max()
    assert float(metrics["gated_ratio/min"]) == gated.min()


@pytest.mark.parametrize("name", ["fiberpo_domain"])
def test_metrics_per_domain_equal_a_plain_recount(name):
    op = operator(spec(name))
    batch = batch_for(name, 0.3)
    metrics = measured(op, batch)
    levels, layout = seen(op, batch)
    index = layout.index
    for number, label in enumerate(index.labels["domain"]):
        for key, stratum, channel in keys_of(spec(name)):
            r, g = levels[stratum, channel]
            mine = (index.parent(stratum, "domain").numpy() if stratum != "domain" else np.arange(len(r))) == number
            suffix = f"[domain={label}]"
            assert float(metrics[f"{key}/passed{suffix}"]) == pytest.approx((r == g)[mine].mean(), rel=1e-15)
            assert float(metrics[f"{key}/drift{suffix}"]) == pytest.approx(np.abs(r)[mine].mean(), rel=1e-12)
            assert float(metrics[f"{key}/drift_max{suffix}"]) == np.abs(r)[mine].max()
            assert float(metrics[f"{key}/passed{suffix}"].count) == mine.sum()
        assert (
            float(metrics[f"token/clipped[domain={label}]"].count) == (index.parent("token", "domain") == number).sum()
        )


@pytest.mark.parametrize("name", SPECS)
def test_tv_and_kl_equal_numpy(name):
    """Means over trajectories of means over tokens: of |r - 1| (eq:dhat_traj, without a half) and of -log r."""
    op = operator(spec(name))
    batch = batch_for(name, lengths=(3, 0, 1, 4, 2))
    metrics = measured(op, batch)
    rows = [batch.x[batch.row == r] for r in range(5) if (batch.row == r).any()]
    assert float(metrics["tv"]) == pytest.approx(np.mean([np.abs(np.expm1(x)).mean() for x in rows]), rel=1e-13)
    assert float(metrics["kl"]) == pytest.approx(np.mean([-x.mean() for x in rows]), rel=1e-13)
    assert float(metrics["tv"].count) == float(metrics["kl"].count) == 4


@pytest.mark.parametrize("name", ["fiberpo_domain"])
def test_metrics_of_two_parts_add_up_to_the_whole(name):
    """Split by whole domains, so that no aggregate is cut: sums and counts add, extremes keep the more extreme."""
    op = operator(spec(name))
    batch = batch_for(name, 0.3)
    whole = measured(op, batch)
    domains = batch.labels["domain"]
    parts = [
        measured(op, batch.permuted([r for r, d in enumerate(domains) if d == label])[0]) for label in ("math", "code")
    ]
    for key, value in whole.items():
        if key.endswith("/pull"):  # of coefficients, whose μ counts the rows of the batch
            continue
        if "[" in key:
            label = key.partition("=")[2].rstrip("]")
            own = parts[("math", "code").index(label)][key.partition("[")[0]]
        else:
            own = parts[0][key] + parts[1][key]
        if isinstance(value, Mean):
            assert float(own.sum) == pytest.approx(float(value.sum), rel=1e-12, abs=1e-15)
            assert float(own.count) == float(value.count)
        else:
            assert float(own) == float(value)
    assert {k for k in whole if "[" not in k} == set(parts[0]) == set(parts[1])


def test_the_sum_of_two_means_is_the_mean_over_all_elements():
    a = Mean(torch.tensor(1.0).double(), torch.tensor(1.0).double())
    b = Mean(torch.tensor(0.0).double(), torch.tensor(3.0).double())
    assert float(a + b) == 0.25
    assert repr(a + b) == "0.25"
    assert math.isnan(float(Mean(torch.zeros(()), torch.zeros(()))))


def test_the_sum_of_two_extremes_is_the_more_extreme():
    high = [Extreme(torch.tensor(v), True) for v in (1.0, 3.0, 2.0)]
    low = [Extreme(torch.tensor(v), False) for v in (1.0, 3.0, -2.0)]
    assert float(high[0] + high[1] + high[2]) == 3
    assert float(low[0] + low[1] + low[2]) == -2
    assert repr(high[1]) == "3"


def three_levels(coarse, middle, fine):
    return Hierarchy(
        name="three",
        fibrations=[Fibration(token, trajectory, uniform()), Fibration(trajectory, prompt_group, uniform())],
        gates={prompt_group: coarse, trajectory: middle, token: fine},
        decomposition=log_ratio(scale=1 / count(token, over=trajectory)),
        objective=trajectory_mean(),
    )


GATES = {
    "identity": (identity_gate, lambda r: dict(passed=len(r))),
    "zero": (zero_gate, lambda r: dict(passed=(r == 0).sum(), zeroed=(r != 0).sum())),
    "half": (lambda: Gate(residual / 2), lambda r: dict(passed=(r == 0).sum(), attenuated=(r != 0).sum())),
    "tanh": (lambda: Gate(tanh(residual)), lambda r: dict(passed=(np.tanh(r) == r).sum(), attenuated=(np.tanh(r) != r).sum())),
    "clip": (lambda: clip_gate(0.05), lambda r: dict(passed=(np.abs(r) <= 0.05).sum(), limited=(np.abs(r) > 0.05).sum())),
    "flip": (lambda: Gate(-residual), lambda r: dict(passed=(r == 0).sum(), rolled_back=(r != 0).sum())),
    "roll": (
        lambda: aggregate_gate(0.05, rollback=1),
        lambda r: dict(
            passed=(np.abs(r) <= 0.05).sum(), rolled_back=((np.abs(r) > 0.05) & (np.abs(r) < 0.1)).sum(), zeroed=(np.abs(r) >= 0.1).sum()
        ),
    ),
}  # fmt: skip


@pytest.mark.sampled
@pytest.mark.parametrize("level", ["prompt_group", "trajectory", "token"])
@pytest.mark.parametrize("which", GATES)
def test_every_level_counts_its_regimes(which, level):
    """Constant regimes too: a gate that is the identity, or nothing, on a root of several elements."""
    make, expected = GATES[which]
    made = [
        make().per(count(trajectory)) if level == s == "prompt_group" else make() if level == s else identity_gate()
        for s in ("prompt_group", "trajectory", "token")
    ]
    if level == "token":
        made[2] = make().per(1 / count(token, over=trajectory))
    op = operator(three_levels(*made))
    batch = spread_batch(scale=0.15)
    metrics = measured(op, batch)
    levels, layout = seen(op, batch)
    r = levels[level, ""][0]
    counts = expected(r)
    for regime in REGIMES:
        assert float(metrics[f"{level}/{regime}"].sum) == counts.get(regime, 0), regime
        group = layout.index.parent(level, "prompt_group").numpy() if level != "prompt_group" else np.arange(len(r))
        for i, label in enumerate(layout.index.labels["prompt_group"]):
            share = metrics[f"{level}/{regime}[prompt_group={label}]"]
            assert float(share.sum) == expected(r[group == i]).get(regime, 0)
            assert float(share.count) == (group == i).sum()
    assert float(metrics[f"{level}/drift"].sum) == pytest.approx(np.abs(r).sum(), rel=1e-13)
    assert float(metrics[f"{level}/drift_max"]) == np.abs(r).max()


def test_many_roots_are_reported_in_one_metric():
    op = operator(three_levels(identity_gate(), identity_gate(), clip_gate(0.1)))
    rows = FEW + 1
    batch = Batch((1,) * rows, np.linspace(-1, 1, rows), np.ones(rows), {"prompt_group": list(range(rows))})
    metrics = measured(op, batch)
    assert not [k for k in metrics if "[" in k]
    few = Batch((1,) * FEW, np.linspace(-1, 1, FEW), np.ones(FEW), {"prompt_group": list(range(FEW))})
    assert len([k for k in measured(op, few) if k.startswith("token/clipped[")]) == FEW
    one = Batch((1,), np.ones(1), np.ones(1), {"prompt_group": ["only"]})
    assert not [k for k in measured(op, one) if "[" in k]


@pytest.mark.parametrize("name", SPECS)
def test_metrics_are_plain_numbers(name):
    op = operator(spec(name))
    metrics = measured(op, batch_for(name))
    for key, value in metrics.items():
        assert isinstance(value, (Mean, Extreme))
        tensors = [value.sum, value.count] if isinstance(value, Mean) else [value.value]
        for t in tensors:
            assert t.shape == ()
            assert t.dtype == torch.float64
            assert not t.requires_grad
        assert math.isfinite(float(value)), key
        assert "\n" not in key


def test_metrics_belong_to_the_caller():
    """Added up over ranks in place, as all_reduce does it, they change no later call."""
    op, batch = operator(spec("fiberpo_domain")), spread_batch()
    layout = packed(op, batch)
    zero = layout.tensor(np.zeros(batch.tokens))
    found = []
    for _ in range(2):
        args = layout.tensor(batch.x), zero, layout.tensor(batch.advantages), layout.index
        result = op.coefficients(*args)
        found.append((layout.read(result.values).tolist(), {k: float(m) for k, m in result.metrics.items()}))
        for m in result.metrics.values():
            for t in (m.sum, m.count) if isinstance(m, Mean) else (m.value,):
                t.mul_(3).add_(1)
    assert found[0] == found[1]


def test_a_call_may_leave_metrics_out():
    op = operator(spec("fiberpo"))
    batch = batch_for("fiberpo")
    layout = packed(op, batch)
    x, a = layout.tensor(batch.x), layout.tensor(batch.advantages)
    assert op.coefficients(x, x * 0, a, layout.index, metrics=False).metrics == {}
    assert op.loss(x, x * 0, a, layout.index, metrics=False).metrics == {}
    full = op.loss(x, x * 0, a, layout.index).metrics
    assert {k: float(v) for k, v in full.items()} == {k: float(v) for k, v in measured(op, batch).items()}


def test_metrics_of_weights_conditions_and_policies_equal_a_plain_recount():
    """Of two weights, one infinite where the token is dropped; every number from a plain recount, and `+` of two batches."""
    k = log_prob(old) - log_prob(rollout)
    h = Hierarchy(
        name="weighed",
        gates={token: identity_gate()},
        decomposition=log_ratio(),
        objective=trajectory_mean().weigh(exp(k)).weigh(2 - minimum(exp(k), 1)).keep(k < 0.3, normaliser="kept"),
    )
    op, generator = operator(h), np.random.default_rng(2)

    def measure(lengths):
        batch = spread_batch(lengths, seed=len(lengths))
        then = generator.uniform(-3, -0.5, batch.tokens)
        d = generator.normal(scale=0.4, size=batch.tokens)
        d[0] = 900.0
        layout = packed(op, batch)
        now, before, other, a = map(layout.tensor, (then + batch.x, then, then - d, batch.advantages))
        return d, op.coefficients(now, before, a, layout.index, policies={"rollout": other}).metrics

    (first, one), (second, two) = measure((3, 1, 4)), measure((2, 5))
    d = np.concatenate([first, second])
    metrics = {name: one[name] + two[name] for name in one}
    kept = d[d < 0.3]
    assert 0 < len(kept) < len(d) - 2
    with np.errstate(over="ignore"):
        expected = {
            "kept": len(kept) / len(d),
            "weight_1/mean": np.exp(kept).mean(),
            "weight_1/mean_square": np.exp(2 * kept).mean(),
            "weight_1/max": np.exp(kept).max(),
            "weight_2/mean": (2 - np.minimum(np.exp(kept), 1)).mean(),
            "weight_2/max": (2 - np.minimum(np.exp(kept), 1)).max(),
            "rollout/log_ratio": d.mean(),
            "rollout/kl": (np.expm1(d) - d).mean(),
        }
    for name, value in expected.items():
        assert float(metrics[name]) == pytest.approx(value, rel=1e-12), name
    plain = measured(operator(spec("ppo")), batch_for("ppo")).keys()
    assert not [name for name in plain if name.startswith(("kept", "weight"))]


def test_a_table_of_metrics_belongs_to_the_places_of_its_program():
    """Two programs of one loss may lay out their outputs differently, on one index."""
    op, batch = operator(spec("fiberpo_domain"), "c"), spread_batch()
    layout = packed(op, batch)
    given = [layout.tensor(v, torch.float32) for v in (batch.x, 0 * batch.x, batch.advantages)]
    tokens = {"log_probs": given[0], "old_log_probs": given[1]}
    outputs, _ = op.calls.call("evaluate", tokens, Given(layout.index, given[2], {}), torch.float32, metrics=True)
    places, work = outputs.places, outputs.work.clone()
    (first, rows), (start, _) = places.blocks["batch"], places.starts["batch"]
    work[start + first : start + first + rows] = outputs.block("batch").flip(0).reshape(-1)
    turned = {key: rows - 1 - i for key, i in places.rows["batch"].items()}
    other = Outputs(outputs.given, work, replace(places, rows={**places.rows, "batch": turned}))
    asked = op.calls.collector.asked(True)
    found = [op.calls.collector.collect("evaluate", o, layout.index, asked).scalars("") for o in (outputs, other)]
    assert found[0] == found[1]
