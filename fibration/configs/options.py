"""Tables of a trainer's options, the options of one config, and what a config trains."""

from __future__ import annotations

import math
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fibration.configs.findings import NOTE, ConfigReport, Finding, Severity
from fibration.errors import SpecError, listed, shown, suggest
from fibration.language.hierarchy import Hierarchy
from fibration.language.report import BUDGET

TRAINERS = {"trl": "TRL", "verl": "verl", "openrlhf": "OpenRLHF", "prime": "prime-rl"}


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


# ---------------------------------------------------------------- tables


class Unfit(Exception):
    """A value that an option does not take: what is required, and what to write instead."""

    def __init__(self, required: str, remedy: str = "") -> None:
        super().__init__(required)
        self.required, self.remedy = required, remedy


@dataclass(frozen=True)
class Option:
    """A line of a trainer's table. The keys in the file have these names, but `kind` is `is`, and `of` is a text.

    - `kind`: `flag`, `number`, `whole` (number), `choice`, `any`, or a kind of this trainer. `default`: the trainer's.
    - `above`, `least`, `most`: bounds of a number, `because` in words. `of`: the values of a choice.
    - `null`: None is a value too, as it is where it is the default.
    - `says`: what the trainer does with another value that no hierarchy says, as the end of `OPTION=VALUE: ...`, in
      which `{value}` is the value. It does nothing of the kind with those of `plain`, written with blanks between.
    - `severity` and `change` are those of the finding.
    """

    kind: str = "any"
    default: Any = None
    above: float | None = None
    least: float | None = None
    most: float | None = None
    because: str = ""
    of: tuple[str, ...] = ()
    null: bool = False
    says: str = ""
    plain: str = ""
    severity: Severity = NOTE
    change: str = ""


def _flag(value: Any, option: Option) -> bool:
    """True or False. Their names as text count."""
    if isinstance(value, str) and value.casefold() in ("true", "false"):
        return value.casefold() == "true"
    if not isinstance(value, bool):
        raise Unfit("true or false")
    return value


def _number(value: Any, option: Option) -> float | None:
    """A number of a size that float64 holds, within bounds. A text that writes one, as `1e-4`, counts."""
    above, least, most, because = option.above, option.least, option.most, option.because
    required = "a finite number" if above is None or because else f"a finite number above {above:g}"
    if value is None and (option.null or option.default is None):
        return None
    try:
        found = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else math.nan
    except (OverflowError, ValueError):
        found = math.nan
    if not (found == 0 or 1e-300 <= abs(found) <= 1e300):
        raise Unfit(required)
    if not all((above is None or found > above, least is None or found >= least, most is None or found <= most)):
        raise Unfit(because or required)
    return found


def _whole(value: Any, option: Option) -> int | None:
    """A whole number, at least 1 or the bound of the option."""
    least = 1 if option.least is None else int(option.least)
    found = _number(value, replace(option, least=None))
    if found is not None and (found != int(found) or found < least):
        raise Unfit(f"a whole number, at least {least}")
    return None if found is None else int(found)


def _choice(value: Any, option: Option) -> str | None:
    """One of several. It is not known what another one would train."""
    if value is None and option.null:
        return None
    if value not in option.of:
        raise Unfit(f"one of {', '.join(option.of)}", suggest(str(value), option.of))
    return str(value)


Reader = Callable[[Any, Option], Any]  # the value of an option as the readers of configs use it; raises Unfit
READERS: dict[str, Reader] = {
    "any": lambda value, option: value, "flag": _flag, "number": _number, "whole": _whole, "choice": _choice,
}  # fmt: skip


class Table:
    """The options of a trainer, from a file `NAME.toml` in this folder. An option that is not there is an error.

    - `[options]`: every option that touches the loss, with its default and what is required of it: see `Option`.
    - `harmless`: names of options that do not touch it, or beginnings of names, with a dot at the end.
    - `[[patterns]]`: by regular expressions of their `names`, options that touch no formula, and of which something may
      be said. The first that matches counts. `[[rest]]`: likewise, for options that are not harmless.
    - `marks_defaults`: messages say of an option that the config does not set it, and write values as Python does.

    `kinds`: readers of this trainer's kinds of values.
    """

    def __init__(self, data: Mapping[str, Any], kinds: Mapping[str, Reader] | None = None) -> None:
        self.data, self.readers = data, {**READERS, **(kinds or {})}
        self.trainer, marks = self.data["trainer"], self.data["marks_defaults"]
        self.mark = " (the default)" if marks else ""
        self.write: Callable[[Any], str] = str if marks else written
        self.options = dict(_options(self.data["options"]))
        self.defaults = {name: option.default for name, option in self.options.items()}
        found = self.data["harmless"]
        groups = found.items() if isinstance(found, dict) else [("", found)]
        self.harmless = frozenset(f"{start}{name}" for start, names in groups for name in names.split())
        self.below = tuple(name for name in self.harmless if name.endswith("."))
        self.patterns, self.rest = (
            [(each["names"], _option(each)) for each in self.data.get(key, ())] for key in ("patterns", "rest")
        )
        ends = [(name.split(".", k)[-1], name) for name in self.options for k in range(name.count(".") + 1)]
        times = Counter(end for end, _ in ends)
        self.full = {end: name for end, name in ends if times[end] == 1 or end == name}

    def find(self, name: object) -> Option | None:
        """What the table says of an option, or None if it does not know it."""
        if not isinstance(name, str) or name in self.options:
            return self.options[name] if isinstance(name, str) else None
        is_harmless = name in self.harmless or name.startswith(self.below)
        lines = [*self.patterns, *([(".*", Option())] if is_harmless else self.rest)]
        return next((each for names, each in lines if re.fullmatch(names, name)), None)


def read_table(name: str) -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name(f"{name}.toml").read_text("utf-8"))


def _options(table: Mapping[str, Any], start: str = "") -> Iterator[tuple[str, Option]]:
    for name, line in table.items():
        if "is" in line:
            yield f"{start}{name}", _option(line)
        else:
            yield from _options(line, f"{start}{name}.")


def _option(line: Mapping[str, Any]) -> Option:
    keys = {key: value for key, value in line.items() if key not in ("is", "of", "names")}
    return Option(line.get("is", "any"), of=tuple(line.get("of", "").split()), **keys)


def written(value: Any) -> str:
    """A value as on a command line: `null`, `true`, `0.2`."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


class Options:
    """The options of one config. The end of a name, as `loss_mode`, may stand for it where it is unique.

    `defaults`: those of this config that are not the table's.
    """

    def __init__(self, table: Table, given: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> None:
        self.table, self.given = table, dict(given)
        self.defaults = {**table.defaults, **(defaults or {})}
        self.findings: list[Finding] = []
        self._read: set[str] = set()
        for name in self.given:
            if table.find(name) is None:
                known = [*table.options, *sorted(table.harmless.difference(table.below))]
                last = str(name).rpartition(".")[2]  # the rest of its name is missing, or another one
                full = [each for each in known if each.rpartition(".")[2] == last]
                remedy = f"write {' or '.join(full)}" if last and full else suggest(str(name), known)
                raise SpecError(
                    f"{table.trainer}: the option '{name}' is not known",
                    required="an option that is read, or that does not touch the loss",
                    found=f"{name} = {shown(self.given[name])}",
                    remedy=remedy or "leave it out if it does not touch the loss",
                )

    def raw(self, name: str) -> Any:
        """The value as the config has it, else the default."""
        name = self.table.full[name]
        self._read.add(name)
        return self.given.get(name, self.defaults[name])

    def __getitem__(self, name: str) -> Any:
        """The value as the table reads it. Raises SpecError."""
        return self.read(name, self.table.options[self.table.full[name]])

    def read(self, name: str, option: Option) -> Any:
        """The value, for a line that takes the place of the table's."""
        try:
            return self.table.readers[option.kind](self.raw(name), option)
        except Unfit as unfit:
            raise self.refusal(name, unfit.required, unfit.remedy) from None

    def is_given(self, name: str) -> bool:
        return self.table.full[name] in self.given

    def refusal(self, name: str, required: str, remedy: str = "") -> SpecError:
        """The error for a value that cannot be read."""
        what = f"{self.table.trainer}: the option '{self.table.full[name]}'"
        return SpecError(what, required=required, found=shown(self.raw(name)), remedy=remedy)

    def said(self, name: str) -> str:
        """`beta=0.04`, and where the config does not set it, `loss_type=dapo (the default)`."""
        mark = "" if self.is_given(name) else self.table.mark
        return f"{self.table.full[name]}={self.table.write(self.raw(name))}{mark}"

    def brief(self, name: str, why: str) -> str:
        """`loss_mode=cispo: why`, for the option `actor_rollout_ref.actor.policy_loss.loss_mode`."""
        return f"{name.rpartition('.')[2]}={self.table.write(self.raw(name))}: {why}"

    def find(self, sentence: str, severity: Severity = NOTE, change: str = "") -> str:
        """Adds a finding, on what surrounds the loss or on a reason of `gives_up`. Returns the sentence."""
        self.findings.append(Finding(severity, sentence, change))
        return sentence

    def say_table(self) -> None:
        """Adds what the table says of the options that the config sets."""
        for name, value in self.given.items():
            option = self.table.find(name) or Option()
            if option.says:
                read = self[name] if name in self.table.options else value
                if written(value).casefold() not in option.plain.split():
                    says = option.says.format(value=read)
                    self.find(f"{name}={self.table.write(value)}: {says}.", option.severity, option.change)

    def say_unread(self, beside: str, known: Iterable[str] = ()) -> None:
        """Says of the options that nobody has read that they have no effect: call it last. `known`: read elsewhere."""
        options, read = self.table.options, self._read | {self.table.full[name] for name in known}
        unread = [n for n, v in self.given.items() if n in options and n not in read and v != self.defaults[n]]
        if unread:
            has = "have" if len(unread) > 1 else "has"
            self.find(f"{listed(map(self.said, unread))} {has} no effect with {beside} and the other options.")


MAX_LEVELS, MAX_OPTIONS = 60, 20_000


def flattened(config: Mapping[str, Any], keeps_empty: bool = False) -> dict[str, Any]:
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
        if not isinstance(value, Mapping) or (keeps_empty and not value and name):
            found[name] = value
            continue
        below = [(f"{name}.{key}" if name else f"{key}", each, level + 1) for key, each in value.items()]
        stack += reversed(below)
    return found
