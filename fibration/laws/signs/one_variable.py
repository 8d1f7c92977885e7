"""Signs of a polynomial in one variable, exactly: at whole numbers from some number on, and on the numbers above 0.

Coefficients are whole numbers, the constant first. That of the highest power is not 0.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache

import sympy

from fibration.language.operators import ZERO, Signs

Coefficients = tuple[int, ...]
Stretch = tuple[int, int | None]  # whole numbers, first and last; None where there is no last

MOST_DEGREE = 12


def at(p: Sequence[int], n: int) -> int:
    value = 0
    for c in reversed(p):
        value = value * n + c
    return value


def sign(value: int) -> int:
    return (value > 0) - (value < 0)


@lru_cache(maxsize=4096)
def stretches(p: Coefficients, least: int) -> tuple[tuple[Stretch, int], ...]:
    """The stretches of whole numbers from `least` on, each with the sign of `p` there.

    Where the differences `p(n + 1) - p(n)` have one sign, `p` rises or falls, and bisection finds its change of sign.
    """
    if len(p) == 1:
        return (((least, None), sign(p[0])),)
    found: list[tuple[Stretch, int]] = []
    for (first, last), direction in stretches(_difference(p), least):
        while last is None or first <= last:
            here = sign(at(p, first))
            end = _last(lambda n: sign(at(p, n)) == here, first, last, here == sign(p[-1]) or direction == 0)  # noqa: B023
            found.append(((first, end), here))
            if end is None:
                break
            first = end + 1
    return tuple(_joined(found))


def _difference(p: Coefficients) -> Coefficients:
    """`p(n + 1) - p(n)`."""
    row, found = [1], [0] * (len(p) - 1)
    for c in p:  # c·((n + 1)^k - n^k), with the k-th row of Pascal's triangle
        for power, b in enumerate(row[:-1]):
            found[power] += c * b
        row = [a + b for a, b in zip([0, *row], [*row, 0], strict=True)]
    return tuple(found)


def _last(holds: Callable[[int], bool], first: int, last: int | None, without_end: bool) -> int | None:
    """The last number at which `holds` is true. It is true at `first`, and never again once it is false."""
    if last is None:
        if without_end:
            return None
        step = 1
        while holds(first + step):
            step *= 2
        last = first + step
    elif holds(last):
        return last
    while last - first > 1:
        middle = (first + last) // 2
        first, last = (middle, last) if holds(middle) else (first, middle)
    return first


def _joined(found: Iterable[tuple[Stretch, int]]) -> Iterator[tuple[Stretch, int]]:
    for s, group in itertools.groupby(found, key=lambda part: part[1]):
        parts = [stretch for stretch, _ in group]
        yield (parts[0][0], parts[-1][1]), s


def allowed(least: int, known: Iterable[tuple[Coefficients, Signs]]) -> list[Stretch]:
    """The whole numbers from `least` on at which each polynomial has one of its signs."""
    found: list[Stretch] = [(least, None)]
    for p, signs in known:
        inside = [stretch for stretch, s in stretches(p, least) if s in signs]
        found = [both for a in found for b in inside if (both := _common(a, b))]
    return found


def _common(a: Stretch, b: Stretch) -> Stretch | None:
    first, ends = max(a[0], b[0]), [end for end in (a[1], b[1]) if end is not None]
    last = min(ends) if ends else None
    return (first, last) if last is None or first <= last else None


def signs_at(p: Coefficients, numbers: Sequence[Stretch]) -> Signs:
    """The signs of `p` at the whole numbers in `numbers`, which is not empty."""
    found = stretches(p, numbers[0][0])
    return frozenset(s for stretch, s in found if any(_common(stretch, some) for some in numbers))


@lru_cache(maxsize=4096)
def signs_above_0(p: Coefficients) -> Signs:
    """The signs of `p` at the numbers above 0: it has the sign of its last coefficient, unless it has roots there."""
    end = sign(p[-1])
    found = frozenset({end})
    for factor, power in sympy.Poly(p[::-1], sympy.Dummy("t"), domain="ZZ").sqf_list()[1]:
        below = factor.count_roots(None, 0)
        if factor.count_roots() > below:
            found |= ZERO if power % 2 == 0 else frozenset({0, -end})
    return found
