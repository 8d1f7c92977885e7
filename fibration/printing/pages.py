"""Hierarchies and reports as HTML, for notebooks and for the file of `fibration report`. Text from outside is escaped.

No part loads anything or has a script. Colours are those of the page around it, so it can be read in light and in dark.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from html import escape

from fibration.configs.findings import Finding
from fibration.errors import FibrationError
from fibration.escaping import escaped
from fibration.language.hierarchy import Hierarchy
from fibration.language.report import Options, Report
from fibration.printing import law_table
from fibration.printing.latex import mathml, rows_of
from fibration.printing.text import text

FOLDED = (law_table.KINDS["proved"], law_table.KINDS["follows"], law_table.NOTES)  # rows whose reasons a click shows
WORDS = ("refuted", "error", "undecided", "warning", "follows", "given up", "note", "proved")  # in this order
STYLE = """
.fibration { line-height: 1.5; overflow-wrap: anywhere; }
.fibration :is(h1, h2, h3) { line-height: 1.25; margin: 1.6em 0 .4em; }
.fibration :is(.green, .red, .yellow, .magenta) { font-weight: 600; }
.fibration .green { color: #16864f; } .fibration .red { color: #d33a2c; }
.fibration .yellow { color: #a86b00; } .fibration .magenta { color: #b23ab2; }
.fibration .dim { opacity: .7; }
.fibration .wide { overflow-x: auto; margin: .6em 0; }
.fibration table { border-collapse: collapse; width: 100%; margin: 0; }
.fibration td { text-align: left; vertical-align: top; padding: .35em .9em .35em 0; white-space: pre-line; }
.fibration tr { border-top: 1px solid color-mix(in srgb, currentColor 18%, transparent); background: none; }
.fibration td:not(:last-child) { white-space: nowrap; }
.fibration h1 { font-size: 1.1em; } .fibration h2 { font-size: 1.5em; } .fibration h3 { font-size: 1.1em; }
.fibration .rows td:not(:last-child) { width: 1%; }
@media (max-width: 40em) {
  .fibration .rows tr { display: flex; flex-wrap: wrap; }
  .fibration .rows td:not(:last-child) { width: auto; }
  .fibration .rows td:last-child { flex-basis: 100%; min-width: 0; }
}
.fibration .parts td { white-space: pre-line; min-width: 8em; }
.fibration summary { cursor: pointer; }
.fibration dl { margin: .3em 0; } .fibration dt { font-weight: 600; } .fibration dd { margin: 0 0 .3em 1em; }
.fibration pre { overflow-x: auto; margin: .4em 0; padding: .5em .7em; border-radius: .4em; overflow-wrap: normal;
  background: color-mix(in srgb, currentColor 8%, transparent); font-size: .88em; line-height: 1.4; }
.fibration pre.wraps { white-space: pre-wrap; overflow-wrap: anywhere; }
.fibration mtd { text-align: left; padding: .35em .2em; } .fibration mtd:first-child { text-align: right; }
.fibration .cases mtd { text-align: left; padding: .1em .5em .1em 0; }
.fibration math { width: max-content; margin: 0; }
.fibration figure { margin: 0; } .fibration figure svg { min-width: 40em; max-width: 100%; height: auto; }
@media (prefers-color-scheme: dark) {
  body.fibration .green { color: #4cc38a; } body.fibration .red { color: #ff7b6e; }
  body.fibration .yellow { color: #e0b04a; } body.fibration .magenta { color: #e08be0; }
  body.fibration figure svg { filter: invert(.9) hue-rotate(180deg); }
}
"""
# What a file has besides: a notebook has its own.
OF_PAGE = """
:root { color-scheme: light dark; }
body { font: 16px system-ui, sans-serif; max-width: 68em; margin: 0 auto; padding: 1em 1.2em 4em; }
"""
HEAD = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
"""


def hierarchy(h: Hierarchy) -> str:
    """Returns a hierarchy for a notebook: its formulas, and its text folded."""
    return _shown(f"<h2>{_text(h.name)}</h2>", formulas(h))


def report(r: Report) -> str:
    """Returns a report for a notebook: what fails, proofs folded, and facts; of a comparison, the parts that differ."""
    if is_comparison(r):
        return _shown(comparison(r))
    return _shown(heading(r), findings(r), laws(r), facts(r))


def page(title: str, summary: str, parts: Iterable[str]) -> str:
    """Returns a whole file with these parts."""
    head = f"{HEAD}<title>{_text(title)}</title>\n<style>{OF_PAGE}{STYLE}</style>\n</head>\n"
    body = "\n".join([f"<h1>{_text(summary)}</h1>", *parts])
    return f'{head}<body class="fibration">\n{body}\n</body>\n</html>\n'


def _shown(*parts: str) -> str:
    return f'<div class="fibration"><style>{STYLE}</style>{"".join(parts)}</div>'


# ---------------------------------------------------------------- parts


def heading(r: Report) -> str:
    """Returns the hierarchy's name, the outcome, and the numbers of laws and of warnings."""
    outcome, style = law_table.outcome_of(r)
    return f"<h2>{_text(r.hierarchy.name)}: {_coloured(outcome, style)}</h2><p>{_text(law_table.tally(r))}</p>"


def formulas(h: Hierarchy) -> str:
    return _wide(mathml(rows_of(h))) + folded("as text, with its parameters", code(text(h)))


def findings(r: Report, trainer: str = "") -> str:
    """Returns what is off in a config, the gravest first, and what the trainer does around the loss."""
    return table(law_table.finding_rows(law_table.off(r)), law_table.OFF) + _around(
        law_table.title(trainer), getattr(r, "findings", ())
    )


def _around(title: str, found: Iterable[Finding]) -> str:
    items = "".join(f"<li>{_text(finding.sentence)}</li>" for finding in found if not finding.is_off)
    return folded(title, f"<ul>{items}</ul>") if items else ""


def laws(r: Report) -> str:
    """Returns all laws, those that fail first. A click shows a proof."""
    return table(sorted(law_table.verdict_rows(r, r.verdicts), key=lambda row: WORDS.index(row.shown.word)), "laws")


def facts(r: Report) -> str:
    """Returns warnings and the facts to act on, and all others folded."""
    noted, others = r.noted, [f for f in r.facts if f not in r.noted]
    more = folded(f"{len(others)} {'more ' * bool(noted)}facts", table(law_table.fact_rows(others))) if others else ""
    return table(law_table.fact_rows(noted), "facts") + more


def audit(identity: str, untraced: str, findings: Iterable[tuple[str, str, str, str]]) -> str:
    """Returns which loss a function is, and its properties: status, name, text, and a batch as lines of torch or ''."""
    seen = f"<p>Seen on batches alone: {_text(untraced)}</p>" if untraced else ""
    rows, batches = [], ""
    for status, name, said, batch in findings:
        rows.append(law_table.Row(law_table.AUDITED[status], name, value=said))
        batches += folded(f"{name}, on the smallest batch found", code(batch)) if batch else ""
    return f"<h3>audit of the function</h3><p>{_text(identity)}.</p>{seen}" + table(rows) + batches


def is_comparison(r: Report) -> bool:
    return [v.law for v in r.verdicts] == ["equivalent"]


def comparison(r: Report, options: tuple[Options, Options] = ({}, {}), beside: Iterable[Finding] = ()) -> str:
    """Returns the parts in which two losses differ, beside each other, with a batch that tells them apart.

    `beside`: what the trainers of configs do around the losses.
    """
    from fibration.printing.law_table import parts_of  # loads the proofs

    outcome, style = law_table.outcome_of(r)
    title = f"<h2>{_text(r.hierarchy.name)} is {_coloured(outcome, style)}</h2>"
    found = parts_of(r, options)
    if found is None:
        return title + table(law_table.verdict_rows(r, r.verdicts)) + _around(law_table.BESIDE, beside)
    cells = [("", *found.names), *((name, *("\n".join(side) for side in sides)) for name, sides in found.rows)]
    lines = ("".join(f"<td>{_text(cell.strip())}</td>" for cell in row) for row in cells)
    rows = "".join(f"<tr>{line}</tr>" for line in lines)
    grid = _wide(f'<table class="parts">{rows}</table>') if found.rows else ""
    fix = code(f"fix: {found.fix}", wraps=True)
    return title + grid + _titled(found.said) + fix + _around(law_table.BESIDE, beside)


def refusal(name: str, error: FibrationError) -> str:
    """Returns an input that cannot be used, and why."""
    return f"<h2>{_text(name)}: {_coloured('unusable', 'red')}</h2>{code(str(error), wraps=True)}"


def figure(svg: str, caption: str) -> str:
    return f"<h3>{_text(caption)}</h3><figure>{_wide(svg)}</figure>"


def folded(summary: str, inside: str, is_open: bool = False) -> str:
    """Returns HTML that a click on the `summary`, a text, shows and hides."""
    return f"<details{' open' * is_open}><summary>{_text(summary)}</summary>{inside}</details>"


def code(source: str, wraps: bool = False) -> str:
    """Returns lines as they are. `wraps`: on narrow screens they go on below, and elsewhere a wide block scrolls."""
    return f"<pre{' class=wraps' * wraps}>{escape(escaped(source))}</pre>"


def table(rows: Iterable[law_table.Row], title: str = "") -> str:
    """Returns rows under a title; nothing for no rows."""
    lines = "".join(f"<tr><td>{_look(r.shown)}</td><td>{_text(r.name)}</td><td>{_cell(r)}</td></tr>" for r in rows)
    return (f"<h3>{_text(title)}</h3>" * bool(title) + _wide(f'<table class="rows">{lines}</table>')) if lines else ""


def _cell(row: law_table.Row) -> str:
    head, inside = _text(row.subject), _text(row.value)
    if row.is_value:
        head, inside = f"{head}: <b>{inside}</b>".removeprefix(": "), _text(row.because)
    elif not row.subject:
        head, inside = f'{inside} <span class="dim">{_text(row.because)}</span>', ""
    inside += _titled(row.said)
    if inside:
        head = f"<details{' open' * (row.shown not in FOLDED)}><summary>{head}</summary>{inside}</details>"
    title, change = row.action
    return head + (code(f"{title}: {change}", wraps=True) if change else "")


def _titled(said: Mapping[str, str]) -> str:
    pairs = "".join(f"<dt>{_text(title)}</dt><dd>{_text(sentence)}</dd>" for title, sentence in said.items())
    return f"<dl>{pairs}</dl>" if pairs else ""


def _look(shown: law_table.Kind) -> str:
    return _coloured(f"{shown.sign}\N{NO-BREAK SPACE}{shown.word}", shown.style)


def _coloured(words: str, style: str) -> str:
    return f'<span class="{style.rpartition(" ")[2]}">{_text(words)}</span>'


def _wide(inside: str) -> str:
    return f'<div class="wide">{inside}</div>'


def _text(words: str) -> str:
    """Returns escaped text. What stands between backticks is code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(escaped(words)))
