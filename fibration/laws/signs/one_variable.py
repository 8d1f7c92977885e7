"""Signs of a polynomial in one variable, exactly: at whole numbers from some number on, and on the numbers above 0.

Coefficients are whole numbers, the constant first. That of the highest power is not 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache

import sympy

from fibration.language.operators import ZERO, Signs

Coefficients = tuple[int, ...]
Stretch = tuple[int, int | None]  # whole numbers, first and last; None where there is no last

T = sympy.Dummy("t")


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

    The sign changes at no whole numbers but those beside a root.
    """
    roots = sympy.Poly(p[::-1], T, domain="ZZ").intervals(eps=1) if len(p) > 1 else []
    near = {n for (low, high), _ in roots for n in range(math.floor(low), math.ceil(high) + 2) if n > least}
    found: list[tuple[int, int]] = []  # the first number of each stretch, and the sign there
    for n in (least, *sorted(near)):
        if not found or found[-1][1] != sign(at(p, n)):
            found.append((n, sign(at(p, n))))
    ends = [*(first - 1 for first, _ in found[1:]), None]
    return tuple(((first, last), s) for (first, s), last in zip(found, ends, strict=True))


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
    for factor, power in sympy.Poly(p[::-1], T, domain="ZZ").sqf_list()[1]:
        below = factor.count_roots(None, 0)
        if factor.count_roots() > below:
            found |= ZERO if power % 2 == 0 else frozenset({0, -end})
    return found
