"""Writes reports for programs and for CI: JSON, Markdown, JUnit, GitHub's annotations."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from xml.etree import ElementTree as Xml

from rich.console import Console, RenderableType

from fibration.configs.findings import ConfigReport
from fibration.escaping import annotation, escaped, json_text, markdown_text
from fibration.language.report import Report, Verdict, named
from fibration.printing import law_table
from fibration.printing.law_table import brief, compared, in_words, markdown
from fibration.printing.reports import Outcome, as_text, emit, summary, trainer_lines


def as_json(outcomes: Sequence[Outcome], full: bool = True) -> str:
    """Returns a list of `Report.to_dict()`. Unusable inputs appear only on stderr and in the exit code."""
    around = ({"around": [f.sentence for f in o.beside]} if o.beside else {} for o in outcomes)
    return json_text([o.report.to_dict() | said for o, said in zip(outcomes, around, strict=True) if o.report])


def as_markdown(outcomes: Sequence[Outcome], full: bool = False) -> str:
    """Returns a line per hierarchy for a pull request, and what to act on; for a comparison of two losses, a line.

    `full`: the table of laws.
    """
    if any(o.asked == "compare" for o in outcomes):
        found = [compared(o.report) for o in outcomes if o.report]
    else:
        reports = [o.report for o in outcomes if o.report]
        found = [markdown(reports) if full else brief(reports)]
    for lines in filter(None, map(trainer_lines, outcomes)):
        texts = ((line, markdown_text(line, keeps_code=True)) for line in lines)
        items = (f"- {text}" if line.startswith(" ") else f"\n**{text}**\n" for line, text in texts)
        found.append("\n".join(items).strip())
    return "\n\n".join(found)


_COUNTED = {"tests": "testcase", "failures": "failure", "errors": "error", "skipped": "skipped"}


def as_junit(outcomes: Sequence[Outcome], full: bool = True) -> str:
    """Returns JUnit XML: one testsuite per hierarchy, one testcase per verdict.

    An unusable input is an error. A cause is a failure, and so is a finding about a config that counts. A verdict that
    follows from a cause is skipped, and so are a law that is given up and other findings.
    """
    root = Xml.Element("testsuites", name=f"fibration {outcomes[0].asked if outcomes else 'verify'}")
    for o in outcomes:
        if not o.error and not o.report:
            continue
        name = o.report.hierarchy.name if o.report else o.source
        suite = Xml.SubElement(root, "testsuite", name=escaped(name))
        if o.error:
            case = Xml.SubElement(suite, "testcase", classname=escaped(name), name="load")
            _child(case, "error", o.error.what, str(o.error), "unusable")
        for v in o.report.verdicts if o.report else ():
            _case(suite, o.report, v)  # type: ignore[arg-type]
        if isinstance(o.report, ConfigReport):
            for finding in o.report.off:
                title = {"classname": f"{escaped(name)}.config", "name": escaped(finding.sentence)}
                case = Xml.SubElement(suite, "testcase", title)
                fails = finding in o.report.failing
                _child(case, "failure" if fails else "skipped", str(finding), type_=finding.severity * fails)
        if around := "\n".join(trainer_lines(o)):
            _child(suite, "system-out", "", around)
        for element in (suite, root):
            for name, tag in _COUNTED.items():
                element.set(name, str(len(list(element.iter(tag)))))
    Xml.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + Xml.tostring(root, encoding="unicode")


def _case(suite: Xml.Element, report: Report, v: Verdict) -> None:
    title = {"classname": f"{report.hierarchy.name}.{v.law}", "name": f"{v.law}: {v.subject}"}
    case = Xml.SubElement(suite, "testcase", {k: escaped(text) for k, text in title.items()})
    head = v if v.accepted else report.head(v)
    if head is not v:
        _child(case, "skipped", f"follows from {named(head.law, head.subject)}")
    elif not v.accepted:
        error = report.error(v)
        _child(case, "failure", error.what, str(error), v.status)
    elif v.status != "proved":
        _child(case, "skipped", f"{law_table.severity(report, v) or 'given up'}: {v.given_up}")
    elif v.argument:
        _child(case, "system-out", "", v.argument)


def _child(case: Xml.Element, tag: str, message: str = "", text: str = "", type_: str = "") -> None:
    attributes = {k: escaped(v) for k, v in (("type", type_), ("message", message)) if v}
    Xml.SubElement(case, tag, attributes).text = escaped(text)


def as_github(outcomes: Sequence[Outcome], full: bool = False) -> str:
    """Returns an `::error` workflow command per cause of refusal and per unusable input, a `::warning` per fact that
    warns, one of `::error`, `::warning` and `::notice` for what is off in a trainer's config, then a summary line.
    """
    lines = []
    for o in outcomes:
        if o.error:
            lines.append(_annotation(o, "unusable spec" if o.asked == "verify" else "not compared", str(o.error)))
        if o.report:
            name = o.report.hierarchy.name
            lines += [_annotation(o, f"{name}: {v.law}", str(o.report.error(v))) for v in o.report.causes]
            warnings = o.report.warnings if o.asked == "verify" else ()
            lines += [_annotation(o, f"{name}: {f.name}", f"{f.subject}: {in_words(f)}", "warning") for f in warnings]
            lines += [_annotation(o, law_table.OFF, str(f), LEVELS[f.severity]) for f in law_table.off(o.report)]
    return "\n".join([*lines, summary(outcomes)])


LEVELS = {"error": "error", "warning": "warning", "note": "notice"}  # GitHub's, of a finding's severity


def _annotation(outcome: Outcome, title: str, message: str, level: str = "error") -> str:
    return annotation(level, message, file=outcome.file, title=title)


FORMATS: Mapping[str, Callable[[Sequence[Outcome], bool], RenderableType]] = {
    "text": as_text,
    "json": as_json,
    "junit": as_junit,
    "github": as_github,
    "markdown": as_markdown,
}


def rendered(outcomes: Sequence[Outcome], form: str, full: bool = False) -> str:
    """Returns a report as the contents of a file. `full`: all verdicts and facts, which JSON and JUnit always have.

    It is escaped: only GitHub's annotations, which are ours, begin a command.
    """
    made = FORMATS[form](outcomes, full)
    if isinstance(made, str):
        return (made if form == "github" else escaped(made)) + "\n"
    page = io.StringIO()
    emit(Console(file=page, width=100, color_system=None, highlight=False), made)
    return escaped(page.getvalue())
