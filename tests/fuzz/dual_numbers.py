"""Numbers with slopes, and the evaluation of formulas: in floats, or in `Fraction`s with functions to fifty digits."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import mpmath

from fibration.language.expressions import Apply, Expression, Number

CLOSE = 1e-9  # two floats this close, which are not equal, are not told apart


class NoValue(Exception):
    """A division by 0, a logarithm or root outside its domain, a mean of nothing."""


class Illegal(Exception):
    """A batch that an index refuses: an element without others where the others' mean is read."""


class Unclear(Exception):
    """A comparison that rests on rounding, or a number beyond a float."""


# ---------------------------------------------------------------- numbers with slopes


class Dual:
    """A value and its slopes, by token; slopes of 0 are left out."""

    __slots__ = ("slopes", "value")

    def __init__(self, value: Any, slopes: dict[int, Any]) -> None:
        self.value, self.slopes = value, slopes


def value_of(x: Any) -> Any:
    return x.value if isinstance(x, Dual) else x


def slopes_of(x: Any) -> dict[int, Any]:
    return x.slopes if isinstance(x, Dual) else {}


def chained(value: Any, *parts: tuple[Any, Any]) -> Any:
    """A value whose slopes are `Σ factor · slopes of x`; a factor is a number, or a function that gives it."""
    found: dict[int, Any] = {}
    for factor, x in parts:
        if isinstance(x, Dual) and x.slopes:
            f = factor() if callable(factor) else factor
            for k, s in x.slopes.items():
                found[k] = found.get(k, 0) + f * s
    found = {k: s for k, s in found.items() if s != 0}
    return Dual(value, found) if found else value


def add(a: Any, b: Any, sign: int = 1) -> Any:
    return chained(value_of(a) + sign * value_of(b), (1, a), (sign, b))


def times(a: Any, b: Any) -> Any:
    return chained(value_of(a) * value_of(b), (value_of(b), a), (value_of(a), b))


def divided(a: Any, b: Any) -> Any:
    x, y = value_of(a), value_of(b)
    if y == 0:
        raise NoValue(f"{x} / 0")
    return chained(x / y, (1 / y, a), (lambda: -x / y / y, b))


def total_of(values: Sequence[Any]) -> Any:
    return functools.reduce(add, values, 0)


def _mpmath(name: str) -> Callable[[Fraction], Fraction]:
    def function(x: Fraction) -> Fraction:
        with mpmath.workdps(50):
            try:
                y = getattr(mpmath, name)(mpmath.mpf(Fraction(x).numerator) / Fraction(x).denominator)
            except OverflowError as error:
                raise Unclear(f"{name}({float(x)})") from error
            if isinstance(y, mpmath.mpc) or not mpmath.isfinite(y) or abs(y._mpf_[2]) > 4096:
                raise Unclear(f"{name}({float(x)})")
            sign, mantissa, exponent, _ = y._mpf_
            return (-1) ** sign * int(mantissa) * Fraction(2) ** exponent

    return function


def _float(function: Callable[[float], float]) -> Callable[[Any], float]:
    def checked(x: Any) -> float:
        if function in (math.exp, math.expm1) and abs(x) > 600:
            raise Unclear(f"exp({x})")
        y = function(float(x))
        return beside_one(y) if x != 0 and function in (math.exp, math.expm1, math.tanh) else y

    return checked


def beside_one(y: Any) -> Any:
    """What only rounds to 1 or -1 is next to it: compared with it, it is unclear."""
    return math.nextafter(y, 0) if isinstance(y, float) and abs(y) == 1 else y


_FLOATS: dict[str, Callable[[Any], Any]] = {
    name: _float(getattr(math, name)) for name in ("exp", "expm1", "log", "log1p", "tanh", "sqrt", "atan")
}
_EXACT: dict[str, Callable[[Any], Any]] = {
    name: _mpmath(name) for name in ("exp", "expm1", "log", "log1p", "tanh", "sqrt", "atan")
}


@dataclass
class Numbers:
    """How numbers are computed with: as floats, or exactly; `lazy`: of `and` and `or` only what decides is read."""

    exact: bool = False
    lazy: bool = True

    def number(self, x: Any) -> Any:
        return Fraction(x) if self.exact else float(x)

    def call(self, name: str, x: Any) -> Any:
        return (_EXACT if self.exact else _FLOATS)[name](x)

    def less(self, a: Any, b: Any, or_equal: bool) -> bool:
        x, y = value_of(a), value_of(b)
        if x == y:
            return or_equal
        apart = abs(x - y)
        if apart < (Fraction(1, 10**40) if self.exact else CLOSE) * max(1, abs(x), abs(y)):
            raise Unclear(f"{x} and {y}")
        return bool(x < y)

    def evaluate(self, e: Expression, atom: Callable[[Expression], Any]) -> Any:
        """An expression; of a choice only the branch that holds is read, and differentiated."""
        if isinstance(e, Number):
            return self.number(e.value)
        if not isinstance(e, Apply):
            return atom(e)
        op = e.operator
        if op == "where":
            return self.evaluate(e.arguments[1 if self.evaluate(e.arguments[0], atom) else 2], atom)
        if op in ("and", "or") and self.lazy:
            first = self.evaluate(e.arguments[0], atom)
            return first if bool(first) is (op == "or") else self.evaluate(e.arguments[1], atom)
        return self.apply(op, [self.evaluate(a, atom) for a in e.arguments])

    def apply(self, op: str, arguments: list[Any]) -> Any:
        try:
            found = self._apply(op, *arguments)
        except OverflowError as error:
            raise Unclear(f"{op} overflows") from error
        v = value_of(found)
        if isinstance(v, float) and not math.isfinite(v):
            raise Unclear(f"{op} is {v}")
        if isinstance(v, Fraction) and v.denominator.bit_length() > 4096:
            raise Unclear(f"{op} has too many digits")
        return found

    def _apply(self, op: str, a: Any, b: Any = None, c: Any = None) -> Any:
        x = value_of(a)
        match op:
            case "+" | "-":
                return add(a, b, 1 if op == "+" else -1)
            case "*":
                return times(a, b)
            case "/":
                return divided(a, b)
            case "neg":
                return chained(-x, (-1, a))
            case "**":
                n = int(value_of(b))
                return chained(x**n, (lambda: n * x ** (n - 1) if n else 0, a))
            case "<" | "<=":
                return self.less(a, b, op == "<=")
            case ">" | ">=":
                return self.less(b, a, op == ">=")
            case "and":
                return a and b
            case "or":
                return a or b
            case "not":
                return not a
            case "stop":
                return x
            case "minimum":
                return a if self.less(a, b, True) else b
            case "maximum":
                return a if self.less(b, a, True) else b
            case "clip":
                return b if self.less(a, b, False) else c if self.less(c, a, False) else a
            case "abs":
                return a if self.less(0, a, True) else chained(-x, (-1, a))
            case "sign":
                return self.number(1 if self.less(0, a, False) else -1 if self.less(a, 0, False) else 0)
            case "sigmoid":
                y = beside_one(1 / (1 + self.call("exp", -x)))
                low = self.call("exp", -abs(x))
                return chained(y, (low / (1 + low) ** 2, a))  # far out it is small, and not 0
            case "softplus":
                y = self.call("log1p", self.call("exp", -abs(x))) + max(x, 0)
                return chained(y, (lambda: 1 / (1 + self.call("exp", -x)), a))
        if (op in ("log",) and x <= 0) or (op == "log1p" and x <= -1) or (op == "sqrt" and x < 0):
            raise NoValue(f"{op}({x})")
        y = self.call(op, x)
        if op == "sqrt" and y == 0 and slopes_of(a):
            raise NoValue("the slope of a root of 0")
        slope: dict[str, Callable[[], Any]] = {
            "exp": lambda: y, "expm1": lambda: y + 1, "log": lambda: 1 / x, "log1p": lambda: 1 / (1 + x),
            "tanh": lambda: (2 / (self.call("exp", x) + self.call("exp", -x))) ** 2, "sqrt": lambda: 1 / (2 * y), "atan": lambda: 1 / (1 + x * x),
        }  # fmt: skip
        return chained(y, (slope[op], a))
