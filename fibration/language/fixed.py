"""Replaces parameters of a hierarchy: by other parameters, by formulas, by numbers, or by their defaults."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from fractions import Fraction

from fibration.errors import ParameterError, located
from fibration.language.atoms import Parameter, Stratum, Total
from fibration.language.decompositions import Decomposition
from fibration.language.expressions import Expression, as_expression
from fibration.language.gates import Gate, GatePerChannel
from fibration.language.hierarchy import Hierarchy
from fibration.language.kernels import Fibration, MarkovKernel
from fibration.language.limits import Here, at_infinity
from fibration.language.objectives import Objective
from fibration.language.penalties import Penalty
from fibration.language.places import whole_batch
from fibration.language.statistics import atoms_within, rewritten, rewritten_within
from fibration.language.stops import NO_KINDS, ORDER, SUMS
from fibration.language.traversal import substitute


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
