"""The Triton kernels of `fused.py`. Importing them imports Triton, which is an extra."""

import triton  # type: ignore[import-untyped,import-not-found,unused-ignore]
import triton.language as tl  # type: ignore[import-untyped,import-not-found,unused-ignore]


@triton.jit
def measure_rows(
    z, targets, largest, total, chosen, weighted, columns, temperature, floor,
    BLOCK: tl.constexpr, WITH_ENTROPY: tl.constexpr,
):  # fmt: skip
    """A program per row. Each lane keeps the largest of its logits, and sums relative to that."""
    row = tl.program_id(0)
    start = z + row.to(tl.int64) * columns
    lanes = tl.arange(0, BLOCK)
    most = tl.full((BLOCK,), float("-inf"), tl.float32)
    sums = tl.zeros((BLOCK,), tl.float32)
    products = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, columns, BLOCK):
        inside = first + lanes < columns
        logits = tl.load(start + first + lanes, mask=inside, other=float("-inf")) / temperature
        higher = tl.maximum(most, logits)
        base = tl.where(higher == float("-inf"), 0.0, higher)
        moved, away = tl.maximum(most - base, floor), tl.maximum(logits - base, floor)
        kept, new = tl.exp(most - base), tl.exp(logits - base)
        if WITH_ENTROPY:
            products = kept * (products + sums * moved) + new * away
        sums = sums * kept + new
        most = higher
    top = tl.max(most, 0)
    base = tl.where(top == float("-inf"), 0.0, top)
    kept = tl.exp(most - base)
    tl.store(largest + row, top)
    tl.store(total + row, tl.sum(sums * kept, 0))
    tl.store(chosen + row, tl.load(start + tl.load(targets + row)) / temperature - top)
    if WITH_ENTROPY:
        moved = tl.maximum(most - base, floor)
        tl.store(weighted + row, tl.sum(kept * (products + sums * moved), 0))


@triton.jit
def differentiate_rows(
    z, which, targets, coefficients, offsets, largest, total, into, columns, bonus, temperature, floor,
    BLOCK: tl.constexpr, CHOSEN: tl.constexpr, WITH_BONUS: tl.constexpr,
):  # fmt: skip
    """A program per row and block of logits: `(offset + bonus·(logit - largest))·p`, less `c` at the target."""
    row = tl.program_id(0)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < columns
    source = row
    if CHOSEN:
        source = tl.load(which + row)
    logits = tl.load(z + source.to(tl.int64) * columns + place, mask=inside, other=0.0) / temperature
    away = logits - tl.load(largest + row)
    gradient = tl.exp(away) / tl.load(total + row)
    factor = tl.load(offsets + row)
    if WITH_BONUS:
        gradient = gradient * (factor + bonus * tl.maximum(away, floor))
    else:
        gradient = gradient * factor
    gradient -= tl.where(place == tl.load(targets + row), tl.load(coefficients + row), 0.0)
    gradient /= temperature
    tl.store(into + row.to(tl.int64) * columns + place, gradient.to(into.dtype.element_ty), mask=inside)
