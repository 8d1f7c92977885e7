"""Indices against ones written by hand: masks, offsets, labels and attributes, in every accepted form."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from support import SPECS, coefficients, operator, packed, padded, spec, spread_batch, token, trajectory, turn

import fibration
from fibration import (
    Attribute,
    BatchError,
    Fibration,
    Gate,
    Hierarchy,
    HierarchyIndexError,
    MarkovKernel,
    Objective,
    Parameter,
    clip_gate,
    constant_normaliser,
    count,
    identity_gate,
    log_ratio,
    proportional,
    residual,
    token_mean,
    total,
    trajectory_mean,
    uniform,
)


def test_an_index_equals_one_written_by_hand():
    op = operator(spec("fiberpo_domain"))
    mask = torch.tensor([[1, 1, 0], [0, 0, 0], [0, 1, 1], [1, 0, 0]])
    index = op.index(mask=mask, prompt_group=["q", "skipped", "p", "q"], domain=["m", None, "c", "m"])
    assert index.shape == (4, 3)
    assert index.positions.tolist() == [0, 1, 7, 8, 9]
    assert dict(index.size) == {"token": 5, "trajectory": 3, "prompt_group": 2, "domain": 2, "batch": 1}
    assert index.labels["prompt_group"] == ("q", "p")
    assert index.labels["domain"] == ("m", "c")
    assert index.labels["trajectory"] == (0, 2, 3)
    assert index.parent("token", "trajectory").tolist() == [0, 0, 1, 1, 2]
    assert index.parent("trajectory", "prompt_group").tolist() == [0, 1, 0]
    assert index.parent("token", "domain").tolist() == [0, 0, 1, 1, 0]
    assert index.parent("token", "batch").tolist() == [0] * 5
    assert index.count("token", "domain").tolist() == [3, 2]
    assert index.count("trajectory", "prompt_group").tolist() == [2, 1]
    assert index.count("prompt_group", "domain").tolist() == [1, 1]
    assert index.count("trajectory", "batch").tolist() == [3]
    assert index.describe_token(2) == "token [2, 1] of trajectory 2"
    keyed = op.index(offsets=[0, 0, 1], trajectory=["a", "b"], prompt_group=["p", "p"], domain=["m", "m"])
    assert keyed.describe_token(0) == "token [0] of row 1 (trajectory 'b')"
    assert "5 token" in repr(index)


@pytest.mark.parametrize(
    "mask",
    [
        torch.tensor([[True, False], [True, True]]),
        torch.tensor([[1, 0], [1, 1]]),
        torch.tensor([[1.0, 0.0], [1.0, 1.0]]),
        torch.tensor([[1.0, 0.0], [1.0, 1.0]], dtype=torch.bfloat16),
        torch.tensor([[1.0, 0.0], [1.0, 1.0]], dtype=torch.float16, requires_grad=True),
        np.array([[True, False], [True, True]]),
        [[1, 0], [1, 1]],
        torch.tensor([[1, 1], [0, 1]]).t(),
    ],
    ids=lambda m: f"{type(m).__name__} {getattr(m, 'dtype', '')}",
)
def test_every_form_of_mask_is_accepted(mask):
    index = operator(spec("ppo")).index(mask=mask)
    assert index.positions.tolist() == [0, 2, 3]
    assert index.row_of_token.tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    "offsets", [[0, 1, 1, 3], torch.tensor([0, 1, 1, 3], dtype=torch.int32), np.array([0, 1, 1, 3])]
)
def test_every_form_of_offsets_is_accepted(offsets):
    index = operator(spec("ppo")).index(offsets=offsets)
    assert index.shape == (3,)
    assert index.n_rows == 3
    assert index.row_of_token.tolist() == [0, 1, 1]
    assert index.describe_token(1) == "token [1] of trajectory 2"
    masked = operator(spec("ppo")).index(offsets=offsets, mask=torch.tensor([1, 0, 1]))
    assert masked.positions.tolist() == [0, 2]


def test_rows_may_be_named():
    op = operator(spec("fiberpo"))
    index = op.index(offsets=[0, 2, 3], trajectory=["first", "second"])
    assert index.labels["trajectory"] == ("first", "second")
    x = torch.tensor([0.3, 0.3, 0.3])
    wide = op.gate(x, index, {"C_trajectory": {"first": 1.0, "second": {"+": 0.1, "-": 0.2}}, "epsilon": 0.5})
    assert wide[:2].tolist() == pytest.approx([np.exp(0.3)] * 2, rel=1e-6)
    assert wide[2].item() < np.exp(0.2)


def test_per_row_and_per_token_labels_agree():
    op = operator(spec("fiberpo_domain"))
    batch = spread_batch()
    per_row = packed(op, batch)
    per_token = op.index(
        offsets=[0, *np.cumsum(batch.lengths).tolist()],
        **{k: [v[r] for r in batch.row] for k, v in batch.labels.items()},
    )
    for edge, parent in per_row.index.parents.items():
        assert per_token.parents[edge].tolist() == parent.tolist()


def test_with_as_many_tokens_as_rows_labels_are_read_by_the_stratum():
    """Labels above the rows are read by row, below them by token; advantages that could be either are refused."""
    op = operator(spec("fiberpo_domain"))
    index = op.index(offsets=[0, 2, 3, 3], prompt_group=["a", "b", "c"], domain=["m", "m", "m"])
    assert index.parent("token", "prompt_group").tolist() == [0, 0, 1]
    x, a = torch.zeros(3), torch.tensor([1.0, 2.0, 3.0])
    with pytest.raises(BatchError, match="may be per token or per row") as caught:
        op.loss(x, x, a, index)
    assert "leave the rows without tokens out" in caught.value.remedy
    op.loss(x, x, torch.ones(3), index)
    plain = op.index(offsets=[0, 1, 2, 3], prompt_group=["a", "b", "c"], domain=["m", "m", "m"])
    op.loss(x, x, a, plain)
    turns = Hierarchy(
        name="turns",
        fibrations=[Fibration(token, turn, uniform()), Fibration(turn, trajectory, uniform())],
        gates={trajectory: identity_gate(), turn: identity_gate(), token: identity_gate()},
        decomposition=log_ratio(),
        objective=trajectory_mean(),
    )
    index = operator(turns).index(offsets=[0, 2, 3, 3], turn=["u", "v", "w"])
    assert index.parent("token", "turn").tolist() == [0, 1, 2]
    assert index.parent("turn", "trajectory").tolist() == [0, 0, 1]


def test_advantages_per_row_and_per_token_agree():
    for name in SPECS:
        op = operator(spec(name))
        batch = spread_batch(per_row=True)
        layout = padded(op, batch)
        first = [batch.advantages[np.flatnonzero(batch.row == r)[0]] for r in range(6)]
        zero = layout.tensor(np.zeros(batch.tokens))
        a = op.coefficients(layout.tensor(batch.x), zero, layout.tensor(batch.advantages), layout.index)
        b = op.coefficients(layout.tensor(batch.x), zero, torch.tensor(first, dtype=torch.float64), layout.index)
        assert torch.equal(a.values, b.values)


def test_a_stratum_below_the_rows_takes_a_label_per_token():
    """token → turn → trajectory."""
    h = Hierarchy(
        name="turns",
        fibrations=[Fibration(token, turn, uniform()), Fibration(turn, trajectory, proportional(count(token)))],
        gates={trajectory: identity_gate(), turn: clip_gate(0.125).per(count(token)), token: identity_gate()},
        decomposition=log_ratio(),
        objective=trajectory_mean(),
    )
    op = operator(h)
    x = torch.tensor([1.0, 1.0, 0.0, 0.0, -0.5], dtype=torch.float64)
    turns = [("a", 0), ("a", 0), ("a", 1), ("a", 1), ("b", 0)]
    gated = op.gate(x, op.index(offsets=[0, 4, 5], turn=turns), {})
    assert gated.log().tolist() == pytest.approx([0.625, 0.625, 0.375, 0.375, -0.5], rel=1e-14)
    padded_index = op.index(mask=[[1, 1, 1, 1], [0, 0, 1, 0]], turn=[turns[:4], [None, None, ("b", 0), None]])
    again = op.gate(torch.tensor([[1.0, 1, 0, 0], [9, 9, -0.5, 9]], dtype=torch.float64), padded_index)
    assert again[0].tolist() == gated[:4].tolist()
    assert again[1].tolist() == [1.0, 1.0, gated[4].item(), 1.0]


def test_kernels_gates_and_objectives_read_attributes():
    """A weighted mean of log ratios per trajectory, by hand."""
    weight = Attribute("weight", on=token)
    bonus = Attribute("bonus", on=trajectory, positive=False)
    h = Hierarchy(
        name="weighted",
        fibrations=[Fibration(token, trajectory, MarkovKernel(weight / total(weight, over=trajectory)))],
        gates={trajectory: Gate(residual * (1 + bonus)), token: identity_gate()},
        decomposition=log_ratio(scale=weight / total(weight, over=trajectory)),
        objective=Objective(weight=(1 + bonus) / count(token)),
    )
    op = operator(h)
    x = np.array([0.5, -0.25, 0.125])
    w = np.array([1.0, 3.0, 2.0])
    index = op.index(offsets=[0, 2, 3], attributes={"weight": w, "bonus": [0.5, -0.25]})
    mean = np.array([(0.5 * 1 - 0.25 * 3) / 4, 0.125])
    row = np.array([0, 0, 1])
    expected = x + (mean * [0.5, -0.25])[row]
    assert op.gate(torch.tensor(x), index).log().tolist() == pytest.approx(expected.tolist(), rel=1e-14)
    a = np.array([1.0, 2.0, -1.0])
    objective = float(op.coefficients(torch.tensor(x), torch.zeros(3).double(), torch.tensor(a), index).objective)
    assert objective == pytest.approx((np.array([1.5 / 2, 1.5 / 2, 0.75]) * np.exp(expected) * a).sum(), rel=1e-14)
    by_name = op.index(
        offsets=[0, 2, 3], attributes={"weight": w, "bonus": {"a": 0.5, "b": -0.25}}, trajectory=["a", "b"]
    )
    assert op.gate(torch.tensor(x), by_name).tolist() == op.gate(torch.tensor(x), index).tolist()
    of_rows = [index.total(weight, "trajectory") for _ in range(2)]
    assert of_rows[0].tolist() == [4, 2]
    assert of_rows[0] is of_rows[1]  # every micro-batch reads it without a copy to the device
    # one number per row of the batch, as for advantages, also for rows without tokens, which are no elements
    with_gaps = op.index(offsets=[0, 0, 2, 2, 3], attributes={"weight": w, "bonus": [9.0, 0.5, 9.0, -0.25]})
    assert op.gate(torch.tensor(x), with_gaps).tolist() == op.gate(torch.tensor(x), index).tolist()


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("objective", "weights"),
    [
        (trajectory_mean(), lambda n, rows: 1 / (rows * n)),
        (token_mean(), lambda n, rows: np.full(len(n), 1 / len(n))),
        (constant_normaliser(8), lambda n, rows: np.full(len(n), 1 / (8 * rows))),
        (constant_normaliser(Parameter("length", default=16)), lambda n, rows: np.full(len(n), 1 / (16 * rows))),
        (constant_normaliser(count(token)), lambda n, rows: 1 / (rows * n)),
        (Objective(weight=1 / count(token) ** 2), lambda n, rows: 1 / n**2),
    ],
    ids=lambda v: repr(v) if isinstance(v, Objective) else "",
)
@pytest.mark.parametrize("levels", [1, 2])
def test_objectives_weigh_tokens_as_declared(objective, weights, levels):
    """By hand, with an empty row that does not count."""
    gates = {token: identity_gate(), trajectory: identity_gate()}
    fibrations = [Fibration(token, trajectory, uniform())]
    if levels == 1:
        fibrations, gates = [], {token: identity_gate()}
    h = Hierarchy(name="weighing", fibrations=fibrations, gates=gates, decomposition=log_ratio(), objective=objective)
    batch = spread_batch(lengths=(3, 0, 1, 4))
    op = operator(h)
    n = np.array(batch.lengths)[batch.row].astype(float)
    values, j = coefficients(op, padded(op, batch), batch)
    expected = weights(n, 3) * batch.advantages * np.exp(batch.x)
    assert values == pytest.approx(expected, rel=1e-12)
    assert j == pytest.approx(expected.sum(), rel=1e-12)


def test_an_index_may_be_used_again():
    op = operator(spec("fiberpo_domain"))
    batch = spread_batch()
    layout = packed(op, batch)
    first = coefficients(op, layout, batch)[0]
    coefficients(op, layout, batch.with_x(-batch.x))
    assert coefficients(op, layout, batch)[0].tolist() == first.tolist()
    other = fibration.compile(fibration.load("fiberpo_domain"), backend="torch")
    assert coefficients(other, layout, batch)[0].tolist() == first.tolist()


def by_definition(labels):
    """Numbers in the order in which labels first appear, one after the other."""
    numbers = {}
    return [numbers.setdefault(label, len(numbers)) for label in labels], tuple(numbers)


@pytest.mark.parametrize(
    "labels",
    [
        ["b", "a", "b", "c", "a"],
        [1, True, 1.0, 0, False, "1"],
        [(1, "a"), (1, "b"), (1, "a")],
        np.array([7, 3, 7, -2, 3]),
        np.array([2**62, -(2**62), 2**62, 0]),
        np.array([2**64 - 1, 0, 2**64 - 1], np.uint64),
        np.array([-128, 127, -128], np.int8),
        np.array([True, False, True]),
        np.array([0.5, -0.0, 0.0, 0.5]),
        np.array(["x", "y", "x"]),
        torch.tensor([5, 5, -1, 0, -1], dtype=torch.int32),
        torch.tensor([False, True]),
        torch.tensor([0.5, 0.25, 0.5], dtype=torch.bfloat16),
    ],
    ids=lambda v: f"{type(v).__name__} {getattr(v, 'dtype', v)}",
)
def test_labels_are_numbered_as_they_appear(labels):
    """A row without tokens between them has no label; whole numbers and others go different ways to the same numbers."""
    plain = labels if isinstance(labels, list) else labels.tolist()
    codes, names = by_definition(plain)
    op = operator(spec("fiberpo_domain"))
    for offsets, given in (
        (range(0, 2 * len(codes) + 1, 2), labels),
        ([0, 0, *range(2, 2 * len(codes) + 1, 2)], [None, *plain]),
    ):
        index = op.index(offsets=list(offsets), prompt_group=given, domain=given)
        assert index.parent("trajectory", "prompt_group").tolist() == codes
        assert index.labels["prompt_group"] == names
        assert [type(label) for label in index.labels["prompt_group"]] == [type(label) for label in names]


@pytest.mark.sampled
@pytest.mark.parametrize("make", [list, np.array, torch.tensor])
def test_labels_of_tokens_are_numbered_as_they_appear(make):
    op = operator(spec("fiberpo_turns"))
    labels = [[9, 4, 4, 0], [7, 7, 2, 0], [0, 3, 3, 3]]
    mask = [[1, 1, 1, 0], [1, 1, 1, 0], [0, 1, 1, 1]]
    index = op.index(mask=mask, turn=make(labels), prompt_group=["a", "b", "a"])
    assert index.labels["turn"] == (9, 4, 7, 2, 3)
    assert index.parent("token", "turn").tolist() == [0, 1, 1, 2, 2, 3, 4, 4, 4]
    packed = op.index(offsets=[0, 3, 6, 9], turn=make([9, 4, 4, 7, 7, 2, 3, 3, 3]), prompt_group=["a", "b", "a"])
    assert packed.labels["turn"] == index.labels["turn"]
    assert packed.parent("token", "turn").tolist() == index.parent("token", "turn").tolist()


@pytest.mark.parametrize("equal", [-1.0, Fraction(-1), complex(-1)], ids=str)
def test_a_negative_label_equal_to_an_earlier_one_is_refused(equal):
    op = operator(spec("fiberpo_turns"))
    given = dict(offsets=[0, 3], prompt_group=["a"])
    assert op.index(**given, turn=[equal, 0, equal]).labels["turn"] == (equal, 0)
    with pytest.raises(HierarchyIndexError, match=r"token \[2\] has the label -1"):
        op.index(**given, turn=[equal, 0, -1])


def test_tensors_of_one_number_are_labels():
    op = operator(spec("fiberpo_domain"))
    labels = [torch.tensor(3), 3, torch.tensor(4)]
    index = op.index(offsets=[0, 1, 2, 3], prompt_group=labels, domain=labels)
    assert index.labels["domain"] == (3, 4)
