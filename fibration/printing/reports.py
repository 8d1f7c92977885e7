"""Verifies specs, and writes the reports for people. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeVar

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.segment import Segment
from rich.text import Text

from fibration.configs.findings import NOTE, ConfigReport, Finding
from fibration.configs.options import TrainerLoss
from fibration.configs.specs import Spec, as_spec, as_specs
from fibration.errors import FibrationError, NoHierarchy, SpecError
from fibration.escaping import one_line, visible
from fibration.language.apart import each
from fibration.language.hierarchy import Hierarchy
from fibration.language.loading import IsFunction, as_in_file, load_all, spec_files, split, variables_of
from fibration.language.report import BUDGET, Fact, Options, Report
from fibration.laws.budget import Budget
from fibration.printing import law_table

T = TypeVar("T")
LIFTED = (
    "this declaration was read from a function: its gradient is proved to be the function's on small batches of other "
    "sizes, but where a number meets a bound exactly, and compared on larger ones"
)
LEAST = 10.0  # seconds for reading a spec, which may import torch, however short the time for its proofs


@dataclass(frozen=True)
class Outcome:
    """The result for one hierarchy or one unusable input: `report` or `error` is set, the other is None.

    Both are None for an input that declares no hierarchy, if that is allowed (`check(..., if_any=True)`).
    """

    source: str  # as the user named it
    report: Report | None = None
    error: FibrationError | None = None
    asked: Literal["verify", "compare"] = "verify"
    beside: tuple[Finding, ...] = ()  # of the configs of a comparison
    options: tuple[Options, Options] = ({}, {})  # of each

    @property
    def findings(self) -> tuple[Finding, ...]:
        return self.report.findings if isinstance(self.report, ConfigReport) else self.beside

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
    fail_on: str = "error",
) -> list[Outcome]:
    """Verifies every hierarchy of every file, folder or name, each for `timeout` seconds.

    `fail_on`: which findings about a trainer's config count, "error", "warning" or "never".

    An unusable input stops no other. With `if_any`, an input that declares no hierarchy is no error; a file that cannot
    be read always is one.
    """
    budget = Budget(timeout)  # raises for an invalid timeout
    outcomes: list[Outcome] = []

    def unusable(source: str, error: FibrationError) -> None:
        outcomes.append(Outcome(source, error=None if if_any and isinstance(error, NoHierarchy) else error))

    files: list[Spec] = []
    for spec in as_specs(specs):
        try:
            files += [spec] if spec.trainer else [Spec(file) for file in spec_files(spec.name)]
        except FibrationError:  # which `_losses` raises once more, in its turn
            files.append(spec)
    longer = f"; --timeout {10 * budget.seconds:g} if it takes long"
    for spec, losses in zip(files, _read(_losses, files, budget.seconds, longer), strict=True):
        if isinstance(losses, FibrationError):
            unusable(spec.name, losses)
            continue
        for loss, variables in losses:
            step(loss.hierarchy.name)
            try:
                plain = not (spec.trainer or loss.findings)
                report = loss.hierarchy.verify(timeout) if plain else loss.verify(timeout, fail_on)
                outcomes.append(Outcome(spec.name, report=_as_in_file(report, variables)))
            except FibrationError as error:
                unusable(spec.name, error)
    return outcomes


def _as_in_file(report: Report, variables: Mapping[str, str]) -> Report:
    """Returns a report whose fixes have the names of the variables in the file of the hierarchy."""
    return replace(report, verdicts=tuple(replace(v, remedy=as_in_file(v.remedy, variables)) for v in report.verdicts))


def load_quietly(spec: str | Sequence[str] | Spec) -> Hierarchy:
    """Returns the hierarchy that a SPEC of the command line names, in one word or in several."""
    return loss_quietly(spec).hierarchy


def loss_quietly(spec: str | Sequence[str] | Spec) -> TrainerLoss:
    """Returns the loss that a SPEC of the command line names, with what a trainer does around it."""
    (found,) = _read(_loss, [spec if isinstance(spec, Spec) else as_spec(spec)])
    if isinstance(found, FibrationError):
        raise found
    return found


def _losses(spec: Spec) -> list[tuple[TrainerLoss, dict[str, str]]]:
    """Returns every loss that a SPEC names, with the variables of its file by declared name."""
    try:
        return [(spec.load(), {})] if spec.trainer else [(TrainerLoss(h), variables_of(h)) for h in load_all(spec.name)]
    except IsFunction as error:
        return [(_lifted(error, spec), {})]


def _loss(spec: Spec) -> TrainerLoss:
    try:
        return spec.load()
    except IsFunction as error:
        return _lifted(error, spec)


def _lifted(error: IsFunction, spec: Spec) -> TrainerLoss:
    """The declaration that a function is."""
    from fibration.auditing.declare import lift

    return TrainerLoss(lift(error.function, split(spec.name)[1] or ""), (Finding(NOTE, LIFTED),))


def _read(
    function: Callable[[Spec], T], specs: Sequence[Spec], seconds: float = BUDGET, longer: str = ""
) -> Iterator[T | FibrationError]:
    """Yields `function(spec)` or its error for each spec; files with code are read in a process of their own."""
    has_code = any(split(spec.name)[0].endswith(".py") for spec in specs)
    remedy = f"run the file by itself, to see where it stays{longer}"
    return each(function, specs, max(seconds, LEAST), SpecError, remedy, has_code)


def exit_code(outcomes: Sequence[Outcome]) -> int:
    """Returns 0 if all laws hold or are given up as declared and no config is off, 1 if not, 2 for unusable inputs."""
    if any(o.error for o in outcomes):
        return 2
    return 0 if all(o.report.ok for o in outcomes if o.report) else 1


# ---------------------------------------------------------------- for people


def heading(report: Report, width: int = 0) -> Text:
    """Returns the hierarchy's name, the outcome, and the numbers of laws and of warnings. A comparison has none."""
    counted = "" if [v.law for v in report.verdicts] == ["equivalent"] else f"  {law_table.tally(report)}"
    return Text.assemble((report.hierarchy.name.ljust(width), "bold"), "  ", law_table.outcome_of(report), counted)


def table(report: Report) -> RenderableType:
    """Returns every verdict with its argument, then the facts. Long lines wrap inside their column, uncut."""
    rows = [*law_table.finding_rows(law_table.off(report)), *law_table.verdict_rows(report, report.verdicts)]
    return Group(heading(report), _rows([*rows, *law_table.fact_rows(report.facts)]))


def warned(report: Report) -> RenderableType:
    """Returns the heading, and warnings."""
    return Group(heading(report), _rows(law_table.fact_rows(report.warnings)))


def short(report: Report) -> RenderableType:
    """Returns what is off in a config, what fails, what is given up, warnings, and the facts to act on."""
    rows = [*law_table.finding_rows(law_table.off(report)), *law_table.verdict_rows(report, report.causes)]
    for reason, laws in report.given_up.items():
        first = laws[0]
        for law, _, of in (name.partition(" of ") for name in laws):
            why = reason if law == first.partition(" of ")[0] else f"as {first}"
            rows.append(law_table.Row(law_table.KINDS["given up"], law, of, why))
    rows += law_table.fact_rows(report.noted)
    return Group(heading(report), _rows(rows), Text("  --all lists every law and every fact", "dim"))


def compact(reports: Sequence[Report]) -> RenderableType:
    """Returns a line per report, with what fails under it; then one warning of each fact, with all that have one."""
    width = max(len(r.hierarchy.name) for r in reports)
    parts: list[RenderableType] = []
    about: dict[str, dict[str, Fact]] = {}
    for r in reports:
        parts += [heading(r, width), _rows(law_table.verdict_rows(r, r.causes))]
        for fact in r.warnings:
            about.setdefault(fact.name, {}).setdefault(r.hierarchy.name, fact)
    facts = []
    for found in about.values():
        (name, first), *others = found.items()
        such = f", such as {name}" if any(fact != first for _, fact in others) else ""
        facts.append(replace(first, subject=f"{', '.join(found)}{such}: {first.subject}"))
    return Group(*parts, _rows(law_table.fact_rows(facts)), Text("--all lists every law and every fact of each", "dim"))


def _compared(outcome: Outcome) -> RenderableType:
    """Returns the parts in which two losses differ; the argument alone if they are the same, or one is beside all."""
    from fibration.printing.law_table import parts_table  # loads the proofs

    assert outcome.report is not None
    parts = parts_table(outcome.report, outcome.options)
    return Group(heading(outcome.report), parts) if parts else table(outcome.report)


def _rows(rows: Iterable[law_table.Row]) -> RenderableType:
    """Returns a table, in which what to write is a line of its own, however wide it is, so that it can be pasted."""
    follows = law_table.KINDS["follows"]  # the cause of a failure has a line for it
    shown = [row for row in rows if row.shown is not follows]
    heads = [(f"{row.shown.sign} {row.shown.word}", row.name) for row in shown]
    widths = [max((len(text) for text in column), default=0) for column in zip(*heads, strict=True)]
    parts: list[RenderableType] = []
    for row, head in zip(shown, heads, strict=True):
        grid = law_table.columns(3)
        sign, name = (text.ljust(width) for text, width in zip(head, widths, strict=True))
        grid.add_row("", Text(sign, row.shown.style), Text(name), _said(row))
        parts.append(grid)
        title, change = row.action
        if change:
            parts.append(Text.assemble(" " * 6, (f"{title}: ", "bold"), change, no_wrap=True, overflow="ignore"))
    return Group(*parts)


def _said(row: law_table.Row) -> Text:
    text = Text(row.subject, "bold" if row.said else "")
    if row.value:
        text.append(": " * bool(row.subject)).append(row.value, "bold" if row.is_value else "")
    if row.because and row.is_value and row.shown is law_table.WARNS:
        text.append(f"\n{row.because}")
    elif row.because:
        text.append(f" ({row.because})" if row.is_value else f" {row.because}", "dim")
    for title, sentence in row.said.items():
        text.append(f"\n{title}: ", "bold").append(sentence)
    return text


def summary(outcomes: Sequence[Outcome]) -> str:
    """Returns one line about all inputs."""
    reports = [o.report for o in outcomes if o.report]
    good = sum(r.outcome.startswith("verified") for r in reports)
    others: dict[str, list[str]] = {}
    for r in reports:
        if not r.outcome.startswith("verified"):
            others.setdefault(r.outcome, []).append(r.hierarchy.name)
    others |= {
        "unusable": [o.source for o in outcomes if o.error],
        "no hierarchy in": [o.source for o in outcomes if not o.error and not o.report],
    }
    if any(o.asked == "compare" for o in outcomes):
        return one_line("; ".join(f"'{r.hierarchy.name}' is {r.outcome}" for r in reports) or "nothing is compared")
    verified = f"{good} of {len(reports)} {'hierarchy' if len(reports) == 1 else 'hierarchies'} verified"
    return one_line("; ".join([verified, *(f"{what}: {', '.join(names)}" for what, names in others.items() if names)]))


def as_text(outcomes: Sequence[Outcome], full: bool = False) -> RenderableType:
    """Returns what to act on, of one report or a line for each (`full`: every verdict and fact); then the summary."""
    parts: list[RenderableType] = []
    reports = [o.report for o in outcomes if o.report]
    if full or any(o.asked == "compare" for o in outcomes):
        for outcome in outcomes:
            if outcome.report:
                parts += [
                    _compared(outcome) if outcome.asked == "compare" else table(outcome.report),
                    *map(_line, trainer_lines(outcome, outcome.asked == "compare")),
                    Text(),
                ]
    elif reports:
        parts += [short(reports[0]) if len(reports) == 1 else compact(reports)]
        for o in outcomes:
            many = len(reports) > 1  # `short` prints what is off in a config, `compact` does not
            parts += map(_line, law_table.lines(law_table.title(o.trainer), o.findings, o.source if many else "", many))
        parts += [Text()]
    return Group(*parts, Text(summary(outcomes)))


def trainer_lines(outcome: Outcome, say_off: bool = True) -> list[str]:
    """Returns lines on trainers' configs: what is off in one, and what the trainer does around its loss."""
    heading = law_table.BESIDE if outcome.asked == "compare" else law_table.title(outcome.trainer)
    return list(law_table.lines(heading, outcome.findings, say_off=say_off))


def _line(line: str) -> RenderableType:
    return Padding(line.strip(), (0, 0, 0, 2)) if line.startswith(" ") else Text(f"\n{line}", "bold")


def emit(console: Console, renderable: RenderableType) -> None:
    """Prints without the trailing blanks that rich pads its columns with. Escapes texts, and leaves colours."""
    for line in Segment.split_lines(console.render(renderable)):
        shown = Text.assemble(*((visible(part.text), part.style or "") for part in line if not part.control))
        shown.rstrip()
        console.print(shown, soft_wrap=True)
    console.file.flush()  # keeps the order with text on stderr
