"""Triton's sweeps read and store four tokens at once: rows may begin at any place, and no bit depends on where.

Rows of a mean length above 64 have tiles with vectors (`is_vector` of a generated module).
"""

import numpy as np
import pytest
import torch
from oracles.backend_cases import Backend, case, holds_gate, holds_training
from ptx.device import Device
from ptx.schedules import OnDevice, scheduled
from support import Batch, operator, spec

F64, F32, BF16 = torch.float64, torch.float32, torch.bfloat16
LENGTHS = (190, 1, 0, 257, 6, 131, 3, 129)  # the rows begin at 0, 190, 191, 191, 448, 454, 585 and 588, and end at 717
ON_INTERPRETER = Backend("triton")


def given(name, dtype, direct=False):
    rng = np.random.default_rng(4)
    rows, tokens = len(LENGTHS), sum(LENGTHS)
    h = spec(name)
    labels = {"prompt_group": [r // 2 for r in range(rows)], "domain": [r // 4 for r in range(rows)]}
    advantages = np.repeat(rng.normal(size=rows), LENGTHS)
    strata = {k: v for k, v in labels.items() if k in map(str, h.strata)}
    policies = {p: 0.1 * rng.normal(size=tokens) for p in h.policies if p not in ("current", "old")}
    batch = Batch(LENGTHS, 0.3 * rng.normal(size=tokens), advantages, strata, policies=policies)
    return case(h, batch, dtype, 1, direct)  # advantages per token, which are read in vectors too


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("name", "kind", "dtype"),
    [
        ("fiberpo_domain", "packed", F32), ("ppo", "padded", F32), ("gspo", "packed", BF16), ("fiberpo", "padded", F64),
        ("decoupled_ppo", "packed", F32), ("fiberpo_domain", "padded", BF16), ("ppo", "packed", F64),
    ],
)  # fmt: skip
def test_rows_at_any_place_equal_the_interpreter(name, kind, dtype):
    """NaN and infinity lie under the mask, within the vectors that are read."""
    holds_training(ON_INTERPRETER, given(name, dtype), kind, metrics=False)
    holds_gate(ON_INTERPRETER, given(name, dtype, direct=True), kind)


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("name", "kind", "dtype"),
    [("ppo", "packed", F32), ("gspo", "padded", BF16), ("fiberpo_domain", "packed", F32), ("fiberpo", "packed", F64)],
)
def test_emulated_ptx_of_rows_at_any_place_equals_the_interpreter(emitter, name, kind, dtype):
    """A load beyond the four places in which a tensor ends is a fault, and so is a store beyond a row."""
    scheduled(emitter, lambda backend: holds_training(backend, given(name, dtype), kind, metrics=False))


def row(length, dtype=F64):
    """Log ratios of many sizes: sums of numbers of one size are nearly exact in float64, in any order."""
    make = torch.Generator().manual_seed(length)
    old = -(torch.rand(length, generator=make, dtype=dtype) ** 8)
    x, advantage = (torch.randn(n, generator=make, dtype=dtype) for n in (length, 1))
    return old * (1 - x), old, advantage.repeat(length)


def later(tensor, places=1):
    """The same numbers, some places later in memory."""
    return torch.cat([tensor.new_zeros(places), tensor])[places:]


@pytest.mark.parametrize(("dtype", "places"), [(F32, 1), pytest.param(F64, 2, marks=pytest.mark.thorough)])
def test_emulated_ptx_of_tensors_that_begin_between_vectors(emitter, dtype, places):
    """They are read one by one: a vector's address is a multiple of its size. Nothing beyond their end is read."""
    parts = [row(n, dtype) for n in (130, 66, 70)]
    packed = [torch.cat(tensors) for tensors in zip(*parts, strict=True)]
    with Device(emitter).used():
        op = OnDevice().operator(spec("gspo"))
        index = op.index(offsets=torch.tensor([0, 130, 196, 266]))
        expected = op.coefficients(*packed, index, metrics=False).values
        for k in range(3):
            given = [later(t, places) if i == k else t for i, t in enumerate(packed)]
            assert torch.equal(op.coefficients(*given, index, metrics=False).values, expected)


def test_tiles_have_vectors_where_their_shape_and_all_addresses_allow_it():
    """Vectors of float64 have 32 bytes; tiles of 2 columns have none, whatever their rows."""
    from fibration.backends.triton.functions import is_vector as sized

    tensors = [torch.zeros(8), torch.zeros(8, dtype=F64)[4:], torch.zeros(8, dtype=BF16)[4:]]
    assert sized(2, 64, 1, (None,), *tensors) and sized(1, 1024, 4, (None,), *tensors)
    assert not sized(64, 2, 1, (None,), *tensors) and not sized(1, 64, 1, (None,), *tensors)
    assert not sized(2, 64, 1, (tensors[0],), *tensors)
    for dtype, places in ((F32, 2), (F64, 2), (BF16, 2), (F64, 3)):
        assert not sized(2, 64, 1, (None,), torch.zeros(8, dtype=dtype)[places:])


def test_kernels_get_places_to_read_where_a_batch_has_none():
    """A loop over tiles runs at least once, also for rows without tokens."""
    from fibration.backends.triton.functions import Call

    tensors = {"log_probs": torch.zeros(0), "advantages": torch.zeros(3)}
    given = Call(tensors | {"positions": None}, [tensors["log_probs"]], [tensors["advantages"]]).given
    assert [given[name].numel() for name in tensors] == [4, 3] and given["positions"] is None


@pytest.mark.sampled
@pytest.mark.parametrize("name", ["gspo", "fiberpo"])  # whose coefficients depend on sums over a row
@pytest.mark.parametrize("length", [1, 3, 127, 128, 130, 515, 259])
def test_a_row_has_the_same_bits_wherever_it_begins(name, length):
    """Behind rows of 0 to 3 tokens more; in tensors that begin 4 bytes later, which are not read in vectors; with
    metrics, whose sums forbid vectors; and padded."""
    op = operator(spec(name), backend="triton")
    seen, drifts = [], []
    for before in (128, 129, 130, 131):
        parts = [row(before), row(length), row(300), row(200)]
        lengths = torch.tensor([0, before, length, 300, 200])
        packed = [torch.cat(tensors) for tensors in zip(*parts, strict=True)]
        moved = [later(t) for t in packed]
        index = op.index(offsets=lengths.cumsum(0))
        for tensors, metrics in ((packed, False), (moved, False), (packed, True)):
            values = op.coefficients(*tensors, index, metrics=metrics).values
            seen.append(values[before : before + length])
        levels = op.levels(packed[0] - packed[1], index, advantages=packed[2]).residual
        drifts.append(torch.cat([residual[1:2] for (at, _), residual in levels.items() if at == "trajectory"]))
        mask = torch.arange(before + 600) < lengths[1:, None]
        padded = [t.new_zeros(mask.shape).masked_scatter(mask, t) for t in packed]
        values = op.coefficients(*padded, op.index(mask=mask), metrics=False).values[mask][before : before + length]
        assert torch.equal(values, seen[0])
    for same in (seen, drifts):
        assert all(torch.equal(one, same[0]) for one in same)
