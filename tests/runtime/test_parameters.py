"""Values of parameters: their forms, values per element, and refusals."""

import functools
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
    count,
    identity_gate,
    log_ratio,
    signed_log_ratio,
    trajectory_mean,
    uniform,
)
from fibration.runtime import devices


def test_a_parameter_may_have_a_value_per_element():
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


# Domains in the order "b", "a", "c", of one trajectory each: its budgets, and how far it has moved on each channel.
BUDGETS = {"b": (0.7, 0.15), "a": (0.1, 0.2), "c": (0.25, 0.05)}
DRIFTS = [(0.625, 0.75), (0.375, 1.0), (1.25, 0.25)]
ROWS = np.array(list(BUDGETS.values()))
FORMS = {
    "channels by label": {label: {"+": up, "-": torch.tensor(down, dtype=torch.float64)} for label, (up, down) in BUDGETS.items()},
    "pairs by label": {"c": torch.from_numpy(ROWS[2]), "a": [0.1, np.float64(0.2)], "b": (0.7, 0.15), "else": 7},
    "a value for all others": {"a": (0.1, 0.2), "b": ROWS[0], None: (0.25, 0.05)},
    "some at their default": {"a": (0.1, 0.2), "c": {"+": 0.25, "-": 0.05}, "elsewhere": 5},
    "the rows of a tensor": dict(zip(BUDGETS, torch.from_numpy(ROWS), strict=True)),
    "labels in channels": {c: dict(zip(BUDGETS, column, strict=True)) for c, column in zip("+-", ROWS.T, strict=True)},
}  # fmt: skip


@functools.cache
def signed():
    length = count(token, over=trajectory)
    h = Hierarchy(
        name="budgets",
        fibrations=[Fibration(token, trajectory, uniform()), Fibration(trajectory, domain, uniform())],
        gates={
            domain: clip_gate(Parameter("C", per_channel=True, default={"+": 0.7, "-": 0.15})),
            trajectory: identity_gate(),
            token: identity_gate(),
        },
        decomposition=signed_log_ratio(scale=1 / length),
        objective=trajectory_mean(),
    )
    op = operator(h)
    return op, op.index(offsets=[0, 2, 4, 6], domain=list(BUDGETS))


def passed(value):
    """What the gate on domains lets pass: `[domain, channel]`."""
    op, index = signed()
    log_ratio = torch.tensor(DRIFTS, dtype=torch.float64) * torch.tensor([2.0, -2.0])
    gated = op.levels(log_ratio.flatten(), index, {"C": value}).gated
    return torch.stack([gated["domain", "+"], gated["domain", "-"]], 1).numpy()


@pytest.mark.parametrize("form", FORMS)
def test_a_parameter_has_a_value_per_element_and_channel_in_every_form(form):
    """One passes what it has, the others are limited to their own number, to the bit."""
    expected = np.minimum(DRIFTS, ROWS)
    assert (np.abs(passed(FORMS[form])) == expected).all()


def test_a_value_per_element_applies_to_both_channels():
    expected = np.minimum(DRIFTS, np.array([[0.7], [0.1], [0.25]]))
    assert (np.abs(passed({"b": 0.7, "a": 0.1, "c": 0.25})) == expected).all()


def test_an_empty_mapping_means_the_default():
    assert (passed({}) == passed({"+": 0.7, "-": 0.15})).all()
    assert (passed({None: 0.125}) == passed(0.125)).all()


IN_ORDER = [ROWS, torch.from_numpy(ROWS), ROWS.tolist(), ROWS[:, 0], (0.7, 0.1, 0.25), [], {"+": 0.1, "-": ROWS[:, 1]}]


@pytest.mark.parametrize("value", IN_ORDER, ids=lambda value: type(value).__name__)
def test_values_in_the_order_of_elements_are_refused(value):
    """The order of elements changes with every batch, and ranks have no common order."""
    refuses(
        ParameterError, lambda: passed(value), what="parameter 'C' is given in the order of elements",
        required="a number or {'+': ..., '-': ...}; that of each domain by label, {label: ...}",
        found="changes with every batch", remedy="label",
    )  # fmt: skip


@pytest.mark.parametrize("pair", [(0.1, 0.2), [0.1, 0.2], torch.tensor([0.1, 0.2])])
def test_two_values_for_two_elements_and_two_channels_are_ambiguous_and_refused(pair):
    op, _ = signed()
    index, x = op.index(offsets=[0, 1, 2], domain=["a", "b"]), torch.zeros(2)
    refuses(
        ParameterError, lambda: op.levels(x, index, {"C": pair}),
        what="in the order of elements", remedy="{'+': ..., '-': ...} for channels, {label: ...} for the labels of domain",
    )  # fmt: skip
    for clear in ({"a": pair, "b": 0.3}, {None: pair}):
        op.levels(x, index, {"C": clear})


def test_tensors_as_labels_of_parameters_are_refused():
    """Which equal no label, so that all would have the default."""
    op, _ = signed()
    index = op.index(offsets=[0, 1, 2], domain=torch.tensor([0, 1]))
    given = dict.fromkeys(torch.tensor([0, 1]), 0.1)
    refuses(
        ParameterError, lambda: op.levels(torch.zeros(2), index, {"C": given}),
        what="a tensor for a label", remedy="label.item()",
    )  # fmt: skip


def test_a_label_similar_to_one_of_the_batch_is_refused_as_a_typo():
    """Domains come and go from batch to batch, and some are numbered: neither is a slip."""
    op = operator(spec("fiberpo_domain"))
    layout = op.index(offsets=[0, 1], prompt_group=["p"], domain=["math_2"])
    for given in ({"math_1": 0.1}, {"code": 0.1}, {2: 0.1}):
        op.levels(torch.zeros(1), layout, {"C_domain": given})
    for slip in ("math2", "Math_2", "mth_2"):
        refuses(
            ParameterError, lambda slip=slip: op.levels(torch.zeros(1), layout, {"C_domain": {slip: 0.1}}),
            what="no value for the domain 'math_2'", found=f"there is no domain {slip!r}",
        )  # fmt: skip
    numbered = op.index(offsets=[0, 1], prompt_group=["p"], domain=[7])
    refuses(
        ParameterError, lambda: op.levels(torch.zeros(1), numbered, {"C_domain": {"7": 0.1}}), found="no domain '7'"
    )


@pytest.mark.parametrize("value", [0.5, torch.tensor(0.5), np.float64(0.5), np.float32(0.5), {"+": 0.5, "-": 0.5}])
def test_every_form_of_one_value_is_accepted(value):
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


def test_a_value_outside_the_bounds_of_a_parameter_is_refused():
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
ACCEPTED = "a number or {'+': ..., '-': ...}; that of each domain by label, {label: ...}"
PARAMETERS = {
    "unknown": ({"epsilom": 0.1}, dict(what=("'fiberpo_domain' has no parameter 'epsilom'",), required="C_domain")),
    "negative": ({"epsilon": -0.1}, dict(what=("parameter 'epsilon'", "-0.1"), required="strictly inside (0, inf)", remedy="the bounds are assumptions of the proofs")),
    "zero": ({"epsilon": 0}, dict(what="parameter 'epsilon': the value is 0", required="strictly inside (0, inf)")),
    "nan": ({"epsilon": math.nan}, dict(what="parameter 'epsilon': the value is nan", required="a finite number")),
    "inf": ({"epsilon": math.inf}, dict(what="parameter 'epsilon': the value is inf", required="a finite number")),
    "text": ({"epsilon": "0.1e"}, dict(what="parameter 'epsilon': the value is '0.1e'", required="a number")),
    "huge": ({"epsilon": 10**5000}, dict(what="parameter 'epsilon': the value is a whole number of 16610 bits", required="that a float64 holds")),
    "list": ({"epsilon": [0.1, 0.2]}, dict(what="parameter 'epsilon' is given in the order of elements: [0.1, 0.2]", required="a number", remedy="declare Parameter('epsilon', on=...)")),
    "a set": ({"C_domain": {0.1, 0.2}}, dict(what="parameter 'C_domain': the value is {0.1, 0.2}", required=ACCEPTED)),
    "a boolean": ({"epsilon": np.True_}, dict(what="parameter 'epsilon': the value has dtype bool")),
    "negative budget": ({"C_domain": {"+": -0.1, "-": 0.1}}, dict(what=("parameter 'C_domain': the value of channel '+' is -0.1",))),
    "zero budget": ({"C_trajectory": {"+": 0.1, "-": 0}}, dict(what=("parameter 'C_trajectory': the value of channel '-' is 0",))),
    "nan budget": ({"C_prompt_group": {"+": 0.1, "-": math.nan}}, dict(what=("'C_prompt_group'", "nan"))),
    "infinite budget": ({"C_domain": math.inf}, dict(what=("'C_domain'", "inf"))),
    "lacks a channel": ({"C_domain": {"+": 0.1}}, dict(what=("parameter 'C_domain': the value lacks a channel",), required="both '+' and '-'", found="channels '+'")),
    "lacks the other channel": ({"C_domain": {"-": 0.1}}, dict(what="lacks a channel", found="channels '-'")),
    "per channel, undeclared": ({"epsilon": both}, dict(what=("parameter 'epsilon'", "one number per channel"), required="not declared per channel")),
    "slip in a label": ({"C_domain": {"m": 0.1, "C": 0.2}}, dict(what=("parameter 'C_domain' has no value for the domain 'c'",), required="'m', 'c'", found=("values for 'm', 'C'", "there is no domain 'C'"), remedy="{'m': ..., 'C': ..., None: ...}")),
    "channels among labels": ({"C_domain": {"+": 0.1, "m": 0.1}}, dict(what="'C_domain' mixes channels and labels: '+' and 'm'")),
    "element's list": ({"C_domain": {"m": [0.1, 0.2, 0.3], "c": 0.1}}, dict(what="the value of domain 'm' is [0.1, 0.2, 0.3]")),
    "element's pair": ({"C_domain": {"m": (0.1, 0), "c": 0.1}}, dict(what="the value of domain 'm' of channel '-' is 0")),
    "element lacks a channel": ({"C_domain": {"m": {"+": 0.1}, "c": 0.2}}, dict(what=("the value of domain 'm' lacks a channel",))),
    "element out of bounds": ({"C_domain": {"m": 0.1, "c": 0}}, dict(what=("the value of domain 'c' is 0",))),
    "element's channel": ({"C_domain": {"m": 0.1, "c": {"+": 0.1, "-": -2}}}, dict(what=("the value of domain 'c' of channel '-' is -2",))),
    "element is a text": ({"C_domain": {"m": 0.1, "c": "x"}}, dict(what=("the value of domain 'c' is 'x'",))),
    "per element of tokens": ({"epsilon": {"m": 0.1, "c": 0.2}}, dict(what=("parameter 'epsilon' is given per element",), required="one number", found="'batch'", remedy="on=")),
    "infinite among others": ({"C_prompt_group": {"p": math.inf, "q": 1}}, dict(what=("the value of prompt_group 'p' is inf",))),
    "booleans": ({"C_domain": {"m": torch.tensor(True), "c": 1}}, dict(what="the value of domain 'm' has dtype torch.bool")),
    "complex": ({"C_domain": torch.tensor(1j)}, dict(what="the value has dtype torch.complex64")),
    "texts": ({"C_domain": {"m": np.array("0.1"), "c": 1}}, dict(what="the value of domain 'm' has dtype <U3")),
    "a boolean by label": ({"C_domain": {"m": 0.1, "c": True}}, dict(what=("the value of domain 'c' is True",))),
    "number by label": ({"C_domain": {"m": 0.1, "c": -0.3}}, dict(what=("the value of domain 'c' is -0.3",))),
}  # fmt: skip


@pytest.mark.sampled
@pytest.mark.parametrize("which", PARAMETERS)
def test_wrong_parameters_are_refused(which):
    given, expected = PARAMETERS[which]
    for call in (
        lambda: DOMAIN.gate(X, INDEX, given),
        lambda: DOMAIN.loss(X, X, torch.ones(2), INDEX, given),
        lambda: DOMAIN.coefficients(X, X, torch.ones(2), INDEX, given, metrics=False),
        lambda: DOMAIN.levels(X, INDEX, given),
    ):
        refuses(ParameterError, call, **expected)


@pytest.mark.sampled
@pytest.mark.parametrize("value", [1, 1.0, 1.5, torch.tensor(1.0)])
def test_epsilon_low_must_be_below_1(value):
    """`epsilon_low < 1` keeps the ratio positive: an assumption of the proof, so it is checked."""
    for name in ("ppo", "grpo", "dapo", "dr_grpo", "gspo"):
        op = operator(spec(name))
        one = torch.ones(1)
        refuses(
            ParameterError, lambda op=op, one=one: op.loss(one, one, one, op.index(offsets=[0, 1]), {"epsilon_low": value}),
            what="parameter 'epsilon_low'", required="strictly inside (0, 1)",
        )  # fmt: skip


def test_a_ceiling_must_be_above_1():
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
    labelled = Hierarchy(
        name="bare",
        fibrations=[Fibration(token, trajectory, uniform())],
        gates={trajectory: clip_gate(Parameter("bound")), token: identity_gate()},
        decomposition=log_ratio(),
        objective=trajectory_mean(),
    )
    index = operator(labelled).index(offsets=[0, 1, 2], trajectory=["a", "b"])
    operator(labelled).gate(torch.ones(2), index, {"bound": {"a": 0.1, None: 0.2}})
    refuses(
        ParameterError, lambda: operator(labelled).gate(torch.ones(2), index, {"bound": {"a": 0.1}}),
        what="no value for the trajectory 'b'", found="values for 'a'", remedy="{'a': ..., None: ...}",
    )  # fmt: skip
    refuses(
        ParameterError, lambda: op.gate(torch.ones(1), op.index(offsets=[0, 1])), what="parameter 'bound' of 'bare' has no value",
        required="a default or a value", remedy="pass parameters={'bound': ...}",
    )  # fmt: skip


# ---------------------------------------------------------------- on a device: one copy, and nothing stale


def gated(value, name="C_domain", op=DOMAIN, index=INDEX):
    return op.gate(torch.tensor([0.5, 0.25, -0.5]), index, {name: value}).tolist()


def test_a_call_uses_the_changed_values_of_parameters():
    """Vectors are kept under their numbers: whatever changes, and wherever, a call gets its own."""
    values, tensor, nested = {"m": 0.1, "c": 0.2}, torch.tensor([0.1, 0.2]), {"m": {"+": 0.1, "-": 0.1}, "c": 0.2}
    of_tensor = {"m": tensor[0], "c": tensor[1]}
    before = [gated(v) for v in (values, of_tensor, nested)]
    values["m"] = 0.3
    tensor[0] = 0.3
    nested["m"]["+"] = 0.3
    after = [gated(v) for v in (values, of_tensor, nested)]
    assert after[0] == pytest.approx(after[1], rel=1e-6) == after[2]
    for one, other in zip(before, after, strict=True):
        assert one[0] != other[0]
        assert one[2] == other[2]
    tensor[1] = -1
    with pytest.raises(ParameterError, match="domain 'c' is -1"):
        gated(of_tensor)
    elsewhere_ = DOMAIN.index(offsets=[0, 2, 3], prompt_group=["p", "q"], domain=["c", "m"])
    assert gated({"m": 0.1, "c": 0.3}) == gated({"m": 0.3, "c": 0.1}, index=elsewhere_)


def test_equal_values_of_different_shapes_are_different_parameters():
    """One number for each of two domains, and two for one of them, are the same numbers one after the other."""
    three = DOMAIN.index(offsets=[0, 1, 2, 3], prompt_group=["p", "q", "r"], domain=["m", "c", "d"])
    wide = {"C_domain": {"m": 0.5, "c": 0.25, "d": 0.125}, "epsilon": 0.125}
    for index in (INDEX, three, INDEX):
        assert gated(0.125, index=index) == gated({"m": 0.125, "c": 0.125, "d": 0.125}, index=index)
        assert len(DOMAIN.levels(torch.zeros(3), index, wide).gated["domain", "+"]) == index.size["domain"]


def test_a_tensor_on_a_device_is_read_back_once_until_it_changes(monkeypatch):
    monkeypatch.setattr(devices, "can_sync", lambda device: False)
    reads = []
    to = torch.Tensor.to
    monkeypatch.setattr(torch.Tensor, "to", lambda t, *a, **k: (reads.append(k), to(t, *a, **k))[1])

    def found():
        reads.clear()
        results = gated({None: budgets}), gated(scalar, "epsilon"), gated({"+": scalar, "-": 0.1})
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
    with pytest.raises(ParameterError, match=r"domain 'm' of channel '\+' is -0\.2"):
        gated({None: budgets})
    with torch.inference_mode():  # such tensors count no changes: they are read every time
        budgets = torch.tensor([0.1, 0.2])
        budgets.mul_(2)
        assert gated({None: budgets}) == second[0]


def test_a_cuda_graph_keeps_its_parameters_alive(monkeypatch):
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
            what="that no call before this CUDA graph had", remedy="before the recording",
        )  # fmt: skip
    monkeypatch.undo()
    for i in range(100):
        gated((i + 1) / 1024)
    assert all(v() is not None for v in kept)
    index._cache.clear()
    gc.collect()
    assert not any(v() is not None for v in kept)  # and no longer: what is kept besides is bounded
