"""The objective's weights: `μ` must be a number at every token, whatever the batch.

They are read at the leaves, in counts over a row and over the batch. Neither need be a stratum of the hierarchy, so the
question is asked of its strata with these two below them. Further weights must have a value besides, and never be
negative, on every token that is kept; conditions, and the formulas of statistics, must have values on all.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator
from fractions import Fraction

import sympy

from fibration.errors import an
from fibration.language.atoms import BATCH, Count, Parameter, Stratum, Total, at
from fibration.language.expressions import Expression
from fibration.language.hierarchy import Hierarchy
from fibration.language.operators import ANY, NOT_NEGATIVE, Signs, where
from fibration.language.places import whole_batch
from fibration.language.statistics import within
from fibration.language.strata import Shape
from fibration.language.sympy_bridge import CURRENT_LOG_PROB, to_sympy
from fibration.language.traversal import atoms
from fibration.laws.law import Decision, Law, proved, unproved
from fibration.laws.proof.claim import Claim
from fibration.laws.proof.signs import NOT_POSITIVE, Assumptions
from fibration.laws.proof.subject import Subject
from fibration.laws.witness import off_policy
from fibration.laws.witness.batches import Concrete, Witness, number, settings
from fibration.laws.witness.search import concretes

STATEMENT = (
    "the objective's weight μ is defined at every token of every batch, its conditions too; further weights are, and "
    "never negative, at every token that is kept"
)


def decide_objective(subject: Subject) -> Iterator[Decision]:
    yield _of_mu(subject)
    objective = subject.hierarchy.objective
    conditions = [k.condition for k in objective.kept]
    for condition in conditions:
        yield _of_tokens(subject, f"condition {condition}", where(condition, 1, 0), ANY)
    kept = functools.reduce(operator.and_, conditions) if conditions else None
    for weight in objective.weighed:
        read = weight if kept is None else where(kept, weight, 1)
        yield _of_tokens(subject, f"weight {weight}", read, NOT_NEGATIVE)


def _of_tokens(subject: Subject, name: str, formula: Expression, signs: Signs) -> Decision:
    """Of a weight, or a condition as 1 or 0: that it has a value at every token, of one of these signs."""
    h = subject.hierarchy
    word, _, written = name.partition(" ")
    inside = [(e, ANY) for e in within(formula) if e is not formula and not isinstance(e, Parameter)]
    asked = [(where(e, 1, 0) if e.is_condition else e, s) for e, s in inside]
    claims = [Claim(at(e, leaf), _known(h, leaf), s) for leaf in h.leaves for e, s in ((formula, signs), *asked)]
    loose = next((claim for claim in claims if not claim.is_shown), None)
    if loose is None:
        negative = "" if signs == ANY else ", and is nowhere negative"
        return proved(name, f"{written} has a value at every token{' that is kept' * (signs != ANY)}{negative}")
    witness = off_policy.without_its_sign(h, formula, signs, word)
    found = written + (
        "" if witness else ", which could not be shown to have a value" + " of at least 0" * (signs != ANY)
    )
    remedy = "divide by what is positive, take logarithms of what is, and maximum(w, 0) of what may be negative"
    return unproved(name, found, loose.remedy(h) or remedy, witness)


def _known(h: Hierarchy, leaf: Stratum) -> Assumptions:
    """What is known at the tokens of a leaf: the log-prob of the current policy is not above 0 either."""
    plain, current = Assumptions(whole_batch(h), h.assume, leaf), to_sympy(CURRENT_LOG_PROB)
    return plain.with_signs({current: NOT_POSITIVE, sympy.exp(current) - 1: NOT_POSITIVE})


def _of_mu(subject: Subject) -> Decision:
    h = subject.hierarchy
    weight, shape = h.objective.spelled_out(h.leaves, h.rows), whole_batch(h)
    # what is kept is a batch too, in which a branch may be empty that is not in the whole one
    assume = () if any(k.normaliser == "kept" for k in h.objective.kept) else h.assume
    defined = {leaf: Claim(weight, Assumptions(shape, assume, leaf)) for leaf in h.leaves}
    loose = next((leaf for leaf, claim in defined.items() if not claim.is_shown), None)
    if loose is None:
        argument = f"μ = {weight} has a value: no division by 0, no logarithm or root outside its domain"
        return proved("weight", argument)
    witness = token_without_weight(h, shape, weight)
    found = f"μ = {weight}" + ("" if witness else f", which could not be shown to have a value at every {loose}")
    remedy = (
        "divide by counts or by what is positive, and take logarithms and roots of what is positive; bound a "
        "parameter, Parameter(..., lower=...), or declare an attribute positive"
    )
    return unproved("weight", found, defined[loose].remedy(h) or remedy, witness)


def token_without_weight(h: Hierarchy, shape: Shape, weight: Expression) -> Witness | None:
    read = list(atoms(weight))
    over = [a.over for a in read if isinstance(a, (Count, Total))]
    place = next((s for s in shape.order if s in over), h.rows)
    known: dict[tuple[Stratum, tuple[Fraction, ...]], bool] = {}
    for concrete in concretes(h, [weight], shape):
        for leaf in h.leaves:
            for i in range(concrete.size[leaf]):
                key = leaf, tuple(concrete.atom(a, leaf, i) for a in read)
                if key not in known:
                    known[key] = concrete.attempt(weight, leaf, i) is not None
                if not known[key]:
                    inside = _batch(concrete) if place.name == BATCH else ""
                    inside = inside or concrete.describe(place, concrete.below(leaf, i, place))
                    text = f"{an(leaf)} has no weight in {inside}{settings(concrete)}"
                    return Witness(text, concrete, {"stratum": leaf.name, "element": i})
    return None


def _batch(concrete: Concrete) -> str:
    """A batch by its tokens, where they are not all of one kind: `a batch of 0 texts and 1 image`."""
    leaves = concrete.shape.leaves
    if len(leaves) == 1:
        return ""
    return f"a batch of {' and '.join(number(concrete.size[leaf], leaf) for leaf in leaves)}"


LAW = Law("objective", STATEMENT, decide_objective, may_be_given_up=False)
