"""The C backend's blocks of short segments, against its loops over one segment after another."""

import functools
import shutil
from dataclasses import replace

import pytest
import torch
from support import _operator, operator, spec

from fibration.backends.c import load

pytestmark = pytest.mark.skipif(not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="needs a C compiler")


ROWS, LANES = 32, 16  # of storage.h, for float32


@functools.cache
def uncached(name, in_blocks):
    """An operator with libraries of its own, for each way of building them."""
    return _operator.__wrapped__(spec(name), "c", None)


@pytest.fixture
def both(monkeypatch):
    """Results of one function of an operator, in blocks and without them. Memory holds other numbers each time."""
    build = load.build

    def without(source, defines):
        return build(source, {k: "0" if k.startswith("SHORT_") else v for k, v in defines.items()})

    def results(name, call):
        made = []
        for chosen in (build, without):
            with monkeypatch.context() as patch:
                patch.setattr(load, "build", chosen)
                op = uncached(name, chosen is build)  # each has libraries of its own
                made.append([t.clone() for _ in range(2) for t in call(op)])
        return made

    return results


def lengths_of(rows, longest, layout):
    if layout == "equal":
        return torch.full((rows,), longest)
    return torch.arange(rows) * 7 % longest + 1


def labels(name, rows):
    many = {"prompt_group": [i // 4 for i in range(rows)], "domain": [i // 16 for i in range(rows)]}
    return many if name == "fiberpo_domain" else {}


@pytest.mark.sampled
@pytest.mark.parametrize("name", ["ppo", "gspo", "fiberpo_domain"])
@pytest.mark.parametrize("layout", ["packed", "equal", "ragged"])
@pytest.mark.parametrize("longest", [1, 3, LANES, LANES + 1])
def test_blocks_compute_what_loops_over_segments_compute(both, name, layout, longest):
    for rows in (1, ROWS - 1, ROWS, ROWS + 1):
        torch.manual_seed(rows)
        lengths = lengths_of(rows, longest, layout)
        if layout == "packed":
            shape, given = (int(lengths.sum()),), {"offsets": [0, *lengths.cumsum(0).tolist()]}
        else:
            shape, given = (rows, longest + 2), {"mask": torch.arange(longest + 2) < lengths[:, None]}
        x, old, per_row = torch.randn(shape) * 0.3, torch.randn(shape) * 0.3, torch.randn(rows)
        per_token = torch.randn(shape) if name == "ppo" else per_row

        def call(op, given=given, x=x, old=old, kinds=(per_row, per_token), rows=rows):
            index = op.index(**given, **labels(op.hierarchy.name, rows))
            log_ratio = (x - old).requires_grad_()
            for advantages in kinds:
                result = op.coefficients(x, old, advantages, index)
                yield from (result.values, result.objective)
                yield from (torch.tensor(float(m)).nan_to_num(7.0) for m in result.metrics.values())
                gated = op.gate(log_ratio, index, advantages=advantages)
                yield from (gated.detach(), *torch.autograd.grad(gated.sum(), log_ratio))

        in_blocks, one_by_one = both(name, call)
        for a, b in zip(in_blocks, one_by_one, strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_blocks_take_parameters_per_row_and_every_dtype(both, dtype):
    rows = 2 * ROWS + 5
    mask = torch.arange(5) < (torch.arange(rows) % 3 + 1)[:, None]
    x, old = (torch.randn(rows, 5).mul(0.3).to(dtype) for _ in range(2))
    high = {f"row {i}": float(v) for i, v in enumerate(torch.rand(rows))}

    def call(op):
        result = op.coefficients(
            x, old, torch.randn(rows).sign(), op.index(mask=mask, trajectory=[*high]), {"epsilon_high": high}
        )
        return result.values, result.objective

    torch.manual_seed(0)
    state = torch.get_rng_state()

    def again(op):
        torch.set_rng_state(state)
        return call(op)

    for a, b in zip(*both("gspo", again), strict=True):
        assert torch.equal(a, b) and a.isfinite().all()


def test_blocks_have_segments_without_tokens(both):
    """As on one of several ranks: every second segment is empty."""
    rows = ROWS + 3
    mask = torch.arange(4) < (torch.arange(rows) % 3 + 1)[:, None]
    x = torch.linspace(-1, 1, mask.numel()).reshape(mask.shape)

    def call(op):
        index, edge = op.index(mask=mask), ("token", "trajectory")
        parent = 2 * index.edges[edge] + 1
        other = replace(index, edges={edge: parent}, size={**index.size, "trajectory": 2 * rows + 1}, _cache={})
        assert other.layout("trajectory").tokens is None
        return op.gate(x, index), op.gate(x, other)

    expected, found = both("fiberpo", call)
    assert torch.equal(expected[0], expected[1])
    for a, b in zip(expected, found, strict=True):
        assert torch.equal(a, b)
    assert (expected[1][~mask] == 1).all()


def test_advantages_of_packed_rows_of_one_token_are_those_of_their_rows():
    op, rows = operator(spec("gspo"), backend="c"), ROWS + 1
    torch.manual_seed(0)
    x, old, advantages = (torch.randn(rows) for _ in range(3))
    padded = op.index(mask=torch.ones(rows, 1, dtype=torch.bool))
    expected = op.coefficients(x[:, None], old[:, None], advantages, padded)
    found = op.coefficients(x, old, advantages, op.index(offsets=torch.arange(rows + 1)))
    assert torch.equal(found.values[:, None], expected.values)
    pairs = op.index(offsets=torch.arange(0, 2 * rows + 1, 2))  # two tokens a row
    tokens = (t.repeat_interleave(2) for t in (x, old, advantages))
    assert torch.allclose(op.coefficients(*tokens, pairs).values[::2] * 2, found.values)
