"""The objective's weights: `μ` must be a number at every token, whatever the batch.

They are read at the leaves, in counts over a row and over the batch. Neither need be a stratum of the hierarchy, so the
question is asked of its strata with these two below them.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from fibration.errors import an
from fibration.language.atoms import BATCH, Count, Stratum, Total
from fibration.language.expressions import Expression
from fibration.language.hierarchy import Hierarchy
from fibration.language.places import whole_batch
from fibration.language.strata import Shape
from fibration.language.traversal import atoms
from fibration.laws.law import Decision, Law, proved, unproved
from fibration.laws.proof.claim import Claim
from fibration.laws.proof.signs import Assumptions
from fibration.laws.proof.subject import Subject
from fibration.laws.witness.batches import Concrete, Witness, number, settings
from fibration.laws.witness.search import concretes

STATEMENT = "the objective's weight μ is defined at every token of every batch"


def decide_objective(subject: Subject) -> Iterator[Decision]:
    h = subject.hierarchy
    weight, shape = h.objective.spelled_out(h.leaves, h.rows), whole_batch(h)
    defined = {leaf: Claim(weight, Assumptions(shape, h.assume, leaf)) for leaf in h.leaves}
    loose = next((leaf for leaf, claim in defined.items() if not claim.is_shown), None)
    if loose is None:
        argument = f"μ = {weight} has a value: no division by 0, no logarithm or root outside its domain"
        yield proved("weight", argument)
        return
    witness = token_without_weight(h, shape, weight)
    found = f"μ = {weight}" + ("" if witness else f", which could not be shown to have a value at every {loose}")
    remedy = (
        "divide by counts or by what is positive, and take logarithms and roots of what is positive; bound a "
        "parameter, Parameter(..., lower=...), or declare an attribute positive"
    )
    yield unproved("weight", found, defined[loose].remedy(h) or remedy, witness)


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
