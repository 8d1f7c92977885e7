"""The base classes of judges and cases, and functions that several judges share."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from unittest import mock

from fibration import Gate, Hierarchy, residual
from fibration.errors import FibrationError
from fibration.language.hierarchy import FOUNDATIONS
from fibration.language.objectives import Objective
from fibration.language.report import Verdict
from fibration.laws import LAWS
from fibration.laws.budget import Budget
from fibration.laws.subject import Subject
from fuzz.batches import Batches
from fuzz.dual_numbers import Illegal, NoValue, Unclear
from fuzz.generate import simpler
from fuzz.world import Batch, World

TRIES = 16  # random batches on which a proof is tried
TOLERANCE = 1e-6


class NothingDrawn(Exception):
    """The language refuses what was drawn."""


class Case(Protocol):
    """What is judged; it prints as what a user writes."""

    def simpler(self) -> Iterator[Any]: ...


class Judge(Protocol):
    """Draws cases and judges them: the status of each verdict, and what contradicts one ('' for nothing)."""

    name: str
    timeout: float

    def draw(self, rng: random.Random) -> Any: ...

    def judge(self, case: Any, rng: random.Random) -> tuple[list[str], str]: ...


@dataclass(frozen=True)
class OfHierarchy:
    """A hierarchy as a case."""

    h: Hierarchy

    def __str__(self) -> str:
        return repr(self.h)

    def simpler(self) -> Iterator[OfHierarchy]:
        for change in _changes(self.h):
            try:
                yield OfHierarchy(self.h.replace(**change()))
            except (FibrationError, AssertionError):
                continue


def _changes(h: Hierarchy) -> Iterator[Callable[[], dict[str, Any]]]:
    """Hierarchies with one thing less."""
    o = h.objective
    yield from (lambda k=k: {"penalties": {n: p for n, p in h.penalties.items() if n != k}} for k in h.penalties)  # type: ignore[misc]
    for k in range(len(o.weighed)):
        yield lambda k=k: {"objective": _objective(o, (*o.weighed[:k], *o.weighed[k + 1 :]), o.kept)}  # type: ignore[misc]
    for k in range(len(o.kept)):
        yield lambda k=k: {"objective": _objective(o, o.weighed, (*o.kept[:k], *o.kept[k + 1 :]))}  # type: ignore[misc]
    for k, w in enumerate(o.weighed):
        for e in simpler(w):
            yield lambda k=k, e=e: {"objective": _objective(o, (*o.weighed[:k], e, *o.weighed[k + 1 :]), o.kept)}  # type: ignore[misc]
    for k, keep in enumerate(o.kept):
        for e in simpler(keep.condition):
            new = keep.model_copy(update={"condition": e})
            yield lambda k=k, n=new: {"objective": _objective(o, o.weighed, (*o.kept[:k], n, *o.kept[k + 1 :]))}  # type: ignore[misc]
    for n, p in h.penalties.items():
        for e in simpler(p.formula):
            yield lambda n=n, p=p, e=e: {"penalties": {**h.penalties, n: p.model_copy(update={"formula": e})}}  # type: ignore[misc]
    if h.advantages is not None:
        for e in simpler(h.advantages):
            yield lambda e=e: {"advantages": e}  # type: ignore[misc]
    for s, gate in h.gates.items():
        for e in (residual, *simpler(gate.expression)) if gate.expression != residual else ():
            yield lambda s=s, e=e: {"gates": {**h.gates, s: Gate(e)}}  # type: ignore[misc]


def _objective(o: Objective, weighed: Any, kept: Any) -> Objective:
    """The objective with other weights and conditions, written anew."""
    made = Objective(o.weight)
    for w in weighed:
        made = made.weigh(w)
    for k in kept:
        made = made.keep(k.condition, k.normaliser)
    return made.score() if o.estimator == "score" else made


def of_levels(h: Hierarchy) -> Hierarchy:
    """The levels of a hierarchy with its own `μ`, and nothing else that weighs, drops or adds."""
    return h.replace(objective=Objective(h.objective.weight), penalties={}, advantages=None)


def verdicts(h: Hierarchy, laws: tuple[str, ...], timeout: float, foundations: bool = False) -> list[Verdict]:
    """The verdicts of some laws alone, each decided as `verify` does; none where a foundation fails.

    `foundations`: those are asked first. Leave that out where the shape and its kernels are known to be right.
    """
    subject, found = Subject(h, []), list[Verdict]()

    def ask() -> None:
        for name in (*(FOUNDATIONS if foundations else ()), *(n for n in LAWS if n in laws)):
            for verdict in LAWS[name].decide(subject):
                subject.verdicts.append(verdict)
                if name in laws:
                    found.append(verdict)
            if name in FOUNDATIONS and subject.first_failure(name):
                return

    Budget(timeout).allows(ask)
    for verdict in subject.verdicts:
        if verdict.internal_error:
            raise AssertionError(f"{verdict.law}: {verdict.found}")
    return found


SEARCHES = (  # where laws look for counterexamples
    "objectives.objective.without_its_sign", "objectives.objective.token_without_weight",
    "objectives.objective.off_one", "objectives.objective.changed_by_later",
    "objectives.baseline.not_its_own", "objectives.kl_gradient.no_divergence", "off_policy.inward.pushed_further_out",
    "off_policy.inward.reversed_token", "on_policy.identity.gate_off_identity",
    "off_policy.positivity.of_one_token", "off_policy.positivity.ratio_not_positive",
)  # fmt: skip
SEARCHED = 25  # one hierarchy of so many is searched for counterexamples too, which takes most of the time


@contextlib.contextmanager
def proofs_alone(searches: Sequence[str] = SEARCHES) -> Iterator[None]:
    """Laws that look for no counterexample: what is not proved is undecided."""
    with contextlib.ExitStack() as stack:
        for name in searches:
            stack.enter_context(mock.patch(f"fibration.laws.{name}", return_value=None))
        yield


def worlds(
    h: Hierarchy, rng: random.Random, n: int = TRIES, together: str | None = None, most: int = 48
) -> Iterator[World]:
    """The hierarchy on random batches."""
    draw = Batches(h, rng, most)
    for _ in range(n):
        yield World(h, draw(together))


def attempt(compute: Callable[[], Any]) -> tuple[Any, str]:
    """A value, or why there is none: `no value`, or `unclear` where brute force cannot tell."""
    try:
        return compute(), ""
    except NoValue:
        return None, "no value"
    except (Illegal, Unclear, OverflowError):
        return None, "unclear"


def of_batch(b: Batch) -> str:
    """A batch in one line."""
    rows = {s: v for s, v in b.labels.items()}
    numbers = {n: [str(v) for v in vs] for n, vs in {"x": b.x, "A": b.advantages, **b.policies}.items()}
    return f"on {[s.name for s in b.leaf]} {rows} {numbers} {b.attributes} {b.parameters}"
