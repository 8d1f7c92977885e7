"""Where atoms have their values: the stratum of each atom, and the paths from leaves down to the rows and the batch."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from fibration.language.atoms import BATCH, Component, Parameter, Stratum, read_at
from fibration.language.expressions import Expression
from fibration.language.kernels import Fibration, uniform
from fibration.language.outline import Outline
from fibration.language.statistics import Aggregate, within
from fibration.language.strata import Shape
from fibration.language.traversal import atoms

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
    if parameter in set(_one_for_all(hierarchy)):
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


def _one_for_all(h: Outline) -> Iterator[Expression]:
    """Yields the atoms of formulas outside gates and kernels, and of formulas in statistics.

    The formulas are those of the objective, the decomposition, the advantages and the penalties.
    """
    own = [h.objective.weight, *h.objective.formulas, h.decomposition.recovery, h.decomposition.scale]
    own += [e for _, e in h.decomposition.densities]
    own += [h.advantages] if h.advantages is not None else []
    for penalty in h.penalties.values():
        weighed = penalty.objective
        own += [penalty.formula, *(() if weighed is None else (weighed.weight, *weighed.formulas))]
    levels = [*(h.gate(s) for s in h.gates), *(f.weight for f in h.fibrations)]
    inside = (formula for e in levels for formula in itertools.islice(within(e), 1, None))
    for formula in (*(formula for e in own for formula in within(e)), *inside):
        yield from atoms(formula)


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
