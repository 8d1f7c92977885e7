"""Open masks: no token is dropped where all policies coincide, or near it.

A mask that drops tokens there has another gradient than the objective from the first update on. Some losses intend
that, such as those that drop the tokens of least entropy, and give this law up by name.
"""

from __future__ import annotations

from collections.abc import Iterator

from fibration.language.hierarchy import Hierarchy
from fibration.language.objectives import Keep
from fibration.language.operators import where
from fibration.laws import topic
from fibration.laws.batches.first_update import NO_VALUE
from fibration.laws.batches.words import Witness
from fibration.laws.law import Decision, Law, following, proved, unproved
from fibration.laws.objectives import coinciding_search
from fibration.laws.remedies import bounded
from fibration.laws.signs.coinciding import everywhere
from fibration.laws.subject import Subject

STATEMENT = "where all policies coincide, and near it, every condition holds: no token is dropped"
REMEDY = "leave room on both sides of what is kept, such as ratio < C with Parameter('C', lower=1)"
GIVE_UP = "gives_up={'mask_open': 'why'}"


def decide_mask_open(subject: Subject) -> Iterator[Decision]:
    for keep in subject.hierarchy.objective.kept:
        name = topic.condition(keep.condition)
        if all(here.outcomes(keep.condition) == {True} for here in everywhere(subject.hierarchy)):
            yield proved(name, f"{keep.condition} holds where all log-probs are near those of old")
        else:
            witness = token_dropped(subject, keep)
            questions = (here.question(where(keep.condition, 1, 0), 1) for here in everywhere(subject.hierarchy))
            failing = next((f", which fails where {words}" for words in questions if words), "")
            found = f"keep({keep.condition}){failing}" + ("" if witness else ", which was not shown to hold there")
            bound = bounded(subject.hierarchy, [keep.condition], _all_open)
            remedy = (*(bound or (REMEDY,)), f"if the loss means to drop tokens on policy, {GIVE_UP}")
            yield following(unproved(name, found, remedy, witness), subject.failure("objective", name))


def _all_open(h: Hierarchy) -> bool:
    return all(here.outcomes(k.condition) == {True} for k in h.objective.kept for here in everywhere(h))


def token_dropped(subject: Subject, keep: Keep) -> Witness | None:
    """A small batch on which all policies coincide, or nearly, and a condition fails; None if none was found."""
    seen = coinciding_search.find_violation(subject.hierarchy, keep.condition, _holds, _holds)
    if seen is None:
        return None
    near, k = seen
    holds = near.tokens.attempt(keep.condition, k)
    got = "is dropped" if holds is False else f"has {NO_VALUE}"
    what = "the token" if len(near.base) == 1 else "the condition"
    return coinciding_search.witness(near, k, what, got if what == "the token" else got.replace("is dropped", "fails"))


def _holds(value: object) -> bool:
    return value is True


LAW = Law("mask_open", STATEMENT, decide_mask_open)
