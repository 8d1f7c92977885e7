"""Reports of a verification: verdicts and facts; and the keys of `gives_up`, which name verdicts.

A key is a law, `"inward"`, or a law and its subject, `"inward of trajectory"`. A subject is written as the report shows
it, or shorter: `"inward of gate on trajectory"` is `"inward of trajectory"`, and `"kl_gradient of penalty 'kl'"` is
`"kl_gradient of kl"`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from typing import Any, Literal, NamedTuple, Protocol

from fibration.errors import LawError, listed
from fibration.escaping import escaped

LEFT = "what is left of "  # prefix of the subject of a verdict on the rest of a law that is given up
_PREFIX = re.compile(rf"({LEFT})?(?:gate on (\w+)|residual on (\w+)|penalty '([^']*)')$")


def parts(key: str) -> tuple[str, str]:
    """Returns the law and the subject of a key; the subject is '' if the key is a law alone."""
    law, _, subject = key.partition(" of ")
    return law, subject


def short(subject: str) -> str:
    """Returns the name of a subject: `trajectory` for `gate on trajectory`."""
    found = _PREFIX.match(subject)
    return subject if found is None else (found[1] or "") + next(name for name in found.groups()[1:] if name)


def key_of(law: str, subject: str) -> str:
    """Returns the key that gives up a law for one subject."""
    return law if subject == "hierarchy" else f"{law} of {short(subject)}"


def names(key: str, law: str, subject: str) -> bool:
    """Whether a key names this subject of this law."""
    return parts(key)[0] == law and parts(key)[1] in (subject, short(subject))


def example(key: str) -> str:
    """Returns the argument that gives up a law, as text to type."""
    return f"gives_up={{{key!r}: 'why'}}"


Status = Literal["proved", "refuted", "undecided"]
Level = Literal["warning", "note", "detail"]
WARNING: Level = "warning"
NOTE: Level = "note"
DETAIL: Level = "detail"
BUDGET = 60.0  # default: seconds for all verdicts on a hierarchy


class Named(Protocol):
    """The subject of a report."""

    @property
    def name(self) -> str: ...


class Evidence(Protocol):
    """A counterexample: one sentence, and its numbers for JSON (see `fibration.laws.batches.concrete.Witness`)."""

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
    def fails(self) -> bool:
        """Whether the law did finish, and is not proved."""
        return self.status != "proved" and not self.is_unfinished

    @property
    def accepted(self) -> bool:
        """Whether the law is proved, or broken as declared."""
        return self.status == "proved" or bool(self.given_up)

    def error(self, name: str, so_too: str = "") -> LawError:
        """Returns the LawError for a verdict that is not accepted. `so_too` names the failures that follow from it."""
        found = self.found or self.argument
        if self.counterexample is not None:
            found = f"{found}; {self.counterexample}" if found else str(self.counterexample)
        verb = "breaks" if self.status == "refuted" else "could not be shown to obey"
        what = f"{self.subject} of '{name}' {verb} the law '{self.law}'"
        if self.law == "given_up":
            what = f"'{name}' gives up {self.subject}, which {self.fault}"
        return LawError(what, required=self.required, found=found, so_too=so_too, remedy=self.remedy)

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


Options = Mapping[str, Sequence[str]]  # by part of a config's loss, the options that decide it


class Part(NamedTuple):
    """A part of two losses, as each declares it; "" where one has no such part."""

    name: str
    first: str
    second: str

    @property
    def differs(self) -> bool:
        return self.first != self.second


Width = tuple[tuple[str, str, float], ...]  # a sum: the name and the channel of a parameter, and its factor


@dataclass(frozen=True)
class Fact:
    """A proved property that is no law: `name` of `subject` is `value`, because of `argument`.

    `level`: "warning" for a danger or a probable slip, with what to change in `argument`; "note" for what users act on;
    "detail" for the rest. A short report leaves details out. No fact changes the outcome.

    `width`: how far apart the ends of a range are, if they are a sum of parameters times factors, and 0 is in it.
    """

    name: str
    subject: str
    value: str
    argument: str = ""
    level: Level = DETAIL
    width: Width = ()

    def to_dict(self) -> dict[str, Any]:
        return {k: v for k, v in vars(self).items() if v and k != "width" and (k, v) != ("level", DETAIL)}


def named(law: str, *subjects: str) -> str:
    """Returns a law with its subjects, or the law alone if its subject is the whole hierarchy."""
    return law if subjects == ("hierarchy",) else f"{law} of {listed(subjects)}"


def _nothing(hierarchy: Named, verdicts: tuple[Verdict, ...]) -> tuple[Fact, ...]:
    return ()


@dataclass(frozen=True)
class Report:
    """All verdicts on one hierarchy, in the order of the laws, and its facts.

    `print(report)` has what fails, what is given up, and the facts to act on; `print(report.table())` has all.
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

    @property
    def proved_laws(self) -> tuple[str, ...]:
        """The laws that are proved for all of their subjects."""
        others = {v.law for v in self.verdicts if v.status != "proved"}
        return tuple(dict.fromkeys(v.law for v in self.verdicts if v.law not in others))

    @property
    def proved_in_words(self) -> str:
        """How many laws are proved for all of their subjects: `17 laws proved`. Every count in words is this one."""
        return f"{len(self.proved_laws)} {'law' if len(self.proved_laws) == 1 else 'laws'} proved"

    @property
    def given_up(self) -> dict[str, list[str]]:
        """The laws that are given up, by the reason. With its subjects if others have other reasons."""
        found = [v for v in self.verdicts if v.given_up and v.status != "proved"]
        result: dict[str, list[str]] = {}
        for v in found:
            mine = dict.fromkeys(o.subject for o in found if (o.law, o.given_up) == (v.law, v.given_up))
            alone = all(o.given_up == v.given_up for o in found if o.law == v.law)
            name = v.law if alone else named(v.law, *mine)
            if name not in result.setdefault(v.given_up, []):
                result[v.given_up].append(name)
        return result

    @property
    def noted(self) -> tuple[Fact, ...]:
        """The facts of a short report: warnings first, then notes. A refused hierarchy has warnings alone."""
        return (*self.warnings, *(f for f in self.facts if f.level == NOTE and self.ok))

    @property
    def warnings(self) -> tuple[Fact, ...]:
        return tuple(f for f in self.facts if f.level == WARNING)

    def fact(self, name: str) -> str:
        """Returns the value of the first fact of this name, or '' if the report has none."""
        return next((f.value for f in self.facts if f.name == name), "")

    def to_dict(self) -> dict[str, Any]:
        return {
            "hierarchy": self.hierarchy.name,
            "ok": self.ok,
            "proved_laws": list(self.proved_laws),
            "verdicts": [v.to_dict() for v in self.verdicts],
            "facts": [f.to_dict() for f in self.facts],
        }

    def _repr_html_(self) -> str:  # of notebooks
        return import_module("fibration.printing.pages").report(self)  # type: ignore[no-any-return]

    def __str__(self) -> str:
        lines = [f"{self.hierarchy.name}: {self.outcome}", *(row for v in self.causes for row in self._rows(v))]
        lines += [f"  – {'given up':<16} {', '.join(laws)}: {why}" for why, laws in self.given_up.items()]
        lines += [_row(f) for f in self.noted]
        return escaped("\n".join([*lines, f"  ✓ {self.proved_in_words}; print(report.table()) has all"]))

    def table(self) -> str:
        """Returns every verdict with its argument, then all facts, as text."""
        shown = [v for v in self.verdicts if v.accepted or self.head(v) is v]
        lines = [f"{self.hierarchy.name}: {self.outcome}", *(row for v in shown for row in self._rows(v))]
        return escaped("\n".join([*lines, *map(_row, self.facts)]))

    def _rows(self, v: Verdict) -> list[str]:
        sign = "–" if v.given_up else {"proved": "✓", "refuted": "✗", "undecided": "?"}[v.status]
        why = f"given up: {v.given_up}" if v.given_up else v.argument or v.found
        said = {"counterexample": v.counterexample, "fix": v.remedy, "so too": self.so_too(v)}
        rest = [f"{'':<21}{title}: {text}" for title, text in said.items() if text and not v.accepted]
        return [f"  {sign} {v.law:<16} {v.subject}{f': {why}' if why else ''}", *rest]


def _row(fact: Fact) -> str:
    sign, because = ("!", f" ({fact.argument})" if fact.argument else "") if fact.level == WARNING else ("·", "")
    return f"  {sign} {fact.name:<16} {fact.subject}: {fact.value}{because}"
