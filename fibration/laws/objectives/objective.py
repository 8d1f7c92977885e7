"""The objective's weights: `μ` must be a number at every token, whatever the batch.

Weights are read at the leaves, in counts over a row and over the batch. The row and the batch need not be strata of the
hierarchy, so the law adds both to its strata. Further weights must also have a value, and never be negative, at every
kept token. Conditions, and the formulas of statistics, must have values at all tokens.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator
from contextlib import suppress
from fractions import Fraction

from fibration.errors import an
from fibration.language.atoms import BATCH, Count, Stratum, Total, at
from fibration.language.declared import LogProb
from fibration.language.expressions import Expression
from fibration.language.hierarchy import Hierarchy
from fibration.language.objectives import Objective
from fibration.language.operators import ANY, NOT_NEGATIVE, Signs, maximum, where
from fibration.language.outline import whole_batch
from fibration.language.strata import Shape
from fibration.language.sympy_bridge import to_sympy, vanishes
from fibration.language.traversal import atoms, rewrite, subexpressions
from fibration.laws import topic
from fibration.laws.batches import caps
from fibration.laws.batches.coefficients import places_of
from fibration.laws.batches.concrete import Concrete, Witness
from fibration.laws.batches.search import concretes, find
from fibration.laws.law import Decision, Law, proved, unproved
from fibration.laws.objectives.token_search import without_its_sign
from fibration.laws.remedies import Fix, Offers, Otherwise, bounded
from fibration.laws.signs.assumptions import Assumptions
from fibration.laws.signs.branches import TooManyCases, cases
from fibration.laws.signs.claim import Claim, divided, inside, known_at
from fibration.laws.subject import Subject
from fibration.laws.values.numerals import number

STATEMENT = (
    "the objective's weight μ is defined at every token of every batch, its conditions too; further weights are, and "
    "never negative, at every token that is kept; advantages and penalties have a value"
)


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


LAW = Law("objective", STATEMENT, decide_objective, may_be_given_up=False)
