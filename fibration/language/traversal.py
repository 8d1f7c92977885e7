"""Walks over expressions: their atoms, rebuilding with other atoms, expanding sugar, exact values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any

from fibration.language.exact import bounded
from fibration.language.expressions import Apply, Expression, Number
from fibration.language.operators import OPERATORS, Sugar

KEPT = 1 << 12  # formulas are asked again and again, by every law and on every batch that it tries


def atoms(expression: Expression) -> Iterator[Expression]:
    """Every atom of an expression, each once, in the order of first appearance."""
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
    """Rebuild with every atom replaced by `atom(it)`."""
    if isinstance(expression, Apply):
        arguments = tuple(transform(a, atom) for a in expression.arguments)
        return expression if arguments == expression.arguments else Apply(expression.operator, arguments)
    return expression if isinstance(expression, Number) else atom(expression)


def substitute(expression: Expression, values: Mapping[Expression, Expression]) -> Expression:
    """Replace atoms by expressions, all at once."""
    return transform(expression, lambda a: values.get(a, a))


def desugar(expression: Expression) -> Expression:
    """Expand every sugar operator into `where` and arithmetic."""
    if not isinstance(expression, Apply):
        return expression
    arguments = tuple(desugar(a) for a in expression.arguments)
    row = OPERATORS[expression.operator]
    if isinstance(row, Sugar):
        return desugar(row.expand(*arguments))
    return Apply(expression.operator, arguments)


def evaluate(expression: Expression, values: Callable[[Expression], Fraction] | Mapping[Expression, Fraction]) -> Any:
    """The exact value over Fractions (transcendental functions to fifty digits).

    Independent of sympy and of the IR: the ground truth that proofs and counterexamples are checked against.
    `where` evaluates only the branch it takes. Raises `NoValue` where the expression has no value, and `TooLarge` where
    one has too many digits.
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
