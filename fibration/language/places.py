"""Where a hierarchy reads what: the strata at whose elements atoms have their values, and the way down to the rows."""

from __future__ import annotations

from fibration.language.atoms import BATCH, Component, Parameter, Stratum, read_at
from fibration.language.expressions import Expression
from fibration.language.hierarchy import Hierarchy
from fibration.language.kernels import Fibration, uniform
from fibration.language.strata import Shape
from fibration.language.traversal import atoms


def home(hierarchy: Hierarchy, atom: Expression) -> str | None:
    """The stratum at whose elements an atom has its values; None for what is read where it stands.

    A parameter may vary over `on`, or over the coarsest stratum that reads it (never the leaf). A kernel reads at its
    target, since its weights are normalised over each target element. What the objective reads has one value for the
    whole batch.
    """
    place = read_at(atom)
    if place is not None:
        return place.name
    parameter = atom.parameter if isinstance(atom, Component) else atom
    if not isinstance(parameter, Parameter):
        return None
    if parameter in set(atoms(hierarchy.objective.weight)):
        return BATCH
    shape = hierarchy.shape
    readers = []
    for s in (s for s in hierarchy.order if s not in hierarchy.leaves):
        read = [hierarchy.gate(s), *(f.weight for f in shape.above(s))]
        if any(parameter in set(atoms(e)) for e in read):
            readers.append(s)
    # where strata that cross read it, it has one value for the batch
    one = readers and all(s == readers[0] or readers[0] in shape.coarser(s) for s in readers)
    return readers[0].name if one else BATCH


def row_path(hierarchy: Hierarchy, leaf: str) -> list[str]:
    """From a leaf to the rows of the batch: through the hierarchy where it leads there, else in one step."""
    source = next(s for s in hierarchy.leaves if s.name == leaf)
    if hierarchy.rows not in hierarchy.coarser(source):
        return [leaf, hierarchy.rows.name]
    return [leaf, *(f.target.name for f in hierarchy.shape.path(source, hierarchy.rows))]


def whole_batch(h: Hierarchy) -> Shape:
    """The strata with the rows, which every leaf lies over, and the batch, which everything does."""
    batch = Stratum(BATCH)
    rows = () if h.rows in h.strata else tuple((leaf, h.rows) for leaf in h.leaves)
    roots = [s for s in h.roots if s not in (batch, *(leaf for leaf, _ in rows))] + [t for _, t in rows[:1]]
    added = tuple(Fibration(s, t, uniform()) for s, t in (*rows, *((s, batch) for s in roots)))
    strata = dict.fromkeys((*h.strata, *(f.target for f in added)))
    return Shape(tuple(strata), (*h.fibrations, *added))
