"""Exact values with their derivatives: forward differentiation over Fractions, by the slopes that operators declare.

Of a `where`, the branch that holds *at* the point is differentiated. A slope that no gradient reaches is not computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from fibration.language.exact import bounded, divide, transcendental
from fibration.language.operators import Primitive
from fibration.language.traversal import EXACT, fold


@dataclass(frozen=True)
class Dual:
    """A value and its derivatives, by the number of the variable.

    A variable without a derivative moves nothing. A derivative of 0 is that of a value that does move, as `x*x` at 0 or
    `x - x`: a root of such a value has no slope where it is 0, as the operator's `0/0` has none.
    `exact`: no function was rounded to fifty digits on the way to the value.
    """

    value: Fraction
    slopes: Mapping[int, Fraction] = field(default_factory=dict, hash=False)
    exact: bool = True

    def __add__(self, other: Real) -> Dual:
        if not isinstance(other, Dual):
            return Dual(self.value + other, self.slopes, self.exact)
        slopes = _summed([(Fraction(1), self), (Fraction(1), other)])
        return Dual(self.value + other.value, slopes, self.exact and other.exact)

    __radd__ = __add__

    def __mul__(self, factor: Fraction) -> Dual:
        return Dual(self.value * factor, {k: s * factor for k, s in self.slopes.items() if factor}, self.exact)

    __rmul__ = __mul__

    def __sub__(self, other: Real) -> Dual:
        return self + other * Fraction(-1)

    def __rsub__(self, other: Fraction) -> Dual:
        return self * Fraction(-1) + other


@dataclass(frozen=True)
class LogOf(Dual):
    """The logarithm of a rational `ratio`: its exponential is exact, and so is a comparison of two of them."""

    ratio: Fraction = Fraction(1)

    def __add__(self, other: Real) -> Dual:
        plain = Dual.__add__(self, other)
        if isinstance(other, LogOf):
            return _log(self.ratio * other.ratio, plain)
        return _log(self.ratio, plain) if is_exact(other) and value_of(other) == 0 else plain

    __radd__ = __add__

    def __mul__(self, factor: Fraction) -> Dual:
        plain, power = Dual.__mul__(self, factor), _power(self.ratio, factor)
        return plain if power is None else _log(power, plain)

    __rmul__ = __mul__


def _log(ratio: Fraction, plain: Dual) -> LogOf:
    return LogOf(plain.value, plain.slopes, ratio == 1, ratio)


def _power(ratio: Fraction, exponent: Fraction) -> Fraction | None:
    """`ratio ** exponent`, if it is rational and not large; else None."""
    n, root = exponent.numerator, exponent.denominator
    if ratio == 1 or exponent == 0:
        return Fraction(1)
    if max(abs(n), root) > 8:
        return None
    parts = [round(part ** (1 / root)) for part in (ratio.numerator, ratio.denominator)] if root > 1 else None
    if parts is not None and Fraction(parts[0], parts[1]) ** root != ratio:
        return None
    return (ratio if parts is None else Fraction(parts[0], parts[1])) ** n


def log_of(ratio: Fraction, slopes: Mapping[int, Fraction]) -> LogOf:
    """The log ratio of a token with this ratio."""
    return LogOf(transcendental("log")(ratio), slopes, ratio == 1, ratio)


Real = Fraction | Dual


class TooClose(ArithmeticError):
    """Two numbers are compared that fifty digits do not tell apart."""


def value_of(x: Real) -> Fraction:
    return x.value if isinstance(x, Dual) else x


def slopes_of(x: Real) -> Mapping[int, Fraction]:
    return x.slopes if isinstance(x, Dual) else {}


def is_exact(x: Real) -> bool:
    return x.exact if isinstance(x, Dual) else True


def without_slopes(x: Real) -> Real:
    """The value without slopes, as `stop` gives it. The logarithm of a rational stays a `LogOf`."""
    if isinstance(x, LogOf):
        return LogOf(x.value, {}, x.exact, x.ratio)
    return Dual(x.value, {}, x.exact) if isinstance(x, Dual) else x


class _DualDomain:
    """Values with derivatives, as a domain of `fold`. `strict` raises `TooClose`."""

    def __init__(self, strict: bool) -> None:
        self.strict = strict

    def constant(self, value: Fraction) -> Fraction:
        return value

    def apply(self, row: Primitive, arguments: list[Any]) -> Any:
        if row.ir == "stop":
            return without_slopes(arguments[0])
        logarithms = _of_logarithms(row, arguments) if self.strict else None
        if logarithms is not None:
            return logarithms
        known = [value_of(a) for a in arguments]
        exact = all(is_exact(a) for a in arguments)
        if row.is_condition:
            size = max(Fraction(1), *(abs(k) for k in known)) if self.strict and not exact else None
            if size is not None and abs(known[0] - known[1]) < CLOSEST * size:
                raise TooClose(f"{known[0]} and {known[1]}")
            return row.exact(*known)
        y = bounded(row.exact(*known))
        exact = exact and (not row.rounded or row.rational_at(known[0]))
        moving = [k for k, a in enumerate(arguments) if isinstance(a, Dual) and a.slopes]
        if not moving:
            return y if exact or not self.strict else Dual(y, {}, False)
        read = [*known, y]
        slopes = ((fold(row.derivatives[k], EXACT, lambda a: read[a.position]), arguments[k]) for k in moving)
        return Dual(y, _summed(list(slopes)), exact)


DUALS, STRICT = _DualDomain(strict=False), _DualDomain(strict=True)


def _of_logarithms(row: Primitive, arguments: list[Real]) -> Any:
    """The exact result, if an argument or the result is the logarithm of a rational; else None."""
    operator, x = row.ir, arguments[0]
    if operator in ("log", "log1p") and is_exact(x) and not slopes_of(x):
        ratio = value_of(x) + (operator == "log1p")
        return log_of(ratio, {}) if ratio > 0 else None
    if not any(isinstance(a, LogOf) for a in arguments):
        return None
    if operator in ("exp", "expm1") and isinstance(x, LogOf):
        return Dual(x.ratio - (operator == "expm1"), _summed([(x.ratio, x)]))
    if operator == "neg":
        return x * Fraction(-1)
    if len(arguments) == 1:
        return None
    y = arguments[1]
    if operator == "add":
        return x + y
    if operator == "sub":
        return x - y
    if row.is_condition:
        ratios = [a.ratio if isinstance(a, LogOf) else None if value_of(a) or not is_exact(a) else 1 for a in (x, y)]
        return None if None in ratios else row.exact(*ratios)
    if operator in ("mul", "div") and is_exact(y) and not slopes_of(y):
        return x * (value_of(y) if operator == "mul" else divide(Fraction(1), value_of(y)))
    if operator == "mul" and is_exact(x) and not slopes_of(x):
        return y * value_of(x)
    return None


CLOSEST = Fraction(1, 10**40)


def _summed(parts: list[tuple[Fraction, Dual]]) -> Mapping[int, Fraction]:
    found: dict[int, Fraction] = {}
    for factor, dual in parts:
        for k, slope in dual.slopes.items():
            found[k] = found.get(k, Fraction(0)) + factor * slope
    return found
