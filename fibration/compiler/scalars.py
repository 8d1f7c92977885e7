"""Converts formulas of the language to scalars of the IR."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from fibration.compiler import ir
from fibration.compiler.ir import Scalar
from fibration.language.expressions import Apply, Expression, Number
from fibration.language.operators import OPERATORS, Composed, Primitive


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
