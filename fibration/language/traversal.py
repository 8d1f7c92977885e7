"""Walks over expressions: listing and replacing atoms, expanding sugar, exact values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any, Protocol, TypeVar, overload

from fibration.language.exact import bounded
from fibration.language.expressions import Apply, Expression, Number
from fibration.language.operators import ARGUMENTS, OPERATORS, Primitive, Sugar

KEPT = 1 << 12  # cached formulas: every law reads the same formulas on every batch that it tries


A = TypeVar("A", bound=Expression)


@overload
def atoms(expression: Expression) -> tuple[Expression, ...]: ...
@overload
def atoms(expression: Expression, kind: type[A], /, *more: type[A]) -> tuple[A, ...]: ...
def atoms(expression: Expression, *kinds: type[Expression]) -> tuple[Expression, ...]:
    """Returns the atoms of an expression, or those of some kinds, each once, in the order of first appearance."""
    found = _atoms(expression)
    return tuple(a for a in found if isinstance(a, kinds)) if kinds else found


@lru_cache(KEPT)
def _atoms(expression: Expression) -> tuple[Expression, ...]:
    return tuple(dict.fromkeys(e for e in subexpressions(expression) if not isinstance(e, (Apply, Number))))


def applications(expression: Expression, *operators: str) -> tuple[Apply, ...]:
    """Returns the parts of an expression that apply one of these operators, an operator before its arguments."""
    return tuple(e for e in subexpressions(expression) if isinstance(e, Apply) and e.operator in operators)


def subexpressions(expression: Expression) -> Iterator[Expression]:
    """Yields an expression and all its parts down to numbers and atoms, an operator before its arguments."""
    stack = [expression]
    while stack:
        e = stack.pop()
        yield e
        if isinstance(e, Apply):
            stack.extend(reversed(e.arguments))


def rewrite(expression: Expression, change: Callable[[Expression], Expression]) -> Expression:
    """Returns the expression with every part `e` replaced by `change(e)`, the innermost first."""
    if isinstance(expression, Apply):
        arguments = tuple(rewrite(a, change) for a in expression.arguments)
        if arguments != expression.arguments:
            expression = Apply(expression.operator, arguments)
    return change(expression)


def transform(expression: Expression, atom: Callable[[Expression], Expression]) -> Expression:
    """Returns the expression with every atom `a` replaced by `atom(a)`."""
    return rewrite(expression, lambda e: e if isinstance(e, (Apply, Number)) else atom(e))


def substitute(expression: Expression, values: Mapping[Expression, Expression]) -> Expression:
    """Returns the expression with atoms replaced by expressions, all at once."""
    return transform(expression, lambda a: values.get(a, a))


def desugar(expression: Expression) -> Expression:
    """Returns the expression with every sugar operator expanded into `where` and arithmetic."""
    return rewrite(expression, _expanded)


def _expanded(e: Expression) -> Expression:
    if isinstance(e, Apply) and isinstance(row := OPERATORS[e.operator], Sugar):
        return row.expand(*e.arguments)
    return e


class Domain(Protocol):
    """A kind of numbers in which `fold` evaluates expressions."""

    def constant(self, value: Fraction) -> Any:
        """Returns the number of this kind for an exact constant."""

    def apply(self, row: Primitive, arguments: list[Any]) -> Any:
        """Returns the value of an operator, which is a truth value if the operator is a condition."""


def fold(expression: Expression, domain: Domain, values: Callable[[Any], Any]) -> Any:
    """Returns the value of an expression in a domain, where its atoms have `values`.

    `where` evaluates only the branch that it takes. The domain applies primitive operators; all others are formulas of
    these.
    """
    if isinstance(expression, Number):
        return domain.constant(expression.value)
    if not isinstance(expression, Apply):
        return values(expression)
    if expression.operator == "where":
        condition, value, otherwise = expression.arguments
        return fold(value if fold(condition, domain, values) else otherwise, domain, values)
    arguments = [fold(a, domain, values) for a in expression.arguments]
    row = OPERATORS[expression.operator]
    if isinstance(row, Primitive):
        return domain.apply(row, arguments)
    if isinstance(row, Sugar):
        formula = row.expansion
    else:
        second = expression.arguments[1]
        formula = row.lowering(second if isinstance(second, Number) else ARGUMENTS[1])
    return fold(formula, domain, lambda a: arguments[a.position])


class _ExactDomain:
    """Fractions; transcendental functions to fifty digits."""

    def constant(self, value: Fraction) -> Fraction:
        return value

    def apply(self, row: Primitive, arguments: list[Any]) -> Any:
        return bounded(row.exact(*arguments))


EXACT = _ExactDomain()


def evaluate(expression: Expression, values: Callable[[Expression], Fraction] | Mapping[Expression, Fraction]) -> Any:
    """Returns the exact value over Fractions (transcendental functions to fifty digits).

    It uses neither sympy nor the IR, so proofs and counterexamples are checked against it. Raises `NoValue` if the
    expression has no value, and `TooLarge` if a value has too many digits.
    """
    return fold(expression, EXACT, values if callable(values) else values.__getitem__)
