"""HTML for notebooks and for `fibration report`: its content, and that no text from outside becomes markup."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from xml.etree import ElementTree as Xml

import pytest
from hierarchies import wrong_specs
from html_pages import read
from hypothesis import given
from hypothesis import strategies as st
from thorough import examples, some

import fibration
from fibration import SpecError
from fibration.configs.findings import ConfigReport, Finding
from fibration.escaping import escaped
from fibration.language.atoms import Parameter
from fibration.language.expressions import Apply
from fibration.language.loading import shipped
from fibration.language.operators import OPERATORS
from fibration.printing import pages
from fibration.printing.latex import latex, mathml, rows_of, tex
from fibration.printing.text import text

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
HOSTILE = (
    "a | b <script>alert(1)</script> `<i>x</i>` $x$ \x01 \u202e </pre></style> &amp; \\ <img src=http://x onerror=y>\n\n"
    "::error::x ##[warning]y"
)
SAME = {"−": "-", "∣": "|", "\u2061": "", "^": "", "\N{COMBINING CIRCUMFLEX ACCENT}": "", "ε": "ϵ", "⋅": "·"}


def words(markup: str) -> str:
    """The signs of a formula, without blanks, in one spelling."""
    found = "".join(Xml.fromstring(markup).itertext())
    return re.sub(r"\s", "", "".join(SAME.get(c, c) for c in found))


@pytest.mark.parametrize("name", some(shipped(), 12))
def test_a_hierarchy_in_a_notebook_has_its_formulas_and_its_text(name: str) -> None:
    h = fibration.load(name)
    page = read(h._repr_html_())  # type: ignore[attr-defined]
    assert page.texts["h2"] == [name]
    assert page.texts["pre"] == [text(h)]
    assert len(page.texts["math"]) == 1 and page.texts["mtr"]
    begin, *lines, end = h._repr_latex_().splitlines()  # type: ignore[attr-defined]
    assert (begin, lines[0], lines[-1], end) == ("$$", r"\begin{aligned}", r"\end{aligned}", "$$")
    assert lines[1:-1] == latex(h).splitlines()[2:-1]


def test_mathml_has_the_signs_of_the_latex() -> None:
    converter = pytest.importorskip("latex2mathml.converter")
    for name in some(shipped(), 6, 1):
        for row in rows_of(fibration.load(name)):
            assert words(mathml([row])) == words(converter.convert(row.replace("&", "", 1))), row


@pytest.mark.parametrize("name", OPERATORS)
def test_mathml_has_every_operator(name: str) -> None:
    p, q = Parameter("epsilon", default=0.5), Parameter("x_low_1", default=2.0)
    arguments = (p < q, p, q, p)[OPERATORS[name].conditions == frozenset() :][: OPERATORS[name].arity]
    if name in ("and", "or"):
        arguments = (p < q, q < p)
    e = Apply(name, tuple(arguments))
    found = mathml([f"x &= {tex(e)}"])
    assert "ϵ" in words(found) and read(found)


def test_nested_formulas_keep_their_structure() -> None:
    found = mathml(
        [
            r"a_{\mathrm{b\_c}}^{2} &= \frac{1}{\sqrt{x}} \, \begin{cases} 1 & \text{if } a < b \\ 0 & \text{otherwise} \end{cases}"
        ]
    )
    assert "<msubsup><mi>a</mi>" in found and "<mfrac><mrow><mn>1</mn></mrow><mrow><msqrt>" in found
    assert "b_c</mi>" in found and "&lt;" in found
    (cases,) = Xml.fromstring(found).findall(".//mtable[@class='cases']")
    assert [len(row) for row in cases] == [2, 2]


def test_a_command_that_no_formula_has_is_an_error() -> None:
    with pytest.raises(KeyError):
        mathml([r"\href{x}{y}"])


def test_a_report_has_every_law_with_its_proof_and_every_fact() -> None:
    report = fibration.load("fiberpo_domain").verify()
    page = read(report._repr_html_())  # type: ignore[attr-defined]
    assert page.texts["h2"] == ["fiberpo_domain: verified"]
    details = page.texts["details"]
    for v in report.verdicts:
        said = v.argument if v.status == "proved" else f"given up: {v.given_up}"
        assert not said or v.subject + said in details, v
    assert [row for row in page.rows() if "proved" in row] == page.rows()[
        3 : 3 + sum(v.status == "proved" for v in report.verdicts)
    ]
    for f in report.facts:
        assert any(f.name in row and f.value in row and f.argument in row for row in page.rows()), f


def test_a_refusal_is_open_and_comes_first() -> None:
    report = wrong_specs.wrong()["padded length"].hierarchy.verify()
    html = report._repr_html_()  # type: ignore[attr-defined]
    page = read(html)
    assert "refused" in page.texts["h2"][0]
    for row, cause in zip(page.rows(), report.causes, strict=False):
        assert row.startswith("✗\N{NO-BREAK SPACE}refuted" + cause.law + cause.subject)
        for part in (cause.required, str(cause.counterexample or ""), f"fix: {cause.remedy}", report.so_too(cause)):
            assert escaped(part).replace("`", "") in row.replace("`", "")
    assert html.count("<details open>") == len(report.causes)


def test_a_comparison_has_the_parts_and_the_batch() -> None:
    report = fibration.equivalent(fibration.load("grpo"), fibration.load("dapo"))
    page = read(report._repr_html_())  # type: ignore[attr-defined]
    assert page.texts["h2"] == ["grpo is not the same loss as 'dapo'"]
    (verdict,) = report.verdicts
    differ = [(p.first, p.second) for p in verdict.parts if p.differs]  # type: ignore[attr-defined]
    assert differ and all(first in page.text and second in page.text for first, second in differ)
    assert page.texts["dd"][-1] == str(verdict.counterexample)
    same = fibration.equivalent(fibration.load("grpo"), fibration.load("grpo"))
    assert "is the same loss as" in read(same._repr_html_()).text  # type: ignore[attr-defined]


@given(st.text() | st.just(HOSTILE))
@examples(80)
def test_no_text_becomes_markup(said: str) -> None:
    finding = Finding("error", said, change=said, laws=("gradient",))
    h = fibration.load("grpo")
    report = ConfigReport(h, h.verify().verdicts, findings=(finding, Finding("note", said)))
    plain = "".join(pages.findings(report))
    parts = [plain, pages.refusal(said, SpecError(said, found=said)), pages.folded(said, pages.code(said))]
    page = read(pages.page(said, said, parts))
    shown = escaped(said).replace("`", "")
    titles = [page.texts[tag][0].replace("`", "") for tag in ("title", "h1", "li")]
    assert titles == [shown] * 3
    assert page.texts["pre"][-1] == escaped(said)
    assert f"write: {escaped(said)}" in page.texts["pre"] or not said


def test_a_page_has_a_viewport_and_both_schemes() -> None:
    html = pages.page("x", "y", [])
    for part in ('name="viewport" content="width=device-width', "prefers-color-scheme: dark", "default-src 'none'"):
        assert part in html


def test_the_notebook_of_the_examples_runs() -> None:
    notebook = json.loads((EXAMPLES / "report.ipynb").read_text())
    names: dict[str, object] = {}
    shown = []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            *before, last = ast.parse("".join(cell["source"])).body
            exec(compile(ast.Module(before, []), "report.ipynb", "exec"), names)
            assert isinstance(last, ast.Expr)
            value = eval(compile(ast.Expression(last.value), "report.ipynb", "eval"), names)
            shown.append(read(value._repr_html_()).texts["h2"])
    assert shown == [["dapo"], ["dapo: verified"], ["shifted: refused"], ["dapo is not the same loss as 'grpo'"]]
