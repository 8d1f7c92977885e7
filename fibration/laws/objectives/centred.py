"""Whether declared advantages sum to 0 over every element of a stratum, each token with its `μ`.

The mean over an element is linear. It turns each term of a formula into what the element shares, times the mean of the
rest; and a mean over a finer element, or of the other rows, into the mean of its formula. If the terms cancel, the
advantages are centred.
"""

from __future__ import annotations

from typing import Any

import sympy

from fibration.language.atoms import Component, Parameter, Reading, Stratum, read_at
from fibration.language.expressions import Expression
from fibration.language.hierarchy import Hierarchy
from fibration.language.outline import whole_batch
from fibration.language.statistics import Aggregate
from fibration.language.sympy_bridge import ATOM_OF, cancelled, symbol, to_sympy, vanishes
from fibration.language.traversal import desugar
from fibration.laws.objectives.samples import of_tokens
from fibration.laws.signs.assumptions import Assumptions
from fibration.laws.signs.branches import TooManyCases, cases


def is_centred(h: Hierarchy, weight: Any, over: Stratum, of: Stratum | None) -> bool:
    """Whether the declared advantages, each times a weight, sum to 0 over every element of `over`.

    `of`: the rows, each of which counts once, or None for tokens. `weight`: a sympy expression of counts, totals and
    attributes, as read there. The result is False if it is not shown.
    """
    if h.advantages is None or of_tokens(h, desugar(h.advantages)):
        return False
    try:
        found = cases(desugar(h.advantages), Assumptions(whole_batch(h), h.assume, h.rows))
    except TooManyCases:
        return False
    return all(
        all(_is_shared(h, s, over) for d, _ in case.signs for s in d.free_symbols)
        and vanishes(_mean(h, cancelled(sympy.together(weight * case.sympy())), over, of))
        for case in found
    )


def _mean(h: Hierarchy, value: Any, over: Stratum, of: Stratum | None) -> Any:
    """The mean of a value over an element. A term whose mean has no shorter form is a symbol of its own."""
    added = []
    for term in sympy.Add.make_args(sympy.expand(value)):
        varied = [s for s in term.free_symbols if not _is_shared(h, s, over)]
        factor, rest = term.as_independent(*varied, as_Add=False) if varied else (term, sympy.Integer(1))
        factor = factor.xreplace({s: _of_symbol(h, s, over, of) for s in factor.free_symbols})
        added.append(factor * (_of_symbol(h, rest, over, of) if varied else 1))
    return cancelled(sympy.together(sum(added, sympy.Integer(0))))


def _of_symbol(h: Hierarchy, value: Any, over: Stratum, of: Stratum | None) -> Any:
    """The mean of a symbol, or of a product of values that differ over an element."""
    atom = ATOM_OF.get(value)
    if isinstance(atom, Aggregate) and atom.kind == "mean" and atom.of == of and _is_within(h, atom.over, over):
        inner = to_sympy(desugar(atom.formula))
        if not inner.has(sympy.Piecewise):
            return _mean(h, inner, over, of)
    if value.is_Symbol and _is_shared(h, value, over):
        return value
    return symbol(Reading(f"the mean of {value}"))


def _is_within(h: Hierarchy, inner: object, outer: Stratum) -> bool:
    """Whether the elements of `inner` are those of `outer`, or finer."""
    shape = whole_batch(h)
    return inner == outer or (isinstance(inner, Stratum) and inner in shape.strata and outer in shape.coarser(inner))


def _is_shared(h: Hierarchy, s: Any, over: Stratum) -> bool:
    """Whether a symbol has one value at everything that lies over one element."""
    atom: Expression = ATOM_OF[s]
    parameter = atom.parameter if isinstance(atom, Component) else atom
    if isinstance(parameter, Parameter):
        place: object = parameter.on
        if place is None:
            return True
    else:
        place = atom.of if isinstance(atom, Aggregate) and atom.others else read_at(atom)
    return isinstance(place, Stratum) and (place == over or place in whole_batch(h).coarser(over))
