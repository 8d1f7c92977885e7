"""Converts a test's batch to the form that the exact operator of the laws takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

from support import Batch

from fibration.language.atoms import Component
from fibration.language.places import whole_batch
from fibration.laws.batches.coefficients import Point
from fibration.laws.batches.concrete import Concrete
from oracles import matrices

F = Fraction


def one_value_each(batch: Batch) -> Batch:
    """Without values per element."""
    given = batch.parameters.items()
    return replace(batch, parameters={k: v for k, v in given if not isinstance(v, Mapping) or set(v) <= {"+", "-"}})


def point(h, batch: Batch) -> tuple[Point, list[int]]:
    """A batch as the laws see it, and the places of its tokens in the batch."""
    world, shape = matrices.World(h, batch), whole_batch(h)
    maps = {(f.source, f.target): tuple(world.under(f.source.name, f.target.name)) for f in shape.fibrations}
    atoms = [Component(p, c) if p.per_channel else p for p in h.parameters.values() for c in ("+", "-")]
    parameters = {
        a: world.parameter(h.parameters[str(a).partition("[")[0]], getattr(a, "channel", ""), 0) for a in atoms
    }
    attributes = {a: tuple(world.attribute(a)) for a in h.attributes.values()}
    places = [i for leaf in h.leaves for i in world.over_leaf(leaf.name)]
    xs, advantages = ([F(float(values[i])) for i in places] for values in (batch.x, batch.advantages))
    return Point(h, Concrete(shape, maps, attributes, parameters), tuple(xs), tuple(advantages)), places
