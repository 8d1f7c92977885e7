"""Values of parameters: in which forms they come, per element, and what is refused."""

import gc
import math
import weakref

import numpy as np
import pytest
import torch
from oracles.definition import exact
from support import domain, gated_ratio, operator, packed, refuses, spec, spread_batch, token, trajectory

from fibration import (
    Fibration,
    Hierarchy,
    Parameter,
    ParameterError,
    clip_gate,
    identity_gate,
    log_ratio,
    trajectory_mean,
    uniform,
)
from fibration.runtime import devices


def test_parameters_per_element():
    op = operator(spec("fiberpo_domain"))
    batch = spread_batch(scale=0.5)
    layout = packed(op, batch)
    from dataclasses import replace

    given_ = {
        "C_domain": {"math": {"+": 0.3, "-": 0.2}, "code": 0.01, "unused": 5},
        "C_prompt_group": {"a": 0.05, "b": 0.1, "c": {"+": 0.02, "-": 0.03}},
        "epsilon": 0.2,
    }
    batch = replace(batch, parameters=given_)
    ratio = gated_ratio(op, layout, batch)
    assert ratio == pytest.approx(exact(spec("fiberpo_domain"), batch).ratio, rel=1e-12)
    assert np.abs(ratio - gated_ratio(op, layout, replace(batch, parameters={"epsilon": 0.2}))).max() > 1e-3
    in_order = {**given_, "C_domain": torch.tensor([0.3, 0.01])}
    by_name = {**given_, "C_domain": {"math": 0.3, "code": 0.01}}
    found = [gated_ratio(op, layout, replace(batch, parameters=p)).tolist() for p in (in_order, by_name)]
    assert found[0] == pytest.approx(found[1], rel=1e-7)


@pytest.mark.parametrize("value", [0.5, torch.tensor(0.5), np.float64(0.5), np.float32(0.5), {"+": 0.5, "-": 0.5}])
def test_one_value_in_many_forms(value):
    op = operator(spec("fiberpo"))
    batch = spread_batch(scale=1.0)
    layout = packed(op, batch)
    x = layout.tensor(batch.x)
    expected = op.gate(x, layout.index, {"C_trajectory": 0.5})
    assert torch.equal(op.gate(x, layout.index, {"C_trajectory": value}), expected)


def test_a_parameter_may_vary_over_a_coarser_stratum():
    """`on=`: a token's clip range per domain."""
    epsilon = Parameter("epsilon", default=0.5, on=domain)
    h = Hierarchy(
        name="per_domain",
        fibrations=[Fibration(token, trajectory, uniform()), Fibration(trajectory, domain, uniform())],
        gates={token: clip_gate(epsilon), trajectory: identity_gate(), domain: identity_gate()},
        decomposition=log_ratio(),
        objective=trajectory_mean(),
    )
    op = operator(h)
    index = op.index(offsets=[0, 2, 4], domain=["m", "c"])
    x = torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64)
    gated = op.gate(x, index, {"epsilon": {"m": 0.25, "c": 0.75}}).log()
    assert gated.tolist() == pytest.approx([0.25, -0.25, 0.75, -0.75], rel=1e-14)


def test_bounds_belong_to_the_parameter():
    op = operator(spec("ppo"))
    index = op.index(offsets=[0, 1])
    one = torch.ones(1)
    for value in (1e-12, 1 - 1e-12):
        op.gate(one, index, {"epsilon_low": value}, advantages=one)


DOMAIN = operator(spec("fiberpo_domain"))
PPO = operator(spec("ppo"))
X = torch.zeros(3)
INDEX = DOMAIN.index(offsets=[0, 2, 3], prompt_group=["p", "q"], domain=["m", "c"])
both = {"+": 0.2, "-": 0.1}
PARAMETERS = {
    "unknown": ({"epsilom": 0.1}, dict(what=("'fiberpo_domain' has no parameter 'epsilom'",), required="C_domain")),
    "negative": ({"epsilon": -0.1}, dict(what=("parameter 'epsilon'", "-0.1"), required="strictly inside (0, inf)", remedy="the bounds are assumptions of the proofs")),
    "zero": ({"epsilon": 0}, dict(what="parameter 'epsilon': the value is 0", required="strictly inside (0, inf)")),
    "nan": ({"epsilon": math.nan}, dict(what="parameter 'epsilon': the value is nan", required="a finite number")),
    "inf": ({"epsilon": math.inf}, dict(what="parameter 'epsilon': the value is inf", required="a finite number")),
    "text": ({"epsilon": "0.1e"}, dict(what="parameter 'epsilon': the value is '0.1e'", required="a number")),
    "huge": ({"epsilon": 10**5000}, dict(what="parameter 'epsilon': the value is a whole number of 16610 bits", required="that a float64 holds")),
    "list": ({"epsilon": [0.1]}, dict(what="parameter 'epsilon': the value is [0.1]", required="a number")),
    "negative budget": ({"C_domain": {"+": -0.1, "-": 0.1}}, dict(what=("parameter 'C_domain': the value of channel '+' is -0.1",))),
    "zero budget": ({"C_trajectory": {"+": 0.1, "-": 0}}, dict(what=("parameter 'C_trajectory': the value of channel '-' is 0",))),
    "nan budget": ({"C_prompt_group": {"+": 0.1, "-": math.nan}}, dict(what=("'C_prompt_group'", "nan"))),
    "infinite budget": ({"C_domain": math.inf}, dict(what=("'C_domain'", "inf"))),
    "lacks a channel": ({"C_domain": {"+": 0.1}}, dict(what=("parameter 'C_domain': the value lacks a channel",), required="both '+' and '-'", found="channels '+'")),
    "lacks the other channel": ({"C_domain": {"-": 0.1}}, dict(what="lacks a channel", found="channels '-'")),
    "per channel, undeclared": ({"epsilon": both}, dict(what=("parameter 'epsilon'", "one number per channel"), required="not declared per channel")),
    "missing element": ({"C_domain": {"m": 0.1}}, dict(what=("parameter 'C_domain' has no value for the domain 'c'",), required="'m', 'c'", found="values for 'm'")),
    "missing group": ({"C_prompt_group": {"p": both, "r": both}}, dict(what=("no value for the prompt_group 'q'",), found="'p', 'r'")),
    "element lacks a channel": ({"C_domain": {"m": {"+": 0.1}, "c": 0.2}}, dict(what=("the value of domain 'm' lacks a channel",))),
    "element out of bounds": ({"C_domain": {"m": 0.1, "c": 0}}, dict(what=("the value of domain 'c' is 0",))),
    "element's channel": ({"C_domain": {"m": 0.1, "c": {"+": 0.1, "-": -2}}}, dict(what=("the value of domain 'c' of channel '-' is -2",))),
    "element is a text": ({"C_domain": {"m": 0.1, "c": "x"}}, dict(what=("the value of domain 'c' is 'x'",))),
    "empty": ({"C_domain": {}}, dict(what="'C_domain'")),
    "per element of tokens": ({"epsilon": {"m": 0.1, "c": 0.2}}, dict(what=("parameter 'epsilon' is given per element",), required="one number", found="'batch'", remedy="on=")),
    "tensor of the wrong shape": ({"C_domain": torch.tensor([0.1, 0.2, 0.3])}, dict(what="parameter 'C_domain' has shape [3]", required="one per domain: [2]")),
    "tensor out of bounds": ({"C_domain": torch.tensor([0.1, -0.2])}, dict(what=("parameter 'C_domain': the value of domain 1 is -0.2",))),
}  # fmt: skip


@pytest.mark.parametrize("which", PARAMETERS)
def test_parameters(which):
    given, expected = PARAMETERS[which]
    for call in (
        lambda: DOMAIN.gate(X, INDEX, given),
        lambda: DOMAIN.loss(X, X, torch.ones(2), INDEX, given),
        lambda: DOMAIN.coefficients(X, X, torch.ones(2), INDEX, given, metrics=False),
        lambda: DOMAIN.levels(X, INDEX, given),
    ):
        refuses(ParameterError, call, **expected)


@pytest.mark.parametrize("value", [1, 1.0, 1.5, torch.tensor(1.0)])
def test_a_lower_clip_stays_below_one(value):
    """`epsilon_low < 1` keeps the ratio positive: an assumption of the proof, so it is checked."""
    for name in ("ppo", "grpo", "dapo", "dr_grpo", "gspo"):
        op = operator(spec(name))
        one = torch.ones(1)
        refuses(
            ParameterError, lambda op=op, one=one: op.loss(one, one, one, op.index(offsets=[0, 1]), {"epsilon_low": value}),
            what="parameter 'epsilon_low'", required="strictly inside (0, 1)",
        )  # fmt: skip


def test_a_ceiling_lies_above_one():
    one = torch.ones(1)
    index = PPO.index(offsets=[0, 1])
    refuses(
        ParameterError, lambda: PPO.loss(one, one, one, index, {"ceiling": 1}), what="'ceiling'", required="(1, inf)"
    )


def test_a_parameter_without_default_needs_a_value():
    h = Hierarchy(
        name="bare",
        gates={token: clip_gate(Parameter("bound"))},
        decomposition=log_ratio(),
        objective=trajectory_mean(),
    )
    op = operator(h)
    refuses(
        ParameterError, lambda: op.gate(torch.ones(1), op.index(offsets=[0, 1])), what="parameter 'bound' of 'bare' has no value",
        required="a default or a value", remedy="pass parameters={'bound': ...}",
    )  # fmt: skip


# ---------------------------------------------------------------- on a device: one copy, and nothing stale


def gated(value, name="C_domain", op=DOMAIN, index=INDEX):
    return op.gate(torch.tensor([0.5, 0.25, -0.5]), index, {name: value}).tolist()


def test_values_that_change_are_seen():
    """Vectors are kept under their numbers: whatever changes, and wherever, a call gets its own."""
    values, tensor, nested = {"m": 0.1, "c": 0.2}, torch.tensor([0.1, 0.2]), {"m": {"+": 0.1, "-": 0.1}, "c": 0.2}
    before = [gated(v) for v in (values, tensor, nested)]
    values["m"] = 0.3
    tensor[0] = 0.3
    nested["m"]["+"] = 0.3
    after = [gated(v) for v in (values, tensor, nested)]
    assert after[0] == pytest.approx(after[1], rel=1e-6) == after[2]
    for one, other in zip(before, after, strict=True):
        assert one[0] != other[0]
        assert one[2] == other[2]
    tensor[1] = -1
    with pytest.raises(ParameterError, match="domain 1 is -1"):
        gated(tensor)
    elsewhere_ = DOMAIN.index(offsets=[0, 2, 3], prompt_group=["p", "q"], domain=["c", "m"])
    assert gated({"m": 0.1, "c": 0.3}) == gated({"m": 0.3, "c": 0.1}, index=elsewhere_)


def test_equal_numbers_of_other_shapes_are_not_mixed_up():
    """One number for each of two domains, and two for one of them, are the same numbers one after the other."""
    three = DOMAIN.index(offsets=[0, 1, 2, 3], prompt_group=["p", "q", "r"], domain=["m", "c", "d"])
    wide = {"C_domain": {"m": 0.5, "c": 0.25, "d": 0.125}, "epsilon": 0.125}
    for index in (INDEX, three, INDEX):
        assert gated(0.125, index=index) == gated({"m": 0.125, "c": 0.125, "d": 0.125}, index=index)
        assert len(DOMAIN.levels(torch.zeros(3), index, wide).gated["domain", "+"]) == index.size["domain"]


def test_a_tensor_on_a_device_is_read_back_once_until_it_changes(monkeypatch):
    monkeypatch.setattr(devices, "may_look", lambda device: False)
    reads = []
    to = torch.Tensor.to
    monkeypatch.setattr(torch.Tensor, "to", lambda t, *a, **k: (reads.append(k), to(t, *a, **k))[1])

    def found():
        reads.clear()
        results = gated(budgets), gated(scalar, "epsilon"), gated({"+": scalar, "-": 0.1})
        return results, sum("copy" in k for k in reads)

    budgets, scalar = torch.tensor([0.1, 0.2]), torch.tensor(0.05)
    first, copies = found()
    assert copies == 2
    assert found() == (first, 0)
    budgets.mul_(2)
    scalar.fill_(0.4)
    second, copies = found()
    assert copies == 2
    assert all(a != b for a, b in zip(first, second, strict=True))
    budgets.neg_()
    with pytest.raises(ParameterError, match=r"domain 0 is -0\.2"):
        gated(budgets)
    with torch.inference_mode():  # such tensors count no changes: they are read every time
        budgets = torch.tensor([0.1, 0.2])
        budgets.mul_(2)
        assert gated(budgets) == second[0]


def test_a_graph_is_recorded_with_parameters_that_are_there(monkeypatch):
    """What a graph reads lives as long as the index, however many other values come later."""
    index = DOMAIN.index(offsets=[0, 2, 3], prompt_group=["p", "q"], domain=["m", "c"])
    expected = gated(0.0703125, index=index)
    monkeypatch.setattr(devices, "is_recording", lambda: True)
    assert gated(0.0703125, index=index) == expected
    kept = [weakref.ref(v) for (word, *_), made in index._cache.items() if word == "keep" for v in made]
    assert kept
    for value in (0.0859375, {"m": 0.0859375, "c": 0.0703125}):
        refuses(
            ParameterError, lambda value=value: gated(value, index=index),
            what="that no call had before this CUDA graph", remedy="before the recording",
        )  # fmt: skip
    monkeypatch.undo()
    for i in range(100):
        gated((i + 1) / 1024)
    assert all(v() is not None for v in kept)
    index._cache.clear()
    gc.collect()
    assert not any(v() is not None for v in kept)  # and no longer: what is kept besides is bounded
