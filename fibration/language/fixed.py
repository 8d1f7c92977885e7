"""Replaces parameters of a hierarchy: by other parameters, by formulas, by numbers, by infinity, or by their defaults.

In the limit of an infinite parameter, such as a budget that never binds, a comparison with an infinite value is
decided, and the branch that it rules out is dropped. The rest has to be finite. A comparison of two finite limits is
decided if the limits certainly differ. If they are equal, the comparison holds or not as it did on the way to the
limit, and the limits do not show which.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple

from fibration.errors import ParameterError, SpecError, located
from fibration.language.atoms import Attribute, Component, Count, Parameter, Stratum, Total, mass
from fibration.language.expressions import Apply, Expression, Number, apply, as_expression
from fibration.language.gates import Decomposition, Gate, GatePerChannel
from fibration.language.hierarchy import Hierarchy
from fibration.language.objectives import Objective, Penalty
from fibration.language.operators import COMPARISONS, OPERATORS, Sugar
from fibration.language.outline import whole_batch
from fibration.language.statistics import Aggregate, Ordered, atoms_within, rewritten, rewritten_within
from fibration.language.strata import Fibration, MarkovKernel, Shape
from fibration.language.token_formulas import NO_KINDS, ORDER, STOP, SUMS, carries_gradient
from fibration.language.traversal import atoms, desugar, substitute


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
    found = _limit(expression, _Limits(infinite, here, through))
    if isinstance(found, Expression):
        return found
    raise Unbounded(f"{expression} has no finite value where {' and '.join(map(str, infinite))} is infinite")


class _Limits(NamedTuple):
    """Which parameters are infinite, and what decides a limit: see `at_infinity`."""

    infinite: Mapping[Expression, int]
    here: Here
    through: frozenset[str]

    def moves(self, e: Limit) -> bool:
        return isinstance(e, Expression) and carries_gradient(desugar(e), self.through)

    def dropped(self, *parts: Limit) -> None:
        """Raises `Unbounded` for a finite part that the limit drops, and that may have no value."""
        for e in parts:
            if isinstance(e, Expression) and not _has_value(e, self.here):
                raise Unbounded(f"{e}, which may have no value, beside what is infinite")


def _limit(e: Expression, known: _Limits) -> Limit:
    infinite = known.infinite
    if e in infinite:
        return infinite[e]
    if not isinstance(e, Apply) or infinite.keys().isdisjoint(atoms(e)):
        return e
    row = OPERATORS[e.operator]
    if isinstance(row, Sugar):
        return _limit(row.expand(*e.arguments), known)
    if e.operator == "where":
        truth = _limit(e.arguments[0], known)
        if isinstance(truth, bool):
            return _limit(e.arguments[1 if truth else 2], known)
        sides = [_limit(a, known) for a in e.arguments[1:]]
        if sides[0] == sides[1]:
            known.dropped(truth)
            return sides[0]
        return apply("where", truth, *map(_finite, sides))
    parts = [_limit(a, known) for a in e.arguments]
    if e.operator in ("and", "or"):
        return _joined(e.operator, parts, known)
    if e.operator == STOP and not known.moves(parts[0]):
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


def _of_limits(operator: str, parts: list[Expression], known: _Limits) -> bool:
    """Decides a comparison of two finite limits; raises `Unbounded` unless they certainly differ."""
    left, right = parts
    known.dropped(left, right)
    for one, other, truth in ((left, right, operator in (">", ">=")), (right, left, operator in ("<", "<="))):
        if isinstance(one, Number) and isinstance(other, Number) and one.value > other.value:
            return truth
        if other == as_expression(0) and is_positive(one, known.here):
            return truth
    raise Unbounded(f"{left} {operator} {right} in the limit, where the two may be equal")


def _joined(operator: str, parts: list[Limit], known: _Limits) -> Limit:
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


def _one_infinite(operator: str, parts: list[Limit], known: _Limits) -> Limit:
    """Returns the limit of an operator with an infinite argument."""
    known.dropped(*parts)
    if len(parts) == 1:
        row: Any = OPERATORS[operator]
        limit = row.limits[parts[0] == 1]
        if limit is None:
            raise Unbounded(f"{operator} of what is infinite")
        return as_expression(limit) if math.isfinite(limit) else 1 if limit > 0 else -1
    left, right = (0 if isinstance(a, Expression) else int(a) for a in parts)  # 0: finite
    if operator in ("+", "-", *COMPARISONS):
        right = right if operator == "+" else -right
        if left * right < 0:
            raise Unbounded("the difference of two infinite numbers")
        total = left or right
        return total if operator in ("+", "-") else total == (1 if operator in (">", ">=") else -1)
    if operator == "*" or (operator == "/" and not right):
        return _sign(parts[0], known) * _sign(parts[1], known)
    if operator == "/" and not left:
        return as_expression(0)
    if operator == "**":
        exponent = parts[1].value if isinstance(parts[1], Number) else 1
        return 1 if left == 1 or exponent % 2 == 0 else -1
    raise Unbounded(f"{parts[0]} {operator} {parts[1]}")


def _sign(value: Limit, known: _Limits) -> int:
    """Returns the sign of a value that is infinite, or certainly positive or negative; else raises `Unbounded`."""
    if not isinstance(value, Expression):
        return int(value)
    for sign, e in ((1, value), (-1, -value)):
        if is_positive(e, known.here):
            return sign
    raise Unbounded(f"an infinite number times {value}, whose sign is not known")


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


def with_parameters(
    h: Hierarchy, renamed: Mapping[Expression, Expression], fixed: Mapping[Parameter, float | Fraction]
) -> Hierarchy:
    """Returns the hierarchy with parameters replaced, some of them by numbers."""
    if not renamed and not fixed:
        return h

    shape, leaves = whole_batch(h), h.leaves

    def put(e: Expression, *strata: Stratum, through: frozenset[str] = NO_KINDS) -> Expression:
        inside, here = Here(shape), Here(shape, strata or leaves, h.masses)
        gathered = rewritten_within(e, lambda inner: put_parameters(inner, renamed, fixed, inside, through))
        return put_parameters(gathered, renamed, fixed, here, through)

    split = h.decomposition
    densities = {c: put(e, through=ORDER) for c, e in split.densities}
    return h.replace(
        fibrations=[Fibration(f.source, f.target, MarkovKernel(put(f.kernel.weight, f.source))) for f in h.fibrations],
        gates={s: Gate(put(g.expression, s)) for s, g in h.gates.items()},
        decomposition=Decomposition(densities, put(split.recovery), put(split.scale)),
        objective=_objective(h, h.objective, put),
        advantages=None if h.advantages is None else put(h.advantages),
        penalties={
            name: Penalty(
                put(p.formula, *([p.over] if p.over else []), through=SUMS),
                p.objective and _objective(h, p.objective, put),
                p.over,
            )
            for name, p in h.penalties.items()
        },
    )


def with_declared(h: Hierarchy, replaced: Mapping[Expression, Expression]) -> Hierarchy:
    """Returns the hierarchy with other parameters and attributes in the place of its own.

    Raises SpecError if two of one name would differ.
    """
    totals = {a for e in h._expressions() for a in atoms_within(e, Total) if a.attribute in replaced}
    made: dict[Expression, Expression] = {
        a: Total(replaced[a.attribute], a.over)  # type: ignore[arg-type]
        for a in totals
    }
    return with_parameters(h, {**replaced, **made}, {})


def put_parameters(
    e: Expression,
    renamed: Mapping[Expression, Expression],
    fixed: Mapping[Parameter, float | Fraction],
    here: Here,
    through: frozenset[str] = NO_KINDS,
) -> Expression:
    """Returns a formula with parameters replaced, some by numbers. `through`: see `carries_gradient`."""
    numbers: dict[Expression, Expression] = {p: as_expression(v) for p, v in fixed.items() if _is_finite(p, v)}
    infinite: dict[Expression, int] = {p: 1 if value > 0 else -1 for p, value in fixed.items() if p not in numbers}
    e = at_infinity(e, infinite, here, through)
    return substitute(e, {**renamed, **numbers})


def _objective(h: Hierarchy, given: Objective, put: Callable[[Expression], Expression]) -> Objective:
    if all(put(e) == e for e in (given.weight, *given.formulas)):
        return given
    changes = put(given.weight) != given.weight
    return given.with_parts(
        weight=put(given.spelled_out(h.leaves, h.rows)) if changes else given.weight,
        weighed=map(put, given.weighed),
        kept=[k.model_copy(update={"condition": put(k.condition)}) for k in given.kept],
    )


def _is_finite(p: Parameter, value: float | Fraction) -> bool:
    """Whether a value is finite. Raises ParameterError if the parameter cannot have it."""
    unbounded = {math.inf: p.upper in (None, math.inf), -math.inf: p.lower in (None, -math.inf)}
    if unbounded.get(float(value), False):
        return False
    p.check(float(value), "the value to compare at")
    return True


def at_defaults(h: Hierarchy, without: Collection[str] = ()) -> Hierarchy:
    """Returns the hierarchy with every parameter but those in `without` replaced by its default.

    Raises ParameterError for a parameter that has no default.
    """
    numbers: dict[Parameter, float | Fraction] = {}
    split: dict[Parameter, Mapping[str, float]] = {}
    for p in (p for p in h.parameters.values() if p.name not in without):
        values = dict(p.default_items())
        if not values:
            raise ParameterError(
                f"the parameter '{p.name}' of '{h.name}' has no default",
                required="a default, or a number for the comparison",
                remedy=f"--param {p.name}=NUMBER, or parameters={{'{p.name}': NUMBER}}",
            )
        if len(set(values.values())) == 1:
            numbers[p] = next(iter(values.values()))
        else:
            split[p] = values
    with located(f"hierarchy '{h.name}'"):
        gates = {s: _per_channel(g, split) for s, g in h.gates.items()}
        return with_parameters(h.replace(gates=gates) if split else h, {}, numbers)


def _per_channel(gate: Gate, split: Mapping[Parameter, Mapping[str, float]]) -> Gate:
    """Returns a gate with the numbers of each channel for the parameters in `split`."""
    if not set(split) & set(atoms_within(gate.expression)):
        return gate

    def on(channel: str) -> Gate:
        values: dict[Expression, Expression] = {p: as_expression(v[channel]) for p, v in split.items()}
        return Gate(rewritten(gate.expression, lambda e: substitute(e, values)))

    return GatePerChannel(on("+"), on("-"))
