"""Coherence (quivers): the kernels are disintegrations of one leaf measure, `K(a|b) = m(a)/m(b)`.

On a tree all weights are coherent: `m(a) = K(a|b)·m(b)` defines `m`. Paths that part and meet again must agree on `m`.
A kernel is to blame if all other kernels agree, and if `m(a)/m(b)` of the measure that they spread can be read at its
elements and reflects. If only one way leads around, several kernels may be to blame.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from fractions import Fraction
from functools import reduce
from operator import mul

import networkx as nx

from fibration.language.atoms import Stratum
from fibration.language.expressions import Expression
from fibration.language.hierarchy import Hierarchy
from fibration.language.operators import ZERO
from fibration.language.strata import Fibration, MarkovKernel, Shape, gauge, own
from fibration.language.traversal import ONE, atoms, cancel, transform
from fibration.laws import topic
from fibration.laws.batches import caps
from fibration.laws.batches.concrete import Concrete, Witness, lies, rounding
from fibration.laws.batches.search import concretes, find
from fibration.laws.kernels.reflecting import sums_to_1
from fibration.laws.law import Decision, Law, Proved, following, proved, unproved
from fibration.laws.locality import Weight
from fibration.laws.remedies import Offers, kernels
from fibration.laws.signs.claim import Claim
from fibration.laws.subject import Subject
from fibration.laws.values.numerals import in_full, rounded

STATEMENT = "the kernels along all paths spread one leaf measure: K(a|b) = m(a)/m(b)"
ONE_MEASURE = "give all kernels one measure: proportional() of one count, or of one total, on every edge"
Element = tuple[Stratum, int]


def decide_coherent(subject: Subject) -> Iterator[Decision]:
    h = subject.hierarchy
    if h.shape.is_tree:
        return
    m = h.masses
    if all(Claim(m[f.target] * f.weight - m[f.source], subject.at(f.source), ZERO).is_shown for f in h.fibrations):
        shown = ", ".join(f"m({s}) = {m[s]}" for s in h.order)
        yield proved("hierarchy", f"K(a|b) = m(a)/m(b) on every edge, with {shown}")
        return
    decision = unproved("hierarchy", *blame(subject), element_of_two_masses(h))
    # kernels that fail by themselves are the cause, if all other kernels agree
    failed = [v for v in subject.verdicts if v.law in ("markov", "reflecting") and v.status != "proved"]
    right = [f for f in h.fibrations if not any(topic.is_about(v.subject, f) for v in failed)]
    yield following(decision, failed[0] if failed and agreed(subject, right) else None)


# ---------------------------------------------------------------- the kernel to blame


def blame(subject: Subject) -> tuple[str, Offers]:
    """What was found, and the remedy."""
    h = subject.hierarchy
    found = [(f, weight) for f in h.fibrations if (weight := mended(subject, f)) is not None]
    if not found:
        return disagreeing(subject), (ONE_MEASURE,)
    slips = [f"the kernel {f.name} has the weight {f.weight}, and the others spread {w}" for f, w in found]
    right = [(f, Fibration(f.source, f.target, MarkovKernel(w))) for f, w in found]
    mends = [kernels(h, f"write {g!r} in fibrations", {f: g.kernel}) for f, g in right]
    one = "one of these is wrong: " if len(found) > 1 else ""
    return one + "; or ".join(slips), (*mends, ONE_MEASURE)


def mended(subject: Subject, f: Fibration) -> Expression | None:
    """The weight with which a kernel would agree with all others and reflect; None if none is found."""
    h = subject.hierarchy
    others = [g for g in h.fibrations if g != f]
    around = nx.Graph((g.source, g.target) for g in others)
    if not (f.source in around and f.target in around and nx.has_path(around, f.source, f.target)):
        return None  # no other way leads around it
    m = agreed(subject, others)
    if m is None:
        return None
    weight = cancel(m[f.source] / m[f.target])
    if not _is_read_at(h, weight, f.source):
        return None
    right = Fibration(f.source, f.target, MarkovKernel(weight))
    changed = Subject(h.replace(fibrations=[right if g == f else g for g in h.fibrations]), [])
    covers = [c for c in changed.hierarchy.shape.covers(f.target) if right in c]
    return weight if all(isinstance(sums_to_1(c, changed), Proved) for c in covers) else None


def agreed(subject: Subject, fibrations: Collection[Fibration]) -> dict[Stratum, Expression] | None:
    """The masses that these fibrations spread; None unless the fibrations are shown to agree."""
    m = _spread(subject.hierarchy, fibrations)

    def agrees(f: Fibration) -> bool:
        return Claim(m[f.target] * f.weight - m[f.source], subject.at(f.source), ZERO).is_shown

    return m if all(agrees(f) for f in fibrations) else None


def _spread(h: Hierarchy, fibrations: Collection[Fibration]) -> dict[Stratum, Expression]:
    """`m` of every stratum, spread up and down from one stratum of each part that these fibrations connect."""
    m: dict[Stratum, Expression] = {}

    def steps() -> Iterator[tuple[Stratum, Expression]]:
        weights = {f: transform(f.weight, own) for f in fibrations}
        for f, weight in weights.items():
            if f.target in m and f.source not in m:
                yield f.source, cancel(m[f.target] * weight)
        for f, weight in weights.items():
            if f.source in m and f.target not in m:
                value = cancel(m[f.source] / weight)
                if _is_read_at(h, value, f.target):
                    yield f.target, value

    for start in h.order:
        if start not in m:
            m[start] = ONE if h.roots == (start,) else gauge(h.shape, start)
            while step := next(steps(), None):
                m[step[0]] = step[1]
    return m


def _is_read_at(h: Hierarchy, value: Expression, stratum: Stratum) -> bool:
    return all(Weight(h, stratum).problem(a) is None for a in atoms(value))


def disagreeing(subject: Subject) -> str:
    """The first two ways down that part and meet again and are not shown to have equal products of weights."""
    h = subject.hierarchy
    for one, other in h.shape.parallel():
        products = [reduce(mul, (f.weight for f in way)) for way in (one, other)]
        if not Claim(products[0] - products[1], subject.at(one[0].source), ZERO).is_shown:
            ways = [" → ".join([way[0].source.name, *(f.target.name for f in way)]) for way in (one, other)]
            said = [f"{way} have the product {cancel(p)}" for way, p in zip(ways, products, strict=True)]
            return f"weights along {said[0]}, and along {said[1]}"
    return f"weights of {', '.join(f.name for f in h.fibrations)} that no one measure gives"


# ---------------------------------------------------------------- witnesses


def element_of_two_masses(h: Hierarchy) -> Witness | None:
    """A witness: an element that gets different masses along different ways. None if none is found."""
    weights = [f.weight for f in h.fibrations]
    tolerance = rounding(*weights)

    def fails(concrete: Concrete) -> Witness | None:
        found = _contradiction(h.shape, concrete, tolerance)
        if found is None:
            return None
        (stratum, element), *ways = found
        (value, one), (other_value, other) = ((rounded(m, tolerance), by) for m, by in ways)
        layout = lies(concrete, concrete.shape.crossings()[0])
        text = (
            f"{stratum} {element + 1} gets {in_full(value)} by way of {one} and {in_full(other_value)} by way of "
            f"{other}{f' ({layout})' * bool(layout)}"
        )
        values = {"stratum": stratum.name, "element": element, "masses": [value, other_value]}
        return Witness.on(concrete, text, values)

    return find(concretes(h, weights, caps.COHERENT), fails)


Way = tuple[Fraction, str]


def _contradiction(shape: Shape, concrete: Concrete, tolerance: Fraction) -> tuple[Element, Way, Way] | None:
    """An element and two ways that give it different masses.

    Masses spread from the first root along every edge, coarse to fine where possible. A batch may have more strata than
    the shape, if a kernel reads a group.
    """
    weight: dict[tuple[Fibration, int], Fraction] = {}
    for f in shape.fibrations:
        for a in range(concrete.size[f.source]):
            value = concrete.attempt(f.weight, f.source, a)
            if value is None or value <= 0:
                return None  # there are no masses; the law `markov` refuses the kernel
            weight[f, a] = value
    mass: dict[Element, Way] = {(shape.roots[0], 0): (Fraction(1), str(shape.roots[0]))}
    ends = [
        ((s, a), (f.target, concrete.maps[s, f.target][a]), weight[f, a])
        for s in shape.order
        for f in shape.below(s)
        for a in range(concrete.size[s])
    ]
    while True:
        for fine, coarse, k in ends:
            if coarse in mass:
                way = mass[coarse][0] * k, f"{coarse[0]} {coarse[1] + 1}"
                known = mass.setdefault(fine, way)
                if abs(known[0] - way[0]) > tolerance:
                    return fine, known, way
        upward = next((e for e in ends if e[0] in mass and e[1] not in mass), None)
        if upward is None:
            return None
        fine, coarse, k = upward
        mass[coarse] = mass[fine][0] / k, f"{fine[0]} {fine[1] + 1}"


LAW = Law("coherent", STATEMENT, decide_coherent, may_be_given_up=False)
