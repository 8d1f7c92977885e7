"""Causal: no weight and no condition of a token depends on later tokens of its row.

The prefix is the state in which a token was sampled. A weight that reads later tokens is no function of state and
action. Some losses intend that: a sequence's ratio has less bias for more variance. The law does not cover `μ`, gates
and advantages.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from fibration.errors import SpecError, listed
from fibration.language.expressions import Apply, Expression
from fibration.language.hierarchy import Hierarchy
from fibration.language.sympy_bridge import from_sympy, to_sympy
from fibration.language.traversal import atoms
from fibration.laws import topic
from fibration.laws.law import Decision, Law, following, proved, unproved
from fibration.laws.objectives.samples import HERE, Samples
from fibration.laws.objectives.token_search import changed_by_later
from fibration.laws.subject import Subject

STATEMENT = "no weight and no condition of a token depends on what comes after it in its row, nor on how much does"
REMEDY = (
    "read what is the token's own, before(x, over={rows}) or position(over={rows}); or gives_up={{'causal': 'why'}}, "
    "where the whole sequence is meant to be weighed or dropped"
)


def decide_causal(subject: Subject) -> Iterator[Decision]:
    objective = subject.hierarchy.objective
    for weight in objective.weighed:
        yield _decided(subject, topic.weight(weight), weight)
    for keep in objective.kept:
        yield _decided(subject, topic.condition(keep.condition), keep.condition)


def _decided(subject: Subject, name: topic.Topic, formula: Expression) -> Decision:
    h = subject.hierarchy
    ahead = reads_ahead(h, formula)
    if not ahead:
        return proved(name, f"{formula} reads a token and its prefix alone{Samples(h).granted(formula)}")
    witness = changed_by_later(h, formula, name.kind)
    found = f"{formula}, which reads {ahead[0]}" + ("" if witness else ", and was not shown to be free of what follows")
    decision = replace(
        unproved(name, found, REMEDY.format(rows=h.rows), witness), fault=f"reads {listed(sorted(map(str, ahead)))}"
    )
    return following(decision, subject.failure("objective", name))


def reads_ahead(h: Hierarchy, formula: Expression) -> list[Expression]:
    """The atoms of a formula at a token that depend on later tokens of its row."""
    return _ahead(h, formula) and _ahead(h, _simplified(formula))


def _ahead(h: Hierarchy, formula: Expression) -> list[Expression]:
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


LAW = Law("causal", STATEMENT, decide_causal)
