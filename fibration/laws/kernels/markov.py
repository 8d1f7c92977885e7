"""Markov (def:fgh i): every weight of a kernel is defined and never negative."""

from __future__ import annotations

from collections.abc import Iterator

from fibration.language.hierarchy import Hierarchy
from fibration.language.operators import POSITIVE
from fibration.language.strata import Fibration
from fibration.laws import topic
from fibration.laws.batches.concrete import Concrete, Witness, rounding
from fibration.laws.batches.search import find
from fibration.laws.kernels.kernel_search import Fibre, weights
from fibration.laws.law import Decision, Law, proved, refuted, undecided
from fibration.laws.remedies import Offers, bounded
from fibration.laws.signs.claim import Claim
from fibration.laws.subject import Subject
from fibration.laws.values.numerals import in_full, rounded

ONE_MEASURE = "use uniform(), or proportional(m) with a count or the total of a positive attribute"
STATEMENT = "every weight K(a|b) is defined and at least 0"


def decide_markov(subject: Subject) -> Iterator[Decision]:
    for f in subject.hierarchy.fibrations:
        kernel = topic.kernel(f)
        # the law allows 0, but the normal form divides by the measure
        if Claim(f.weight, subject.at(f.source), POSITIVE).is_shown:
            yield proved(kernel, f"{f.weight} ≥ 0, since counts and positive attributes are above 0")
        elif witness := negative_weight(subject.hierarchy, f):
            yield refuted(kernel, str(f.weight), _remedy(subject.hierarchy, f), witness)
        else:
            yield undecided(kernel, f"{f.weight}, whose sign could not be decided", _remedy(subject.hierarchy, f))


def _remedy(h: Hierarchy, given: Fibration) -> Offers:
    """The remedy: a bound of a parameter or attribute with which weights are positive, or else other kernels."""

    def is_positive(changed: Hierarchy) -> bool:
        (f,) = (f for f in changed.fibrations if f.name == given.name)
        return Claim(f.weight, Subject(changed, []).at(f.source), POSITIVE).is_shown

    return (*bounded(h, [given.weight], is_positive), ONE_MEASURE)


def negative_weight(h: Hierarchy, f: Fibration) -> Witness | None:
    """A witness of a weight that is below 0 or has no value; None if none is found."""
    tolerance = rounding(f.weight)

    def fails(tried: tuple[Concrete, int, Fibre]) -> Witness | None:
        concrete, b, fibre = tried
        for _, a, weight in fibre:
            if weight is None or weight < -tolerance:
                exact = None if weight is None else rounded(weight, tolerance)
                value = "no value" if exact is None else in_full(exact)
                text = f"{concrete.describe(f.target, b)} gives the {_ordinal(fibre, a)} {f.source} {value}"
                return Witness.on(concrete, text, {"element": b, "source": a, "weight": exact})
        return None

    return find(weights(h, (f,)), fails)


def _ordinal(fibre: Fibre, element: int) -> str:
    place = [a for _, a, _ in fibre].index(element) + 1
    return {1: "first", 2: "second", 3: "third"}.get(place, f"{place}th")


LAW = Law("markov", STATEMENT, decide_markov, may_be_given_up=False)
