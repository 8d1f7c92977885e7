"""The laws of the objective's weights and conditions: objective, agreement, mask_open, causal.

- objective: `μ` must be a number at every token, whatever the batch. Weights are read at the leaves, in counts over a
  row and over the batch. The row and the batch need not be strata of the hierarchy, so the law adds both to its strata.
  Further weights must also have a value, and never be negative, at every kept token. Conditions, and the formulas of
  statistics, must have values at all tokens.
- agreement, mask_open: where all policies coincide, every weight of a token is 1, and no token is dropped. Both are one
  claim: a weight, or a condition as 1 or 0, tends to 1. First-order agreement is a law of the gates; the whole loss
  agrees if the law `agreement` holds too. Decoupled PPO need not give it up: its weight is the ratio of two frozen
  policies, which is 1 where they coincide. A mask that drops tokens there has another gradient than the objective from
  the first update on. Some losses intend that, such as those that drop the tokens of least entropy, and give the law
  up by name.
- causal: no weight and no condition of a token depends on later tokens of its row. The prefix is the state in which a
  token was sampled. A weight that reads later tokens is no function of state and action. Some losses intend that: a
  sequence's ratio has less bias for more variance. The law does not cover `μ`, gates and advantages.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction

from fibration.errors import SpecError, an, listed
from fibration.language.atoms import BATCH, Count, Stratum, Total, at
from fibration.language.declared import LogProb
from fibration.language.expressions import Apply, Expression
from fibration.language.hierarchy import Hierarchy
from fibration.language.objectives import Objective
from fibration.language.operators import ANY, NOT_NEGATIVE, Signs, maximum, where
from fibration.language.outline import whole_batch
from fibration.language.strata import Shape
from fibration.language.sympy_bridge import from_sympy, to_sympy, vanishes
from fibration.language.traversal import atoms, rewrite, subexpressions
from fibration.laws import topic
from fibration.laws.batches import caps
from fibration.laws.batches.coefficients import places_of
from fibration.laws.batches.concrete import Concrete, Witness
from fibration.laws.batches.search import concretes, find
from fibration.laws.law import Decision, Law, following, proved, unproved
from fibration.laws.objectives.samples import HERE, Samples
from fibration.laws.objectives.token_search import changed_by_later, off_one, without_its_sign
from fibration.laws.remedies import Fix, Offers, Otherwise, bounded
from fibration.laws.signs.assumptions import Assumptions
from fibration.laws.signs.branches import TooManyCases, cases
from fibration.laws.signs.claim import Claim, divided, factors, inside, known_at
from fibration.laws.signs.coinciding import everywhere
from fibration.laws.subject import Subject
from fibration.laws.values.numerals import number

STATEMENT = (
    "the objective's weight μ is defined at every token of every batch, its conditions too; further weights are, and "
    "never negative, at every token that is kept; advantages and penalties have a value"
)
AGREEMENT = "where all policies coincide every weight of a token is 1, and it tends to 1 towards that from every side"
OPEN = "where all policies coincide, and near it, every condition holds: no token is dropped"
CAUSAL = "no weight and no condition of a token depends on what comes after it in its row, nor on how much does"
AGREEMENT_REMEDY = (
    "weigh by what is 1 where policies agree, such as a ratio of two of them or minimum(ratio, C) with "
    "Parameter('C', lower=1); lengths belong in the objective, as in trajectory_mean()"
)
OPEN_REMEDY = "leave room on both sides of what is kept, such as ratio < C with Parameter('C', lower=1)"
CAUSAL_REMEDY = (
    "read what is the token's own, before(x, over={rows}) or position(over={rows}); or gives_up={{'causal': 'why'}}, "
    "where the whole sequence is meant to be weighed or dropped"
)
GIVE_UP = "gives_up={'agreement': 'why'}"
GIVE_UP_MASKS = "if the loss means to drop tokens on policy, gives_up={'mask_open': 'why'}"
Decide = Callable[[Subject, topic.Topic, Expression], Decision]


def decide_objective(subject: Subject) -> Iterator[Decision]:
    h = subject.hierarchy
    yield from _of_objective(subject, h.objective)
    if h.advantages is not None:
        yield _of_tokens(subject, "advantages", h.advantages, h.advantages, ANY, "advantage")
    for name, penalty in h.penalties.items():
        own, read = topic.penalty(name), penalty.formula
        if penalty.objective is not None:
            yield from _of_objective(subject, penalty.objective, f" of the {own}")
            kept = [k.condition for k in penalty.objective.kept]
            read = where(functools.reduce(operator.and_, kept), read, 0) if kept else read
        yield _of_tokens(subject, own, read, read, ANY, "penalty", penalty.over)


def _of_objective(subject: Subject, objective: Objective, whose: str = "") -> Iterator[Decision]:
    yield _of_mu(subject, objective, whose)
    conditions = [k.condition for k in objective.kept]
    for condition in conditions:
        name, written = topic.condition(condition, whose), f"{condition}{whose}"
        yield _of_tokens(subject, name, written, where(condition, 1, 0), ANY, "condition")
    kept = functools.reduce(operator.and_, conditions) if conditions else None
    for weight in objective.weighed:
        read = weight if kept is None else where(kept, weight, 1)
        name, written = topic.weight(weight, whose), f"{weight}{whose}"
        yield _of_tokens(subject, name, written, read, NOT_NEGATIVE, "weight")


def _of_tokens(
    subject: Subject,
    name: str,
    written: object,
    formula: Expression,
    signs: Signs,
    word: str,
    place: Stratum | None = None,
) -> Decision:
    """Decides whether a weight, or a condition as 1 or 0, has a value of one of these signs at every token.

    `written`: the formula as it was declared. `place`: at every element of this stratum instead.
    """
    h = subject.hierarchy
    read_at = h.leaves if place is None else (place,)
    claims = [Claim(divided(at(formula, s)), known_at(h, s), signs) for s in read_at]
    loose = next((claim for claim in (*claims, *inside(h, formula)) if not claim.is_shown), None)
    if loose is None:
        negative = "" if signs == ANY else ", and is nowhere negative"
        of = "token" if place is None else place.name
        return proved(name, f"{written} has a value at every {of}{' that is kept' * (word == 'weight')}{negative}")
    witness = without_its_sign(h, formula, signs, word, place)
    found = str(written) + (
        "" if witness else ", which could not be shown to have a value" + " of at least 0" * (signs != ANY)
    )
    remedy = "divide by what is positive, take logarithms of what is, and maximum(w, 0) of what may be negative"
    if word == "weight" and atoms(formula, LogProb):
        remedy = f"log_prob(old) - log_prob(rollout) is a log ratio, and exp(...) of it a weight; {remedy}"
    return unproved(name, found, loose.remedy(h) or remedy, witness)


def _of_mu(subject: Subject, objective: Objective, whose: str) -> Decision:
    h = subject.hierarchy
    weight, shape = objective.spelled_out(h.leaves, h.rows), whole_batch(h)
    # the kept tokens are a batch of their own, in which a leaf may be empty that has tokens in the whole batch
    assume = () if any(k.normaliser == "kept" for k in objective.kept) else h.assume
    defined = {leaf: Claim(weight, Assumptions(shape, assume, leaf)) for leaf in h.leaves}
    loose = next((leaf for leaf, claim in defined.items() if not claim.is_shown), None)
    if loose is None:
        argument = f"μ = {weight} has a value: no division by 0, no logarithm or root outside its domain"
        return proved(f"weight{whose}", argument)
    witness = token_without_weight(h, shape, weight)
    found = f"μ = {weight}" + ("" if witness else f", which could not be shown to have a value at every {loose}")
    remedy = defined[loose].remedy(h) or bounded(h, [weight], _has_weights) or _floor(h, objective, defined[loose])
    return unproved(f"weight{whose}", found, remedy, witness)


def _has_weights(h: Hierarchy) -> bool:
    weight, shape = h.objective.spelled_out(h.leaves, h.rows), whole_batch(h)
    return all(Claim(weight, Assumptions(shape, h.assume, leaf)).is_shown for leaf in h.leaves)


def _floor(h: Hierarchy, objective: Objective, claim: Claim) -> Offers:
    """The remedy for a divisor, or the argument of a logarithm or root, that may be 0 or below."""
    of = Otherwise("divide by, or take the logarithm or root of, what is positive, as maximum(x, 1) is")
    with suppress(TooManyCases):
        for case in cases(claim.formula, claim.assume):
            known = claim.assume.with_signs(dict(case.signs))
            loose = next((n.value for n in case.needs if not known.signs(n.value) <= n.signs), None)
            for part in subexpressions(claim.formula) if loose is not None else ():
                if not part.is_condition and vanishes(to_sympy(part) - loose):
                    words = f"write maximum({part}, 1) in the place of {part}"
                    made = rewrite(claim.formula, lambda e, p=part: maximum(p, 1) if e == p else e)  # type: ignore[misc]
                    mended = objective.with_parts(weight=made)
                    return (Fix(words, lambda m=mended: h.replace(objective=m)), of)  # type: ignore[misc]
    return (of,)


def token_without_weight(h: Hierarchy, shape: Shape, weight: Expression) -> Witness | None:
    """A batch in which `μ` has no value at a token."""
    over = [a.over for a in atoms(weight, Count, Total)]
    place = next((s for s in shape.order if s in over), h.rows)
    known: dict[tuple[Stratum, tuple[Fraction, ...]], bool] = {}

    def fails(concrete: Concrete) -> Witness | None:
        for leaf, i in places_of(h, concrete):
            key = leaf, tuple(concrete.atom(a, leaf, i) for a in atoms(weight))
            if key not in known:
                known[key] = concrete.attempt(weight, leaf, i) is not None
            if not known[key]:
                inside = _batch(concrete) if place.name == BATCH else ""
                inside = inside or concrete.describe(place, concrete.below(leaf, i, place))
                values = {"stratum": leaf.name, "element": i}
                return Witness.on(concrete, f"{an(leaf)} has no weight in {inside}", values)
        return None

    return find(concretes(h, [weight], caps.ALL, shape), fails)


def _batch(concrete: Concrete) -> str:
    """A batch by its kinds of tokens, such as `a batch of 0 texts and 1 image`; empty if there is one kind."""
    leaves = concrete.shape.leaves
    if len(leaves) == 1:
        return ""
    return f"a batch of {' and '.join(number(concrete.size[leaf], leaf) for leaf in leaves)}"


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
        remedy, give_up = OPEN_REMEDY, GIVE_UP_MASKS
    else:
        found, fails, unshown = f"w = {formula}", ", not 1 where ", ", which was not shown to tend to 1"
        remedy, give_up = AGREEMENT_REMEDY, GIVE_UP
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
    decision = unproved(name, found, CAUSAL_REMEDY.format(rows=h.rows), witness)
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


LAW = Law("objective", STATEMENT, decide_objective, may_be_given_up=False)
LAW_OF_AGREEMENT = Law("agreement", AGREEMENT, functools.partial(_decided, _agrees, ("weight",)))
LAW_OF_MASKS = Law("mask_open", OPEN, functools.partial(_decided, _agrees, ("condition",)))
LAW_OF_PREFIXES = Law("causal", CAUSAL, functools.partial(_decided, _is_causal, ("weight", "condition")))
