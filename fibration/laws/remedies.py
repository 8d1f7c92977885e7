"""Remedies that name the declaration to write: a parameter or attribute with other bounds, a gate, a decomposition.

A remedy is offered only if the claim that failed is shown for the hierarchy with that declaration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice

from fibration.errors import FibrationError
from fibration.language.atoms import Attribute, Parameter, Total
from fibration.language.expressions import Expression
from fibration.language.hierarchy import Hierarchy
from fibration.language.pairs import with_declared
from fibration.language.statistics import atoms_within
from fibration.language.traversal import atoms

MOST = 4  # parameters and attributes whose bounds are tried
Holds = Callable[[Hierarchy], bool]


def bounded(h: Hierarchy, formulas: Iterable[Expression], holds: Holds) -> str:
    """The declaration of one parameter or attribute with which a claim holds, as text to type; '' if none is found.

    `formulas`: those whose parameters and attributes are tried, in the order in which they are read.
    """
    read = [a for formula in formulas for a in (*atoms(formula), *atoms_within(formula, Total))]
    named = dict.fromkeys(a.attribute if isinstance(a, Total) else a for a in read)
    for given in islice((a for a in named if isinstance(a, (Parameter, Attribute))), MOST):
        for other in _others(given):
            replaced: Mapping[Expression, Expression] = {given: other}
            if isinstance(other, Attribute):
                replaced = {**replaced, **{a: Total(other, a.over) for a in read if isinstance(a, Total)}}
            try:
                if holds(with_declared(h, replaced)):
                    return f"declare {other.declaration()}"
            except FibrationError:  # this hierarchy cannot have it
                continue
    return ""


def _others(given: Parameter | Attribute) -> Iterator[Parameter | Attribute]:
    """Yields the same parameter or attribute with one tighter bound. Bounds that exclude its default are left out."""
    if isinstance(given, Attribute):
        if not given.positive and (given.upper is None or given.upper > 0):
            yield Attribute(given.name, on=given.on, upper=given.upper)
        return
    low, high = given.lower, given.upper
    tried = [{"upper": 1.0}] if high is None or high > 1 else []
    tried += [{"lower": 0.0}] if low is None or low < 0 else []
    tried += [{"lower": 1.0}] if (low is None or low < 1) and (high is None or high > 1) else []
    for bound in tried:
        bounds = {"lower": low, "upper": high, **bound}
        try:
            yield Parameter(given.name, given.default, per_channel=given.per_channel, on=given.on, **bounds)
        except FibrationError:
            continue
