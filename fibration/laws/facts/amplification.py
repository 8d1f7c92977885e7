"""The fact `amplification`: how strongly one token is pulled, relative to its weight and the advantages around it."""

from __future__ import annotations

from collections.abc import Iterator

import sympy
from sympy import oo

from fibration.language.hierarchy import Hierarchy
from fibration.language.operators import log1p
from fibration.language.report import NOTE, WARNING, Fact
from fibration.language.sympy_bridge import from_sympy
from fibration.laws.facts.amplification_bounds import Amplified, Bound
from fibration.laws.facts.amplification_search import Span, strongest
from fibration.laws.facts.weights import supremum
from fibration.laws.gates.contributions import Lines, reads_batch
from fibration.laws.gates.pieces import text
from fibration.laws.signs.neighbourhood import RHO
from fibration.laws.subject import Subject
from fibration.laws.values.numerals import shown

UNBOUNDED = "; one token can outweigh its batch: cap its ratio, as the ceiling of 'ppo' does"
SIZES = (10, 100, 1000, 10000)
WHEN = {1: "the advantage is above 0", -1: "the advantage is below 0"}


def amplification(subject: Subject, table: Lines, known: str) -> Iterator[Fact]:
    """Yields `sup |c_i|/(μ_i·a)`, per sign of the advantage if the sign matters."""
    found = Amplified(subject, known, table)
    bounds = found.bounds()
    if len(bounds) > 1 and len(set(map(str, bounds.values()))) == 1:
        bounds = {0: next(iter(bounds.values()))}
    value = "; ".join(_words(b, side, _reached(found, b, side)) for side, b in bounds.items())
    value += _weighed(subject.hierarchy)
    why = "|∂J/∂log π| of a token is at most this times its μ and the largest |A|"
    why += ", beside what penalties add" if subject.hierarchy.penalties else ""
    grows = any(b.grows for b in bounds.values())
    why = next((b.why for b in bounds.values() if b.why), why) + UNBOUNDED * grows
    yield Fact("amplification", "hierarchy", value, why, WARNING if grows else NOTE)


def _weighed(h: Hierarchy) -> str:
    """The factor of the weights of tokens, in words; '' if it is 1."""
    ends = [supremum(h, w) for w in h.objective.weighed]
    most = oo if oo in ends else sympy.Mul(*ends)
    if most == 1:
        return ""
    return "; times w" if most == oo else f"; times w, at most {text(most)}"


def _words(bound: Bound, side: int, reached: str) -> str:
    where = " and ".join(filter(None, (WHEN.get(side), bound.where)))
    comma = "," if bound.grows else ""
    return f"{bound}{reached and f'; {reached}'}{where and f'{comma} where {where}'}"


def _reached(found: Amplified, bound: Bound, side: int) -> str:
    """In words, how far some batches come if the supremum is not known; parameters have their defaults."""
    if bound.is_exact or len(found.h.roots) > 1:
        return ""
    sides = (side,) if side else (1, -1) if found.read else (1,)
    pulls = strongest(found.h, list(_spans(found)), bound.most == oo, sides, SIZES)
    sizes = SIZES if pulls[-1] > pulls[0] else SIZES[:1]
    numbers = [shown(v) for v, _ in zip(pulls, sizes, strict=False)]
    return f"reached: {', '.join(numbers)} with {', '.join(map(str, sizes))} tokens" if any(pulls) else ""


def _spans(found: Amplified) -> Iterator[Span]:
    """Yields the ranges of a log ratio, shared by all tokens, that lie on one piece of the root's gate."""
    if found.known not in ("log", "split", "deviation"):
        return
    for channel, line, i in found.pieces(found.h.roots[0], found.table):
        p = line.pieces[i]
        ends = p.low, p.high
        if p.value.has(RHO) and not p.is_point and not any(v not in (oo, -oo) and reads_batch(v) for v in ends):
            low, high = (None if v in (oo, -oo) else from_sympy(-v if channel == "-" else v) for v in ends)
            if found.known == "deviation":
                low, high = (None if v is None else log1p(v) for v in (low, high))
            yield low, high
