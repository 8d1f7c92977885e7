"""Cancels common factors in an expression without rearranging anything else.

`(M·ρ)/M` becomes `ρ`; `budget - k·(drift - budget)` stays as it was written. A general simplifier would be free to
choose a form that is equal in the reals and wrong in floating point.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from fractions import Fraction

from fibration.language.atoms import Component, Parameter, read_at
from fibration.language.expressions import Apply, Expression, Number, as_expression
from fibration.language.traversal import atoms

ZERO, ONE = as_expression(0), as_expression(1)
Factors = dict[Expression, int]


@functools.lru_cache(maxsize=10_000)  # without it, nested sums take exponential time
def cancel(expression: Expression) -> Expression:
    """Returns the expression with common factors of products, quotients and simple sums cancelled."""
    if not isinstance(expression, Apply):
        return expression
    if expression.operator in ("*", "/", "neg"):
        coefficient, factors = _factor(expression)
        return _join(coefficient, factors)
    arguments = tuple(cancel(a) for a in expression.arguments)
    rebuilt = expression if arguments == expression.arguments else Apply(expression.operator, arguments)
    if expression.operator in ("+", "-"):
        return _common(rebuilt)
    return rebuilt


def _factor(expression: Expression) -> tuple[Fraction, Factors]:
    """Returns the coefficient and the powers of a product. A sum or a function counts as one factor."""
    if isinstance(expression, Number):
        return expression.value, {}
    if isinstance(expression, Apply):
        if expression.operator == "neg":
            c, f = _factor(expression.arguments[0])
            return -c, f
        if expression.operator in ("*", "/"):
            (c, f), (d, g) = (_factor(a) for a in expression.arguments)
            invert = expression.operator == "/"
            if invert and d == 0:  # unchanged: the laws refuse it
                return Fraction(1), {expression: 1}
            for e, power in g.items():
                f[e] = f.get(e, 0) + (-power if invert else power)
            return (c / d if invert else c * d), {e: p for e, p in f.items() if p}
        inner = cancel(expression)
        if isinstance(inner, Number) or (isinstance(inner, Apply) and inner.operator in ("*", "/", "neg")):
            return _factor(inner)
        return Fraction(1), {inner: 1}
    return Fraction(1), {expression: 1}


def _join(coefficient: Fraction, factors: Factors) -> Expression:
    if coefficient == 0:
        return ZERO
    choice = next((e for e, p in factors.items() if p == 1 and isinstance(e, Apply) and e.operator == "where"), None)
    if choice is not None and (len(factors) > 1 or coefficient != 1):
        # A factor goes into the branches, so that it can cancel there and a branch of zero stays exactly zero.
        rest = _join(coefficient, {e: p for e, p in factors.items() if e is not choice})
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
    (c, f), (d, g) = (_factor(a) for a in total.arguments)
    if c == 0 or d == 0:
        left, right = total.arguments
        return right if c == 0 and total.operator == "+" else left if d == 0 else cancel(-right)
    shared = {e: min(f[e], g[e], key=abs) for e in f if e in g and f[e] * g[e] > 0}
    if not shared:
        return total
    rest = [{e: p - shared.get(e, 0) for e, p in t.items() if p != shared.get(e, 0)} for t in (f, g)]
    inner = Apply(total.operator, (_join(c, rest[0]), _join(d, rest[1])))
    return _join(Fraction(1), {inner: 1, **shared})


def factors_over(weight: Expression, stratum: str) -> tuple[Expression, Expression]:
    """Splits a product into the part that varies over `stratum` and the part that is constant on its fibres."""
    coefficient, factors = _factor(weight)
    inside = {e: p for e, p in factors.items() if any(_varies(a, stratum) for a in atoms(e))}
    outside = {e: p for e, p in factors.items() if e not in inside}
    return _join(Fraction(1), inside), _join(coefficient, outside)


def _varies(atom: Expression, stratum: str) -> bool:
    place = read_at(atom)
    return not isinstance(atom, (Parameter, Component)) if place is None else place.name == stratum
