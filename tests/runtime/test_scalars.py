"""The metrics that a call collects, and how they are logged: one copy from the device, plain floats."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from oracles.issued_operations import counted
from support import operator, packed, spec, spread_batch

from fibration import BatchError, exp, log_prob, policies, token_log_ratio, token_mean
from fibration.runtime.metrics import Extreme, Mean


def called(op, batch, metrics=True, call="coefficients"):
    layout = packed(op, batch)
    zero = layout.tensor(np.zeros(batch.tokens))
    x, a = layout.tensor(batch.x), layout.tensor(batch.advantages)
    return getattr(op, call)(x, zero, a, layout.index, batch.parameters, metrics=metrics)


def floats(metrics):
    return {k: float(m) for k, m in metrics.items()}


REST = {"gated_ratio/max", "gated_ratio/min", "tv", "kl"}
ASKED = {
    "trajectory": lambda k: k.startswith("trajectory/") and "[" not in k,
    "token": lambda k: k.startswith("token/") and "[" not in k,
    "domain": lambda k: k.startswith("domain/"),
    ("token", "domain"): lambda k: k.startswith(("token/", "domain/")),
    ("divergences", "gated_ratio"): lambda k: k in REST,
    "levels": lambda k: "[" not in k,
    ("levels", "domain"): lambda k: "[" not in k or k.startswith("domain/"),
    "all": lambda k: True,
    (): lambda k: False,
}


@pytest.mark.parametrize("backend", ["torch", "c"])
def test_selected_metrics_equal_those_of_all(backend):
    op, batch = operator(spec("fiberpo_domain"), backend), spread_batch(scale=0.3)
    every = floats(called(op, batch).metrics)
    assert len(every) == 4 * 2 * 7 * 3 + 4 + 3 + len(REST)
    for asked, belongs in ASKED.items():
        wanted = {k: v for k, v in every.items() if belongs(k)}
        given = asked if isinstance(asked, str) else list(asked)
        assert floats(called(op, batch, given).metrics) == wanted, asked
        assert floats(called(op, batch, given, "loss").metrics) == wanted, asked


def test_penalties_do_not_need_the_program_with_metrics(monkeypatch):
    """They are part of the objective: the program without metrics has them."""
    current, rollout = policies("current rollout")
    kl = 0.25 * (log_prob(current) - log_prob(rollout)) ** 2
    op = operator(spec("grpo").replace(penalties={"kl": kl}), "torch")
    batch = spread_batch(scale=0.3)
    layout = packed(op, batch)
    x, zero, a = map(layout.tensor, (batch.x, np.zeros(batch.tokens), batch.advantages))
    ran = []
    run = op.calls._evaluate
    monkeypatch.setattr(op.calls, "_evaluate", lambda program, *more: ran.append(program) or run(program, *more))
    whole = op.coefficients(x, zero, a, layout.index, policies={"rollout": zero}).metrics
    found = op.coefficients(x, zero, a, layout.index, policies={"rollout": zero}, metrics=["penalties"]).metrics
    assert ran == ["evaluate", "objective"]
    assert found.keys() == {"penalty/kl"}
    rows = [(batch.x[batch.row == r] ** 2).mean() for r in range(len(batch.lengths)) if batch.lengths[r]]
    assert float(found["penalty/kl"]) == pytest.approx(0.25 * np.mean(rows), rel=1e-12)
    assert float(found["penalty/kl"].sum) == float(whole["penalty/kl"].sum)
    assert float(found["penalty/kl"].count) == len(rows)


@pytest.mark.parametrize("wrong", ["tokens", ["token", "prompt"], "weights", 1, None, ["token", 3], {"token": True}])
def test_an_unknown_set_of_metrics_raises_and_lists_the_sets(wrong):
    op, batch = operator(spec("fiberpo")), spread_batch()
    with pytest.raises(BatchError) as error:
        called(op, batch, wrong)
    text = str(error.value)
    assert "'trajectory', 'token', 'gated_ratio', 'divergences', 'levels', 'all'" in text
    assert "'weights'" not in text.partition("required")[2]


def test_scalars_has_a_float_for_every_metric_and_the_loss():
    op, batch = operator(spec("fiberpo_domain"), "torch"), spread_batch(scale=0.3)
    result = called(op, batch, call="loss")
    found = result.scalars("train/")
    assert found["train/loss"] == float(result.loss)
    expected = {f"train/{k}": float(m) for k, m in result.metrics.items()}
    assert {k: v for k, v in found.items() if k != "train/loss"} == expected
    assert all(type(v) is float for v in found.values())
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    plain = called(op, batch, metrics=False)
    assert plain.scalars() == {"objective": float(plain.objective)}


def test_scalars_takes_one_copy_from_the_device(monkeypatch):
    op, batch = operator(spec("fiberpo_domain"), "torch"), spread_batch(scale=0.3)
    result = called(op, batch, call="loss")
    reads = []
    tolist = torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda self: reads.append(len(self)) or tolist(self))
    monkeypatch.setattr(torch.Tensor, "__float__", lambda self: pytest.fail("a number by itself"))
    monkeypatch.setattr(torch.Tensor, "item", lambda self: pytest.fail("a number by itself"))
    assert len(result.scalars()) > 170
    assert len(reads) == 1


def test_scalars_leaves_out_metrics_without_elements():
    """Of a domain whose rows have no image tokens, means are NaN and maxima -inf: neither is a number to draw."""
    op = operator(spec("fiberpo_modal"))
    batch = spread_batch()
    layout = packed(op, batch, image_token=np.zeros(batch.tokens, bool))
    x, zero, a = map(layout.tensor, (batch.x, np.zeros(batch.tokens), batch.advantages))
    result = op.coefficients(x, zero, a, layout.index)
    lacking = {k for k, m in result.metrics.items() if not math.isfinite(float(m))}
    assert lacking and all(k.startswith("image_token/") for k in lacking)
    assert result.scalars().keys() == {"objective", *result.metrics} - lacking


@pytest.mark.parametrize("metric", [Mean(torch.tensor(1.0), torch.tensor(3.0)), Extreme(torch.tensor(1 / 3), True)])
def test_a_metric_formats_as_a_number(metric):
    assert f"{metric:.3f}" == "0.333"
    assert f"{metric:>8.2%}" == "  33.33%"
    assert f"{metric}" == repr(metric) == "0.333333"


def test_a_metric_reads_the_memory_that_a_cuda_graph_rewrites():
    """A CUDA graph that is replayed writes there: what was handed out before says the new numbers."""
    weighed = token_mean().keep(token_log_ratio <= 0.2).weigh(exp(token_log_ratio))
    op, batch = operator(spec("ppo").replace(name="keeps", objective=weighed), "c"), spread_batch(scale=0.3)
    result = called(op, batch)
    metrics, before = result.metrics, {}
    for name, m in metrics.items():
        before[name] = [float(t) for t in vars(m).values() if isinstance(t, torch.Tensor)]
    result.measured.numbers.mul_(2)
    for name, m in metrics.items():
        number, *count = [float(t) for t in vars(m).values() if isinstance(t, torch.Tensor)]
        assert number == 2 * before[name][0]
        changes = name.startswith("weight")  # their count, of the kept tokens, is computed in each call
        assert count == [(2 if changes else 1) * n for n in before[name][1:]], name


def test_every_metric_has_its_own_memory():
    """Added up over ranks in place, one after the other: no count is added up twice."""
    weighed = spec("fiberpo_domain").objective.keep(token_log_ratio <= 0.2).weigh(exp(token_log_ratio))
    op = operator(spec("fiberpo_domain").replace(name="keeps", objective=weighed), "c")
    metrics = called(op, spread_batch(scale=0.3)).metrics
    tensors = [t for m in metrics.values() for t in ((m.sum, m.count) if isinstance(m, Mean) else (m.value,))]
    assert len({t.data_ptr() for t in tensors}) == len(tensors)


@pytest.mark.sampled
@pytest.mark.parametrize(("name", "most"), [("ppo", 4), ("gspo", 10), ("fiberpo_domain", 10)])
def test_metrics_take_a_few_operations(name, most):
    """However many they are: what a program computed is taken and named, once it is read."""
    op, batch = operator(spec(name), "c"), spread_batch(scale=0.3, per_row=name == "gspo")
    layout = packed(op, batch)
    x, zero, a = map(layout.tensor, (batch.x, np.zeros(batch.tokens), batch.advantages))
    seen = []
    for metrics, read in ((False, False), (True, False), (True, True)):
        op.coefficients(x, zero, a, layout.index, metrics=metrics)
        with pytest.MonkeyPatch.context() as patch, counted(patch, "cpu") as issued:
            found = op.coefficients(x, zero, a, layout.index, metrics=metrics)
            _ = found.measured.numbers if read else None
        seen.append(issued.work.total())
    assert seen[0] == seen[1] < seen[2] <= seen[1] + most, seen
