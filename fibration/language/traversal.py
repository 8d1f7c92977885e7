"""Walks over expressions: listing and replacing atoms, expanding sugar, exact values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any

from fibration.language.exact import bounded
from fibration.language.expressions import Apply, Expression, Number
from fibration.language.operators import OPERATORS, Sugar

KEPT = 1 << 12  # cached formulas: every law reads the same formulas on every batch that it tries


def atoms(expression: Expression) -> Iterator[Expression]:
    """Yields every atom of an expression, each once, in the order of first appearance."""
    return iter(_atoms(expression))


@lru_cache(KEPT)
def _atoms(expression: Expression) -> tuple[Expression, ...]:
    found: dict[Expression, None] = {}
    stack = [expression]
    while stack:
        e = stack.pop()
        if isinstance(e, Apply):
            stack.extend(reversed(e.arguments))
        elif not isinstance(e, Number):
            found[e] = None
    return tuple(found)


def transform(expression: Expression, atom: Callable[[Expression], Expression]) -> Expression:
    """Returns the expression with every atom `a` replaced by `atom(a)`."""
    if isinstance(expression, Apply):
        arguments = tuple(transform(a, atom) for a in expression.arguments)
        return expression if arguments == expression.arguments else Apply(expression.operator, arguments)
    return expression if isinstance(expression, Number) else atom(expression)


def substitute(expression: Expression, values: Mapping[Expression, Expression]) -> Expression:
    """Returns the expression with atoms replaced by expressions, all at once."""
    return transform(expression, lambda a: values.get(a, a))


def desugar(expression: Expression) -> Expression:
    """Returns the expression with every sugar operator expanded into `where` and arithmetic."""
    if not isinstance(expression, Apply):
        return expression
    arguments = tuple(desugar(a) for a in expression.arguments)
    row = OPERATORS[expression.operator]
    if isinstance(row, Sugar):
        return desugar(row.expand(*arguments))
    return Apply(expression.operator, arguments)


def evaluate(expression: Expression, values: Callable[[Expression], Fraction] | Mapping[Expression, Fraction]) -> Any:
    """Returns the exact value over Fractions (transcendental functions to fifty digits).

    It uses neither sympy nor the IR, so proofs and counterexamples are checked against it. `where` evaluates only the
    branch it takes. Raises `NoValue` if the expression has no value, and `TooLarge` if a value has too many digits.
    """
    if isinstance(expression, Number):
        return expression.value
    if not isinstance(expression, Apply):
        return values(expression) if callable(values) else values[expression]
    if expression.operator == "where":
        condition, value, otherwise = expression.arguments
        return evaluate(value if evaluate(condition, values) else otherwise, values)
    arguments = [evaluate(a, values) for a in expression.arguments]
    row = OPERATORS[expression.operator]
    if isinstance(row, Sugar):
        return evaluate(row.expand(*(Number(a) for a in arguments)), {})
    return bounded(row.exact(*arguments))
