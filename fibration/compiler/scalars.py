"""Scalar bodies: of formulas of the language, their values without arguments, and their derivatives by the chain rule.

The derivative of a choice is that of the branch taken at the point.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, reduce
from typing import Any

from fibration.compiler import ir
from fibration.compiler.ir import CONDITIONS, Scalar, const, scalar
from fibration.language.expressions import Apply, Expression, Number
from fibration.language.operators import OPERATORS, PRIMITIVES, Composed, Primitive


@lru_cache(1 << 14)
def is_closed(body: Scalar) -> bool:
    """Whether a body reads no argument."""
    return all(map(is_closed, body.args)) if body.args else body.op == "const"


def closed_value(body: Scalar) -> float:
    """The value of a body that reads no argument, in float64: NaN for 0/0; of a condition 1 or 0."""
    from fibration.compiler.interpret import compute  # loads numpy

    return float(body.value or 0.0) if body.op == "const" else compute(body.op, *map(closed_value, body.args))


def to_scalar(expression: Expression, atom: Callable[[Expression], Scalar]) -> Scalar:
    """A desugared expression as a scalar body. `atom` converts its atoms."""
    if isinstance(expression, Number):
        return ir.const(expression.value)
    if not isinstance(expression, Apply):
        return atom(expression)
    row = OPERATORS[expression.operator]
    if isinstance(row, Composed):
        return to_scalar(row.lowered(*expression.arguments), atom)
    assert isinstance(row, Primitive)
    return ir.scalar(row.ir, *(to_scalar(a, atom) for a in expression.arguments))


ONE, ZERO = const(1.0), const(0.0)


def times(slope: Scalar, factor: Scalar) -> Scalar:
    """`slope · factor`, with the factor inside the branches: `0 · inf` must not turn a dead branch into NaN."""
    if slope is ZERO or factor is ZERO:
        return ZERO
    if slope is ONE:
        return factor
    if factor is ONE:
        return slope
    if slope is const(-1.0):
        return scalar("neg", factor)
    if slope.op == "select":
        c, a, b = slope.args
        return scalar("select", c, times(a, factor), times(b, factor))
    if slope.op == "neg":
        return scalar("neg", times(slope.args[0], factor))
    if slope.op == "div" and slope.args[0] is ONE:
        return scalar("div", factor, slope.args[1])
    return scalar("mul", slope, factor)


def plus(a: Scalar, b: Scalar) -> Scalar:
    if a is ZERO:
        return b
    return a if b is ZERO else scalar("add", a, b)


def _over(a: Scalar, b: Scalar) -> Scalar:
    if a is ZERO:
        return ZERO
    if a.op == "select":
        return scalar("select", a.args[0], _over(a.args[1], b), _over(a.args[2], b))
    return scalar("div", a, b)


def _chain(flowing: Scalar, slope: Expression, known: Callable[[Any], Scalar]) -> Scalar:
    """`flowing · slope`. A divisor of the slope divides the product, because a reciprocal would add a rounding."""
    if isinstance(slope, Number):
        return times(const(float(slope.value)), flowing)
    if isinstance(slope, Apply) and slope.operator == "neg":
        return times(const(-1.0), _chain(flowing, slope.arguments[0], known))
    if isinstance(slope, Apply) and slope.operator == "/":
        top, bottom = slope.arguments
        return _over(_chain(flowing, top, known), to_scalar(bottom, known))
    return times(flowing, to_scalar(slope, known))


def derivative(body: Scalar, position: int) -> Scalar:
    """`∂body/∂arg(position)`. Conditions count as constants; a `select` differentiates the branch that it takes."""
    known: dict[Scalar, Scalar] = {}

    def of(s: Scalar) -> Scalar:
        if s not in known:
            if s.op == "arg":
                known[s] = ONE if s.value == position else ZERO
            elif s.op == "const" or s.op in CONDITIONS:
                known[s] = ZERO
            elif s.op == "select":
                condition, a, b = s.args[0], of(s.args[1]), of(s.args[2])
                known[s] = a if a is b else scalar("select", condition, a, b)
            else:
                known[s] = flowing(s)
        return known[s]

    def flowing(s: Scalar) -> Scalar:
        read, slopes = (*s.args, s), PRIMITIVES[s.op].derivatives
        parts = (_chain(of(a), slope, lambda e: read[e.position]) for a, slope in zip(s.args, slopes, strict=True))
        return reduce(plus, parts)

    return of(body)
