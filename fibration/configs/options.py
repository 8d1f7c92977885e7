"""Options of a trainer: those of a config, else their defaults; and what a config trains."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fibration.configs.findings import NOTE, ConfigReport, Finding, Severity
from fibration.errors import SpecError, shown, suggest
from fibration.language.hierarchy import Hierarchy
from fibration.language.report import BUDGET

TRAINERS = {"trl": "TRL", "verl": "verl"}


def is_config(spec: str) -> bool:
    """Whether a SPEC names a trainer's config, as `trl:FILE`."""
    return spec.startswith(tuple(f"{trainer}:" for trainer in TRAINERS))


@dataclass(frozen=True)
class TrainerLoss:
    """What a config trains: a hierarchy with the config's numbers as its parameters' defaults.

    `findings`: what is off in the config, and what the trainer does that no hierarchy says, the gravest first. The
    reasons of `hierarchy.gives_up` are among them: each names the option that breaks the law, with its value.
    """

    hierarchy: Hierarchy
    findings: tuple[Finding, ...] = ()

    @property
    def around(self) -> tuple[str, ...]:
        """What no hierarchy says, a sentence each, such as a normaliser per micro-batch or dropped groups."""
        return tuple(finding.sentence for finding in self.findings if not finding.laws)

    def verify(self, timeout: float | None = BUDGET, fail_on: str = "error") -> ConfigReport:
        """Verifies the loss, and returns a report that is not `ok` if the config has errors.

        `fail_on`: "error", "warning" for warnings too, or "never".
        """
        report = self.hierarchy.verify(timeout)
        return ConfigReport(report.hierarchy, report.verdicts, report.certify, self.findings, fail_on)


class Options:
    """The options of one config by their dotted names, as `algorithm.adv_estimator`.

    `defaults`: every option that touches the loss, with the trainer's default. `harmless`: names, or beginnings of
    names that end with a dot, of options that do not touch it. An option that is neither is an error.
    """

    def __init__(
        self, trainer: str, given: Mapping[str, Any], defaults: Mapping[str, Any], harmless: Iterable[str] = ()
    ) -> None:
        self.trainer, self.given, self.defaults = trainer, dict(given), defaults
        self.findings: list[Finding] = []
        self._read: set[str] = set()
        exact = {name for name in harmless if not name.endswith(".")}
        below = tuple(name for name in harmless if name.endswith("."))
        for name in self.given:
            if not isinstance(name, str) or (name not in defaults and name not in exact and not name.startswith(below)):
                known = [*defaults, *exact]
                last = str(name).rpartition(".")[2]  # the rest of its name is missing, or another one
                whole = [each for each in known if each.rpartition(".")[2] == last]
                remedy = f"write {' or '.join(whole)}" if whole else suggest(str(name), known)
                raise SpecError(
                    f"{trainer}: the option '{name}' is not known",
                    required="an option that is read, or that does not touch the loss",
                    found=f"{name} = {shown(self.given[name])}",
                    remedy=remedy or "leave it out if it does not touch the loss",
                )

    def __getitem__(self, name: str) -> Any:
        self._read.add(name)
        return self.given.get(name, self.defaults[name])

    def is_given(self, name: str) -> bool:
        return name in self.given

    def unread(self) -> tuple[str, ...]:
        """The options that are given with another value than the default, and were never asked for."""
        return tuple(
            name
            for name, value in self.given.items()
            if name in self.defaults and name not in self._read and value != self.defaults[name]
        )

    def said(self, name: str) -> str:
        """`beta=0.04`, and where the config does not set it, `loss_type=dapo (the default)`."""
        return f"{name}={self[name]}{'' if self.is_given(name) else ' (the default)'}"

    def find(self, sentence: str, severity: Severity = NOTE, change: str = "") -> str:
        """Adds a finding, on what surrounds the loss or on a reason of `gives_up`. Returns the sentence."""
        self.findings.append(Finding(severity, sentence, change))
        return sentence

    def flag(self, name: str) -> bool:
        """True or False. Their names as text count."""
        value = self[name]
        if isinstance(value, str) and value.casefold() in ("true", "false"):
            return value.casefold() == "true"
        if not isinstance(value, bool):
            raise self.refusal(name, "true or false")
        return value

    def number(self, name: str, above: float | None = None, because: str = "") -> float:
        """A number of a size that float64 holds, perhaps above a bound. A text that writes one, as `1e-4`, counts.

        `because`: the bound in words, with its reason.
        """
        required = "a finite number" if above is None or because else f"a finite number above {above:g}"
        value = self[name]
        if isinstance(value, str):
            try:
                value = float(value)
            except ValueError:
                raise self.refusal(name, required) from None
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not (value == 0 or 1e-300 <= abs(value) <= 1e300):
            raise self.refusal(name, required)
        if above is not None and not value > above:
            raise self.refusal(name, because or required)
        return float(value)

    def number_or_none(self, name: str, above: float | None = None, because: str = "") -> float | None:
        return None if self[name] is None else self.number(name, above, because)

    def whole(self, name: str, least: int = 1) -> int:
        """A whole number, at least `least`."""
        value = self.number(name)
        if value != int(value) or value < least:
            raise self.refusal(name, f"a whole number, at least {least}")
        return int(value)

    def choice(self, name: str, values: Iterable[str]) -> str:
        """One of `values`. Raises SpecError for any other: it is not known what it would train."""
        known = list(values)
        if self[name] not in known:
            raise self.refusal(name, f"one of {', '.join(known)}", suggest(str(self[name]), known))
        return str(self[name])

    def refusal(self, name: str, required: str, remedy: str = "") -> SpecError:
        """The error for a value that cannot be read."""
        return SpecError(
            f"{self.trainer}: the option '{name}'", required=required, found=shown(self[name]), remedy=remedy
        )


MAX_LEVELS, MAX_OPTIONS = 60, 20_000


def flattened(config: Mapping[str, Any]) -> dict[str, Any]:
    """`{"a": {"b": 1}}` → `{"a.b": 1}`. An empty mapping has no options. Raises SpecError for too deep a config."""
    found: dict[str, Any] = {}
    stack: list[tuple[str, Any, int]] = [("", config, 0)]
    while stack:
        name, value, level = stack.pop()
        if level > MAX_LEVELS or len(found) > MAX_OPTIONS:
            raise SpecError(
                f"the options of '{name[:80]}' have no end",
                required=f"at most {MAX_LEVELS} levels and {MAX_OPTIONS} options",
                remedy="leave out a mapping that contains itself",
            )
        if not isinstance(value, Mapping):
            found[name] = value
            continue
        below = [(f"{name}.{key}" if name else f"{key}", each, level + 1) for key, each in value.items()]
        stack += reversed(below)
    return found
