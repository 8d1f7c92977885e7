"""Faster `Fraction` arithmetic for tests, by a short path for fractions and whole numbers.

Results are the same, number by number. Other operands take Python's own path.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from fractions import Fraction
from math import gcd
from typing import Any

allocate, general = object.__new__, Fraction.__new__
Pair = tuple[int, int]


def made(n: int, d: int) -> Fraction:
    """The fraction n/d, for numbers without a common factor and d above 0."""
    result: Any = allocate(Fraction)
    result._numerator, result._denominator = n, d
    return result


def new(cls: type, numerator: Any = 0, denominator: Any = None, **more: Any) -> Any:
    if cls is Fraction and not more:
        kind = type(numerator)
        if denominator is None:
            if kind is int:
                return made(numerator, 1)
            if kind is Fraction:
                return made(numerator._numerator, numerator._denominator)
        elif kind is int and type(denominator) is int and denominator > 0:
            common = gcd(numerator, denominator)
            return made(numerator // common, denominator // common)
    return general(cls, numerator, denominator, **more)


def plus(na: int, da: int, nb: int, db: int) -> Pair:
    common = gcd(da, db)
    if common == 1:
        return na * db + da * nb, da * db
    rest = da // common
    n = na * (db // common) + nb * rest
    again = gcd(n, common)
    return n // again, rest * (db // again)


def minus(na: int, da: int, nb: int, db: int) -> Pair:
    return plus(na, da, -nb, db)


def times(na: int, da: int, nb: int, db: int) -> Pair:
    first, second = gcd(na, db), gcd(nb, da)
    return (na // first) * (nb // second), (da // second) * (db // first)


def over(na: int, da: int, nb: int, db: int) -> Pair:
    return times(na, da, db, nb) if nb > 0 else times(na, da, -db, -nb)


def computed(pair: Callable[[int, int, int, int], Pair], forward: Any, backward: Any) -> tuple[Any, Any]:
    divides = pair is over

    def of(a: Any, b: Any) -> Any:
        kind = type(b)
        if (kind is Fraction or kind is int) and not (divides and not b):
            n, d = (b._numerator, b._denominator) if kind is Fraction else (b, 1)
            return made(*pair(a._numerator, a._denominator, n, d))
        return forward(a, b)

    def turned(b: Any, a: Any) -> Any:
        if type(a) is int and not (divides and not b):
            return made(*pair(a, 1, b._numerator, b._denominator))
        return backward(b, a)

    return of, turned


def compared(holds: Callable[[int, int], bool], forward: Any) -> Any:
    def of(a: Any, b: Any) -> Any:
        kind = type(b)
        if kind is Fraction:
            return holds(a._numerator * b._denominator, b._numerator * a._denominator)
        return holds(a._numerator, b * a._denominator) if kind is int else forward(a, b)

    return of


def same(a: Any, b: Any) -> Any:
    if type(b) is Fraction:
        return a._numerator == b._numerator and a._denominator == b._denominator
    return equal(a, b)


equal = Fraction.__eq__


def quicken() -> None:
    """Replace the operations of `Fraction` in this process."""
    changed: dict[str, Any] = {"__new__": staticmethod(new), "__eq__": same}
    changed["__neg__"] = lambda a: made(-a._numerator, a._denominator)
    changed["__abs__"] = lambda a: made(abs(a._numerator), a._denominator)
    for name, pair in (("add", plus), ("sub", minus), ("mul", times), ("truediv", over)):
        here, turned = f"__{name}__", f"__r{name}__"
        changed[here], changed[turned] = computed(pair, getattr(Fraction, here), getattr(Fraction, turned))
    for name in ("__lt__", "__le__", "__gt__", "__ge__"):
        changed[name] = compared(getattr(operator, name), getattr(Fraction, name))
    for name, value in changed.items():
        setattr(Fraction, name, value)
