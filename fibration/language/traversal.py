"""Walks over expressions: listing and replacing atoms, expanding sugar, exact values, cancelling common factors.

`cancel` rearranges nothing else: `(M·ρ)/M` becomes `ρ`, and `budget - k·(drift - budget)` stays as it was written. A
general simplifier would be free to choose a form that is equal in the reals and wrong in floating point.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any, Protocol, TypeVar, overload

from fibration.language.exact import bounded
from fibration.language.expressions import Apply, Expression, Number, as_expression
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


# ---------------------------------------------------------------- common factors

ZERO, ONE = as_expression(0), as_expression(1)
Factors = dict[Expression, int]


@functools.lru_cache(maxsize=10_000)  # without it, nested sums take exponential time
def cancel(expression: Expression) -> Expression:
    """Returns the expression with common factors of products, quotients and simple sums cancelled."""
    if not isinstance(expression, Apply):
        return expression
    if expression.operator in ("*", "/", "neg"):
        coefficient, factors = factored(expression)
        return multiplied(coefficient, factors)
    arguments = tuple(cancel(a) for a in expression.arguments)
    rebuilt = expression if arguments == expression.arguments else Apply(expression.operator, arguments)
    if expression.operator in ("+", "-"):
        return _common(rebuilt)
    return rebuilt


def factored(expression: Expression) -> tuple[Fraction, Factors]:
    """Returns the coefficient and the powers of a product. A sum or a function counts as one factor."""
    if isinstance(expression, Number):
        return expression.value, {}
    if isinstance(expression, Apply):
        if expression.operator == "neg":
            c, f = factored(expression.arguments[0])
            return -c, f
        if expression.operator in ("*", "/"):
            (c, f), (d, g) = (factored(a) for a in expression.arguments)
            invert = expression.operator == "/"
            if invert and d == 0:  # unchanged: the laws refuse it
                return Fraction(1), {expression: 1}
            for e, power in g.items():
                f[e] = f.get(e, 0) + (-power if invert else power)
            return (c / d if invert else c * d), {e: p for e, p in f.items() if p}
        inner = cancel(expression)
        if isinstance(inner, Number) or (isinstance(inner, Apply) and inner.operator in ("*", "/", "neg")):
            return factored(inner)
        return Fraction(1), {inner: 1}
    return Fraction(1), {expression: 1}


def multiplied(coefficient: Fraction, factors: Factors) -> Expression:
    if coefficient == 0:
        return ZERO
    choice = next((e for e, p in factors.items() if p == 1 and isinstance(e, Apply) and e.operator == "where"), None)
    if choice is not None and (len(factors) > 1 or coefficient != 1):
        # A factor goes into the branches, so that it can cancel there and a branch of zero stays exactly zero.
        rest = multiplied(coefficient, {e: p for e, p in factors.items() if e is not choice})
        condition, value, otherwise = choice.arguments  # type: ignore[attr-defined]
        return Apply("where", (condition, cancel(value * rest), cancel(otherwise * rest)))
    size = abs(coefficient)
    top = _product(size.numerator, (e for e, p in factors.items() for _ in range(p)))
    bottom = _product(size.denominator, (e for e, p in factors.items() for _ in range(-p)))
    result = top if bottom == ONE else top / bottom
    return -result if coefficient < 0 else result


def _product(number: int, factors: Iterable[Expression]) -> Expression:
    """Returns `2·(a·b)`, without factors of 1."""
    product = functools.reduce(lambda a, b: b if a == ONE else a * b, factors, ONE)
    return product if number == 1 else as_expression(number) if product == ONE else number * product


def _common(total: Apply) -> Expression:
    """Rewrites `s·a - s·b` as `s·(a - b)`, with all factors `s` that both terms share."""
    (c, f), (d, g) = (factored(a) for a in total.arguments)
    if c == 0 or d == 0:
        left, right = total.arguments
        return right if c == 0 and total.operator == "+" else left if d == 0 else cancel(-right)
    shared = {e: min(f[e], g[e], key=abs) for e in f if e in g and f[e] * g[e] > 0}
    if not shared:
        return total
    rest = [{e: p - shared.get(e, 0) for e, p in t.items() if p != shared.get(e, 0)} for t in (f, g)]
    inner = Apply(total.operator, (multiplied(c, rest[0]), multiplied(d, rest[1])))
    return multiplied(Fraction(1), {inner: 1, **shared})
