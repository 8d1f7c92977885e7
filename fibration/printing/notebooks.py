"""Hierarchies and reports in notebooks, as Markdown. Markup in names and reasons is escaped."""

from __future__ import annotations

import re

from fibration.escaping import markdown_text
from fibration.language.hierarchy import Hierarchy
from fibration.language.report import Report, Verdict
from fibration.printing import latex
from fibration.printing.law_table import KINDS, Kind, explanation, in_words, kind, mark_of
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
    """Returns how many laws are proved, then a table of what fails, what is given up, and the facts to act on."""
    rows = [[_sign(kind(r, v)), v.law, v.subject, _why(r, v)] for v in r.causes]
    rows += [
        [_sign(KINDS["given up"]), v.law, v.subject, f"given up: {v.given_up}"]
        for v in r.verdicts
        if kind(r, v) is KINDS["given up"]
    ]
    rows += [[_sign(mark_of(f)), f.name, f.subject, in_words(f)] for f in r.noted]
    name, said = r.hierarchy.name, f" {r.outcome}: {r.proved_in_words}, which `print(report.table())` lists"
    table = ["|  | law | of | because |", "| --- | --- | --- | --- |"]
    table += [f"| {mark} | {' | '.join(map(_cell, row))} |" for mark, *row in rows]
    return "\n".join([f"**{_cell(name)}**{said}", "", *(table if rows else ()), ""])


def _sign(shown: Kind) -> str:
    return f"{shown.sign}\N{NO-BREAK SPACE}{shown.word}"


def _why(r: Report, v: Verdict) -> str:
    return "\n".join(f"{title}: {text}" for title, text in explanation(r, v).items())


def _cell(text: str) -> str:
    return "<br>".join(markdown_text(part) for part in text.splitlines())
