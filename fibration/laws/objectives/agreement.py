"""Agreement: where all policies coincide, every weight of a token is 1, and it tends to 1 from every side.

First-order agreement is a law of the gates; the whole loss agrees if this law holds too. Decoupled PPO need not give it
up: its weight is the ratio of two frozen policies, which is 1 where they coincide.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from fibration.language.expressions import Expression
from fibration.language.hierarchy import Hierarchy
from fibration.language.sympy_bridge import vanishes
from fibration.language.traversal import desugar
from fibration.laws import topic
from fibration.laws.batches.concrete import rounding
from fibration.laws.batches.first_update import CLOSE, NO_VALUE
from fibration.laws.batches.words import Witness
from fibration.laws.law import Decision, Law, following, proved, unproved
from fibration.laws.objectives import coinciding_search
from fibration.laws.remedies import bounded
from fibration.laws.signs.claim import factors
from fibration.laws.signs.coinciding import everywhere
from fibration.laws.subject import Subject
from fibration.laws.values.numerals import in_brief, rounded

STATEMENT = "where all policies coincide every weight of a token is 1, and it tends to 1 towards that from every side"
REMEDY = (
    "weigh by what is 1 where policies agree, such as a ratio of two of them or minimum(ratio, C) with "
    "Parameter('C', lower=1); lengths belong in the objective, as in trajectory_mean()"
)
GIVE_UP = "gives_up={'agreement': 'why'}"


def decide_agreement(subject: Subject) -> Iterator[Decision]:
    for weight in subject.hierarchy.objective.weighed:
        name = topic.weight(weight)
        if _tends_to_one(subject, weight):
            yield proved(name, f"{weight} tends to 1 where all log-probs tend to those of old")
        else:
            yield _refused(subject, weight, name)


def _tends_to_one(subject: Subject, weight: Expression) -> bool:
    """Whether a weight tends to 1. It does if all of its factors do, which have fewer branches than their product."""
    parts = factors(weight)
    if len(parts) > 1 and all(_tends_to_one(subject, part) for part in parts):
        return True
    found = [here.limits(weight) for here in everywhere(subject.hierarchy)]
    return all(ends and all(vanishes(e - 1) for e in ends) for ends in found)


def _refused(subject: Subject, weight: Expression, name: str) -> Decision:
    witness = weight_off_one(subject, weight)
    questions = (here.question(weight, 1) for here in everywhere(subject.hierarchy))
    where = next((f", not 1 where {words}" for words in questions if words), "")
    found = f"w = {weight}{where}" + ("" if witness else ", which was not shown to tend to 1")
    bound = bounded(subject.hierarchy, [weight], _all_tend_to_one)
    return following(
        unproved(name, found, (*(bound or (REMEDY,)), GIVE_UP), witness),
        subject.failure("objective", name),
    )


def _all_tend_to_one(h: Hierarchy) -> bool:
    return all(_tends_to_one(Subject(h, []), weight) for weight in h.objective.weighed)


def weight_off_one(subject: Subject, weight: Expression) -> Witness | None:
    """A small batch on which a weight is not 1, or beside which it stays away from 1."""
    exact = rounding(desugar(weight))

    def within(tolerance: Fraction) -> coinciding_search.Is:
        return lambda value: value is not None and abs(value - 1) <= tolerance

    if (seen := coinciding_search.find_violation(subject.hierarchy, weight, within(exact), within(CLOSE))) is None:
        return None
    near, k = seen
    value: Any = near.tokens.attempt(weight, k)
    got = f"has {NO_VALUE}" if value is None else f"is {in_brief(rounded(value, exact))} instead of 1"
    return coinciding_search.witness(
        near, k, "the weight", got, weight=None if value is None else rounded(value, exact)
    )


LAW = Law("agreement", STATEMENT, decide_agreement)
