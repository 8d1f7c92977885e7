"""Run the laws on a hierarchy. What they decide is kept (`kept.py`), and equal hierarchies are decided once."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from fibration.language.hierarchy import FOUNDATIONS, Hierarchy
from fibration.language.report import Cause, Fact, Report, Verdict
from fibration.laws import LAWS
from fibration.laws.facts import facts
from fibration.laws.kept import Kept
from fibration.laws.law import Decision, Law, refuted
from fibration.laws.proof.subject import Subject

Verdicts = tuple[Verdict, ...]
Facts = tuple[Fact, ...]


def verify(hierarchy: Hierarchy) -> Report:
    """Decide every law, for all sizes at once. Never raises for a wrong hierarchy: see `Report.raise_for_status`.

    If a foundation (structure, locality) fails, the laws that build on it are not asked.
    """
    return Report(hierarchy, VERDICTS.of(hierarchy, lambda: decide(hierarchy)), certified)


def decide(hierarchy: Hierarchy) -> Verdicts:
    """The laws' verdicts, decided anew."""
    subject = Subject(hierarchy, [])
    for law in LAWS.values():
        subject.verdicts += list(law.decide(subject))
        if law.foundation and subject.first_failure(law.name):
            break
    SUBJECTS.of(hierarchy, lambda: subject)
    for given_up, why in hierarchy.gives_up.items():
        covered = COVERS.get(given_up, (given_up,))
        subject.verdicts = [
            replace(v, given_up=why) if v.law in covered and v.status != "proved" else v for v in subject.verdicts
        ]
    return (*subject.verdicts, *GIVEN_UP.decide(subject))


def certified(hierarchy: Hierarchy, verdicts: Verdicts) -> Facts:
    """What is certified beside the laws, of a hierarchy with these verdicts."""
    if any(v.law in FOUNDATIONS and v.status != "proved" for v in verdicts):
        return ()  # a fact about a kernel that does not reflect would mislead

    def find() -> Facts:
        return tuple(facts(SUBJECTS.of(hierarchy, lambda: Subject(hierarchy, list(verdicts)))))

    return FACTS.of(hierarchy, find)


# Giving up first-order agreement covers what it rests on at single gates.
COVERS = {"first_order": ("first_order", "identity")}


def given_up_though_it_holds(subject: Subject) -> Iterator[Decision]:
    for law in subject.hierarchy.gives_up:
        if subject.proved(law):
            yield refuted(f"law '{law}'", f"'{law}' holds", f"remove '{law}' from gives_up")


GIVEN_UP = Law("given_up", "a law is given up only if it is broken", given_up_though_it_holds)


# ---------------------------------------------------------------- what is kept


@dataclass(frozen=True)
class Told:
    """A counterexample as it was written down: its words, and the numbers behind them.

    The objects that a `Witness` has besides are found by deciding the laws anew.
    """

    text: str
    numbers: dict[str, Any]
    hierarchy: Hierarchy
    place: int  # of its verdict

    def __str__(self) -> str:
        return self.text

    def to_dict(self) -> dict[str, Any]:
        return deepcopy(self.numbers)

    @cached_property
    def _witness(self) -> Any:
        return decide(self.hierarchy)[self.place].counterexample

    @property
    def concrete(self) -> Any:
        return self._witness.concrete

    @property
    def values(self) -> Any:
        return self._witness.values


def _write(verdicts: Verdicts) -> list[dict[str, Any]]:
    seen = [v.counterexample for v in verdicts]
    told = [None if w is None else {"text": str(w), "numbers": w.to_dict()} for w in seen]
    return [{**vars(v), "counterexample": t} for v, t in zip(verdicts, told, strict=True)]


def _read(data: list[dict[str, Any]], hierarchy: Hierarchy) -> Verdicts:
    told, causes = ([v.pop(key) for v in data] for key in ("counterexample", "cause"))
    seen = [t and Told(**t, hierarchy=hierarchy, place=i) for i, t in enumerate(told)]
    return tuple(
        Verdict(**v, counterexample=w, cause=c and Cause(*c)) for v, w, c in zip(data, seen, causes, strict=True)
    )


VERDICTS = Kept(256, "verdicts", _write, _read)
FACTS: Kept[Facts] = Kept(
    256, "facts", lambda found: [vars(f) for f in found], lambda data, _: tuple(Fact(**f) for f in data)
)
SUBJECTS: Kept[Subject] = Kept(16)  # what the laws have worked out, for the facts

Hierarchy.verify = verify  # the method that users call
