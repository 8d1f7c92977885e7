"""Verify specs, and write what was found: for people, as JSON, as JUnit XML, as GitHub annotations."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as Xml

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from fibration.errors import FibrationError
from fibration.loading import load_all
from fibration.report import Report, Verdict


@dataclass(frozen=True)
class Outcome:
    """What became of one hierarchy, or of one input that holds none: `report` or `error`, the other is None."""

    source: str  # as the user named it
    report: Report | None = None
    error: FibrationError | None = None

    @property
    def file(self) -> str:
        """The file that an annotation can point at; '' for the name of a shipped hierarchy."""
        path = self.source.rpartition(":")[0] if ".py:" in self.source else self.source
        return path if Path(path).is_file() else ""


def check(specs: Sequence[str], step: Callable[[str], None] = lambda name: None) -> list[Outcome]:
    """Verify every hierarchy of every file, folder or name; an unusable one does not stop the others."""
    return [outcome for spec in specs for path in _files(spec) for outcome in _check(path, step)]


def _check(source: str, step: Callable[[str], None]) -> Iterator[Outcome]:
    try:
        with quiet_import():
            hierarchies = load_all(source)
    except FibrationError as error:
        yield Outcome(source, error=error)
        return
    for hierarchy in hierarchies:
        step(hierarchy.name)
        try:
            yield Outcome(source, report=hierarchy.verify())
        except FibrationError as error:
            yield Outcome(source, error=error)


def _files(spec: str) -> list[str]:
    """The specs in a folder one by one, so that each can fail alone; an empty folder is left to `load_all` to refuse."""
    path = Path(spec)
    if not path.is_dir():
        return [spec]
    found = (p for p in path.iterdir() if p.suffix in (".py", ".json") and not p.name.startswith(("_", ".")))
    return [str(p) for p in sorted(found)] or [spec]


def quiet_import() -> contextlib.redirect_stdout[io.TextIOBase]:
    """What a spec prints when it is imported goes to stderr, and never into JSON or XML."""
    return contextlib.redirect_stdout(sys.stderr)  # type: ignore[arg-type]


def exit_code(outcomes: Sequence[Outcome]) -> int:
    """0 all laws hold or are given up as declared, 1 some law does not hold, 2 some input could not be used."""
    if any(o.error for o in outcomes):
        return 2
    return 0 if all(o.report and o.report.ok for o in outcomes) else 1


# ---------------------------------------------------------------- for people


class Kind(NamedTuple):
    """How a verdict is shown. The word stands beside the sign, for terminals without colour or Unicode."""

    sign: str
    word: str
    style: str


KINDS: Mapping[str, Kind] = {
    "proved": Kind("✓", "proved", "green"),
    "given up": Kind("–", "given up", "yellow"),
    "undecided": Kind("?", "undecided", "magenta"),
    "refuted": Kind("✗", "refuted", "bold red"),
}


def kind(verdict: Verdict) -> Kind:
    """Proved, given up as declared, undecided, or refuted."""
    if verdict.status == "proved":
        return KINDS["proved"]
    return KINDS["given up" if verdict.given_up else verdict.status]


def tally(report: Report) -> str:
    """`12 proved, 1 given up`."""
    numbers = Counter(kind(v).word for v in report.verdicts)
    return ", ".join(f"{numbers[word]} {word}" for word in KINDS if numbers[word]) or "nothing to decide"


def heading(report: Report) -> Text:
    """The hierarchy's name, whether it is verified, and how many verdicts of each kind there are."""
    word, style = ("verified", "green") if report.ok else ("refused", "bold red")
    return Text.assemble((report.hierarchy.name, "bold"), "  ", (word, style), f"  {tally(report)}")


def table(report: Report) -> RenderableType:
    """Every verdict with its argument, then the facts. Nothing is cut off: long lines wrap inside their column."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    for _ in range(3):
        grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for v in report.verdicts:
        shown = kind(v)
        grid.add_row("", Text(f"{shown.sign} {shown.word}", shown.style), Text(v.law), _explained(v))
    for f in report.facts:
        because = f" ({f.argument})" if f.argument else ""
        grid.add_row("", Text("· fact", "dim"), Text(f.name), Text.assemble(f.subject, ": ", (f.value, "bold"), (because, "dim")))
    return Group(heading(report), grid)


def _explained(verdict: Verdict) -> Text:
    result = Text.assemble((verdict.subject, "bold" if not verdict.accepted else ""))
    if verdict.accepted:
        why = f"given up: {verdict.given_up}" if verdict.status != "proved" else verdict.argument
        return result.append(f": {why}" if why else "")
    for title, value in _reasons(verdict):
        result.append(f"\n{title}: ", "bold").append(value)
    return result


def _reasons(verdict: Verdict) -> Iterator[tuple[str, str]]:
    """What a refusal has to say, in the order in which it is read."""
    counterexample = "" if verdict.counterexample is None else str(verdict.counterexample)
    yield from (
        (title, value)
        for title, value in (
            ("required", verdict.required),
            ("found", verdict.found or verdict.argument),
            ("counterexample", counterexample),
            ("what to do", verdict.remedy),
        )
        if value
    )


def summary(outcomes: Sequence[Outcome]) -> str:
    """One line over all inputs."""
    reports = [o.report for o in outcomes if o.report]
    good = sum(r.ok for r in reports)
    parts = [f"{good} of {len(reports)} {'hierarchy' if len(reports) == 1 else 'hierarchies'} verified"]
    refused = [r.hierarchy.name for r in reports if not r.ok]
    parts += [f"refused: {', '.join(refused)}"] if refused else []
    unusable = [o.source for o in outcomes if o.error]
    parts += [f"unusable: {', '.join(unusable)}"] if unusable else []
    return "; ".join(parts)


def as_text(outcomes: Sequence[Outcome]) -> RenderableType:
    parts: list[RenderableType] = []
    for o in outcomes:
        if o.report:
            parts += [table(o.report), Text()]
    return Group(*parts, Text(summary(outcomes)))


# ---------------------------------------------------------------- for programs


def as_json(outcomes: Sequence[Outcome]) -> str:
    """A list of `Report.to_dict()`; unusable inputs are on stderr and in the exit code."""
    return json.dumps([o.report.to_dict() for o in outcomes if o.report], indent=2, ensure_ascii=False)


# XML 1.0 has no place for other control characters, and a reason to give up a law is any text.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def as_junit(outcomes: Sequence[Outcome]) -> str:
    """One testsuite per hierarchy, one testcase per verdict; given up counts as skipped, unusable input as an error."""
    root = Xml.Element("testsuites", name="fibration verify")
    for o in outcomes:
        name = o.report.hierarchy.name if o.report else o.source
        suite = Xml.SubElement(root, "testsuite", name=_xml(name))
        if o.error:
            case = Xml.SubElement(suite, "testcase", classname=_xml(name), name="load")
            _child(case, "error", o.error.what, str(o.error), "unusable")
        for v in o.report.verdicts if o.report else ():
            case = Xml.SubElement(suite, "testcase", classname=_xml(f"{name}.{v.law}"), name=_xml(f"{v.law}: {v.subject}"))
            if not v.accepted:
                error = v.error(name)
                _child(case, "failure", error.what, str(error), v.status)
            elif v.status != "proved":
                _child(case, "skipped", f"given up: {v.given_up}")
            elif v.argument:
                _child(case, "system-out", "", v.argument)
        for element in (suite, root):
            for tag, count in (("tests", "testcase"), ("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
                element.set(tag, str(len(list(element.iter(count)))))
    Xml.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + Xml.tostring(root, encoding="unicode")


def _child(case: Xml.Element, tag: str, message: str = "", text: str = "", type_: str = "") -> None:
    attributes = {k: _xml(v) for k, v in (("type", type_), ("message", message)) if v}
    Xml.SubElement(case, tag, attributes).text = _xml(text)


def _xml(text: str) -> str:
    return _NOT_XML.sub("\ufffd", text)


def as_github(outcomes: Sequence[Outcome]) -> str:
    """An `::error` workflow command per law that does not hold or input that cannot be used, then a summary line."""
    lines = []
    for o in outcomes:
        if o.error:
            lines.append(_annotation(o, "unusable spec", str(o.error)))
        for v in o.report.failures if o.report else ():
            name = o.report.hierarchy.name  # type: ignore[union-attr]
            lines.append(_annotation(o, f"{name}: {v.law}", str(v.error(name))))
    return "\n".join([*lines, _escape(summary(outcomes))])


def _annotation(outcome: Outcome, title: str, message: str) -> str:
    place = f"file={_property(outcome.file)}," if outcome.file else ""
    return f"::error {place}title={_property(title)}::{_escape(message)}"


def _escape(text: str) -> str:
    """GitHub's own rule for the data of workflow commands."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _escape(text).replace(":", "%3A").replace(",", "%2C")


FORMATS: Mapping[str, Callable[[Sequence[Outcome]], RenderableType]] = {
    "text": as_text,
    "json": as_json,
    "junit": as_junit,
    "github": as_github,
}


def rendered(outcomes: Sequence[Outcome], form: str) -> str:
    """A report as the contents of a file."""
    made = FORMATS[form](outcomes)
    if isinstance(made, str):
        return made + "\n"
    page = io.StringIO()
    Console(file=page, width=100, color_system=None, highlight=False).print(made)
    return "\n".join(line.rstrip() for line in page.getvalue().splitlines()) + "\n"


def write_file(path: Path, contents: str | bytes) -> None:
    """Write a file whole or not at all; folders on the way are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        unfinished.write_bytes(contents.encode() if isinstance(contents, str) else contents)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
