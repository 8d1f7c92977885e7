"""Agreement and open masks: where all policies coincide, every weight of a token is 1, and no token is dropped.

First-order agreement is a law of the gates; the whole loss agrees if the law `agreement` holds too. Decoupled PPO need
not give it up: its weight is the ratio of two frozen policies, which is 1 where they coincide. A mask that drops tokens
there (the law `mask_open`) has another gradient than the objective from the first update on. Some losses intend that,
such as those that drop the tokens of least entropy, and give the law up by name.

Both laws are one claim: a weight, or a condition as 1 or 0, tends to 1.
"""

from __future__ import annotations

from collections.abc import Iterator

from fibration.language.expressions import Expression
from fibration.language.hierarchy import Hierarchy
from fibration.language.operators import where
from fibration.language.sympy_bridge import vanishes
from fibration.laws import topic
from fibration.laws.law import Decision, Law, following, proved, unproved
from fibration.laws.objectives.token_search import off_one
from fibration.laws.remedies import bounded
from fibration.laws.signs.claim import factors
from fibration.laws.signs.coinciding import everywhere
from fibration.laws.subject import Subject

STATEMENT = "where all policies coincide every weight of a token is 1, and it tends to 1 towards that from every side"
STATEMENT_OF_MASKS = "where all policies coincide, and near it, every condition holds: no token is dropped"
REMEDY = (
    "weigh by what is 1 where policies agree, such as a ratio of two of them or minimum(ratio, C) with "
    "Parameter('C', lower=1); lengths belong in the objective, as in trajectory_mean()"
)
REMEDY_OF_MASKS = "leave room on both sides of what is kept, such as ratio < C with Parameter('C', lower=1)"
GIVE_UP = "gives_up={'agreement': 'why'}"
GIVE_UP_MASKS = "if the loss means to drop tokens on policy, gives_up={'mask_open': 'why'}"


def _weights(h: Hierarchy) -> list[Expression]:
    return list(h.objective.weighed)


def _conditions(h: Hierarchy) -> list[Expression]:
    return [k.condition for k in h.objective.kept]


def decide_agreement(subject: Subject) -> Iterator[Decision]:
    yield from (_decided(subject, w, topic.weight(w)) for w in _weights(subject.hierarchy))


def decide_mask_open(subject: Subject) -> Iterator[Decision]:
    yield from (_decided(subject, c, topic.condition(c)) for c in _conditions(subject.hierarchy))


def _decided(subject: Subject, formula: Expression, name: topic.Topic) -> Decision:
    h, is_mask = subject.hierarchy, formula.is_condition
    if _tends_to_one(h, formula):
        near = "holds where all log-probs are near" if is_mask else "tends to 1 where all log-probs tend to"
        return proved(name, f"{formula} {near} those of old")
    witness = off_one(h, formula)
    questions = (here.question(_number(formula), 1) for here in everywhere(h))
    words = next(filter(None, questions), "")
    if is_mask:
        found, fails, unshown = f"keep({formula})", ", which fails where ", ", which was not shown to hold there"
    else:
        found, fails, unshown = f"w = {formula}", ", not 1 where ", ", which was not shown to tend to 1"
    found += (f"{fails}{words}" if words else "") + ("" if witness else unshown)
    alike = _conditions if is_mask else _weights
    bound = bounded(h, [formula], lambda mended: all(_tends_to_one(mended, e) for e in alike(mended)))
    remedy, give_up = (REMEDY_OF_MASKS, GIVE_UP_MASKS) if is_mask else (REMEDY, GIVE_UP)
    decision = unproved(name, found, (*(bound or (remedy,)), give_up), witness)
    return following(decision, subject.failure("objective", name))


def _number(formula: Expression) -> Expression:
    """A weight, or a condition as 1 or 0."""
    return where(formula, 1, 0) if formula.is_condition else formula


def _tends_to_one(h: Hierarchy, formula: Expression) -> bool:
    """Whether a formula tends to 1. It does if all of its factors do, which have fewer branches than their product."""
    number = _number(formula)
    parts = factors(number)
    if len(parts) > 1 and all(_tends_to_one(h, part) for part in parts):
        return True
    found = [here.limits(number) for here in everywhere(h)]
    return all(ends and all(vanishes(e - 1) for e in ends) for ends in found)


LAW = Law("agreement", STATEMENT, decide_agreement)
LAW_OF_MASKS = Law("mask_open", STATEMENT_OF_MASKS, decide_mask_open)
