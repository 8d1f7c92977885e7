"""The parts of a hierarchy: what its formulas read, and at which elements.

Code that runs before a declaration is checked, or that must not depend on reading and writing it, takes an `Outline`.
A `Hierarchy` is an `Outline` that has been checked.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import AfterValidator

from fibration.errors import SpecError
from fibration.language.atoms import (
    BATCH,
    Attribute,
    Component,
    Parameter,
    Stratum,
    advantage,
    at,
    channel_sign,
    mass,
    pull,
    read_at,
    token_log_ratio,
)
from fibration.language.declared import Declared, FrozenMap, Name, Policy
from fibration.language.expressions import Expression
from fibration.language.gates import Decomposition, Gate
from fibration.language.objectives import Objective, Penalty
from fibration.language.operators import exp, where
from fibration.language.statistics import Aggregate, Ordered, atoms_within, named, total, within
from fibration.language.strata import Assumption, Fibration, Shape, masses, uniform
from fibration.language.traversal import atoms, substitute


class Outline(Declared):
    """The parts of a hierarchy."""

    name: Name
    fibrations: tuple[Fibration, ...] = ()
    gates: Annotated[Mapping[Stratum, Gate], AfterValidator(FrozenMap)]
    decomposition: Decomposition
    objective: Objective
    gives_up: Annotated[Mapping[str, str], AfterValidator(FrozenMap)] = FrozenMap()
    assume: tuple[Assumption, ...] = ()
    orthogonalise: Literal["projection"] | None = None
    rows: Stratum = Stratum("trajectory")
    groups: tuple[Stratum, ...] = ()
    advantages: Expression | None = None
    penalties: Annotated[Mapping[str, Penalty], AfterValidator(FrozenMap)] = FrozenMap()

    # ------------------------------------------------------------ structure

    @cached_property
    def strata(self) -> tuple[Stratum, ...]:
        """Every stratum, in the order of the fibrations: finest first if they are written finest first."""
        joined = (s for f in self.fibrations for s in (f.source, f.target))
        return tuple(dict.fromkeys([*joined, *self.gates]))

    @cached_property
    def shape(self) -> Shape:
        """The strata as a graph."""
        return Shape(self.strata, self.fibrations)

    @property
    def leaves(self) -> tuple[Stratum, ...]:
        """The strata of tokens. No other stratum lies over a leaf, and every token is an element of one leaf."""
        return self.shape.leaves

    @property
    def roots(self) -> tuple[Stratum, ...]:
        return self.shape.roots

    def coarser(self, stratum: Stratum) -> tuple[Stratum, ...]:
        """Returns every stratum that `stratum` lies over, nearest first."""
        return self.shape.coarser(stratum)

    @property
    def order(self) -> tuple[Stratum, ...]:
        """Every stratum, each after the strata that it lies over; in a chain, from the root to the leaf."""
        return self.shape.order

    # ------------------------------------------------------------ vocabulary

    def gate(self, stratum: Stratum) -> Expression:
        """Returns the gate's formula: every count and total names its stratum, and mass and pull are written out."""
        if stratum not in self._read:
            g = self.with_mass(at(self.gates[stratum].expression, stratum), stratum)
            self._read[stratum] = substitute(g, {pull: self.pull(stratum)}) if pull in atoms(g) else g
        return self._read[stratum]

    @cached_property
    def _read(self) -> dict[Stratum, Expression]:
        return {}

    def pull(self, stratum: Stratum) -> Expression:
        """Returns the pull on an element, as a formula: `Σ μ·w·A·r` over its tokens, times its channel sign.

        Only its sign counts. Where all tokens of an element have one advantage, as at tokens and rows, the result is
        the advantage instead of the sum.
        """
        if stratum in self.leaves or self.rows in (stratum, *self.coarser(stratum)):
            return channel_sign * advantage
        shared = [s for s in self.strata if all(s in (leaf, *self.coarser(leaf)) for leaf in self.leaves)]
        weight = self.objective.of_kept(self.leaves, self.rows, (*shared, self.rows))
        term = weight * advantage * exp(token_log_ratio)
        for weight in self.objective.weighed:
            term = weight * term
        for keep in self.objective.kept:
            term = where(keep.condition, term, 0)
        return channel_sign * total(term, over=stratum)

    def pulled_by(self, stratum: Stratum) -> Expression:
        """Returns the atom with the sign that the pull has on the channel "+": the advantage, or a statistic of tokens.

        Returns `pull` itself if `μ` counts something that is no statistic of tokens. No gate can read `pull` then.
        """
        try:
            read = atoms(self.pull(stratum), Aggregate)
        except SpecError:
            return pull
        return next(iter(read), advantage)

    def with_mass(self, expression: Expression, stratum: Stratum) -> Expression:
        """Returns an expression that is read at a stratum, with the mass written out."""
        return substitute(expression, {mass: self.masses[stratum]}) if mass in atoms(expression) else expression

    @cached_property
    def masses(self) -> Mapping[Stratum, Expression]:
        """The mass of every stratum, as a formula. It is defined if the law `structure` holds."""
        return masses(self.shape, self.decomposition)

    def _expressions(self) -> Iterator[Expression]:
        yield from (f.weight for f in self.fibrations)
        yield from (at(g.expression, s) for s, g in self.gates.items())
        yield from self._beside_levels()

    def _beside_levels(self) -> Iterator[Expression]:
        """Yields the formulas of the decomposition, the objective, the advantages and the penalties."""
        yield from (e for _, e in self.decomposition.densities)
        yield self.decomposition.recovery
        yield self.decomposition.scale
        yield self.objective.weight
        yield from self.objective.formulas
        if self.advantages is not None:
            yield self.advantages
        for penalty in self.penalties.values():
            yield penalty.formula
            if penalty.objective is not None:
                yield from (penalty.objective.weight, *penalty.objective.formulas)

    @cached_property
    def others(self) -> tuple[tuple[str, str], ...]:
        """`(of, over)` of every mean with `others=True`, in all formulas but that of the advantages."""
        return _others(e for e in self._expressions() if e is not self.advantages)

    @cached_property
    def others_rewarded(self) -> tuple[tuple[str, str], ...]:
        """`(of, over)` of every mean with `others=True` in the formula of advantages, which calls with rewards read."""
        return _others(() if self.advantages is None else (self.advantages,))

    @cached_property
    def parameters(self) -> Mapping[str, Parameter]:
        """Every parameter, by name, in the order of first appearance."""
        return self._named(Parameter)

    @cached_property
    def attributes(self) -> Mapping[str, Attribute]:
        """Every attribute, by name."""
        return self._named(Attribute)

    @cached_property
    def policies(self) -> Mapping[str, Policy]:
        """Every policy that a formula names, by name."""
        return FrozenMap({p.name: p for p in named(self._expressions()) if isinstance(p, Policy)})

    @cached_property
    def ordered(self) -> tuple[Ordered, ...]:
        """Every `before`, `after` and `position` in the formulas."""
        return tuple(dict.fromkeys(v for v in named(self._expressions()) if isinstance(v, Ordered)))

    def _named(self, kind: type[Any]) -> Mapping[str, Any]:
        found: dict[str, Any] = {}
        for value in (v for v in named(self._expressions()) if isinstance(v, kind)):
            known = found.setdefault(value.name, value)
            if known != value:
                raise SpecError(
                    f"hierarchy '{self.name}' declares '{value.name}' twice, differently",
                    required="one declaration per name",
                    found=f"{_declaration(known)} and {_declaration(value)}",
                    remedy="reuse one object, or give the second another name",
                )
        return FrozenMap(found)


def _others(expressions: Iterable[Expression]) -> tuple[tuple[str, str], ...]:
    means = (a for e in expressions for a in atoms_within(e, Aggregate) if a.others and a.over is not None)
    return tuple(dict.fromkeys((str(a.of), str(a.over)) for a in means))


def _declaration(value: Any) -> str:
    return value.declaration() if isinstance(value, Parameter) else repr(value.model_dump())


# ---------------------------------------------------------------- where atoms have their values


UNIFORM = uniform()  # made once: every index asks for the whole batch


def home(hierarchy: Outline, atom: Expression) -> str | None:
    """Returns the stratum at whose elements an atom has its values; None if it is read where it stands.

    A parameter may vary over `on`, or over the coarsest stratum that reads it (never the leaf). A kernel reads at its
    target, because its weights are normalised over each target element. A parameter that the objective, the
    decomposition, the advantages, a penalty or a statistic reads has one value for the whole batch.
    """
    # a mean of others has one number for each element that it leaves out
    place = atom.of if isinstance(atom, Aggregate) and atom.others else read_at(atom)
    if place is not None:
        return place.name
    parameter = atom.parameter if isinstance(atom, Component) else atom
    if not isinstance(parameter, Parameter):
        return None
    levels = [*(hierarchy.gate(s) for s in hierarchy.gates), *(f.weight for f in hierarchy.fibrations)]
    inside = (formula for e in levels for formula in itertools.islice(within(e), 1, None))
    beside = (formula for e in hierarchy._beside_levels() for formula in within(e))
    if any(parameter in atoms(formula) for formula in (*beside, *inside)):
        return BATCH
    shape = hierarchy.shape
    readers = []
    for s in (s for s in hierarchy.order if s not in hierarchy.leaves):
        read = [hierarchy.gate(s), *(f.weight for f in shape.above(s))]
        if any(parameter in atoms(e) for e in read):
            readers.append(s)
    # a parameter that crossing strata read has one value for the batch
    one = readers and all(s == readers[0] or readers[0] in shape.coarser(s) for s in readers)
    return readers[0].name if one else BATCH


def row_path(hierarchy: Outline, leaf: str) -> list[str]:
    """Returns the strata from a leaf to the rows: through the hierarchy if it leads there, else in one step."""
    return way(hierarchy, leaf, hierarchy.rows.name)


def way(hierarchy: Outline, source: str, target: str) -> list[str]:
    """Returns the strata from `source` to `target`, both included: through the hierarchy if it leads there.

    The path to the batch or to a group goes through the rows, so that no sum runs over all tokens at once.
    """
    rows, here = hierarchy.rows.name, Stratum(source)
    if source == target:
        return [source]
    beyond = target == BATCH or target in map(str, hierarchy.groups)
    if (
        beyond
        and source != rows
        and (source in map(str, hierarchy.leaves) or hierarchy.rows in hierarchy.coarser(here))
    ):
        return [*way(hierarchy, source, rows), target]
    if target == BATCH or Stratum(target) not in hierarchy.coarser(here):
        return [source, target]
    return [source, *(f.target.name for f in hierarchy.shape.path(here, Stratum(target)))]


def whole_batch(h: Outline) -> Shape:
    """Returns the hierarchy's shape with the rows below the leaves, the groups below the rows, the batch below all."""
    batch = Stratum(BATCH)
    rows = () if h.rows in h.strata else tuple((leaf, h.rows) for leaf in h.leaves)
    groups = tuple((h.rows, s) for s in h.groups)
    under = [leaf for leaf, _ in rows] + ([h.rows] if groups else [])
    roots = [s for s in (*h.roots, *(t for _, t in rows[:1]), *h.groups) if s not in (batch, *under)]
    added = tuple(Fibration(s, t, UNIFORM) for s, t in (*rows, *groups, *((s, batch) for s in roots)))
    strata = dict.fromkeys((*h.strata, *(f.target for f in added)))
    return Shape(tuple(strata), (*h.fibrations, *added))


def below(h: Outline) -> dict[str, set[str]]:
    """Returns the names of the strata that each stratum of the whole batch lies over, and of the stratum itself."""
    shape = whole_batch(h)
    return {BATCH: {BATCH}} | {s.name: {BATCH, s.name, *map(str, shape.coarser(s))} for s in shape.strata}


def is_beyond_rows(h: Outline, place: object) -> bool:
    """Returns whether an element of a stratum may have tokens of several rows; False for what is no stratum."""
    shape = whole_batch(h)
    if not isinstance(place, Stratum) or place not in shape.strata:
        return place == Stratum(BATCH)
    return place != h.rows and h.rows not in shape.coarser(place)
