"""Decide the laws on a hierarchy. Verdicts are cached (`kept.py`), so that equal hierarchies are decided once.

The proofs, and sympy with them, load when the first hierarchy is decided that is not in the cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property, partial
from time import monotonic
from typing import Any

from fibration.language.exact import TooLarge
from fibration.language.hierarchy import FOUNDATIONS, Hierarchy
from fibration.language.report import BUDGET, NOTE, WARNING, Cause, Fact, Report, Verdict
from fibration.laws.budget import Budget
from fibration.laws.facts.coupling import coupling
from fibration.laws.kept import Kept

OUT_OF_TIME = "out of time"
Verdicts = tuple[Verdict, ...]
Facts = tuple[Fact, ...]


class Incomplete(Exception):
    """Carries what was found before the time ran out, or beside an exception. Raised so that it is not cached."""

    def __init__(self, found: tuple[Any, ...]) -> None:
        super().__init__(found)
        self.found = found


def verify(hierarchy: Hierarchy, timeout: float | None = BUDGET) -> Report:
    """`Hierarchy.verify`."""
    budget = Budget(timeout)
    try:
        verdicts = VERDICTS.of(hierarchy, lambda: decide(hierarchy, budget))
    except Incomplete as rest:
        verdicts = rest.found
    return Report(hierarchy, verdicts, partial(certified, budget=budget))


def decide(hierarchy: Hierarchy, budget: Budget | None = None) -> Verdicts:
    """The verdicts, decided without the cache. Raises `Incomplete` if a law ran out of time or raised an exception."""
    from fibration.laws.catalogue import LAWS
    from fibration.laws.given_up import LAW, with_reasons
    from fibration.laws.subject import Subject

    budget = budget or Budget(None)
    subject = Subject(hierarchy, [])
    begun: list[float] = []  # when each law began

    def ask() -> None:
        for law in LAWS.values():
            begun.append(monotonic())
            before = len(subject.verdicts)
            for verdict in law.decide(subject):
                subject.verdicts.append(verdict)
            own = with_reasons(hierarchy.gives_up, subject.verdicts[before:])
            for verdict in law.decide_rest(subject, [v for v in own if v.given_up]):
                subject.verdicts.append(verdict)
            subject.before.append(law)
            if law.needed_by_all and subject.first_failure(law.name):
                return

    in_time = budget.allows(ask)
    found = list(subject.verdicts)
    if not in_time:
        found += _not_decided(list(LAWS.values())[max(len(begun) - 1, 0) :], begun, budget)
    found = with_reasons(hierarchy.gives_up, found)
    subject.verdicts = found
    verdicts = (*found, *LAW.decide(subject))
    if not in_time or any(v.internal_error for v in verdicts):
        raise Incomplete(verdicts)
    SUBJECTS.of(hierarchy, lambda: subject)
    return verdicts


def _not_decided(laws: Sequence[Any], begun: list[float], budget: Budget) -> Iterator[Verdict]:
    """Verdicts on the law that the timeout interrupted, the first of `laws`, and on the laws after it."""
    law, *later = laws
    spent = monotonic() - begun[-1] if begun else 0
    found = f"{OUT_OF_TIME} after {budget.seconds:g} s, of which {spent:.3g} s went into this law"
    more = 10 * budget.seconds
    remedy = f"give it more: verify(timeout={more:g}), or --timeout {more:g}; or write shorter formulas"
    first = Verdict(law.name, "hierarchy", "undecided", "", law.statement, found, remedy, out_of_time=True)
    yield first
    for law in later:
        rest = replace(first, law=law.name, required="", found=f"{OUT_OF_TIME}: not asked", remedy="")
        yield replace(rest, cause=Cause(first.law, first.subject))


def certified(hierarchy: Hierarchy, verdicts: Verdicts, budget: Budget) -> Facts:
    """The facts about a hierarchy with these verdicts; none if one of `FOUNDATIONS` fails.

    A fact that ran out of time or raised an exception says so.
    """
    if any(v.law in FOUNDATIONS and (v.fails or v.internal_error) for v in verdicts):
        return ()  # a fact about a kernel that does not reflect would mislead

    def find() -> Facts:
        from fibration.laws.facts.certified import NAMES, facts
        from fibration.laws.law import FILE_AN_ISSUE, INTERNAL_ERROR, internal_error
        from fibration.laws.subject import Subject

        subject = SUBJECTS.of(hierarchy, lambda: Subject(hierarchy, list(verdicts)))
        found: list[Fact] = []
        waiting = list(NAMES)
        broken: list[str] = []

        def lacks(name: str, error: Exception) -> None:
            broken.append(name)
            why = f"{internal_error(f'the fact {name!r}', error)}; {FILE_AN_ISSUE}"
            found.append(Fact(name, "hierarchy", f"not certified: {INTERNAL_ERROR}", why, WARNING))

        def certify() -> None:
            try:
                for name, some in facts(subject):
                    try:
                        for fact in some:
                            found.append(fact)
                    except TooLarge as error:
                        why = f"{error}, with which nothing is computed"
                        found.append(Fact(name, "hierarchy", "not certified", why))
                    except MemoryError:
                        raise
                    except Exception as error:
                        lacks(name, error)
                    waiting.remove(name)
            except MemoryError:
                raise
            except Exception as error:  # in code that all facts share
                for name in waiting:
                    lacks(name, error)

        in_time = budget.allows(certify)
        if not in_time:
            why = f"{budget.seconds:g} s, laws included"
            found.extend(Fact(name, "hierarchy", f"not certified: {OUT_OF_TIME}", why, NOTE) for name in waiting)
        if not in_time or broken:
            SUBJECTS.forget(hierarchy)  # its caches may be half written
            raise Incomplete(tuple(found))
        return tuple(found)

    try:
        found = FACTS.of(hierarchy, find)
    except Incomplete as rest:
        found = rest.found
    last: list[Fact] = []  # never cached: it would depend on the compiler's sources
    if not budget.allows(lambda: last.append(coupling(hierarchy))):
        why = f"{budget.seconds:g} s, laws included"
        last = [Fact("coupling", "hierarchy", f"not certified: {OUT_OF_TIME}", why, NOTE)]
    return (*found, *last)


# ---------------------------------------------------------------- the cache


@dataclass(frozen=True)
class StoredCounterexample:
    """A counterexample read from the cache: its text and its numbers.

    `concrete` and `values`, which a `Witness` has too, are found by deciding the laws again.
    """

    text: str
    numbers: dict[str, Any]
    hierarchy: Hierarchy
    place: int  # the position of its verdict

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
    stored = [None if w is None else {"text": str(w), "numbers": w.to_dict()} for w in seen]
    return [{**vars(v), "counterexample": t} for v, t in zip(verdicts, stored, strict=True)]


def _read(data: list[dict[str, Any]], hierarchy: Hierarchy) -> Verdicts:
    stored, causes = ([v.pop(key) for v in data] for key in ("counterexample", "cause"))
    seen = [t and StoredCounterexample(**t, hierarchy=hierarchy, place=i) for i, t in enumerate(stored)]
    return tuple(
        Verdict(**v, counterexample=w, cause=c and Cause(*c)) for v, w, c in zip(data, seen, causes, strict=True)
    )


VERDICTS = Kept(256, "verdicts", _write, _read)
FACTS: Kept[Facts] = Kept(
    256,
    "facts",
    lambda found: [vars(f) for f in found],
    lambda data, _: tuple(Fact(**{**f, "width": tuple(map(tuple, f["width"]))}) for f in data),
)
SUBJECTS: Kept[Any] = Kept(16)  # facts use again what the laws have worked out
