"""Coherence (quivers): the kernels are disintegrations of one leaf measure, `K(a|b) = m(a)/m(b)`.

On a tree all weights are coherent: `m(a) = K(a|b)·m(b)` defines `m`. Paths that part and meet again must agree on `m`.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from fibration.language.atoms import Stratum
from fibration.language.hierarchy import Hierarchy
from fibration.language.kernels import Fibration
from fibration.language.operators import ZERO
from fibration.language.report import Verdict
from fibration.language.strata import Shape
from fibration.laws import topic
from fibration.laws.batches import caps
from fibration.laws.batches.concrete import Concrete, Witness, lies, rounding
from fibration.laws.batches.search import concretes, find
from fibration.laws.kernels.coherent_blame import agreed, blame
from fibration.laws.law import Decision, Law, following, proved, unproved
from fibration.laws.signs.claim import Claim
from fibration.laws.subject import Subject
from fibration.laws.values.numerals import in_full, rounded

STATEMENT = "the kernels along all paths spread one leaf measure: K(a|b) = m(a)/m(b)"
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
    yield following(decision, _broken(subject))


def _broken(subject: Subject) -> Verdict | None:
    """The first verdict on kernels that fail by themselves, if all other kernels agree."""
    failed = [v for v in subject.verdicts if v.law in ("markov", "reflecting") and v.status != "proved"]
    right = [f for f in subject.hierarchy.fibrations if not any(topic.is_about(v.subject, f) for v in failed)]
    return failed[0] if failed and agreed(subject, right) else None


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
        text = (
            f"{stratum} {element + 1} gets {in_full(value)} by way of {one} and {in_full(other_value)} by way of "
            f"{other}{_layout(concrete)}"
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


def _layout(concrete: Concrete) -> str:
    """Where the elements of the first stratum with several coarser neighbours lie."""
    text = lies(concrete, concrete.shape.crossings()[0])
    return f" ({text})" if text else ""


LAW = Law("coherent", STATEMENT, decide_coherent, may_be_given_up=False)
