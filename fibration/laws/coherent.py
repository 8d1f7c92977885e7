"""Coherence (quivers): the kernels are disintegrations of one leaf measure, `K(a|b) = m(a)/m(b)`.

On a tree any weights are: `m(a) = K(a|b)·m(b)` defines it. Where paths part and meet again they must agree on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from fibration.language.atoms import Stratum
from fibration.language.exact import NoValue
from fibration.language.kernels import Fibration
from fibration.language.report import Verdict
from fibration.language.sympy_bridge import vanishes
from fibration.laws.law import Law
from fibration.laws.proof.branches import TooManyCases, cases
from fibration.laws.proof.subject import Subject
from fibration.laws.witness.batches import Concrete, Witness, concretes, lies, rounding, settings

STATEMENT = "the kernels along all paths spread one leaf measure: K(a|b) = m(a)/m(b)"
MAX_TRIED = 1000
Element = tuple[Stratum, int]


def decide(subject: Subject) -> Iterator[Verdict]:
    h = subject.hierarchy
    if h.shape.is_tree:
        return
    different = [f for f in h.fibrations if not _agrees(f, subject)]
    if not different:
        shown = ", ".join(f"m({s}) = {h.masses[s]}" for s in h.order)
        yield Verdict("coherent", "hierarchy", "proved", f"K(a|b) = m(a)/m(b) on every edge, with {shown}")
        return
    witness = _search(subject)
    yield Verdict(
        "coherent",
        "hierarchy",
        "refuted" if witness else "undecided",
        "",
        required=STATEMENT,
        found=f"the kernel {different[0].name} with the weight {different[0].weight}",
        remedy="give all kernels one measure: proportional() of one count, or of one total, on every edge",
        counterexample=witness,
    )


def _agrees(f: Fibration, subject: Subject) -> bool:
    """Whether `m(b)·K(a|b) = m(a)` for all sizes."""
    m, assume = subject.hierarchy.masses, subject.at(f.source)
    try:
        branches = cases(m[f.target] * f.weight - m[f.source], assume)
    except TooManyCases:
        return False
    return all(case.defined(assume) and vanishes(case.sympy()) for case in branches)


def _search(subject: Subject) -> Witness | None:
    """An element that gets different masses along different ways."""
    h = subject.hierarchy
    weights = [f.weight for f in h.fibrations]
    for tried, concrete in enumerate(concretes(h, weights)):
        if tried > MAX_TRIED:
            return None
        found = _contradiction(h.fibrations, concrete, rounding(*weights))
        if found:
            (stratum, element), (value, one), (other_value, other) = found
            text = (
                f"{stratum} {element + 1} gets {value} by way of {one} and {other_value} by way of {other}"
                f"{_layout(concrete)}{settings(concrete)}"
            )
            values = {"stratum": stratum.name, "element": element, "masses": [value, other_value]}
            return Witness(text, concrete, values)
    return None


Way = tuple[Fraction, str]


def _contradiction(
    fibrations: tuple[Fibration, ...], concrete: Concrete, tolerance: Fraction
) -> tuple[Element, Way, Way] | None:
    """Masses spread from the first root along every edge, coarse to fine where that is possible."""
    weight: dict[tuple[Fibration, int], Fraction] = {}
    for f in fibrations:
        for a in range(concrete.size[f.source]):
            try:
                weight[f, a] = concrete.value(f.weight, f.source, a)
            except NoValue:
                return None  # no masses here; the law of Markov refuses the kernel
            if weight[f, a] <= 0:
                return None
    shape = concrete.shape
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
    text = lies(concrete, next(s for s in concrete.chain if len(concrete.shape.below(s)) > 1))
    return f" ({text})" if text else ""


LAW = Law("coherent", STATEMENT, decide, may_be_given_up=False)
