"""Causal: no weight and no condition of a token depends on what comes after it in its row.

The prefix is the state in which a token was sampled. A weight that looks further is no function of state and action: a
sequence's ratio, say, has less bias for more variance, and means that. Of `μ`, gates and advantages this says nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from fibration.errors import SpecError
from fibration.language.expressions import Apply, Expression
from fibration.language.hierarchy import Hierarchy
from fibration.language.sympy_bridge import from_sympy, to_sympy
from fibration.language.traversal import atoms
from fibration.laws.law import Decision, Law, following, proved, unproved
from fibration.laws.proof.samples import HERE, Samples
from fibration.laws.proof.subject import Subject
from fibration.laws.witness.later import changed_by_later

STATEMENT = "no weight and no condition of a token depends on what comes after it in its row, nor on how much does"
REMEDY = (
    "read what is the token's own, before(f, over=row) or position(over=row); or gives_up={'causal': 'why'}, where the "
    "whole sequence is meant to be weighed or dropped"
)


def decide_causal(subject: Subject) -> Iterator[Decision]:
    objective = subject.hierarchy.objective
    for weight in objective.weighed:
        yield _decided(subject, "weight", weight)
    for keep in objective.kept:
        yield _decided(subject, "condition", keep.condition)


def _decided(subject: Subject, word: str, formula: Expression) -> Decision:
    h, name = subject.hierarchy, f"{word} {formula}"
    ahead = reads_ahead(h, formula)
    if ahead is None:
        return proved(name, f"{formula} reads a token and its prefix alone{Samples(h).granted(formula)}")
    witness = changed_by_later(h, formula, word)
    found = f"{formula}, which reads {ahead}" + ("" if witness else ", and was not shown to be free of what follows")
    said = (v for v in subject.verdicts if (v.law, v.subject) == ("objective", name) and v.status != "proved")
    return following(unproved(name, found, REMEDY, witness), next(said, None))


def reads_ahead(h: Hierarchy, formula: Expression) -> Expression | None:
    """What a formula reads at a token that later tokens of its row have a part in; None if there is nothing."""
    found = _ahead(h, formula)
    return None if found is None else _ahead(h, _simplified(formula))


def _ahead(h: Hierarchy, formula: Expression) -> Expression | None:
    samples = Samples(h)
    return next((a for a in atoms(formula) if any(when == "later" for when, _ in samples.of_atom(a, HERE))), None)


def _simplified(formula: Expression) -> Expression:
    """A formula in which what cancels is left out."""
    if isinstance(formula, Apply) and (formula.is_condition or formula.operator == "where"):
        return Apply(formula.operator, tuple(map(_simplified, formula.arguments)))
    try:
        return from_sympy(to_sympy(formula))
    except SpecError:
        return formula


LAW = Law("causal", STATEMENT, decide_causal)
