"""A formula in the limit of an infinite parameter: a budget that never binds.

Comparisons with what is infinite are decided, and the branches that they rule out are left out; what is left has to be
finite.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from fibration.errors import SpecError
from fibration.language.atoms import Attribute, Count, Parameter, Total
from fibration.language.expressions import Apply, Expression, Number, apply, as_expression
from fibration.language.operators import OPERATORS, Sugar
from fibration.language.statistics import Aggregate
from fibration.language.stops import NOTHING, STOP, moves
from fibration.language.traversal import atoms, desugar


class Unbounded(SpecError):
    """A formula that is infinite, or has no limit."""


# `+1` and `-1` stand for the infinities, True and False for conditions that are decided.
Limit = Expression | int | bool
_VALUES: dict[str, dict[int, Any]] = {
    "exp": {1: 1, -1: as_expression(0)}, "expm1": {1: 1, -1: as_expression(-1)}, "log": {1: 1}, "log1p": {1: 1},
    "sqrt": {1: 1}, "tanh": {1: as_expression(1), -1: as_expression(-1)},
    "sigmoid": {1: as_expression(1), -1: as_expression(0)}, "softplus": {1: 1, -1: as_expression(0)},
}  # fmt: skip


def at_infinity(
    expression: Expression,
    parameter: Parameter,
    sign: int,
    counts_positive: bool,
    through: frozenset[str] = NOTHING,
) -> Expression:
    """The formula where `parameter` is `sign` times infinite; `Unbounded` where that is no formula.

    `counts_positive`: no branch of the hierarchy may be empty. `through`: what passes gradients on, as in `moves`.
    """
    if parameter not in set(atoms(expression)):
        return expression
    known = _Known(functools.partial(_is_positive, counts=counts_positive), lambda e: moves(desugar(e), through))
    found = _limit(expression, parameter, sign, known)
    if isinstance(found, Expression):
        return found
    raise Unbounded(f"{expression} has no finite value where {parameter} is infinite")


class _Known(NamedTuple):
    """What limits ask of a formula."""

    positive: Callable[[Expression], bool]
    moves: Callable[[Expression], bool]


def _limit(e: Expression, p: Parameter, sign: int, known: _Known) -> Limit:
    if e == p:
        return sign
    if not isinstance(e, Apply) or p not in set(atoms(e)):
        return e
    row = OPERATORS[e.operator]
    if isinstance(row, Sugar):
        return _limit(row.expand(*e.arguments), p, sign, known)
    if e.operator == "where":
        truth = _limit(e.arguments[0], p, sign, known)
        if isinstance(truth, bool):
            return _limit(e.arguments[1 if truth else 2], p, sign, known)
        sides = [_limit(a, p, sign, known) for a in e.arguments[1:]]
        if sides[0] == sides[1]:
            return sides[0]
        return apply("where", truth, *map(_finite, sides))
    parts = [_limit(a, p, sign, known) for a in e.arguments]
    if e.operator in ("and", "or"):
        return _joined(e.operator, parts)
    if e.operator == STOP and not (isinstance(parts[0], Expression) and known.moves(parts[0])):
        return parts[0]  # nothing is left to stop
    if all(isinstance(a, Expression) for a in parts):
        return apply(e.operator, *parts)  # type: ignore[arg-type]
    if e.operator == "not":
        return not parts[0]
    return _one_infinite(e.operator, parts, known.positive)


def _joined(operator: str, parts: list[Limit]) -> Limit:
    stop = operator == "or"
    if stop in [a for a in parts if isinstance(a, bool)]:
        return stop
    left = [a for a in parts if not isinstance(a, bool)]
    return not stop if not left else left[0] if len(left) == 1 else apply(operator, *map(_finite, left))


def _finite(value: Limit) -> Expression:
    if isinstance(value, Expression):
        return value
    raise Unbounded("a branch is infinite, and another is not")


def _one_infinite(operator: str, parts: list[Limit], positive: Callable[[Expression], bool]) -> Limit:
    """The limit of an operator of which some argument is infinite."""
    if len(parts) == 1:
        (size,) = parts
        found = -size if operator == "neg" else _VALUES.get(operator, {}).get(size)  # type: ignore[operator,arg-type]
        if found is None:
            raise Unbounded(f"{operator} of what is infinite")
        return found  # type: ignore[no-any-return]
    left, right = (_Size(a, positive) for a in parts)
    if operator == "-":
        right, operator = right.negated(), "+"
    if operator == "+":
        return left.plus(right)
    if operator in ("<", "<=", ">", ">="):
        total = left.plus(right.negated())
        return total == (1 if operator in (">", ">=") else -1)
    if operator == "*" or (operator == "/" and right.infinite == 0):
        return left.sign * right.sign
    if operator == "/" and left.infinite == 0:
        return as_expression(0)
    if operator == "**":
        exponent = right.value.value if isinstance(right.value, Number) else 1
        return 1 if left.infinite == 1 or exponent % 2 == 0 else -1
    raise Unbounded(f"{parts[0]} {operator} {parts[1]}")


class _Size:
    """An argument: infinite to a side, or finite."""

    def __init__(self, value: Limit, positive: Callable[[Expression], bool]) -> None:
        self.value, self._positive = value, positive
        self.infinite = 0 if isinstance(value, Expression) else int(value)

    def negated(self) -> _Size:
        return _Size(-self.value, self._positive)

    def plus(self, other: _Size) -> int:
        found = {s for s in (self.infinite, other.infinite) if s}
        if len(found) > 1:
            raise Unbounded("the difference of two infinite numbers")
        return found.pop()

    @property
    def sign(self) -> int:
        """Of what is infinite, or certainly positive or negative."""
        if self.infinite:
            return self.infinite
        assert isinstance(self.value, Expression)
        for sign, value in ((1, self.value), (-1, -self.value)):
            if self._positive(value):
                return sign
        raise Unbounded(f"an infinite number times {self.value}, whose sign is not known")


def _is_positive(e: Expression, counts: bool) -> bool:
    """Whether a formula is certainly above 0."""
    if isinstance(e, Number):
        return e.value > 0
    if isinstance(e, Parameter):
        return e.lower is not None and e.lower >= 0
    if isinstance(e, Count):
        return counts or e.of == e.over
    if isinstance(e, (Attribute, Total)):
        attribute = e.attribute if isinstance(e, Total) else e
        return attribute.positive and (counts or isinstance(e, Attribute))
    if isinstance(e, Aggregate):
        return e.kind in ("total", "mean", "largest", "quantile") and _is_positive(e.formula, counts)
    if isinstance(e, Apply):
        if e.operator == "neg" and isinstance(e.arguments[0], Apply) and e.arguments[0].operator == "neg":
            return _is_positive(e.arguments[0].arguments[0], counts)
        if e.operator in ("+", "*", "/", "**", "minimum", "maximum", "sqrt", "log1p", "expm1", "tanh", "atan"):
            return all(_is_positive(a, counts) for a in e.arguments)
        return e.operator in ("exp", "sigmoid", "softplus")
    return False
