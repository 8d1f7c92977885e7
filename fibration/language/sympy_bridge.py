"""Between formulas of the language and sympy: the only home of that translation."""

from __future__ import annotations

from fractions import Fraction
from functools import cache, lru_cache
from typing import Any, TypeGuard

import sympy
from sympy import Dummy

from fibration.errors import SpecError
from fibration.language.atoms import Attribute, Count, Total
from fibration.language.expressions import Apply, Expression, Number, apply, as_expression, write
from fibration.language.operators import OPERATORS, sqrt, where

ATOM_OF: dict[Dummy, Expression] = {}  # of every symbol
OPERATOR_OF: dict[Any, str] = {head: name for name, row in OPERATORS.items() for head in row.heads}
_WORDS = [head.__name__ for row in OPERATORS.values() if not row.sign for head in row.heads]
_CONSTANTS = {value: written for row in OPERATORS.values() for value, written in row.constants.items()}


@cache  # evicting one would give its atom a second symbol
def symbol(atom: Expression) -> Dummy:
    """One sympy symbol per atom: equal atoms, equal symbols.

    It says what holds in every hierarchy: counts may be 0, over an empty branch of a tree. Where they are not is for
    `Assumptions`.
    """
    known = {"real": True}
    if isinstance(atom, Count):
        known = {"nonnegative": True, "integer": True}
    elif isinstance(atom, Total) and atom.attribute.positive:
        known = {"nonnegative": True}
    elif isinstance(atom, Attribute) and atom.positive:
        known = {"positive": True}
    made = Dummy(write(atom), **known)
    ATOM_OF[made] = atom
    return made


def to_sympy(expression: Expression) -> Any:
    """The sympy form; the count of a stratum over itself is 1, the total of an attribute its value."""
    if isinstance(expression, Number):
        return sympy.Rational(expression.value.numerator, expression.value.denominator)
    if isinstance(expression, Apply):
        return OPERATORS[expression.operator].sympy(*(to_sympy(a) for a in expression.arguments))
    if isinstance(expression, Count) and expression.of == expression.over:
        return sympy.Integer(1)
    if isinstance(expression, Total) and expression.over == expression.attribute.on:
        return symbol(expression.attribute)
    return symbol(expression)


def from_sympy(value: Any) -> Expression:
    """The way back, for printing and for users who build formulas with sympy."""
    if value in ATOM_OF:
        return ATOM_OF[value]
    if isinstance(value, sympy.Rational):
        return as_expression(Fraction(int(value.p), int(value.q)))
    if value in _CONSTANTS:
        return _CONSTANTS[value]()
    if isinstance(value, sympy.Float):
        return as_expression(float(value))
    if isinstance(value, sympy.Piecewise):
        result = from_sympy(value.args[-1][0])
        for branch, condition in reversed(value.args[:-1]):
            result = where(from_sympy(condition), from_sympy(branch), result)
        return result
    if isinstance(value, sympy.Pow) and value.exp == sympy.Rational(1, 2):
        return sqrt(from_sympy(value.base))
    if isinstance(value, sympy.Pow) and value.exp.is_Integer:
        base, n = from_sympy(value.base), int(value.exp)
        power = base if abs(n) == 1 else base ** abs(n)
        return power if n > 0 else 1 / power
    if isinstance(value, sympy.Mul):
        if value.args[0].is_Rational and value.args[0] < 0:
            return -from_sympy(-value)
        top, bottom = value.as_numer_denom()
        if bottom != 1:
            return from_sympy(top) / from_sympy(bottom)
    if value.func in OPERATOR_OF and value.args:
        operator, args = OPERATOR_OF[value.func], [from_sympy(a) for a in value.args]
        if len(args) == 1:
            return apply(operator, *args)
        if operator == "+":  # positive terms first, so that differences read as differences
            args.sort(key=_is_negated)
        result = args[0]
        for a in args[1:]:
            result = result - a.arguments[0] if operator == "+" and _is_negated(a) else apply(operator, result, a)
        return result
    raise SpecError(
        f"the sympy expression {value} cannot be used here",
        required=f"numbers, our atoms, + - * / ** sqrt Piecewise {' '.join(_WORDS)}",
    )


def _is_negated(e: Expression) -> TypeGuard[Apply]:
    return isinstance(e, Apply) and e.operator == "neg"


def show(value: Any) -> str:
    """A sympy result in the written grammar."""
    return write(from_sympy(sympy.factor(value) if value.is_rational_function() else value))


def vanishes(value: Any) -> bool:
    """Whether an expression is identically zero; complete for rational functions."""
    return _vanishes(sympy.sympify(value))


@lru_cache(maxsize=65536)
def _vanishes(value: Any) -> bool:
    if value == 0:
        return True
    reduced = sympy.cancel(sympy.together(value))
    return bool(reduced == 0 or sympy.expand(reduced) == 0)
