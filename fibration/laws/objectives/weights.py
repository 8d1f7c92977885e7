"""The laws of a token's weights and conditions: agreement, mask_open, causal.

Where all policies coincide, every weight of a token is 1 (agreement), and no token is dropped (mask_open). Both are one
claim: a weight, or a condition as 1 or 0, tends to 1. First-order agreement is a law of the gates; the whole loss
agrees if the law `agreement` holds too. Decoupled PPO need not give it up: its weight is the ratio of two frozen
policies, which is 1 where they coincide. A mask that drops tokens there has another gradient than the objective from
the first update on. Some losses intend that, such as those that drop the tokens of least entropy, and give the law up
by name.

No weight and no condition of a token depends on later tokens of its row (causal). The prefix is the state in which a
token was sampled. A weight that reads later tokens is no function of state and action. Some losses intend that: a
sequence's ratio has less bias for more variance. The law does not cover `μ`, gates and advantages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from fibration.errors import SpecError, listed
from fibration.language.expressions import Apply, Expression
from fibration.language.hierarchy import Hierarchy
from fibration.language.operators import where
from fibration.language.sympy_bridge import from_sympy, to_sympy, vanishes
from fibration.language.traversal import atoms
from fibration.laws import topic
from fibration.laws.law import Decision, Law, following, proved, unproved
from fibration.laws.objectives.samples import HERE, Samples
from fibration.laws.objectives.token_search import changed_by_later, off_one
from fibration.laws.remedies import bounded
from fibration.laws.signs.claim import factors
from fibration.laws.signs.coinciding import everywhere
from fibration.laws.subject import Subject

STATEMENT = "where all policies coincide every weight of a token is 1, and it tends to 1 towards that from every side"
STATEMENT_OF_MASKS = "where all policies coincide, and near it, every condition holds: no token is dropped"
CAUSAL = "no weight and no condition of a token depends on what comes after it in its row, nor on how much does"
REMEDY = (
    "weigh by what is 1 where policies agree, such as a ratio of two of them or minimum(ratio, C) with "
    "Parameter('C', lower=1); lengths belong in the objective, as in trajectory_mean()"
)
REMEDY_OF_MASKS = "leave room on both sides of what is kept, such as ratio < C with Parameter('C', lower=1)"
REMEDY_OF_CAUSAL = (
    "read what is the token's own, before(x, over={rows}) or position(over={rows}); or gives_up={{'causal': 'why'}}, "
    "where the whole sequence is meant to be weighed or dropped"
)
GIVE_UP = "gives_up={'agreement': 'why'}"
GIVE_UP_MASKS = "if the loss means to drop tokens on policy, gives_up={'mask_open': 'why'}"
Decide = Callable[[Subject, topic.Topic, Expression], Decision]


def _decided(decide: Decide, kinds: Sequence[str], subject: Subject) -> Iterator[Decision]:
    """One decision per weight or condition; a failure follows that of the law `objective`."""
    objective = subject.hierarchy.objective
    read = [(topic.weight(w), w) for w in objective.weighed]
    read += [(topic.condition(k.condition), k.condition) for k in objective.kept]
    for name, formula in read:
        if name.kind in kinds:
            found = decide(subject, name, formula)
            yield found if found.status == "proved" else following(found, subject.failure("objective", name))


# ---------------------------------------------------------------- agreement, mask_open


def _agrees(subject: Subject, name: topic.Topic, formula: Expression) -> Decision:
    h, is_mask = subject.hierarchy, formula.is_condition
    if _tends_to_one(h, formula):
        near = "holds where all log-probs are near" if is_mask else "tends to 1 where all log-probs tend to"
        return proved(name, f"{formula} {near} those of old")
    witness = off_one(h, formula)
    questions = (here.question(_number(formula), 1) for here in everywhere(h))
    words = next(filter(None, questions), "")
    if is_mask:
        found, fails, unshown = f"keep({formula})", ", which fails where ", ", which was not shown to hold there"
        remedy, give_up = REMEDY_OF_MASKS, GIVE_UP_MASKS
    else:
        found, fails, unshown = f"w = {formula}", ", not 1 where ", ", which was not shown to tend to 1"
        remedy, give_up = REMEDY, GIVE_UP
    found += (f"{fails}{words}" if words else "") + ("" if witness else unshown)

    def agrees(mended: Hierarchy) -> bool:
        o = mended.objective
        alike = [k.condition for k in o.kept] if is_mask else o.weighed
        return all(_tends_to_one(mended, e) for e in alike)

    return unproved(name, found, (*(bounded(h, [formula], agrees) or (remedy,)), give_up), witness)


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


# ---------------------------------------------------------------- causal


def _is_causal(subject: Subject, name: topic.Topic, formula: Expression) -> Decision:
    h = subject.hierarchy
    ahead = _ahead(h, formula) and _ahead(h, _simplified(formula))
    if not ahead:
        return proved(name, f"{formula} reads a token and its prefix alone{Samples(h).granted(formula)}")
    witness = changed_by_later(h, formula, name.kind)
    found = f"{formula}, which reads {ahead[0]}" + ("" if witness else ", and was not shown to be free of what follows")
    decision = unproved(name, found, REMEDY_OF_CAUSAL.format(rows=h.rows), witness)
    return replace(decision, fault=f"reads {listed(sorted(map(str, ahead)))}")


def _ahead(h: Hierarchy, formula: Expression) -> list[Expression]:
    """The atoms of a formula at a token that depend on later tokens of its row."""
    samples = Samples(h)
    read = dict.fromkeys(atoms(formula))
    return [a for a in read if any(when == "later" for when, _ in samples.of_atom(a, HERE))]


def _simplified(formula: Expression) -> Expression:
    """A formula without the terms that cancel."""
    if isinstance(formula, Apply) and (formula.is_condition or formula.operator == "where"):
        return Apply(formula.operator, tuple(map(_simplified, formula.arguments)))
    try:
        return from_sympy(to_sympy(formula))
    except SpecError:
        return formula


LAW = Law("agreement", STATEMENT, partial(_decided, _agrees, ("weight",)))
LAW_OF_MASKS = Law("mask_open", STATEMENT_OF_MASKS, partial(_decided, _agrees, ("condition",)))
LAW_OF_PREFIXES = Law("causal", CAUSAL, partial(_decided, _is_causal, ("weight", "condition")))
