"""The batches on which a function is compared with declared losses. They are the same in every run."""

from __future__ import annotations

from functools import cache

import numpy as np

from fibration.auditing.batch import Batch, Floats, Padding, drawn, small

SPREADS = (1e-3, 0.02, 0.15, 0.5, 1.5)  # of log ratios
SHAPES = ((1,), (4,), (1, 3, 5, 2), (2, 2), (6, 1, 1, 3, 4), (2, 1, 3, 2, 4, 1, 2, 3))
GROUPS = ((0,), (0,), (0, 1, 0, 1), (0, 1), (0, 1, 0, 1, 2), (0, 0, 0, 0, 0, 0, 1, 1))  # of rows, in each shape


def steps(most: float = 4.5, count: int = 64) -> Floats:
    """Log ratios on both sides of 0, denser near it, and none of them 0."""
    up = np.geomspace(2e-4, most, count)
    return np.concatenate([-up[::-1], up])


@cache
def on_policy() -> tuple[Batch, ...]:
    """Batches of fresh rows: all policies agree."""
    shapes = (*SHAPES[:-1], (3, 7, 2, 2))
    pairs = [drawn(10 + i, lengths, 0.0) for i, lengths in enumerate(shapes)]
    all_ = (
        *small()[:1],
        *(b for b in small() if not b.is_probe),
        *pairs,
        drawn(16, SHAPES[-1], 0.0, groups=GROUPS[-1]),
    )
    return tuple(b.on_policy() for b in sorted(all_, key=lambda b: b.tokens))


@cache
def off_policy() -> tuple[Batch, ...]:
    """Batches of many rows and every spread, some places masked."""
    places = (Padding(), Padding(before=2), Padding(holes=True), Padding(after=3))
    each = ((k, s, i) for k, s in enumerate(SPREADS) for i in (2, len(SHAPES) - 1))
    return tuple(drawn(100 * k + i, SHAPES[i], s, s, GROUPS[i], padding=places[(i + k) % 4]) for k, s, i in each)
