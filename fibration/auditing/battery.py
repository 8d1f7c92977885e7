"""The batches on which a function is compared with declared losses. They are the same in every run."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from fibration.auditing.batch import Batch, Floats, Padding, drawn, probe

ASKEW = 0.987  # of log ratios where A < 0: no two tokens have equal covariances of A and log π
SPREADS = (1e-3, 0.02, 0.15, 0.5, 1.5)  # of log ratios
SHAPES = ((1,), (4,), (1, 3, 5, 2), (2, 2), (6, 1, 1, 3, 4), (2, 1, 3, 2, 4, 1, 2, 3))
GROUPS = ((0,), (0,), (0, 1, 0, 1), (0, 1), (0, 1, 0, 1, 2), (0, 0, 0, 0, 0, 0, 1, 1))  # of rows, in each shape


def steps(most: float = 4.5, count: int = 64) -> Floats:
    """Log ratios on both sides of 0, denser near it, and none of them 0."""
    up = np.geomspace(2e-4, most, count)
    return np.concatenate([-up[::-1], up])


@cache
def ladder(mismatch: bool = False, others: int = 0) -> Batch:
    """Rows of one token, over log ratios and both signs of the advantage; `others`: see `probe`."""
    x = steps()[:: 1 + bool(others)]
    return probe(np.concatenate([x, ASKEW * x]), np.repeat([1.0, -1.0], len(x)), mismatch, others)


@cache
def on_policy() -> tuple[Batch, ...]:
    """Batches of fresh rows: all policies agree."""
    shapes = (*SHAPES[:-1], (3, 7, 2, 2))
    pairs = [drawn(10 + i, lengths, 0.0) for i, lengths in enumerate(shapes)]
    return tuple(b.on_policy() for b in (*pairs, drawn(16, SHAPES[-1], 0.0, groups=GROUPS[-1])))


@cache
def off_policy() -> tuple[Batch, ...]:
    """Batches of every shape and spread; some rows without advantage, some groups of one row, some places masked."""
    found = []
    for k, spread in enumerate(SPREADS):
        for i, lengths in enumerate(SHAPES):
            given = [(-1) ** r * (0.5 + 0.25 * ((r + k) % 4)) * ((i + k + r) % 5 != 4) for r in range(len(lengths))]
            padding = (Padding(), Padding(before=2), Padding(holes=True), Padding(after=3))[(i + k) % 4]
            found.append(drawn(100 * k + i, lengths, spread, spread, GROUPS[i], given, padding))
    return tuple(found)


@cache
def fitted() -> Batch:
    """Many rows, far off policy: all branches of most losses are taken."""
    return drawn(7, (1, 4, 2, 9, 3, 5, 1, 6, 2, 3, 4, 7), 0.4, 0.3, groups=(0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2))


def around(places: Sequence[float], mismatch: bool = False, others: int = 0) -> Batch:
    """Rows of one token on both sides of these log ratios, near and less near."""
    distances = np.array([1e-6, 1e-4, 1e-3, 1e-2, 3e-2])
    near = np.concatenate([-distances[::-1], distances])
    x = [np.concatenate([p + k * near for p in places]) for k in (1.0, ASKEW)]
    return probe(np.concatenate(x), np.repeat([1.0, -1.0], len(x[0])), mismatch, others)
