"""Reports of a verification: verdicts and facts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple, Protocol

from fibration.errors import LawError, listed

Status = Literal["proved", "refuted", "undecided"]
BUDGET = 60.0  # default: seconds for all verdicts on a hierarchy


class Named(Protocol):
    """The subject of a report."""

    @property
    def name(self) -> str: ...


class Evidence(Protocol):
    """A counterexample: one sentence, and its numbers for JSON (see `fibration.laws.batches.words.Witness`)."""

    def __str__(self) -> str: ...

    def to_dict(self) -> dict[str, Any]: ...


class Cause(NamedTuple):
    """The verdict that another verdict follows from."""

    law: str
    subject: str


@dataclass(frozen=True)
class Verdict:
    """The verdict of one law on one subject (a kernel, a gate, the whole hierarchy).

    - `status`: "proved" for batches of all sizes, "refuted" by a counterexample, or "undecided".
    - `argument`: why a proved law holds, in one line.
    - `required`, `found`, `remedy`: of a law that is not proved. They are the statement, the fault, and what to type.
    - `counterexample`: the smallest batch found on which the law fails. Its numbers are exact or have fifty digits.
    - `given_up`: the declared reason for breaking the law, or "".
    - `cause`: the verdict that this one follows from, or None.
    - `out_of_time`: undecided because the time ran out.
    - `internal_error`: undecided because the law raised an exception, which is a defect of this library.
    - `fault`: the way in which the law fails, if there are several.

    A `given_up` reason does not cover `out_of_time` or `internal_error`.
    """

    law: str
    subject: str
    status: Status
    argument: str
    required: str = ""
    found: str = ""
    remedy: str = ""
    counterexample: Evidence | None = None
    given_up: str = ""
    cause: Cause | None = None
    out_of_time: bool = False
    internal_error: bool = False
    fault: str = ""

    @property
    def is_unfinished(self) -> bool:
        """Whether the law did not finish. The verdict then says nothing about the hierarchy."""
        return self.out_of_time or self.internal_error

    @property
    def accepted(self) -> bool:
        """Whether the law is proved, or broken as declared."""
        return self.status == "proved" or bool(self.given_up)

    def error(self, name: str, so_too: str = "") -> LawError:
        """Returns the LawError for a verdict that is not accepted. `so_too` names the failures that follow from it."""
        found = self.found or self.argument
        if self.counterexample is not None:
            found = f"{found}; {self.counterexample}" if found else str(self.counterexample)
        if so_too:
            found += f"\n  so too:   {so_too}"
        verb = "breaks" if self.status == "refuted" else "could not be shown to obey"
        what = f"{self.subject} of '{name}' {verb} the law '{self.law}'"
        if self.law == "given_up":
            what = f"'{name}' gives up {self.subject}, which {self.fault}"
        return LawError(what, required=self.required, found=found, remedy=self.remedy)

    def to_dict(self) -> dict[str, Any]:
        result: dict[str, Any] = {key: getattr(self, key) for key in ("law", "subject", "status", "accepted")}
        said = ("argument", "required", "found", "fault", "remedy", "given_up")
        result |= {key: text for key in said if (text := getattr(self, key))}
        if self.cause is not None:
            result["follows_from"] = self.cause._asdict()
        result |= {key: True for key in ("out_of_time", "internal_error") if getattr(self, key)}
        if self.counterexample is not None:
            result["counterexample"] = self.counterexample.to_dict()
        return result


@dataclass(frozen=True)
class Fact:
    """A proved property that is no law: `name` of `subject` is `value`, because of `argument`."""

    name: str
    subject: str
    value: str
    argument: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {k: v for k, v in vars(self).items() if v}


def named(law: str, *subjects: str) -> str:
    """Returns a law with its subjects, or the law alone if its subject is the whole hierarchy."""
    return law if subjects == ("hierarchy",) else f"{law} of {listed(subjects)}"


def _nothing(hierarchy: Named, verdicts: tuple[Verdict, ...]) -> tuple[Fact, ...]:
    return ()


class Verify(Protocol):
    """The method `verify` of a hierarchy."""

    def __call__(self, timeout: float | None = BUDGET) -> Report: ...


@dataclass(frozen=True)
class Report:
    """All verdicts on one hierarchy, in the order of the laws, and its facts. `print(report)` has a line for each.

    `certify` computes the facts from the hierarchy and its verdicts, when `facts` is first read.
    """

    hierarchy: Named
    verdicts: tuple[Verdict, ...]
    certify: Callable[[Any, tuple[Verdict, ...]], tuple[Fact, ...]] = field(default=_nothing, repr=False, compare=False)

    @cached_property
    def facts(self) -> tuple[Fact, ...]:
        return self.certify(self.hierarchy, self.verdicts)

    @property
    def ok(self) -> bool:
        """Whether every law is proved, or broken exactly as declared."""
        return all(v.accepted for v in self.verdicts)

    @property
    def outcome(self) -> str:
        """The result in one word: verified or refused."""
        return "verified" if self.ok else "refused"

    @property
    def failures(self) -> tuple[Verdict, ...]:
        return tuple(v for v in self.verdicts if not v.accepted)

    def head(self, failure: Verdict) -> Verdict:
        """Returns the first cause of a failure, any number of steps away; the failure itself if no cause fails.

        A law that is given up is no failing cause: its reason covers no other law.
        """
        failing = {(v.law, v.subject): v for v in self.failures}
        while failure.cause in failing:
            failure = failing[failure.cause]
        return failure

    @property
    def causes(self) -> tuple[Verdict, ...]:
        """The failures that follow from no other failure. Fix them first."""
        return tuple(v for v in self.failures if self.head(v) is v)

    def so_too(self, cause: Verdict) -> str:
        """Returns the failures that follow from a cause, in one line; '' if no failure does."""
        found: dict[str, list[str]] = {}
        for v in self.failures:
            if v is not cause and self.head(v) is cause:
                found.setdefault(v.law, []).append(v.subject)
        return ", ".join(named(law, *subjects) for law, subjects in found.items())

    def error(self, cause: Verdict) -> LawError:
        """Returns the LawError for one of the causes, with the failures that follow from it."""
        error = cause.error(self.hierarchy.name, self.so_too(cause))
        error.report = self
        return error

    def raise_for_status(self) -> None:
        """Raises LawError for the first refuted law, else for the first undecided one. Its `report` is this report."""
        if not self.ok:
            raise self.error(min(self.causes, key=lambda v: v.status == "undecided"))

    def fact(self, name: str) -> str:
        """Returns the value of the first fact of this name, or '' if the report has none."""
        return next((f.value for f in self.facts if f.name == name), "")

    def to_dict(self) -> dict[str, Any]:
        return {
            "hierarchy": self.hierarchy.name,
            "ok": self.ok,
            "verdicts": [v.to_dict() for v in self.verdicts],
            "facts": [f.to_dict() for f in self.facts],
        }

    def __str__(self) -> str:
        mark = {"proved": "✓", "refuted": "✗", "undecided": "?"}
        lines = [f"{self.hierarchy.name}: {self.outcome}"]
        for v in self.verdicts:
            if not v.accepted and self.head(v) is not v:
                continue
            sign = "–" if v.given_up else mark[v.status]
            why = f"given up: {v.given_up}" if v.given_up else v.argument or v.found
            lines.append(f"  {sign} {v.law:<16} {v.subject}{f': {why}' if why else ''}")
            said = {"counterexample": v.counterexample, "fix": v.remedy, "so too": self.so_too(v)}
            lines += [f"{'':<21}{title}: {text}" for title, text in said.items() if text and not v.accepted]
        lines += [f"  · {f.name:<16} {f.subject}: {f.value}" for f in self.facts]
        return "\n".join(lines)
