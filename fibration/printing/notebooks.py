"""Hierarchies and reports in notebooks, as Markdown. Markup in names and reasons is escaped."""

from __future__ import annotations

import re

from fibration.language.hierarchy import Hierarchy
from fibration.language.report import Report, Verdict
from fibration.printing import latex
from fibration.printing.law_table import KINDS, escaped, kind, line
from fibration.printing.reports import heading
from fibration.printing.text import text


def hierarchy(h: Hierarchy) -> str:
    """Returns the hierarchy as text, strata coarsest first, and as formulas."""
    written = text(h)
    longest = max((len(ticks) for ticks in re.findall("`+", written)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{written}\n{fence}\n\n{formulas(h)}\n"


def formulas(h: Hierarchy) -> str:
    return latex.displayed(h)


def report(r: Report) -> str:
    """Returns a table of all verdicts with their arguments, then the facts."""
    rows = []
    for v in r.verdicts:
        shown = kind(r, v)
        if shown is not KINDS["follows"]:  # its cause names it
            rows.append([f"{shown.sign}\N{NO-BREAK SPACE}{shown.word}", v.law, v.subject, _why(r, v)])
    for f in r.facts:
        because = f" ({f.argument})" if f.argument else ""
        rows.append(["·\N{NO-BREAK SPACE}fact", f.name, f.subject, f"{f.value}{because}"])
    name, said = r.hierarchy.name, heading(r).plain.removeprefix(r.hierarchy.name)
    table = ["|  | law | of | because |", "| --- | --- | --- | --- |"]
    table += [f"| {mark} | {' | '.join(map(_cell, row))} |" for mark, *row in rows]
    return "\n".join([f"**{_cell(name)}** {_cell(said)}", "", *table, ""])


def _why(r: Report, v: Verdict) -> str:
    if v.accepted:
        return f"given up: {v.given_up}" if v.status != "proved" else v.argument
    said = {
        "required": v.required,
        "found": v.found or v.argument,
        "counterexample": str(v.counterexample or ""),
        "fix": v.remedy,
        "so too": r.so_too(v),
    }
    return "\n".join(f"{title}: {text}" for title, text in said.items() if text)


def _cell(text: str) -> str:
    return "<br>".join(escaped(line(part)) for part in text.splitlines())
