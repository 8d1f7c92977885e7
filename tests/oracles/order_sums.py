"""Ordered sums by their definition, in rationals: one term for every pair of tokens of an element."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]


def sums(values: Sequence[float], element: Sequence[int], discount: float, forward: bool = True) -> list[Fraction]:
    """`Σ discount^(t-s)·f_s` over all s before t of the same element, or after it; `values` in their order."""
    share, x = Fraction(discount), [Fraction(v) for v in values]
    found = []
    for t, e in enumerate(element):
        mine = [s for s, other in enumerate(element) if other == e]
        at = mine.index(t)
        chosen = mine[:at] if forward else mine[at + 1 :]
        found.append(sum((share ** abs(mine.index(s) - at) * x[s] for s in chosen), Fraction(0)))
    return found


def rounded(values: Sequence[Fraction]) -> Vector:
    return np.array([float(v) for v in values])


def before(values: Vector, element: NDArray[np.int64], discount: float = 1.0, forward: bool = True) -> Vector:
    """The same of many, in long doubles, by the recursion."""
    found, last = np.zeros(len(values), np.longdouble), dict.fromkeys(element.tolist(), np.longdouble(0))
    for t in range(len(values))[:: 1 if forward else -1]:
        found[t] = last[element[t]]
        last[element[t]] = discount * (found[t] + values[t])
    return found
