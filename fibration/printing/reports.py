"""Verifies specs, and writes the reports for people. Needs no torch."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from fibration.configs.options import TrainerLoss
from fibration.configs.specs import Spec, as_spec, as_specs
from fibration.errors import FibrationError, NoHierarchy
from fibration.language.hierarchy import Hierarchy
from fibration.language.loading import as_in_file, load_all, spec_files, split
from fibration.language.report import BUDGET, Fact, Report, Verdict
from fibration.laws.budget import Budget
from fibration.printing import configs
from fibration.printing.law_table import (
    KINDS,
    Kind,
    Overview,
    columns,
    kind,
    mark_of,
    outcome_of,
    tally,
)

T = TypeVar("T")


@dataclass(frozen=True)
class Outcome:
    """The result for one hierarchy or one unusable input: `report` or `error` is set, the other is None.

    Both are None for an input that declares no hierarchy, if that is allowed (`check(..., if_any=True)`).
    """

    source: str  # as the user named it
    report: Report | None = None
    error: FibrationError | None = None
    asked: Literal["verify", "compare"] = "verify"
    around: tuple[str, ...] = ()  # what a trainer does around the loss of its config

    @property
    def trainer(self) -> str:
        """The trainer whose config this is, or ''."""
        return Spec(self.source).trainer

    @property
    def file(self) -> str:
        """The file that an annotation points at; '' if the source is no file, such as a shipped hierarchy's name."""
        path = self.source.partition(":")[2] if self.trainer else split(self.source)[0]
        return path if Path(path).is_file() else ""


def check(
    specs: Sequence[str],
    step: Callable[[str], None] = lambda name: None,
    if_any: bool = False,
    timeout: float | None = BUDGET,
) -> list[Outcome]:
    """Verifies every hierarchy of every file, folder or name, each for `timeout` seconds.

    An unusable input stops no other. With `if_any`, an input that declares no hierarchy is no error; a file that cannot
    be read always is one.
    """
    Budget(timeout)  # raises once for an invalid timeout
    outcomes: list[Outcome] = []

    def usable(source: str, function: Callable[..., Sequence[Any]], *arguments: Any) -> Sequence[Any]:
        try:
            return function(*arguments)
        except FibrationError as error:
            outcomes.append(Outcome(source, error=None if if_any and isinstance(error, NoHierarchy) else error))
            return ()

    for spec in as_specs(specs):
        for file in [spec.name] if spec.trainer else usable(spec.name, spec_files, spec.name):
            for loss in usable(file, _quietly, _losses, Spec(file, spec.overrides)):
                step(loss.hierarchy.name)
                for report in usable(file, lambda h: [h.verify(timeout)], loss.hierarchy):
                    outcomes.append(Outcome(file, report=_as_in_file(report), around=loss.around))
    return outcomes


def _as_in_file(report: Report) -> Report:
    """Returns a report whose fixes have the names of the variables in the file of the hierarchy."""
    h = report.hierarchy
    named = [replace(v, remedy=as_in_file(v.remedy, h)) if isinstance(h, Hierarchy) else v for v in report.verdicts]
    return replace(report, verdicts=tuple(named))


def load_quietly(spec: str | Sequence[str] | Spec) -> Hierarchy:
    """Returns the hierarchy that a SPEC of the command line names, in one word or in several."""
    return loss_quietly(spec).hierarchy


def loss_quietly(spec: str | Sequence[str] | Spec) -> TrainerLoss:
    """Returns the loss that a SPEC of the command line names, with what a trainer does around it."""
    return _quietly(Spec.load, spec if isinstance(spec, Spec) else as_spec(spec))


def _losses(spec: Spec) -> list[TrainerLoss]:
    """Returns every loss of one file, shipped name or config."""
    return [spec.load()] if spec.trainer else [TrainerLoss(h) for h in load_all(spec.name)]


def _quietly(function: Callable[[Spec], T], spec: Spec) -> T:
    """Runs `function` with stdout sent to stderr, so that a spec's own prints stay out of JSON and generated code."""
    with contextlib.redirect_stdout(sys.stderr):
        try:
            return function(spec)
        finally:
            sys.stderr.flush()


def exit_code(outcomes: Sequence[Outcome]) -> int:
    """Returns 0 if all laws hold or are given up as declared, 1 if some law does not, 2 if some input is unusable."""
    if any(o.error for o in outcomes):
        return 2
    return 0 if all(o.report.ok for o in outcomes if o.report) else 1


# ---------------------------------------------------------------- for people


def heading(report: Report) -> Text:
    """Returns the hierarchy's name, the outcome, and the number of verdicts of each kind."""
    numbers = Counter(kind(report, v).word for v in report.verdicts)
    words = {word: word for word in KINDS if word != "follows"}
    words["follows"] = "that follows" if numbers["follows"] == 1 else "that follow"
    counted = ", ".join(f"{numbers[word]} {said}" for word, said in words.items() if numbers[word])
    return Text.assemble(
        (report.hierarchy.name, "bold"), "  ", outcome_of(report), f"  {counted or 'nothing to decide'}"
    )


def table(report: Report) -> RenderableType:
    """Returns every verdict with its argument, then the facts. Long lines wrap inside their column, uncut."""
    return _table(report, report.verdicts, report.facts)


def refusals(report: Report) -> RenderableType:
    """Returns the causes of refusal only."""
    return _table(report, report.causes, ())


def short(report: Report) -> RenderableType:
    """Returns what fails, what is given up, the facts to act on, and how many laws hold."""
    title = Text.assemble((report.hierarchy.name, "bold"), "  ", outcome_of(report))
    rows = _rows(report, report.causes, report.noted, report.given_up)
    hold = Text.assemble(
        "  ", (f"{KINDS['proved'].sign} {report.proved_in_words}", KINDS["proved"].style), ("; --all lists them", "dim")
    )
    return Group(title, rows, hold)


def compact(reports: Sequence[Report]) -> RenderableType:
    """Returns a line per report; under it what fails, and warnings."""
    width = max(len(r.hierarchy.name) for r in reports)
    parts: list[RenderableType] = []
    for r in reports:
        name = Text(r.hierarchy.name.ljust(width), "bold")
        parts.append(Text.assemble(name, "  ", outcome_of(r), f"  {tally(r)}"))
        if r.causes or r.warnings:
            parts.append(_rows(r, r.causes, r.warnings))
    return Group(*parts, Text("--all lists the laws of each", "dim"))


def _table(report: Report, verdicts: Sequence[Verdict], facts: Sequence[Fact]) -> RenderableType:
    return Group(heading(report), _rows(report, verdicts, facts))


def _rows(
    report: Report, verdicts: Sequence[Verdict], facts: Sequence[Fact], given_up: Mapping[str, Sequence[str]] = {}
) -> RenderableType:
    """Returns a table, in which each fix has a line of its own that never breaks, so that it can be pasted."""
    rows: list[tuple[Kind, str, Text, str]] = []
    for v in verdicts:
        shown = kind(report, v)
        if shown is not KINDS["follows"]:  # its cause has a line for it
            rows.append((shown, v.law, _explained(report, v), "" if v.accepted else v.remedy))
    for reason, laws in given_up.items():
        shown, first = KINDS["given up"], laws[0]
        for law, _, of in (name.partition(" of ") for name in laws):
            why = reason if law == first.partition(" of ")[0] else f"as {first}"
            rows.append((shown, law, Text(f"{of}: {why}" if of else why), ""))
    for f in facts:
        shown = mark_of(f)
        because = (f" ({f.argument})" if f.argument else "", "dim")
        value = Text.assemble(f.subject, ": ", (f.value, "bold"), because)
        rows.append((shown, f.name, value, ""))
    widths = [max((len(text) for text in column), default=0) for column in zip(*_heads(rows), strict=True)]
    parts: list[RenderableType] = []
    for (shown, _, value, fix), heads in zip(rows, _heads(rows), strict=True):
        grid = columns(3)
        sign, name = (text.ljust(width) for text, width in zip(heads, widths, strict=True))
        grid.add_row("", Text(sign, shown.style), Text(name), value)
        parts.append(grid)
        if fix:
            line = Text.assemble(" " * (sum(widths) + 6), ("fix: ", "bold"), fix, no_wrap=True, overflow="ignore")
            parts.append(line)
    return Group(*parts)


def _heads(rows: Sequence[tuple[Kind, str, Text, str]]) -> list[tuple[str, str]]:
    return [(f"{shown.sign} {shown.word}", name) for shown, name, *_ in rows]


def _explained(report: Report, verdict: Verdict) -> Text:
    result = Text.assemble((verdict.subject, "bold" if not verdict.accepted else ""))
    if verdict.accepted:
        why = f"given up: {verdict.given_up}" if verdict.status != "proved" else verdict.argument
        return result.append(f": {why}" if why else "")
    for title, value in (
        ("required", verdict.required),
        ("found", verdict.found or verdict.argument),
        ("counterexample", str(verdict.counterexample or "")),
        ("so too", report.so_too(verdict)),
    ):
        if value:
            result.append(f"\n{title}: ", "bold").append(value)
    return result


def summary(outcomes: Sequence[Outcome]) -> str:
    """Returns one line about all inputs."""
    reports = [o.report for o in outcomes if o.report]
    good = sum(r.ok for r in reports)
    others = {
        "refused": [r.hierarchy.name for r in reports if not r.ok],
        "unusable": [o.source for o in outcomes if o.error],
        "no hierarchy in": [o.source for o in outcomes if not o.error and not o.report],
    }
    if any(o.asked == "compare" for o in outcomes):
        return "; ".join(f"'{r.hierarchy.name}' is {r.outcome}" for r in reports) or "nothing is compared"
    verified = f"{good} of {len(reports)} {'hierarchy' if len(reports) == 1 else 'hierarchies'} verified"
    return "; ".join([verified, *(f"{what}: {', '.join(names)}" for what, names in others.items() if names)])


def as_text(outcomes: Sequence[Outcome], full: bool = False) -> RenderableType:
    """Returns what to act on: of one report, or a line for each of several; then the summary line.

    `full`: every verdict and fact of each report, then a table of the laws if there are several reports.
    """
    parts: list[RenderableType] = []
    reports = [o.report for o in outcomes if o.report]
    if full or any(o.asked == "compare" for o in outcomes):
        for outcome in outcomes:
            if outcome.report:
                parts += [table(outcome.report), *map(_line, trainer_lines(outcome)), Text()]
        if len(reports) > 1:
            parts += [Overview(reports), Text()]
    elif reports:
        parts += [short(reports[0]) if len(reports) == 1 else compact(reports)]
        for o in outcomes:
            # `short` prints what a config gives up, so that a single report says what is off
            off, of = (None, "") if len(reports) == 1 else (o.report, o.source)
            parts += map(_line, configs.lines(configs.title(o.trainer), o.around, off, of) if o.trainer else ())
        parts += [Text()]
    return Group(*parts, Text(summary(outcomes)))


def trainer_lines(outcome: Outcome) -> list[str]:
    """Returns lines on trainers' configs: what is off in one, and what the trainer does around its loss."""
    if outcome.asked == "compare":
        return list(configs.lines(configs.BESIDE, outcome.around))
    return list(
        configs.lines(configs.title(outcome.trainer), outcome.around, outcome.report if outcome.trainer else None)
    )


def _line(line: str) -> RenderableType:
    return Padding(line.strip(), (0, 0, 0, 2)) if line.startswith(" ") else Text(f"\n{line}", "bold")


def emit(console: Console, renderable: RenderableType) -> None:
    """Prints without the trailing blanks that rich pads its columns with."""
    with console.capture() as page:
        console.print(renderable, crop=False)
    console.file.write("".join(f"{line.rstrip()}\n" for line in page.get().splitlines()))
    console.file.flush()  # keeps the order with text on stderr
