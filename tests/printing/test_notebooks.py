"""Markdown for notebooks has the content of the text form, whatever is in names and reasons."""

from __future__ import annotations

import pytest
from hierarchies import wrong_specs
from markdown_it import MarkdownIt
from thorough import some

import fibration
from fibration import Hierarchy
from fibration.language.loading import shipped
from fibration.printing.latex import latex
from fibration.printing.text import text

HOSTILE = (
    "a | b <script>alert(1)</script> `code` ``` $x$ \x01 **bold** [l](http://x) _a_ # h ~~s~~ &amp; \\ end\n\n| x |"
)
READ = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])


def rows(markdown: str) -> list[list[str]]:
    """The cells of a table as a reader sees them."""
    tokens = READ.parse(markdown)
    found, cells = [], []
    for i, token in enumerate(tokens):
        if token.type in ("th_open", "td_open"):
            inline = tokens[i + 1].children or []
            assert {t.type for t in inline} <= {"text", "html_inline", "text_special"}, tokens[i + 1].content
            assert {t.content for t in inline if t.type == "html_inline"} <= {"<br>"}
            cells.append("".join("\n" if t.type == "html_inline" else t.content for t in inline))
        if token.type == "tr_close":
            found.append(cells)
            cells = []
    return found


@pytest.mark.parametrize("name", some(shipped(), 12))
def test_a_hierarchy_in_a_notebook_has_its_text_and_formulas(name: str) -> None:
    h = fibration.load(name)
    shown = h._repr_markdown_()  # type: ignore[attr-defined]
    fence, *_ = READ.parse(shown)
    assert (fence.type, fence.info) == ("fence", "text")
    assert fence.content == text(h) + "\n"
    formulas = h._repr_latex_()  # type: ignore[attr-defined]
    assert shown.endswith(f"```\n\n{formulas}\n")
    begin, *lines, end = formulas.splitlines()
    assert (begin, lines[0], lines[-1], end) == ("$$", r"\begin{aligned}", r"\end{aligned}", "$$")
    assert lines[1:-1] == latex(h).splitlines()[2:-1]
    assert not any("$" in line or not line for line in lines)


def test_reasons_are_escaped_in_notebooks() -> None:
    h = fibration.load("fiberpo").replace(gives_up={"inward": HOSTILE})
    fence, *_ = READ.parse(h._repr_markdown_())
    assert fence.content == text(h) + "\n"
    table = rows(h.verify()._repr_markdown_())
    (given_up,) = (row for row in table if row[0].endswith("given up"))
    words = [" ".join(line.replace("\x01", r"\x01").split()) for line in HOSTILE.splitlines()]
    assert given_up == ["–\N{NO-BREAK SPACE}given up", "inward", "gate on trajectory", "given up: " + "\n".join(words)]


def test_a_report_has_what_to_act_on_and_says_where_the_rest_is() -> None:
    report = fibration.load("fiberpo_domain").verify()
    head, *table = rows(report._repr_markdown_())  # type: ignore[attr-defined]
    assert head == ["", "law", "of", "because"]
    given_up = [v for v in report.verdicts if v.status != "proved"]
    expected = [[v.law, v.subject, f"given up: {v.given_up}"] for v in given_up]
    facts = [[f.name, f.subject, f"{f.value} ({f.argument})" if f.argument else f.value] for f in report.noted]
    assert expected and [row[1:] for row in table] == expected + facts
    begin = f"**fiberpo_domain** verified: {len(report.proved_laws)} laws proved, which `print(report.table())` lists\n"
    assert report._repr_markdown_().startswith(begin)  # type: ignore[attr-defined]
    assert all(v.argument in report.table() for v in report.verdicts if v.status == "proved")
    assert all(f.value in report.table() for f in report.facts)


def test_a_refusal_has_its_counterexample_and_what_follows_once() -> None:
    wrong: Hierarchy = wrong_specs.wrong()["padded length"].hierarchy
    report = wrong.verify()
    table = rows(report._repr_markdown_())  # type: ignore[attr-defined]
    refused = [row for row in table if "refuted" in row[0]]
    assert [(row[1], row[2]) for row in refused] == [(v.law, v.subject) for v in report.causes]
    for row, cause in zip(refused, report.causes, strict=True):
        assert f"counterexample: {cause.counterexample}" in row[3]
        assert f"so too: {report.so_too(cause)}" in row[3] or not report.so_too(cause)
