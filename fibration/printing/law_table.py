"""The marks and rows of verdicts, facts and findings, the table of the laws that hierarchies obey or give up, and the
parts in which two losses differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fibration import laws
from fibration.configs.findings import NOTE, ConfigReport, Finding, Severity
from fibration.configs.options import TrainerLoss
from fibration.errors import listed
from fibration.escaping import markdown_text, plain_line
from fibration.language.report import WARNING, Fact, Options, Report, Verdict


class Kind(NamedTuple):
    """The look of a verdict. The word stands beside the sign, for terminals without colour or Unicode."""

    sign: str
    word: str
    style: str


KINDS: Mapping[str, Kind] = {
    "proved": Kind("✓", "proved", "green"),
    "given up": Kind("–", "given up", "yellow"),
    "follows": Kind("↳", "follows", "red"),
    "undecided": Kind("?", "undecided", "magenta"),
    "refuted": Kind("✗", "refuted", "bold red"),
}
WARNS = Kind("!", "warning", "bold yellow")
NOTES = Kind("·", "fact", "dim")
# Of findings about a trainer's config.
SEVERITIES: Mapping[str, Kind] = {
    "error": KINDS["refuted"]._replace(word="error"),
    "warning": WARNS,
    "note": KINDS["given up"]._replace(word="note"),
}
# Of properties of an audited function.
AUDITED: Mapping[str, Kind] = {
    "fails": KINDS["refuted"]._replace(word="wrong"),
    "note": NOTES._replace(word="note"),
    "holds": KINDS["proved"]._replace(word="holds"),
}
OFF = "what is off in this config"
BESIDE = "what is done around these losses"  # in a comparison
# In the table, † points at the note with the reason, and a law may have no verdict.
MARKS: Mapping[str, Kind] = {
    **KINDS,
    "given up": KINDS["given up"]._replace(sign="†"),
    "follows": KINDS["follows"]._replace(word="follows from a law that fails"),
    "does not apply": Kind("·", "does not apply", "dim"),
    "not asked": Kind("○", "not asked, since it rests on a law that fails", "dim"),
}


class Row(NamedTuple):
    """A line of a report, in text and in HTML: a look, the name of a law or a fact, and what is said of its subject.

    `said`: sentences by their titles. `action`: a title, and what to write. `is_value`: whether `value` is that of a
    fact, which stands out, and no reason.
    """

    shown: Kind
    name: str
    subject: str = ""
    value: str = ""
    because: str = ""
    said: Mapping[str, str] = MappingProxyType({})
    action: tuple[str, str] = ("", "")
    is_value: bool = False


def finding_rows(findings: Iterable[Finding]) -> Iterator[Row]:
    """Yields a row for each thing that is off in a config."""
    for f in findings:
        laws = f"({', '.join(f.laws)})" if f.laws else ""
        yield Row(SEVERITIES[f.severity], "config", value=f.sentence, because=laws, action=("write", f.change))


def verdict_rows(report: Report, verdicts: Iterable[Verdict]) -> Iterator[Row]:
    """Yields a row for each verdict: its argument, the reason for giving it up, or why it fails and the fix."""
    for v in verdicts:
        grade = severity(report, v)
        shown = SEVERITIES[grade] if grade else kind(report, v)
        if v.accepted:
            reason = v.given_up if grade else f"given up: {v.given_up}"
            yield Row(shown, v.law, v.subject, v.argument if v.status == "proved" else reason)
        else:
            said = explanation(report, v)
            yield Row(shown, v.law, v.subject, said=said, action=("fix", said.pop("fix", "")))


def fact_rows(facts: Iterable[Fact]) -> Iterator[Row]:
    """Yields a row for each fact. The whole hierarchy is no subject to name."""
    for f in facts:
        subject = f.subject.removesuffix("hierarchy").removesuffix(": ")  # of several hierarchies: `grpo: hierarchy`
        yield Row(WARNS if f.level == WARNING else NOTES, f.name, subject, f.value, f.argument, is_value=True)


def columns(narrow: int) -> Table:
    """Returns a grid of `narrow` columns that never wrap, and a last column that does."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    for _ in range(narrow):
        grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    return grid


def kind(report: Report, verdict: Verdict) -> Kind:
    """Returns the kind of a verdict: proved, given up, follows, undecided or refuted."""
    if verdict.accepted:
        return KINDS["proved" if verdict.status == "proved" else "given up"]
    return KINDS[verdict.status if report.head(verdict) is verdict else "follows"]


def in_words(fact: Fact) -> str:
    return f"{fact.value} ({fact.argument})" if fact.argument else fact.value


def explanation(report: Report, verdict: Verdict) -> dict[str, str]:
    """Returns what to say of a law that fails, by titles."""
    said = {
        "required": verdict.required,
        "found": verdict.found or verdict.argument,
        "counterexample": str(verdict.counterexample or ""),
        "fix": verdict.remedy,
        "so too": report.so_too(verdict),
    }
    return {title: text for title, text in said.items() if text}


def tally(report: Report) -> str:
    """Returns the numbers of laws and of warnings: `15 laws proved, 2 given up, 1 warning`."""
    numbers = {"given up": len({v.law for v in report.verdicts if v.accepted and v.status != "proved"})}
    numbers |= {word: len({v.law for v in report.causes if v.status == word}) for word in ("refuted", "undecided")}
    warnings = len(report.warnings)
    more = "more " * ("warning" in report.outcome)  # beside those about a config
    numbers[f"{more}warning{'s' * (warnings > 1)}"] = warnings
    return ", ".join([report.proved_in_words, *(f"{n} {word}" for word, n in numbers.items() if n)])


def outcome_of(report: Report) -> tuple[str, str]:
    """Returns the report's outcome, such as `verified` or `refused`, and its style."""
    return report.outcome, "green" if report.ok else "bold red"


def marks(report: Report) -> list[Kind]:
    """Returns one mark per law, in the order of the laws: its worst verdict, or why it has none."""
    order = list(KINDS)
    worst: dict[str, int] = {}
    for v in report.verdicts:
        word = v.status if v.out_of_time else kind(report, v).word  # out of time: the law may hold
        worst[v.law] = max(worst.get(v.law, 0), order.index(word))
    stopped = any(worst.get(law.name, 0) > 0 for law in laws.LAWS.values() if law.needed_by_all)
    absent = "not asked" if stopped else "does not apply"
    return [MARKS[order[worst[law]] if law in worst else absent] for law in laws.LAWS]


def notes(report: Report) -> Iterator[tuple[Kind, str]]:
    """Yields the notes below the table, each with its mark.

    They are the reasons for giving laws up, with the subjects for which they still hold, and the causes of refusal.
    """
    for reason, names in report.given_up.items():
        broken = {v.law for v in report.verdicts if v.given_up == reason and v.status != "proved"}
        holds = [f"{v.law} of {v.subject}" for v in report.verdicts if v.law in broken and v.status == "proved"]
        still = f" (still proved: {'; '.join(holds)})" if holds else ""
        yield MARKS["given up"], f"{report.hierarchy.name} gives up {', '.join(names)}: {plain_line(reason)}{still}"
    for v in report.causes:
        what, along = report.error(v).what, report.so_too(v)
        if v.law in laws.LAWS:  # the message of a wrong declaration is complete
            what += f": {plain_line(str(v.counterexample or v.found))}{f' (so too: {along})' if along else ''}"
        yield MARKS[v.status], what


def legend(reports: Sequence[Report]) -> list[Kind]:
    """Returns the marks that occur, in the order of `MARKS`."""
    seen = {m.word for r in reports for m in marks(r)}
    return [m for m in MARKS.values() if m.word in seen]


# ---------------------------------------------------------------- configs of trainers


def title(trainer: str) -> str:
    """Returns the heading above what a trainer does around a loss, or what is said of one without a trainer."""
    return f"what {trainer} does around this loss" if trainer else "how this loss was read"


def off(report: Report) -> tuple[Finding, ...]:
    """Returns what is off in a config, the gravest first; nothing for a loss that no config declares."""
    return report.off if isinstance(report, ConfigReport) else ()


def severity(report: Report, verdict: Verdict) -> Severity | None:
    """Returns how grave a law is that the loss of a config breaks; None for any other verdict."""
    if verdict.accepted and verdict.status != "proved":
        return next((f.severity for f in off(report) if f.laws and f.sentence == verdict.given_up), None)
    return None


def without_law_notes(loss: TrainerLoss) -> tuple[Finding, ...]:
    """Returns the findings for a command that proves nothing: all but notes on laws, which the hierarchy has."""
    return tuple(finding for finding in loss.findings if finding.severity != NOTE or not finding.laws)


def lines(heading: str, findings: Sequence[Finding], of: str = "", say_off: bool = True) -> Iterator[str]:
    """Yields headings, and findings that begin with blanks, the gravest first.

    `of`: the config, which headings name if there are several. `say_off`: False where a table has what is off.
    """
    of = f"{of}: " if of else ""
    if said := [str(finding) for finding in findings if finding.is_off and say_off]:
        yield f"{of}{OFF}"
        yield from (f"  {sentence}" for sentence in said)
    if said := [finding.sentence for finding in findings if not finding.is_off]:
        yield f"{of}{heading}"
        yield from (f"  {sentence}" for sentence in said)


# ---------------------------------------------------------------- Markdown


def _worst(report: Report) -> Kind:
    """Returns the worst kind of a report's verdicts: refuted, undecided or proved."""
    found = {v.status for v in report.causes} or {"proved" if report.ok else "refuted"}
    return KINDS[next((word for word in ("refuted", "undecided") if word in found), "proved")]


def brief(reports: Sequence[Report]) -> str:
    """Returns a line per hierarchy in GitHub's Markdown, then what fails, what is given up, and warnings."""
    rows = [["", "hierarchy", "outcome"], ["---", "---", "---"]]
    rows += [[_worst(r).sign, r.hierarchy.name, f"{r.outcome}: {tally(r)}"] for r in reports]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    for r in reports:
        said = sorted(notes(r), key=lambda note: note[0] is MARKS["given up"])
        said += [(WARNS, f"{r.hierarchy.name}: {f.name} of {f.subject}: {f.value} ({f.argument})") for f in r.warnings]
        lines += [f"\n{mark.sign} {markdown_text(text)}" for mark, text in said]
    return "\n".join(lines)


def markdown(reports: Sequence[Report]) -> str:
    """Returns the table in GitHub's Markdown, with a legend and the notes below it."""
    rows = [["hierarchy", *laws.LAWS], ["---", *(":-:" for _ in laws.LAWS)]]
    rows += [[r.hierarchy.name, *(m.sign for m in marks(r))] for r in reports]
    table = [f"| {' | '.join(row)} |" for row in rows]
    below = [", ".join(f"{m.sign} {m.word}" for m in legend(reports))]
    below += [f"{mark.sign} {markdown_text(text)}" for r in reports for mark, text in notes(r)]
    return "\n".join([*table, *(f"\n{line}" for line in below if line)])


def compared(report: Report) -> str:
    """Returns the outcome of comparing two losses, with the reason, in one line of Markdown."""
    (v,) = report.verdicts
    said = f"'{report.hierarchy.name}' is {report.outcome}: {v.argument or v.counterexample or v.found}"
    return f"{MARKS[v.status].sign} {markdown_text(said)}"


class Parts(NamedTuple):
    """The parts in which two losses differ. `rows`: a part, and what each side declares, with what decides it."""

    names: tuple[str, str]
    rows: list[tuple[str, list[tuple[str, str]]]]
    said: dict[str, str]  # by titles
    fix: str
    wraps: bool  # whether the fix is a sentence; what is written into a config is pasted


def parts_of(report: Report, options: tuple[Options, Options]) -> Parts | None:
    """Returns the parts in which two losses differ, and a batch that tells them apart; None without parts.

    `options`: what decides the parts of each loss that a config declares.
    """
    from fibration.laws.equivalent.decide import REMEDY, Comparison  # loads the proofs

    (verdict,) = report.verdicts
    if not isinstance(verdict, Comparison) or not verdict.parts:
        return None
    first, second = report.hierarchy.name, verdict.subject.split("'")[1]
    rows = []
    for part in (part for part in verdict.parts if part.differs):
        decided = (f"[{', '.join(of[part.name])}]" if of.get(part.name) else "" for of in options)
        declared = (text or "none" for text in part[1:])
        rows.append((part.name.removeprefix("the "), [*zip(declared, decided, strict=True)]))
    same = [part.name.removeprefix("the ") for part in verdict.parts if not part.differs]
    factor = f"every coefficient is {verdict.factor} times that of {verdict.subject}, which is proved"
    said = {
        "the same in both": listed(same),
        "found": "" if verdict.counterexample else verdict.found,
        "a multiple": factor if verdict.factor else "",
        "counterexample": str(verdict.counterexample or ""),
    }
    names = (first, second) if first != second else ("the first", "the second")
    said = {title: text for title, text in said.items() if text}
    return Parts(names, rows, said, verdict.remedy, verdict.remedy == REMEDY)


def parts_table(report: Report, options: tuple[Options, Options]) -> RenderableType | None:
    """Returns `parts_of` as text, the two losses beside each other."""
    found = parts_of(report, options)
    if found is None:
        return None
    grid = Table.grid(padding=(0, 2, 0, 0))
    for width in (dict(no_wrap=True), dict(ratio=1), dict(ratio=1)):
        grid.add_column(overflow="fold", **width)  # type: ignore[arg-type]
    grid.add_row("", *(Text(name, "bold") for name in found.names))
    shown = KINDS[report.verdicts[0].status]
    for name, sides in found.rows:
        texts = (Text(text).append(f"\n{decided}" * bool(decided), "dim") for text, decided in sides)
        grid.add_row(Text.assemble((f"{shown.sign} ", shown.style), name), *texts)
    lines: list[RenderableType] = [Text(), grid] if found.rows else []
    lines += [Text(), *(Text.assemble((f"{title}: ", "bold"), text) for title, text in found.said.items())]
    fix = Text.assemble(
        ("fix: ", "bold"), found.fix, no_wrap=not found.wraps, overflow="fold" if found.wraps else "ignore"
    )
    return Group(*lines, fix)
