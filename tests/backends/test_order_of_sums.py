"""The C backend sums the tokens of a segment in one order, on every path and with any vectors."""

import functools
import platform
import shutil
from pathlib import Path

import pytest
import torch
from support import _operator, operator, spec

pytestmark = pytest.mark.skipif(not shutil.which("gcc"), reason="needs gcc")

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
LENGTHS = [*range(1, 41), 100, 1023, 1024, 1025, 3000]
GATES = ("gspo", "fiberpo")  # whose coefficients depend on sums over a row, in float64 and in the tokens' precision


def row(length, dtype):
    """Log-probs, old log-probs and the advantage of a trajectory, the same in every batch."""
    make = torch.Generator().manual_seed(length)
    old = -torch.rand(length, generator=make, dtype=torch.float64)
    log_probs = old + 0.2 * torch.randn(length, generator=make, dtype=torch.float64)
    return log_probs.to(dtype), old.to(dtype), float(torch.randn((), generator=make))


def results(op, lengths, dtype, layout="packed"):
    """Per row: coefficients, without the number of rows, and gated ratios. The number of rows is a power of two."""
    assert len(lengths).bit_count() == 1
    rows = [row(n, dtype) for n in lengths]
    advantages = torch.tensor([a for *_, a in rows])
    if layout == "packed":
        index, place = op.index(offsets=torch.tensor([0, *lengths]).cumsum(0)), lambda parts: torch.cat(parts)
    else:
        places = torch.arange(max(max(lengths), 2 * lengths[0]) + 3)
        mask = places < torch.tensor(lengths)[:, None]
        if layout == "holes":  # between all tokens of one row
            mask[0] = (places % 2 == 0) & (places < 2 * lengths[0])
        index = op.index(mask=mask)

        def place(parts):
            out = torch.zeros(mask.shape, dtype=dtype)
            out[mask] = torch.cat(parts)
            return out

    x, old = place([p for p, *_ in rows]), place([o for _, o, _ in rows])
    values = op.coefficients(x, old, advantages, index, metrics=False).values.double() * len(lengths)
    gated = op.gate((x.double() - old.double()).to(dtype), index, advantages=advantages)
    values, gated = (t if layout == "packed" else t[mask] for t in (values, gated))
    return list(zip(values.split(lengths), gated.split(lengths), strict=True))


def assert_same(found, expected, lengths):
    for length, one, other in zip(lengths, found, expected, strict=True):
        assert all(map(torch.equal, one, other)), f"a row of {length} tokens has other bits"


@pytest.mark.sampled
@pytest.mark.parametrize("name", GATES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_has_the_same_bits_in_any_company(name, dtype):
    """Batches of short rows alone take other loops than batches with a long row or a hole."""
    op = operator(spec(name), backend="c")
    alone = {n: results(op, [n], dtype)[0] for n in LENGTHS}
    short = [n for n in LENGTHS if n <= 64 // dtype.itemsize]
    shuffled = [LENGTHS[i] for i in torch.randperm(len(LENGTHS), generator=torch.Generator().manual_seed(0))]
    for lengths in (short, LENGTHS, shuffled, LENGTHS[:2], LENGTHS[2:4], LENGTHS[4:8], LENGTHS[36:40]):
        lengths = [*lengths, *[lengths[0]] * ((1 << (len(lengths) - 1).bit_length()) - len(lengths))]
        for layout in ("packed", "padded", "holes"):
            assert_same(results(op, lengths, dtype, layout), [alone[n] for n in lengths], lengths)


def targets():
    """Compilers' flags that choose other vectors, and that this processor can run. All have fused multiply-add."""
    if platform.machine() != "x86_64":
        return ["-O1"]
    flags = Path("/proc/cpuinfo").read_text().split()
    chosen = ["-O1", "-O3"]
    if {"avx512f", "avx512bw", "avx512vl", "avx512dq"} <= {*flags}:
        chosen += ["-march=x86-64-v4 -mprefer-vector-width=256"]
    if {"avx2", "fma"} <= {*flags}:  # last, since the first and the last case are always run
        chosen += ["-march=x86-64-v3 -mprefer-vector-width=128", "-march=x86-64-v3"]
    return chosen


@functools.cache
def with_compiler(name, cc):
    """An operator with libraries of its own."""
    return _operator.__wrapped__(spec(name), "c", None)


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", GATES)
@pytest.mark.parametrize("target", targets())
def test_no_bit_depends_on_the_vectors_of_a_compiler(monkeypatch, target, name, dtype):
    lengths = [*LENGTHS, *[1] * (64 - len(LENGTHS))]
    expected = results(operator(spec(name), backend="c"), lengths, dtype)
    short = [n for n in LENGTHS if n <= 64 // dtype.itemsize][:4]
    expected_short = results(operator(spec(name), backend="c"), short, dtype)
    monkeypatch.setenv("CC", f"gcc {target}")
    op = with_compiler(name, target)
    assert_same(results(op, lengths, dtype), expected, lengths)
    assert_same(results(op, short, dtype), expected_short, short)
