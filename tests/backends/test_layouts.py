"""Segments in any order of place, and segments without tokens, as on one of several ranks."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from support import spec

from fibration.runtime import calling
from fibration.runtime.index.spans import Intervals, Spans

MASKS = {
    "gaps between": [[0, 0, 1, 1, 1, 0], [0, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1], [0, 0, 0, 1, 1, 0]],
    "tokens apart": [[0, 1, 0, 1, 0, 0], [1, 0, 0, 0, 0, 1], [0] * 6, [0, 0, 0, 1, 1, 0], [0, 1, 1, 1, 0, 1]],
}
NUMBERS = {"in order": [0, 1, 2, 3], "others between": [1, 2, 5, 6], "out of order": [3, 0, 1, 2], "both": [5, 7, 2, 1]}


def renumbered(index, numbers, size):
    """`index`, whose rows are other elements of `size`."""
    edge = ("token", "trajectory")
    parent = torch.tensor(numbers)[index.edges[edge]]
    return replace(index, edges={edge: parent}, size={**index.size, "trajectory": size}, _cache={})


@pytest.mark.sampled
@pytest.mark.parametrize("shape", ["padded", "packed"])
@pytest.mark.parametrize("name", ["gaps between", "tokens apart"])
def test_segments_may_be_in_any_order_and_empty(operator, name, shape):
    op, mask = operator(spec("fiberpo")), torch.tensor(MASKS[name], dtype=torch.bool)
    given = dict(mask=mask)
    if shape == "packed":
        given = dict(mask=mask.reshape(-1), offsets=[6 * k for k in range(len(mask) + 1)])
    index = op.index(**given)
    mask = mask.reshape(index.shape)
    x = torch.where(mask, torch.linspace(-1, 1, mask.numel()).reshape(mask.shape), math.nan).requires_grad_()
    expected = op.gate(x, index)
    (back,) = torch.autograd.grad(expected.sum(), x)
    assert (expected[~mask] == 1).all() and (back[~mask] == 0).all()
    assert (expected[mask].log() - x[mask]).abs().max() > 0.1  # something is gated
    for what, numbers in NUMBERS.items():
        other = renumbered(index, numbers, 9 if what != "in order" else 4)
        layout = other.layout("trajectory")
        assert (layout.positions is None) == (name == "gaps between")
        assert (layout.tokens is None) == (numbers == sorted(numbers))
        for _ in range(2):  # in memory that had another fill
            found = op.gate(x, other)
            assert torch.equal(found, expected), what
            assert torch.equal(torch.autograd.grad(found.sum(), x)[0], back), what
            del found


def test_a_rank_without_tokens_has_empty_segments(operator):
    """Segments are the whole batch's, and none of them is here."""
    op = operator(spec("fiberpo"))
    whole = op.index(mask=torch.tensor(MASKS["gaps between"]))
    runs = Intervals.of(np.zeros(6, bool))
    spans = Spans.of(runs, np.zeros(2, int))
    nothing = torch.zeros(0, dtype=torch.int64)
    index = replace(
        whole, shape=(1, 6), n_rows=1, row_numbers=spans.rows, every=spans, spans={"token": spans},
        edges={("token", "trajectory"): nothing}, size={**whole.size, "token": 0}, _cache={},
    )  # fmt: skip
    for _ in range(2):
        found = op.gate(torch.full((1, 6), math.nan), index)
        assert (found == 1).all()
        del found
    layout = index.layout("trajectory")
    assert (layout.offsets.tolist(), layout.starts.tolist(), layout.positions) == ([0] * 5, [0] * 4, None)


@pytest.mark.parametrize("name", ["gaps between", "tokens apart"])
def test_results_in_mapped_memory_are_those_of_other_memory(operator, name, monkeypatch):
    op, mask = operator(spec("fiberpo")), torch.tensor(MASKS[name], dtype=torch.bool)
    x = torch.where(mask, torch.linspace(-1, 1, mask.numel()).reshape(mask.shape), math.nan)
    old, advantages = torch.zeros_like(x), torch.linspace(-1, 1, len(mask))

    def results():
        index = op.index(mask=mask)
        return [op.coefficients(x, old, advantages, index, metrics=False).values, op.gate(x, index)]

    expected = results()
    monkeypatch.setattr(calling, "MAPPED", 1)
    found, again = results(), results()
    for one, other, third, fill in zip(expected, found, again, (0, 1), strict=True):
        assert torch.equal(one, other)
        assert (other[~mask] == fill).all()
        assert other.data_ptr() % calling.ALIGNMENT == 0 and other.is_contiguous()
        third.fill_(7)  # every call has memory of its own
        assert torch.equal(one, other)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_memory_is_used_again_when_nothing_refers_to_its_result(dtype):
    calling.FREE.clear()
    made = calling.mapped((3, 5), dtype)
    address, row = made.data_ptr(), made[1]
    assert made.dtype == dtype and made.shape == (3, 5)
    del made
    assert calling.mapped((3, 5), dtype).data_ptr() != address, "a row of it is still there"
    calling.FREE.clear()
    del row
    assert calling.mapped((3, 5), dtype).data_ptr() == address
    for shape in ((3, 4), (70, 5), (0, 5), (70, 5)):  # what is too small or far too large is not taken
        assert calling.mapped(shape, dtype).fill_(1).shape == shape


def test_little_memory_waits_for_results():
    calling.FREE.clear()
    every = [calling.mapped((9,), torch.float32) for _ in range(5)]
    del every
    assert len(calling.FREE) == 2
