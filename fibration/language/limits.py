"""A formula in the limit of an infinite parameter, such as a budget that never binds. `pairs.py` uses it.

A comparison with an infinite value is decided, and the branch that it rules out is dropped. The rest has to be finite.
A comparison of two finite limits is decided if the limits certainly differ. If they are equal, the comparison holds or
not as it did on the way to the limit, and the limits do not show which.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fibration.errors import SpecError
from fibration.language.atoms import Attribute, Component, Count, Parameter, Stratum, Total, mass
from fibration.language.expressions import Apply, Expression, Number, apply, as_expression
from fibration.language.operators import COMPARISONS, OPERATORS, Sugar
from fibration.language.order import Ordered
from fibration.language.statistics import Aggregate
from fibration.language.stops import NO_KINDS, STOP, carries_gradient
from fibration.language.strata import Shape
from fibration.language.traversal import atoms, desugar


class Unbounded(SpecError):
    """A formula is infinite, or has no limit."""


# `+1` and `-1` stand for the infinities, True and False for decided conditions.
Limit = Expression | int | bool


@dataclass(frozen=True)
class Here:
    """The strata at whose elements a formula is read, and what certainly lies over those elements.

    Without `strata`, almost nothing is known about counts. `masses`: of the strata, where the formula may read `mass`.
    """

    shape: Shape
    strata: tuple[Stratum, ...] = ()
    masses: Mapping[Stratum, Expression] = field(default_factory=dict)

    def has(self, of: Iterable[object]) -> bool:
        """Returns whether an element of the strata `of` certainly lies over each element that the elements lie over."""
        known = [self.shape.leaves_over(s) for s in of if isinstance(s, Stratum) and s in self.shape.strata]
        over = frozenset[Stratum]().union(*known)
        if over >= set(self.shape.leaves):
            return True
        return bool(self.strata) and all(self.shape.leaves_over(s) <= over for s in self.strata)

    def has_mass(self) -> bool:
        """Returns whether the mass of the elements is certainly above 0. A kernel may give an element mass 0."""
        alone = (dataclasses.replace(self, strata=(s,)) for s in self.strata)
        return bool(self.strata) and all(
            s in self.masses and is_positive(self.masses[s], here) for s, here in zip(self.strata, alone, strict=True)
        )


def at_infinity(
    expression: Expression, infinite: Mapping[Expression, int], here: Here, through: frozenset[str] = NO_KINDS
) -> Expression:
    """Returns the formula in the limit of `infinite` parameters; raises `Unbounded` if the limit is no formula.

    `infinite`: each parameter with its sign. They are infinite at once, and none is larger than another. `here`: where
    the formula is read. `through`: what passes gradients on, as in `carries_gradient`.
    """
    if infinite.keys().isdisjoint(atoms(expression)):
        return expression
    known = _Known(
        functools.partial(is_positive, here=here),
        functools.partial(_has_value, here=here),
        lambda e: carries_gradient(desugar(e), through),
    )
    found = _limit(expression, infinite, known)
    if isinstance(found, Expression):
        return found
    raise Unbounded(f"{expression} has no finite value where {' and '.join(map(str, infinite))} is infinite")


class _Known(NamedTuple):
    """Predicates of formulas that decide a limit."""

    positive: Callable[[Expression], bool]
    has_value: Callable[[Expression], bool]
    moves: Callable[[Expression], bool]

    def dropped(self, *parts: Limit) -> None:
        """Raises `Unbounded` for a finite part that the limit drops, and that may have no value."""
        for e in parts:
            if isinstance(e, Expression) and not self.has_value(e):
                raise Unbounded(f"{e}, which may have no value, beside what is infinite")


def _limit(e: Expression, infinite: Mapping[Expression, int], known: _Known) -> Limit:
    if e in infinite:
        return infinite[e]
    if not isinstance(e, Apply) or infinite.keys().isdisjoint(atoms(e)):
        return e
    row = OPERATORS[e.operator]
    if isinstance(row, Sugar):
        return _limit(row.expand(*e.arguments), infinite, known)
    if e.operator == "where":
        truth = _limit(e.arguments[0], infinite, known)
        if isinstance(truth, bool):
            return _limit(e.arguments[1 if truth else 2], infinite, known)
        sides = [_limit(a, infinite, known) for a in e.arguments[1:]]
        if sides[0] == sides[1]:
            known.dropped(truth)
            return sides[0]
        return apply("where", truth, *map(_finite, sides))
    parts = [_limit(a, infinite, known) for a in e.arguments]
    if e.operator in ("and", "or"):
        return _joined(e.operator, parts, known)
    if e.operator == STOP and not (isinstance(parts[0], Expression) and known.moves(parts[0])):
        return parts[0]  # nothing is left to stop
    if e.operator in COMPARISONS and all(isinstance(a, Expression) for a in parts):
        return _of_limits(e.operator, parts, known)  # type: ignore[arg-type]
    if all(isinstance(a, Expression) for a in parts):
        for value, signs in OPERATORS[e.operator].domain(*parts):  # type: ignore[union-attr,arg-type]
            if isinstance(value, Number) and (value.value > 0) - (value.value < 0) not in signs:
                raise Unbounded(f"{apply(e.operator, *parts)} in the limit")  # type: ignore[arg-type]
        return apply(e.operator, *parts)  # type: ignore[arg-type]
    if e.operator == "not":
        return not parts[0]
    return _one_infinite(e.operator, parts, known)


def _of_limits(operator: str, parts: list[Expression], known: _Known) -> bool:
    """Decides a comparison of two finite limits; raises `Unbounded` unless they certainly differ."""
    left, right = parts
    known.dropped(left, right)
    for one, other, truth in ((left, right, operator in (">", ">=")), (right, left, operator in ("<", "<="))):
        if isinstance(one, Number) and isinstance(other, Number) and one.value > other.value:
            return truth
        if other == as_expression(0) and known.positive(one):
            return truth
    raise Unbounded(f"{left} {operator} {right} in the limit, where the two may be equal")


def _joined(operator: str, parts: list[Limit], known: _Known) -> Limit:
    stop = operator == "or"
    if stop in [a for a in parts if isinstance(a, bool)]:
        known.dropped(*parts)
        return stop
    left = [a for a in parts if not isinstance(a, bool)]
    return not stop if not left else left[0] if len(left) == 1 else apply(operator, *map(_finite, left))


def _finite(value: Limit) -> Expression:
    if isinstance(value, Expression):
        return value
    raise Unbounded("a branch is infinite, and another is not")


def _one_infinite(operator: str, parts: list[Limit], known: _Known) -> Limit:
    """Returns the limit of an operator with an infinite argument."""
    known.dropped(*parts)
    if len(parts) == 1:
        row: Any = OPERATORS[operator]
        limit = row.limits[parts[0] == 1]
        if limit is None:
            raise Unbounded(f"{operator} of what is infinite")
        return as_expression(limit) if math.isfinite(limit) else 1 if limit > 0 else -1
    left, right = (_Size(a, known.positive) for a in parts)
    if operator == "-":
        right, operator = right.negated(), "+"
    if operator == "+":
        return left.plus(right)
    if operator in COMPARISONS:
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
    """An argument of an operator: plus infinity, minus infinity, or finite."""

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
        """The sign of an argument that is infinite, or certainly positive or negative; else `Unbounded`."""
        if self.infinite:
            return self.infinite
        assert isinstance(self.value, Expression)
        for sign, value in ((1, self.value), (-1, -self.value)):
            if self._positive(value):
                return sign
        raise Unbounded(f"an infinite number times {self.value}, whose sign is not known")


def is_positive(e: Expression, here: Here) -> bool:
    """Returns whether a formula is certainly above 0 wherever it has a value."""
    if isinstance(e, Number):
        return e.value > 0
    if isinstance(e, (Parameter, Component)):
        own = e.parameter if isinstance(e, Component) else e
        return own.lower is not None and own.lower >= 0
    if e == mass:
        return here.has_mass()
    if isinstance(e, Count):
        return e.of == e.over or here.has([e.of])
    if isinstance(e, Attribute):
        return e.positive
    if isinstance(e, Total):
        return e.attribute.positive and (e.attribute.on == e.over or here.has([e.attribute.on]))
    if isinstance(e, Aggregate):
        nothing = e.kind == "total" and (e.others or not (e.of is None or here.has([e.of])))
        kinds = ("total", "mean", "largest", "quantile")
        return e.kind in kinds and not nothing and is_positive(e.formula, Here(here.shape))
    if isinstance(e, Apply):
        if e.operator == "neg" and isinstance(e.arguments[0], Apply) and e.arguments[0].operator == "neg":
            return is_positive(e.arguments[0].arguments[0], here)
        if e.operator == "+":
            terms = list(_terms(e))
            some = any(is_positive(a, here) for a in terms) or here.has(a.of for a in terms if isinstance(a, Count))
            return some and all(_is_never_negative(a, here) for a in terms)
        return OPERATORS[e.operator].positive(is_positive(a, here) for a in e.arguments)
    return False


def _has_value(e: Expression, here: Here) -> bool:
    """Returns whether a formula certainly has a value and a slope."""
    e = desugar(e)
    if isinstance(e, Apply):
        row: Any = OPERATORS[e.operator]
        asked = [value for value, _ in row.domain(*e.arguments)]
        defined = all(is_positive(v, here) or is_positive(-v, here) for v in asked)
        return defined and all(_has_value(a, here) for a in e.arguments)
    if isinstance(e, Aggregate):
        nothing = e.others or not (e.of is None or e.kind in ("total", "some") or here.has([e.of]))
        return not nothing and _has_value(e.formula, Here(here.shape))
    return not isinstance(e, Ordered) or _has_value(e.formula, Here(here.shape))


def _is_never_negative(e: Expression, here: Here) -> bool:
    if isinstance(e, Apply) and e.operator in ("*", "/"):
        return all(_is_never_negative(a, here) for a in e.arguments)
    of_nothing = isinstance(e, Count) or (isinstance(e, Total) and e.attribute.positive)
    return of_nothing or (isinstance(e, Number) and e.value >= 0) or is_positive(e, here)


def _terms(e: Expression) -> Iterator[Expression]:
    if isinstance(e, Apply) and e.operator == "+":
        for a in e.arguments:
            yield from _terms(a)
    else:
        yield e
