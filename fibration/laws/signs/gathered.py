"""Where the formula of a statistic or of an order is read, and how many elements a statistic has.

A formula inside a statistic is read at other elements than the statistic: a count that is above 0 at an image token may
be 0 in another row. `Assumptions`, `Coinciding` and the bounds of weights use this module.
"""

from __future__ import annotations

from collections.abc import Iterator

from fibration.language.atoms import Count, Stratum, Summary, at
from fibration.language.expressions import Expression
from fibration.language.statistics import Aggregate
from fibration.language.strata import Shape

HAVE_A_VALUE_OF_NONE = ("total", "some")  # without elements: 0, and false


def places(atom: Summary, shape: Shape) -> tuple[Stratum, ...]:
    """The strata at whose elements the formula is read: those of `of`, or the leaves over the `over` element.

    If the shape lacks `over` (rows, groups, the batch), that is every leaf.
    """
    if isinstance(atom.of, Stratum):
        return (atom.of,)
    known = isinstance(atom.over, Stratum) and atom.over in shape.strata
    over = shape.leaves_over(atom.over) if known else shape.leaves  # type: ignore[arg-type]
    return tuple(leaf for leaf in shape.leaves if leaf in over)


def formulas(atom: Summary, shape: Shape) -> Iterator[tuple[Stratum, Expression]]:
    """Every stratum at whose elements the formula is read, and the formula as it is read there."""
    for place in places(atom, shape):
        yield place, at(atom.formula, place)


def number_of(atom: Expression) -> Count | None:
    """The number of elements that a statistic gathers; None for tokens, of which it always has one."""
    if not isinstance(atom, Aggregate) or not isinstance(atom.of, Stratum):
        return None
    return Count(atom.of, atom.over)
