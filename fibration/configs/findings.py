"""What the readers of configs find: a sentence, how grave it is, and the option to change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from fibration.errors import LawError
from fibration.language.report import Report

Severity = Literal["error", "warning", "note"]
ERROR: Severity = "error"
WARNING: Severity = "warning"
NOTE: Severity = "note"
SEVERITIES = (ERROR, WARNING, NOTE)  # the gravest first
FAILS = {"error": (ERROR,), "warning": (ERROR, WARNING), "never": ()}  # what `--fail-on` counts
# A loss that breaks one of these laws trains something else from the first update on.
GRAVE = frozenset(("gradient", "agreement", "mask_open", "kl_gradient"))


@dataclass(frozen=True)
class Finding:
    """What a reader of configs found.

    - `severity`: an error if the config trains something else than it names, from the first update on. A warning if its
      numbers are probably a slip, or do harm on some batches. A note if the trainer does it by its own choice.
    - `change`: what to write instead, as `epsilon_high=1.28`; several with blanks between. "" if nothing is to change.
    - `laws`: the laws that the loss breaks by it. None if no hierarchy says it, as what the engine samples from.
    """

    severity: Severity
    sentence: str
    change: str = ""
    laws: tuple[str, ...] = ()

    @property
    def is_off(self) -> bool:
        """Whether it is about the config, and is no note on what surrounds the loss."""
        return self.severity != NOTE or bool(self.laws)

    def __str__(self) -> str:
        of = f" ({', '.join(self.laws)})" if self.laws else ""
        change = f". Write {self.change}" if self.change else ""
        return f"{self.severity}: {self.sentence.removesuffix('.') if of or change else self.sentence}{of}{change}"


def all_findings(gives_up: Mapping[str, str], said: Iterable[Finding]) -> tuple[Finding, ...]:
    """Returns what a reader said, and a finding for each reason of `gives_up`, the gravest first.

    A reader grades a reason by saying it as a finding with the same sentence. A reason that it does not grade is an
    error if it covers a law in `GRAVE`, else a note.
    """
    given = {finding.sentence: finding for finding in said}
    laws: dict[str, dict[str, None]] = {}
    for key, reason in gives_up.items():
        laws.setdefault(reason, {})[key.partition(" of ")[0]] = None
    reasons = []
    for reason, broken in laws.items():
        graded = given.pop(reason, None) or Finding(NOTE if GRAVE.isdisjoint(broken) else ERROR, reason)
        reasons.append(replace(graded, laws=tuple(broken)))
    return tuple(sorted([*reasons, *given.values()], key=lambda f: SEVERITIES.index(f.severity)))


@dataclass(frozen=True)
class ConfigReport(Report):
    """The report on the loss of a config. What is off in the config counts, and its reasons are no user's choice.

    `fail_on`: a key of `FAILS`. A config with such a finding is not ok, and one with an error is not verified.
    """

    findings: tuple[Finding, ...] = ()
    fail_on: str = "error"

    @property
    def off(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.is_off)

    @property
    def failing(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.severity in FAILS[self.fail_on])

    @property
    def ok(self) -> bool:
        return super().ok and not self.failing

    @property
    def outcome(self) -> str:
        if not super().ok:
            return super().outcome
        numbers = Counter(finding.severity for finding in self.findings)
        said = ", ".join(f"{n} {s}{'s' * (n > 1)}" for s in (ERROR, WARNING) if (n := numbers[s]))
        return said if self.failing or numbers[ERROR] else "verified" + f", {said}" * bool(said)

    @property
    def given_up(self) -> dict[str, list[str]]:
        """Nothing: `findings` has the reasons."""
        return {}

    def raise_for_status(self) -> None:
        if not self.causes and not self.ok:
            error = LawError("\n    ".join(map(str, self.failing)))
            error.report = self
            raise error
        super().raise_for_status()

    def to_dict(self) -> dict[str, Any]:
        around = [finding.sentence for finding in self.findings if not finding.is_off]
        return {**super().to_dict(), "findings": [asdict(finding) for finding in self.off], "around": around}

    def __str__(self) -> str:
        first, *rest = super().__str__().split("\n")
        return "\n".join([first, *(f"  {finding}" for finding in self.off), *rest])
