"""Every mistake is answered by one error that names the object, the rule, a witness and the next step."""

import math
import warnings

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from support import (
    SPECS,
    check,
    domain,
    operator,
    packed,
    prompt_group,
    refuses,
    spec,
    spread_batch,
    token,
    trajectory,
    turn,
)

import fibration
from fibration import (
    Attribute,
    BatchError,
    Decomposition,
    Fibration,
    FibrationError,
    Gate,
    Hierarchy,
    HierarchyIndexError,
    LawError,
    MarkovKernel,
    Objective,
    Parameter,
    ParameterError,
    SpecError,
    advantage,
    aggregate_gate,
    clip_gate,
    constant_normaliser,
    count,
    decomposition,
    density,
    exp,
    gated,
    identity_gate,
    load,
    log_ratio,
    proportional,
    residual,
    signed_log_ratio,
    strata,
    token_log_ratio,
    total,
    trajectory_mean,
    uniform,
)
from fibration.language.atoms import Stratum

DOMAIN = operator(spec("fiberpo_domain"))
FIBERPO = operator(spec("fiberpo"))
PPO = operator(spec("ppo"))
MASK = torch.tensor([[1, 1, 0], [1, 0, 0], [0, 0, 0]])
GOOD = {"prompt_group": ["p", "q", None], "domain": ["m", "c", None]}


# ---------------------------------------------------------------- labels


def labelled(**changes):
    labels = {**GOOD, **changes}
    return lambda: DOMAIN.index(mask=MASK, **{k: v for k, v in labels.items() if v is not None})


def test_the_good_labels_are_good():
    assert labelled()().size["domain"] == 2


LABELS = {
    "too few": (
        {"prompt_group": ["p", "q"]},
        dict(what=("'fiberpo_domain'", "2 labels for 'prompt_group'"), required="one per row, 3, or one per token, shape [3, 3]"),
    ),
    "too many": ({"domain": ["m"] * 4}, dict(what="4 labels for 'domain'", required="one per row, 3")),
    "missing": (
        {"domain": None},
        dict(what="no labels for 'domain'", required="domain=[one label per row]", found="labels for prompt_group", remedy="pass domain=..."),
    ),
    "unknown": (
        {"prompt_groups": ["p", "q", "r"]},
        dict(what="unknown label 'prompt_groups'", required="labels for domain, prompt_group", found="token → trajectory → prompt_group → domain"),
    ),
    "for tokens": ({"token": ["p", "q", "r"]}, dict(what="unknown label 'token'")),
    "none": ({"domain": ["m", None, "m"]}, dict(what=("row 1 has no label for 'domain'", "None"), required="exactly one domain")),
    "nan": ({"domain": ["m", math.nan, "m"]}, dict(what=("row 1 has no label for 'domain'", "nan"))),
    "unhashable": (
        {"prompt_group": [["p"], {"q": 1}, "r"]},
        dict(what=("the label ['p']", "'prompt_group'", "row 0", "not hashable"), required="hashable"),
    ),
    "unhashable too": ({"prompt_group": ["p", {"q": 1}, "r"]}, dict(what=("{'q': 1}", "row 1"))),
    "a text": ({"domain": "mcm"}, dict(what="the labels for 'domain' are a str", required="one label per row")),
    "a number": ({"domain": 3}, dict(what="the labels for 'domain' are a int")),
    "a set": ({"domain": {"m", "c", "d"}}, dict(what="the labels for 'domain' are a set")),
    "in two domains": (
        {"prompt_group": ["p", "p", "q"]},
        dict(
            what=("prompt_group 'p' lies", "two", "domain"), required="every prompt_group lies over exactly one domain",
            found=("'m'", "'c'"), remedy="make the label unique, for example the pair (domain, prompt_group)",
        ),
    ),
    "ragged": ({"prompt_group": [["p"] * 3, ["p"] * 2, ["p"] * 3]}, dict(what="the labels for 'prompt_group' are ragged", required="[3, 3]")),
    "a token without": (
        {"prompt_group": [["p", None, None], ["p"] * 3, ["p"] * 3]},
        dict(what=("token 1 has no label for 'prompt_group'",)),
    ),
    "rows that share a name": ({"trajectory": ["a", "a", "b"]}, dict(what="two rows are called 'a'", required="one name per trajectory")),
    "a trajectory in two groups": (
        {"prompt_group": [["p", "q", "x"], ["q"] * 3, ["q"] * 3]},
        dict(
            what=("trajectory 0 lies", "two", "prompt_group"), found="'p' at token [0, 0] and 'q' at token [0, 1]",
            remedy="give one prompt_group per trajectory",
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("which", LABELS)
def test_labels(which):
    changes, expected = LABELS[which]
    refuses(HierarchyIndexError, labelled(**changes), **expected)


def test_rows_that_are_elements_need_no_labels():
    """A stratum that the rows are, but that is not declared so: the remedy says how."""
    sample = Stratum("sample")
    h = Hierarchy(
        name="samples",
        fibrations=[Fibration(token, sample, uniform())],
        gates={sample: identity_gate(), token: identity_gate()},
        decomposition=log_ratio(),
        objective=trajectory_mean(),
    )
    refuses(HierarchyIndexError, lambda: operator(h).index(mask=MASK), remedy="declare Hierarchy(rows=sample)")


# ---------------------------------------------------------------- masks and offsets

INDEXES = {
    "nothing": ({}, dict(what=("index of 'fiberpo'", "neither mask nor offsets"), required="mask=[B, T] for padded tokens")),
    "twos": ({"mask": torch.tensor([[1, 2]])}, dict(what="the mask holds values other than 0 and 1", required="booleans, or 0 and 1", found="dtype int64, 2 at [0, 1]")),
    "fractions": ({"mask": torch.tensor([[0.5, 1.0]])}, dict(what="the mask holds values other than 0 and 1")),
    "nan": ({"mask": torch.tensor([[math.nan, 1.0]])}, dict(what="the mask holds values other than 0 and 1")),
    "negative": ({"mask": torch.tensor([[-1, 1]])}, dict(what="the mask holds values other than 0 and 1")),
    "text": ({"mask": [["1", "0"]]}, dict(what="the mask holds values other than 0 and 1", found="dtype <U1, '1' at [0, 0]")),
    "no value": ({"mask": [[True, None]]}, dict(what="the mask holds values other than 0 and 1", found="dtype object, None at [0, 1]")),
    "an object": ({"mask": {}}, dict(what="the mask holds values other than 0 and 1", found="dtype object, {}")),
    "complex": ({"mask": torch.ones(1, 2, dtype=torch.complex64)}, dict(what="the mask holds values other than 0 and 1", found="dtype complex64, (1+0j) at [0, 0]")),
    "more tokens than memory": ({"offsets": [0, 2**62]}, dict(what="the offsets end at 4611686018427387904", required="fit into memory")),
    "offsets beyond integers": ({"offsets": np.array([0, 2**63], np.uint64)}, dict(what="the offsets reach 9223372036854775808")),
    "attributes that are a number": ({"mask": MASK, "attributes": 5}, dict(what="attributes=5", required="a mapping", found="none")),
    "attributes that are a list": ({"mask": MASK, "attributes": [1, 2]}, dict(what="attributes=[1, 2]", required="a mapping")),
    "one dimension": ({"mask": torch.ones(4)}, dict(what="the mask has shape [4]", required="a packed [N] together with offsets")),
    "three dimensions": ({"mask": torch.ones(2, 2, 2)}, dict(what="the mask has shape [2, 2, 2]")),
    "a scalar": ({"mask": torch.tensor(1)}, dict(what="the mask has shape []")),
    "ragged mask": ({"mask": [[1, 1], [1]]}, dict(what="the mask: rows of several lengths")),
    "all masked": ({"mask": torch.zeros(2, 3)}, dict(what="the batch is empty", required="at least one unmasked token", found="shape [2, 3]", remedy="skip the update")),
    "no rows": ({"mask": torch.zeros(0, 3)}, dict(what="the batch is empty", found="shape [0, 3]")),
    "no columns": ({"mask": torch.zeros(3, 0)}, dict(what="the batch is empty")),
    "empty offsets": ({"offsets": [0, 0, 0]}, dict(what="the batch is empty", found="shape [0]")),
    "decreasing": ({"offsets": [0, 4, 2, 6]}, dict(what="the offsets do not delimit rows", required="starting at 0, never decreasing", found="offsets[2] is smaller than the one before")),
    "late start": ({"offsets": [1, 4]}, dict(what="the offsets do not delimit rows", found="they start at 1")),
    "negative start": ({"offsets": [-1, 4]}, dict(what="the offsets do not delimit rows", found="they start at -1")),
    "one offset": ({"offsets": [0]}, dict(what="offsets of shape [1]", required="[n + 1]")),
    "float offsets": ({"offsets": [0.0, 2.0]}, dict(what="offsets of shape [2] and dtype float64", required="whole numbers")),
    "boolean offsets": ({"offsets": [False, True]}, dict(what="dtype bool")),
    "two-dimensional offsets": ({"offsets": [[0, 2]]}, dict(what="offsets of shape [1, 2]")),
    "ragged offsets": ({"offsets": [[0, 2], [1]]}, dict(what="the offsets: rows of several lengths")),
    "lengths that disagree": ({"offsets": [0, 3], "mask": [1, 1]}, dict(what="the mask has shape [2]", required="[3], as the offsets say")),
    "unknown label": ({"mask": MASK, "domain": ["m"] * 3}, dict(what="unknown label 'domain'", required="labels for nothing", found="token → trajectory")),
    "unknown attribute": ({"mask": MASK, "attributes": {"weight": 1}}, dict(what="unknown attribute 'weight'", required="one of none")),
}  # fmt: skip


@pytest.mark.parametrize("which", INDEXES)
def test_indexes(which):
    arguments, expected = INDEXES[which]
    refuses(HierarchyIndexError, lambda: FIBERPO.index(**arguments), **expected)


# ---------------------------------------------------------------- attributes

weight = Attribute("weight", on=trajectory)
shift = Attribute("shift", on=token, positive=False)
WEIGHTED = operator(
    Hierarchy(
        name="weighted",
        fibrations=[
            Fibration(token, trajectory, uniform()),
            Fibration(trajectory, prompt_group, proportional(total(weight))),
        ],
        gates={prompt_group: identity_gate(), trajectory: identity_gate(), token: Gate(residual + 0 * shift)},
        decomposition=log_ratio(),
        objective=trajectory_mean(),
    )
)
FINE = {"weight": [1.0, 2.0], "shift": [0.0, -1.0, 2.0]}
ATTRIBUTES = {
    "missing": ({"shift": FINE["shift"]}, dict(what=("attribute 'weight' is not given",), required="attributes={'weight': one number per trajectory}")),
    "unknown": ({**FINE, "colour": [1]}, dict(what="unknown attribute 'colour'", required="one of weight, shift")),
    "zero": ({**FINE, "weight": [1.0, 0.0]}, dict(what="attribute 'weight' of trajectory 1 is 0", required="a finite number above 0", remedy="positive=False")),
    "negative": ({**FINE, "weight": [-1.0, 1.0]}, dict(what="attribute 'weight' of trajectory 0 is -1")),
    "nan": ({**FINE, "shift": [0.0, math.nan, 1.0]}, dict(what=("attribute 'shift' of token 1 is nan",), required="a finite number")),
    "infinite": ({**FINE, "weight": [math.inf, 1.0]}, dict(what="attribute 'weight' of trajectory 0 is inf")),
    "shape": ({**FINE, "weight": [1.0, 2.0, 3.0]}, dict(what="attribute 'weight' has shape [3]", required="one number per trajectory: [2]")),
    "label": ({**FINE, "weight": {0: 1.0}}, dict(what="attribute 'weight' has no value for trajectory [1]")),
    "text": ({**FINE, "weight": ["heavy", "light"]}, dict(what="attribute 'weight'", required="numbers")),
    "tokens by label": ({**FINE, "shift": {0: 1.0}}, dict(what="attribute 'shift' is a mapping, and token elements have no labels", required="one number per token: an array of the shape [3]")),
    "huge": ({**FINE, "weight": [10**400, 1]}, dict(what="attribute 'weight'", required="numbers that a float64 holds")),
    "too huge to print": ({**FINE, "weight": {0: 10**5000, 1: 1}}, dict(what="attribute 'weight'", required="numbers that a float64 holds")),
    "none by label": ({**FINE, "weight": {0: 1.0, 1: None}}, dict(what="attribute 'weight'")),
}  # fmt: skip


@pytest.mark.parametrize("which", ATTRIBUTES)
def test_attributes(which):
    given, expected = ATTRIBUTES[which]
    refuses(
        HierarchyIndexError,
        lambda: WEIGHTED.index(offsets=[0, 2, 3], prompt_group=["a", "a"], attributes=given),
        **expected,
    )


def test_a_stratum_may_be_called_self():
    me = Stratum("self")
    h = Hierarchy(
        name="selves",
        fibrations=[Fibration(token, trajectory, uniform()), Fibration(trajectory, me, uniform())],
        gates={me: identity_gate(), trajectory: identity_gate(), token: clip_gate(0.1)},
        decomposition=log_ratio(),
        objective=trajectory_mean(),
    )
    op = operator(h)
    index = op.index(offsets=[0, 1, 2], self=["a", "b"])
    assert index.labels["self"] == ("a", "b")
    assert op.gate(torch.zeros(2), index).tolist() == [1, 1]


def test_the_fine_attributes_are_fine():
    WEIGHTED.index(offsets=[0, 2, 3], prompt_group=["a", "a"], attributes=FINE)


# ---------------------------------------------------------------- parameters

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


# ---------------------------------------------------------------- tensors


def tensors(**changes):
    """Arguments of `loss` for a padded batch of FiberPO, some of them changed."""
    arguments = {
        "log_probs": torch.zeros(3, 3), "old_log_probs": torch.zeros(3, 3), "advantages": torch.ones(3),
        "index": FIBERPO.index(mask=MASK),
    }  # fmt: skip
    return {**arguments, **changes}


def poked(row, column, value, dtype=torch.float32):
    t = torch.zeros(3, 3, dtype=dtype)
    t[row, column] = value
    return t


BATCHES = {
    "nan": (
        {"log_probs": poked(0, 1, math.nan)},
        dict(what="log_probs of token [0, 1] of trajectory 0 is nan", required="finite values on every unmasked token", remedy="mask the token"),
    ),
    "inf": ({"log_probs": poked(1, 0, -math.inf)}, dict(what="log_probs of token [1, 0] of trajectory 1 is -inf")),
    "old nan": ({"old_log_probs": poked(1, 0, math.nan)}, dict(what="old_log_probs of token [1, 0] of trajectory 1 is nan")),
    "both infinite": (
        {"log_probs": poked(0, 0, -math.inf), "old_log_probs": poked(0, 0, -math.inf)},
        dict(what="log_probs of token [0, 0] of trajectory 0 is -inf"),
    ),
    "too far apart": (
        {"log_probs": poked(0, 0, 1.5e308, torch.float64), "old_log_probs": poked(0, 0, -1.5e308, torch.float64)},
        dict(what="the log ratio of token [0, 0] of trajectory 0 is inf"),
    ),
    "nan advantage": (
        {"advantages": torch.tensor([1.0, math.nan, math.nan])},
        dict(what="the advantage of token [1, 0] of trajectory 1 is nan", required="finite values"),
    ),
    "infinite advantage": ({"advantages": poked(0, 1, math.inf)}, dict(what="the advantage of token [0, 1] of trajectory 0 is inf")),
    "shape": ({"log_probs": torch.zeros(3, 4)}, dict(what="log_probs has shape [3, 4]", required="[3, 3], as the index was built for")),
    "old shape": ({"old_log_probs": torch.zeros(3)}, dict(what="old_log_probs has shape [3]", required="[3, 3]")),
    "flat": ({"log_probs": torch.zeros(9)}, dict(what="log_probs has shape [9]")),
    "advantages' shape": (
        {"advantages": torch.ones(2)},
        dict(what="advantages have shape [2]", required="[3, 3] per token, or [3] per row"),
    ),
    "advantages per column": ({"advantages": torch.ones(3, 1)}, dict(what="advantages have shape [3, 1]")),
    "integers": ({"log_probs": torch.zeros(3, 3, dtype=torch.int64)}, dict(what=("log_probs", "torch.int64"), required="float32, bfloat16, float16 or float64")),
    "booleans": ({"old_log_probs": torch.zeros(3, 3, dtype=torch.bool)}, dict(what=("old_log_probs", "torch.bool"))),
    "complex": ({"log_probs": torch.zeros(3, 3, dtype=torch.complex64)}, dict(what=("log_probs", "torch.complex64"))),
    "numpy": ({"log_probs": np.zeros((3, 3))}, dict(what=("log_probs", "ndarray"), required="a tensor")),
    "a list": ({"log_probs": [[0.0] * 3] * 3}, dict(what=("log_probs", "list"))),
    "none": ({"old_log_probs": None}, dict(what=("old_log_probs", "NoneType"))),
    "integer advantages": ({"advantages": torch.ones(3, dtype=torch.int32)}, dict(what=("advantages", "torch.int32"), required="a floating-point tensor")),
    "a number as advantages": ({"advantages": 1.0}, dict(what=("advantages", "float"))),
    "no advantages": ({"advantages": None}, dict(what=("advantage", "'fiberpo'"), required="advantages per token or per row", remedy="pass advantages=")),
    "another device": ({"log_probs": torch.zeros(3, 3, device="meta")}, dict(what="log_probs is on meta", required="cpu, where the index lies", remedy="device=")),
    "old on another device": ({"old_log_probs": torch.zeros(3, 3, device="meta")}, dict(what="old_log_probs is on meta")),
    "advantages on another device": ({"advantages": torch.ones(3, device="meta")}, dict(what="advantages are on meta", required="cpu")),
    "another hierarchy's index": (
        {"index": PPO.index(mask=MASK)},
        dict(what="the index was built for 'ppo'", required="an index of 'fiberpo'", remedy="this operator's index(...)"),
    ),
    "no index": ({"index": MASK}, dict(what="the index is a Tensor", required="operator.index(...)")),
}  # fmt: skip


@pytest.mark.parametrize("which", BATCHES)
def test_tensors(which):
    changes, expected = BATCHES[which]
    for call in (FIBERPO.loss, FIBERPO.coefficients):
        refuses(BatchError, lambda call=call: call(**tensors(**changes)), **expected)


def test_the_good_tensors_are_good():
    FIBERPO.loss(**tensors())


def test_an_index_with_other_numbers_is_another_hierarchy():
    """Same name, same strata; different default budgets."""
    other = spec("fiberpo").replace(gates={**spec("fiberpo").gates, token: clip_gate(0.5)})
    index = operator(other).index(mask=MASK)
    refuses(
        BatchError,
        lambda: FIBERPO.loss(**tensors(index=index)),
        what="built for 'fiberpo'",
        remedy="this operator's index",
    )


def test_non_finite_log_ratios_in_gate_and_levels():
    index = FIBERPO.index(offsets=[0, 2, 2, 3])
    x = torch.tensor([0.0, 0.0, math.nan])
    for call in (FIBERPO.gate, FIBERPO.levels):
        refuses(BatchError, lambda call=call: call(x, index), what="log_ratio of token [2] of trajectory 2 is nan")


@pytest.mark.parametrize("name", ["ppo", "grpo", "dapo", "dr_grpo", "gspo"])
def test_gates_that_read_the_advantage_ask_for_it(name):
    op = operator(spec(name))
    x = torch.zeros(2)
    index = op.index(offsets=[0, 2])
    for call in (op.gate, op.levels):
        refuses(
            BatchError, lambda call=call: call(x, index), what=("reads the advantage", f"'{name}'"),
            required="advantages per token or per row", remedy="pass advantages=...",
        )  # fmt: skip


def test_one_advantage_per_trajectory_for_gspo():
    op = operator(spec("gspo"))
    index = op.index(offsets=[0, 2, 4])
    x = torch.zeros(4)
    a = torch.tensor([1.0, 1.0, 2.0, 3.0])
    for call in (lambda: op.loss(x, x, a, index), lambda: op.gate(x, index, advantages=a)):
        refuses(
            BatchError, call, what=("the gate on trajectory reads its advantage", "vary within a trajectory"),
            required="one advantage per trajectory", found="of trajectory 1", remedy="pass advantages per row",
        )  # fmt: skip
    op.loss(x, x, torch.tensor([1.0, 1.0, 2.0, 2.0]), index)


def test_an_index_cannot_be_asked_for_what_lies_elsewhere():
    with pytest.raises(HierarchyIndexError, match="'trajectory' does not lie over 'nothing' in 'fiberpo'"):
        FIBERPO.index(mask=MASK).parent("trajectory", "nothing")


# ---------------------------------------------------------------- declarations


def two_levels(**changes):
    arguments = dict(
        name="mine",
        fibrations=[Fibration(token, trajectory, uniform())],
        gates={trajectory: identity_gate(), token: identity_gate()},
        decomposition=log_ratio(),
        objective=trajectory_mean(),
    )
    return lambda: Hierarchy(**{**arguments, **changes})


def same(name, **other):
    """Two parameters of one name on the two levels."""
    return {trajectory: clip_gate(Parameter(name)), token: clip_gate(Parameter(name, **other))}


BATCH_BUDGET = Parameter("C", per_channel=True, default=both)
SPEC_ERRORS = {
    "no gate on a stratum": (
        two_levels(gates={token: identity_gate()}),
        dict(what=("hierarchy 'mine' has no gate on trajectory",), required="one gate per stratum", remedy="identity_gate()"),
    ),
    "gate on an unknown stratum": (
        two_levels(gates={trajectory: identity_gate(), token: identity_gate(), domain: identity_gate()}),
        dict(what=("'mine' has a gate on domain, which no fibration joins",), required="token, trajectory"),
    ),
    "no gates": (two_levels(gates={}, fibrations=[]), dict(what="hierarchy 'mine' has no gate")),
    "two parameters of one name": (
        two_levels(gates=same("bound", default=0.5)),
        dict(what=("hierarchy 'mine' declares 'bound' twice, differently",), required="one declaration per name", found="default=0.5", remedy="reuse one object"),
    ),
    "two bounds of one name": (two_levels(gates=same("bound", upper=1)), dict(what="declares 'bound' twice", found="upper=1")),
    "two attributes of one name": (
        two_levels(gates={trajectory: Gate(residual * total(Attribute("w", on=token))), token: Gate(residual * Attribute("w", on=token, positive=False))}),
        dict(what="declares 'w' twice"),
    ),
    "a parameter called like a stratum": (two_levels(gates={trajectory: identity_gate(), token: clip_gate(Parameter("token"))}), dict(what="uses the name 'token' for two things")),
    "a parameter called like an attribute": (
        two_levels(gates={trajectory: identity_gate(), token: Gate(residual * Parameter("w") * Attribute("w", on=token))}),
        dict(what="uses the name 'w' for two things"),
    ),
    "gate of the wrong type": (two_levels(gates={trajectory: residual, token: identity_gate()}), dict(what=("hierarchy 'mine': the gate on trajectory is residual",), required="a Gate", remedy="Gate(expression)")),
    "gates of the wrong type": (two_levels(gates=[identity_gate()]), dict(what=("hierarchy 'mine'", "gates"), remedy="gates={token: identity_gate()}")),
    "gated by name": (two_levels(gates={"token": identity_gate(), trajectory: identity_gate()}), dict(what="the gated stratum is 'token'", required="a Stratum")),
    "fibration of the wrong type": (two_levels(fibrations=[(token, trajectory)]), dict(what="the fibration is (token, trajectory)", required="a Fibration", remedy="Fibration(token, trajectory")),
    "a lone fibration": (two_levels(fibrations=3), dict(what="the collection of fibrations is 3", remedy="fibrations=[")),
    "decomposition of the wrong type": (two_levels(decomposition=log_ratio), dict(what="the decomposition is", required="a Decomposition")),
    "objective of the wrong type": (two_levels(objective="mean"), dict(what="the objective is 'mean'", required="Objective", remedy="trajectory_mean()")),
    "kernel of the wrong type": (lambda: Fibration(token, trajectory, uniform), dict(what="a fibration's kernel is", required="a MarkovKernel", remedy="write uniform()")),
    "an expression as a kernel": (lambda: Fibration(token, trajectory, 1 / count(token)), dict(what="a fibration's kernel is 1/count(token)", remedy="MarkovKernel(weight)")),
    "a name as a source": (lambda: Fibration("token", trajectory, uniform()), dict(what="a fibration's source is 'token'", required="a Stratum")),
    "an unknown law": (two_levels(gives_up={"beauty": "why"}), dict(what=("hierarchy 'mine' gives up 'beauty'",), required="first_order")),
    "a foundation": (two_levels(gives_up={"markov": "why"}), dict(what="gives up 'markov', on which all the others rest", remedy="mend the hierarchy")),
    "without a reason": (two_levels(gives_up={"first_order": "  "}), dict(what="gives up 'first_order' without a reason")),
    "objective reads the residual": (two_levels(objective=constant_normaliser(residual)), dict(what=("hierarchy 'mine'", "objective", "residual"), required="counts")),
    "objective reads the advantage": (two_levels(objective=Objective(weight=advantage)), dict(what=("objective", "advantage"))),
    "objective reads tokens": (two_levels(objective=Objective(weight=1 / count(token, over=token))), dict(what=("objective", "count(token, over=token)"))),
    "objective per channel": (two_levels(objective=constant_normaliser(BATCH_BUDGET)), dict(what=("objective", "C"))),
    "objective of unknown strata": (two_levels(objective=Objective(weight=1 / count(domain))), dict(what=("objective", "count(domain)"))),
    "channels": (lambda: Decomposition({"up": residual}, exp(gated(""))), dict(what="a decomposition has the channels ('up',)", required="'+', '-'")),
    "half a split": (lambda: decomposition(plus=token_log_ratio, recovery=exp(gated("+"))), dict(what="density=, or both plus= and minus=")),
    "no density": (lambda: decomposition(recovery=exp(gated(""))), dict(what="density=, or both plus= and minus=")),
    "an unknown channel": (lambda: gated("up"), dict(what="'up'", required="'+' or '-'")),
    "an unknown channel's density": (lambda: density(trajectory, "up"), dict(what="'up'")),
    "density of a name": (lambda: density("trajectory"), dict(what="density takes a stratum, not 'trajectory'")),
    "count of a name": (lambda: count("token"), dict(what="count takes a stratum, not 'token'", remedy="strata(")),
    "count over a name": (lambda: count(token, over="trajectory"), dict(what="not 'trajectory'")),
    "total of a number": (lambda: total(3), dict(what="total takes an Attribute, not 3")),
    "total over a name": (lambda: total(Attribute("w", on=token), over="x"), dict(what="'x'")),
    "missing argument": (lambda: aggregate_gate(0.1), dict(what=("aggregate_gate", "rollback"), required="aggregate_gate(budget")),
    "unknown argument": (lambda: clip_gate(0.1, limit=1), dict(what=("clip_gate", "limit"), required="clip_gate(bound")),
    "argument of the wrong type": (lambda: clip_gate("0.1"), dict(what=("clip_gate: argument 'bound'", "'0.1'"))),
    "a stratum as a bound": (lambda: clip_gate(token), dict(what=("clip_gate: argument 'bound'", "Stratum"))),
    "an infinite bound": (lambda: clip_gate(math.inf), dict(what=("clip_gate: argument 'bound'", "inf"), required="finite numbers")),
    "a boolean gate": (lambda: Gate(True), dict(what=("a gate cannot be True",))),
    "a condition as a weight": (lambda: MarkovKernel(count(token) > 1), dict(what="a kernel weight cannot be the condition")),
    "a condition as an objective": (lambda: Objective(weight=count(token) > 1), dict(what="an objective's weight cannot be the condition")),
    "default below": (lambda: Parameter("p", default=-1), dict(what="parameter 'p': the default is -1")),
    "default at the bound": (lambda: Parameter("p", default=1, upper=1), dict(what="parameter 'p'", required="strictly inside (0, 1)")),
    "default per channel, undeclared": (lambda: Parameter("p", default=both), dict(what=("parameter 'p'", "per channel"), remedy="per_channel=True")),
    "default of one channel": (lambda: Parameter("p", default={"+": 1}, per_channel=True), dict(what=("parameter 'p'", "'+'"), required="one each for '+' and '-'")),
    "an empty range": (lambda: Parameter("p", lower=1, upper=1), dict(what="parameter 'p' has the empty range (1, 1)", required="lower < upper")),
    "a huge default": (lambda: Parameter("p", default=10**5000), dict(what="a parameter's default is a number")),
    "a huge default of a channel": (lambda: Parameter("p", default={"+": 10**400, "-": 1}, per_channel=True), dict(what="a parameter's default is a number")),
    "a text as a default of a channel": (lambda: Parameter("p", default={"+": "x", "-": 1}, per_channel=True), dict(what="a parameter's default is a number")),
    "a number as strata": (lambda: strata(3), dict(what="strata(3)", required="one or more different names")),
    "a text as a default": (lambda: Parameter("p", default="0.1"), dict(what="a parameter's default is a number")),
    "no truth value": (lambda: bool(residual < 1), dict(what="'residual < 1' has no truth value", remedy="where(")),
    "a scale that is a condition": (lambda: clip_gate(1).per(count(token) > 1), {}),
}  # fmt: skip


@pytest.mark.parametrize("which", SPEC_ERRORS)
def test_declarations(which):
    call, expected = SPEC_ERRORS[which]
    with pytest.raises(FibrationError) as caught:
        call()
    check(caught, type(caught.value), **expected)
    assert isinstance(caught.value, (SpecError, ParameterError))


NAMES = [
    "my stratum", "class", "lambda", "None", "True", "__import__", "_hidden", "a__b", "residual", "advantage", "token_log_ratio", "gated", "density",
    "count", "total", "where", "minimum", "maximum", "clip", "abs", "exp", "log", "sqrt", "source", "target", "torch", "objective", "coefficients",
    "log_ratio", "cotangent", "and", "or", "not", "", "1st", "a-b", "a.b", "a\n", "a" * 64, "é", "Ａ", "x;import os", "x)", "\x00", "a b",
]  # fmt: skip


@pytest.mark.parametrize("name", [*NAMES, 3, None, b"x", ["x"], 1.5], ids=repr)
def test_names(name):
    """Names become identifiers of generated code."""
    sample = Attribute("w", on=token)
    assert sample.name == "w"
    for what, make in [
        ("a stratum", Stratum), ("a parameter", Parameter), ("an attribute", lambda n: Attribute(n, on=token)),
        ("a hierarchy", lambda n: two_levels(name=n)()),
    ]:  # fmt: skip
        with pytest.raises(SpecError) as caught:
            make(name)
        check(
            caught,
            SpecError,
            what=(what, repr(name)),
            required="a letter, then letters, digits or underscores",
            remedy="choose another name",
        )


@pytest.mark.parametrize("name", ["a", "A1", "a_b", "token", "x" * 63, "Class", "self", "print", "batch", "none", "C_"])
def test_names_that_are_fine(name):
    assert Stratum(name).name == Parameter(name).name == name


def test_several_bad_names_at_once():
    with pytest.raises(SpecError, match="a stratum cannot be called 'my-stratum'"):
        strata("token my-stratum")


def test_fibrations_may_come_from_anywhere():
    """A generator is read once, and all of it."""
    h = two_levels(fibrations=(f for f in [Fibration(token, trajectory, uniform())]))()
    assert len(h.fibrations) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"gates": {trajectory: Gate(residual / 0), token: identity_gate()}},
        {"gates": {trajectory: Gate(residual + (residual - residual) / 0), token: identity_gate()}},
        {"fibrations": [Fibration(token, trajectory, MarkovKernel(1 / (count(token) * 0)))]},
        {"decomposition": log_ratio(scale=0)},
    ],
    ids=lambda c: next(iter(c)),
)
@pytest.mark.parametrize("gives_up", [{}, {"first_order": "why", "recovery": "why", "identity": "why"}], ids=len)
def test_a_division_by_zero_is_refused_before_it_runs(changes, gives_up):
    with pytest.raises((LawError, SpecError)) as caught:
        fibration.compile(two_levels(**changes, gives_up=gives_up)())
    assert "'mine'" in str(caught.value)


@pytest.mark.parametrize(
    "spec_text", ["nothing", "nothing.py", "nothing.json", "fiberpo.py:x", "", "../etc/passwd", "fiberpo "]
)
def test_loading_what_is_not_there(spec_text):
    with pytest.raises(SpecError) as caught:
        load(spec_text)
    assert "shipped" in str(caught.value) or "path.py" in str(caught.value)


def test_a_type_annotation_violation_is_pydantic_s():
    with pytest.raises(ValidationError):
        Hierarchy(
            name="mine", gates={token: identity_gate()}, decomposition=log_ratio(), objective=trajectory_mean(), gives_up={"first_order": 3}
        )  # fmt: skip


def test_errors_read_as_one_block():
    with pytest.raises(HierarchyIndexError) as caught:
        labelled(prompt_group=["p", "p", "q"])()
    lines = str(caught.value).splitlines()
    assert [line[:12] for line in lines] == ["index of 'fi", "  required: ", "  found:    ", "  make the l"]


def test_no_warning_anywhere():
    """A whole ordinary step, with every warning an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in SPECS:
            op = operator(spec(name))
            batch = spread_batch(per_row=True)
            layout = packed(op, batch)
            x = layout.tensor(batch.x).requires_grad_()
            op.loss(x, x.detach() * 0, layout.tensor(batch.advantages), layout.index).loss.backward()
            op.gate(x, layout.index, advantages=layout.tensor(batch.advantages)).sum().backward()


def test_an_unused_stratum_is_no_name():
    assert turn.name == "turn"
    with pytest.raises(SpecError):
        signed_log_ratio(scale=turn)
