"""Exact values with their derivatives: forward differentiation over Fractions, by the slopes that operators declare.

Of a choice, the branch that holds *at* the point is differentiated; a slope that nothing flows into is not asked for.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from fibration.language.atoms import Reading
from fibration.language.exact import bounded, divide
from fibration.language.expressions import Apply, Expression, Number, as_expression
from fibration.language.operators import OPERATORS, Composed, Sugar
from fibration.language.traversal import evaluate


@dataclass(frozen=True)
class Dual:
    """A value, and its derivative towards each variable, by number; those of 0 are left out."""

    value: Fraction
    slopes: Mapping[int, Fraction] = field(default_factory=dict)

    def __add__(self, other: Real) -> Dual:
        if not isinstance(other, Dual):
            return Dual(self.value + other, self.slopes)
        return Dual(self.value + other.value, _summed([(Fraction(1), self), (Fraction(1), other)]))

    __radd__ = __add__

    def __mul__(self, factor: Fraction) -> Dual:
        return Dual(self.value * factor, {k: s * factor for k, s in self.slopes.items() if factor})

    __rmul__ = __mul__

    def __sub__(self, other: Real) -> Dual:
        return self + other * Fraction(-1)

    def __rsub__(self, other: Fraction) -> Dual:
        return self * Fraction(-1) + other

    def __truediv__(self, divisor: Fraction) -> Dual:
        return self * divide(Fraction(1), divisor)


Real = Fraction | Dual


def value_of(x: Real) -> Fraction:
    return x.value if isinstance(x, Dual) else x


def slopes_of(x: Real) -> Mapping[int, Fraction]:
    return x.slopes if isinstance(x, Dual) else {}


def quotient(a: Real, b: Fraction) -> Real:
    return a / b if isinstance(a, Dual) else divide(a, b)


def differentiate(expression: Expression, values: Callable[[Expression], Real]) -> Any:
    """As `traversal.evaluate`, where atoms may have derivatives. Raises `NoValue` where there is no value or slope."""
    if isinstance(expression, Number):
        return expression.value
    if not isinstance(expression, Apply):
        return values(expression)
    if expression.operator == "where":
        condition, value, otherwise = expression.arguments
        return differentiate(value if differentiate(condition, values) else otherwise, values)
    arguments = [differentiate(a, values) for a in expression.arguments]
    row = OPERATORS[expression.operator]
    if isinstance(row, Sugar):
        given = dict(zip(ARGUMENTS, arguments, strict=False))
        return differentiate(expanded(expression.operator), given.__getitem__)
    known = [value_of(a) for a in arguments]
    y = bounded(row.exact(*known))
    moving = {k: a for k, a in enumerate(arguments) if isinstance(a, Dual) and a.slopes}
    if row.is_condition or not moving:
        return y
    if isinstance(row, Composed):  # a power, whose exponent is a number
        shown = [e if isinstance(e, Number) else a for e, a in zip(expression.arguments, ARGUMENTS, strict=False)]
        given = dict(zip(ARGUMENTS, arguments, strict=False))
        return differentiate(row.lowered(*shown), given.__getitem__)
    slopes = _slopes(expression.operator)
    point = dict(zip((*ARGUMENTS[: len(known)], RESULT), (*known, y), strict=True))
    return Dual(y, _summed([(evaluate(slopes[k], point), a) for k, a in moving.items()]))


def _summed(parts: list[tuple[Fraction, Dual]]) -> Mapping[int, Fraction]:
    found: dict[int, Fraction] = {}
    for factor, dual in parts:
        for k, slope in dual.slopes.items():
            found[k] = found.get(k, Fraction(0)) + factor * slope
    return {k: slope for k, slope in found.items() if slope}


# What stands for the arguments and the value of an operator in its row.
ARGUMENTS: tuple[Expression, ...] = tuple(Reading(f"argument {k}") for k in range(3))
RESULT: Expression = Reading("its value")


@functools.cache
def expanded(operator: str) -> Expression:
    row = OPERATORS[operator]
    assert isinstance(row, Sugar)
    return row.expand(*ARGUMENTS[: row.arity])


@functools.cache
def _slopes(operator: str) -> tuple[Expression, ...]:
    row: Any = OPERATORS[operator]
    return tuple(as_expression(s) for s in row.slopes(*ARGUMENTS[: row.arity], RESULT))
