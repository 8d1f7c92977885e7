"""What the readers of configs find: a sentence, how grave it is, and the option to change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

Severity = Literal["error", "warning", "note"]
ERROR: Severity = "error"
WARNING: Severity = "warning"
NOTE: Severity = "note"
SEVERITIES = (ERROR, WARNING, NOTE)  # the gravest first
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

    def __str__(self) -> str:
        of = f" ({', '.join(self.laws)})" if self.laws else ""
        return f"{self.severity}: {self.sentence}{of}{f'. Write {self.change}' if self.change else ''}"


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
