"""The signs of sums, products and powers of values whose signs are known: sets of -1, 0 and 1."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction

from fibration.language.operators import ANY, NOT_ZERO, ZERO, Signs
from fibration.language.polynomials import Exponent


def union(parts: Iterable[Signs]) -> Signs:
    return frozenset().union(*parts)


def turned(signs: Signs, by: Fraction | int) -> Signs:
    """The signs of `by` times a value with these signs."""
    return signs if by > 0 else frozenset(-s for s in signs) if by < 0 else ZERO


def multiplied(a: Signs, b: Signs) -> Signs:
    return frozenset(s * t for s in a for t in b)


def raised(signs: Signs, power: Exponent) -> Signs:
    if power < 0 and 0 in signs:
        return ANY
    return signs if power % 2 else frozenset(s * s for s in signs)


def added(parts: Sequence[Signs]) -> Signs:
    """The signs of a sum. It is not 0 if no two terms have opposite signs and one term is never 0."""
    possible = union(parts)
    if possible >= NOT_ZERO:
        return ANY
    return possible - ZERO if any(0 not in s for s in parts) else possible | ZERO
