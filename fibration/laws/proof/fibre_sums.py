"""Sums of a kernel's weights over a fibre, in closed form.

Counts and totals are *additive*: summed over a fibre they give the count or total of what lies below.
"""

from __future__ import annotations

from typing import Any

import sympy

from fibration.language.atoms import Attribute, Count, Stratum, Total, read_at
from fibration.language.expressions import Expression
from fibration.language.sympy_bridge import from_sympy, symbol
from fibration.laws.proof.populations import Populations


def fibre_sum(weight: Any, source: Stratum, target: Stratum, known: Populations) -> Any | None:
    """`Σ_{a over b} weight(a)`, for a weight that is linear in the additive measures of `a`; None for any other.

    Every element of a finer stratum lies over one `a`, so that its measures over `b` are the sums of those over `a`.
    Where the weight reads a stratum between the two, the sum is taken in two steps.
    """
    varying = [s for s in weight.free_symbols if varies(s, target, known)]
    between = {place for s in varying if (place := read_at(from_sympy(s))) != source}
    if between:
        for z in known.shape.coarser(source):
            reads = {source, *known.coarser[z]}
            if target in known.coarser[z] - {z} and between <= reads and known.always(source, z):
                inner = fibre_sum(weight, source, z, known)
                return None if inner is None else fibre_sum(inner, z, target, known)
        return None
    if not varying:
        return weight * symbol(Count(source, target))
    weight = sympy.cancel(sympy.together(weight))
    if not weight.is_polynomial(*varying):
        return None
    polynomial = sympy.Poly(weight, *varying)
    if polynomial.total_degree() > 1:
        return None
    result: Any = 0
    for monomial, coefficient in polynomial.terms():
        measure = next((s for s, p in zip(varying, monomial, strict=True) if p), None)
        if measure is None:
            summed: Expression | None = Count(source, target)
        else:
            summed = _summed(from_sympy(measure), target)
        if summed is None:
            return None
        result += coefficient * symbol(summed)
    return result


def _summed(measure: Expression, target: Stratum) -> Expression | None:
    """An additive measure of `a`, summed over the fibre."""
    if isinstance(measure, Count):
        return Count(measure.of, target)
    if isinstance(measure, Total):
        return Total(measure.attribute, target)
    return Total(measure, target) if isinstance(measure, Attribute) else None


def varies(s: Any, target: Stratum, known: Populations) -> bool:
    """Whether an atom, given as a symbol, can differ between elements of one fibre: of a crossing stratum too."""
    home = read_at(from_sympy(s))
    return home is not None and home not in known.coarser[target]
