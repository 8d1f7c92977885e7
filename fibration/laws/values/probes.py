"""Numbers at which searches try for counterexamples: where a formula changes branch, or loses its value.

At these numbers a difference changes its sign. A grid and bisection find them in exact arithmetic, whatever the
difference contains: a constant, its reciprocal or root, a bound of a parameter.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction

from fibration.language.expressions import Apply, Expression
from fibration.language.operators import COMPARISONS, OPERATORS, Valued
from fibration.language.traversal import desugar, subexpressions

HALVINGS = 60  # of an interval between two numbers of the grid
Function = Callable[[Fraction], Fraction | None]  # None where it has no value


def turning(expressions: Iterable[Expression]) -> list[Expression]:
    """Formulas whose signs decide which branch of the expressions holds and whether they have a value."""
    found: dict[Expression, None] = {}
    parts = dict.fromkeys(part for e in reversed(list(expressions)) for part in subexpressions(desugar(e)))
    for e in parts:
        if not isinstance(e, Apply):
            continue
        row = OPERATORS[e.operator]
        if e.operator in COMPARISONS:
            found[e.arguments[0] - e.arguments[1]] = None
        elif isinstance(row, Valued):
            found.update((needed, None) for needed, _ in row.domain(*e.arguments))
    return list(found)


def whole_crossings(f: Function, most: int) -> list[int]:
    """Whole numbers from 2 to `most` at which `f` has another sign than at the number before."""
    grid = [1]
    while grid[-1] < most:
        grid.append(min(max(grid[-1] + 1, grid[-1] * 3 // 2), most))
    return sorted({int(high) for _, high in _brackets(f, [Fraction(n) for n in grid], whole=True)})


def crossings(
    f: Function, low: Fraction | None = None, high: Fraction | None = None, near: int = -18, far: int = 12
) -> list[Fraction]:
    """Numbers strictly between `low` and `high` at which the sign of `f` changes.

    The grid has distances from `10**near` to `10**far` to 0 and to both bounds. Returns the simplest fraction near each
    change, so that a change at a rational number is found exactly.
    """
    return sorted({simplest(*ends) for ends in _brackets(f, _grid(low, high, near, far))})


@functools.lru_cache(256)  # many formulas share a few bounds
def _grid(low: Fraction | None, high: Fraction | None, near: int, far: int) -> tuple[Fraction, ...]:
    sizes = [Fraction(d) * Fraction(10) ** k for k in range(near, far + 1) for d in (1, 3)]
    grid = {Fraction(0), *sizes, *(-s for s in sizes)}
    grid |= {low + s for s in sizes} if low is not None else set()
    grid |= {high - s for s in sizes} if high is not None else set()
    return tuple(sorted(x for x in grid if (low is None or low < x) and (high is None or x < high)))


def between(points: Sequence[Fraction]) -> list[Fraction]:
    """The points, numbers close to each, one between each and the next, and numbers beyond both ends."""
    found = list(points)
    for p in points:
        off = abs(p) / 1000 or Fraction(1, 1000)
        found += [simplest(p + off / 2, p + off), simplest(p - off, p - off / 2)]
    found += [simplest(p + (q - p) / 3, q - (q - p) / 3) for p, q in itertools.pairwise(points)]
    if points:
        found += [p + d for p in (points[0], points[-1]) for d in (-abs(p) or Fraction(-1), abs(p) or Fraction(1))]
    return sorted(dict.fromkeys(found), key=lambda x: (abs(x), x < 0))


def simplest(low: Fraction, high: Fraction) -> Fraction:
    """The fraction of the smallest denominator in a closed interval."""
    if low <= 0 <= high:
        return Fraction(0)
    if high < 0:
        return -simplest(-high, -low)
    whole = math.ceil(low)
    if whole <= high:
        return Fraction(whole)
    floor = math.floor(low)
    return floor + 1 / simplest(1 / (high - floor), 1 / (low - floor))


def _sign(value: Fraction | None) -> int | None:
    return None if value is None else (value.numerator > 0) - (value.numerator < 0)


def _brackets(f: Function, grid: Sequence[Fraction], whole: bool = False) -> Iterator[tuple[Fraction, Fraction]]:
    """Close pairs of numbers between which `f` changes its sign."""
    values = [f(x) for x in grid]
    for (a, u), (b, v) in itertools.pairwise(zip(grid, values, strict=True)):
        if _sign(u) != _sign(v):
            yield _halved(f, a, b, whole)
    for i in range(1, len(grid) - 1):
        u, v, w = values[i - 1 : i + 2]
        if u is None or v is None or w is None or not _sign(u) == _sign(v) == _sign(w) != 0:
            continue
        if abs(v) <= min(abs(u), abs(w)) and abs(v) < max(abs(u), abs(w)):
            dip = _dip(f, grid[i - 1], grid[i + 1], whole)
            if _sign(f(dip)) != _sign(v):
                yield _halved(f, grid[i - 1], dip, whole)
                yield _halved(f, dip, grid[i + 1], whole)


def _halved(f: Function, low: Fraction, high: Fraction, whole: bool) -> tuple[Fraction, Fraction]:
    """Two close numbers around the same change of sign."""
    before, after = _sign(f(low)), _sign(f(high))
    beside = Fraction(0) if whole else (high - low) / 2**HALVINGS
    if beside and before == 0:
        before = _sign(f(low + beside))
        if before == after:
            return low, low  # it changes at the point itself
        low += beside
    elif beside and after == 0:
        after = _sign(f(high - beside))
        if before == after:
            return high, high
        high -= beside
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if whole:
            if high - low <= 1:
                break
            middle = Fraction(math.floor(middle))
        here = _sign(f(middle))
        if here == before:
            low = middle
        else:
            high, after = middle, here
    if not whole and 0 in (before, after):  # it is 0 on one side, up to the point itself
        return (low, low) if before == 0 else (high, high)
    return low, high


def _dip(f: Function, low: Fraction, high: Fraction, whole: bool) -> Fraction:
    """A number between two others where `|f|` is least, or where `f` has changed its sign on the way there."""
    sign = _sign(f(low))
    for _ in range(HALVINGS):
        third = Fraction(math.floor((high - low) / 3)) if whole else (high - low) / 3
        if not third:
            break
        a, b = low + third, high - third
        u, v = f(a), f(b)
        if _sign(u) != sign or _sign(v) != sign:
            return b if _sign(u) == sign else a
        assert u is not None and v is not None
        low, high = (low, b) if abs(u) <= abs(v) else (a, high)
    inside = [low + 1, high - 1] if whole else [simplest(low, high)]
    return min((abs(f(x) or Fraction(0)), x) for x in inside)[1]
