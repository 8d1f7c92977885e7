"""`fibration show`: every form of every shipped hierarchy, and of hierarchies made to be awkward."""

from __future__ import annotations

import json
import re

import jsonschema
import pytest
from typer.testing import CliRunner

from fibration import (
    Attribute,
    Fibration,
    Gate,
    Hierarchy,
    MarkovKernel,
    Parameter,
    advantage,
    clip,
    clip_gate,
    count,
    density,
    exp,
    expm1,
    identity_gate,
    load,
    log1p,
    minimum,
    proportional,
    residual,
    sigmoid,
    sign,
    signed_log_ratio,
    sqrt,
    strata,
    token_mean,
    total,
    uniform,
    where,
)
from fibration.cli import app
from fibration.loading import shipped
from fibration.show import latex, mermaid, tex, text

token, image, turn, end = strata("token image turn end_of_all")
weight = Attribute("weight", on=token)
tau = Parameter("tau_high", default=1.5, per_channel=True)

# Every operator, names with underscores, words of mermaid and TeX.
AWKWARD = Hierarchy(
    name="awkward",
    fibrations=[
        Fibration(token, turn, kernel=MarkovKernel(weight / total(weight, over=turn))),
        Fibration(turn, end, kernel=proportional(count(token))),
    ],
    gates={
        token: Gate(
            where(
                (advantage > 0) & ~(residual < 1) | (density(end, "+") <= 2),
                sigmoid(tau * residual),
                -sqrt(exp(residual)),
            )
            * 3
            - (1 + residual) * -2
            + minimum(expm1(residual), log1p(-tau)) ** 2
        ),
        turn: Gate(clip(abs(residual), 0, 1) * sign(residual)).per(count(token)),
        end: identity_gate(),
    },
    decomposition=signed_log_ratio(),
    objective=token_mean(),
    rows=turn,
)
TREE = Hierarchy(
    name="tree",
    fibrations=[
        Fibration(token, turn, kernel=uniform()),
        Fibration(image, turn, kernel=uniform()),
        Fibration(turn, end, kernel=uniform()),
    ],
    gates={s: identity_gate() for s in (token, image, turn, end)},
    decomposition=signed_log_ratio(),
    objective=token_mean(),
    rows=turn,
)
CYCLE = Hierarchy(
    name="cycle",
    fibrations=[Fibration(token, turn, kernel=uniform()), Fibration(turn, token, kernel=uniform())],
    gates={token: clip_gate(1), turn: identity_gate()},
    decomposition=signed_log_ratio(),
    objective=token_mean(),
)
ALL = [*map(load, shipped()), AWKWARD, TREE, CYCLE]


@pytest.mark.parametrize("hierarchy", ALL, ids=lambda h: h.name)
def test_latex_is_balanced_and_escaped(hierarchy: Hierarchy) -> None:
    written = latex(hierarchy)
    depth = 0
    for character in re.sub(r"\\.", "", written):
        depth += {"{": 1, "}": -1}.get(character, 0)
        assert depth >= 0
    assert depth == 0
    assert written.count(r"\left") == written.count(r"\right")
    assert re.findall(r"\\begin\{(.*?)\}", written).count("cases") == written.count(r"\end{cases}")
    # `_` is either escaped in a name or a subscript, which always has braces
    assert not re.search(r"(?<!\\)_(?![{i])", written.replace(f"% {hierarchy.name}\n", ""))
    assert written.startswith("\\begin{align*}\n") and written.endswith("\n\\end{align*}")
    assert "\n\n" not in written  # an empty line ends the environment
    for row in written.split(" \\\\\n"):
        assert len(re.findall(r"(?<!\\)&", re.sub(r"\\begin\{cases\}.*?\\end\{cases\}", "", row))) == 1


@pytest.mark.parametrize(
    ("expression", "written"),
    [
        ((residual + 1) * 2, r"\left(\rho + 1\right) \cdot 2"),
        (residual - (advantage - 1), r"\rho - \left(A - 1\right)"),
        (residual + -advantage, r"\rho + \left(-A\right)"),
        (1 / count(token, over=turn), r"\frac{1}{\lvert \mathrm{token}(\mathrm{turn}) \rvert}"),
        (abs(residual) ** 2, r"\left\lvert \rho \right\rvert^{2}"),
        ((-residual) ** 2, r"\left(-\rho\right)^{2}"),
        (log1p(-tau), r"\log\left(1 - \tau_{\mathrm{high}}^{\pm}\right)"),
        (Parameter("C_end_of_all"), r"C_{\mathrm{end\_of\_all}}"),
        (total(weight, over=end), r"\Sigma_{\mathrm{weight}}(\mathrm{end\_of\_all})"),
        (
            where(residual <= 1, 2, 3) * 4,
            r"\left(\begin{cases} 2 & \text{if } \rho \le 1 \\ 3 & \text{otherwise} \end{cases}\right) \cdot 4",
        ),
    ],
    ids=str,
)
def test_expressions_in_latex(expression: object, written: str) -> None:
    assert tex(expression) == written  # type: ignore[arg-type]


def test_a_scaled_gate_is_written_with_its_scale_once() -> None:
    written = latex(load("fiberpo_domain"))
    assert r"\lvert \mathrm{trajectory}(\mathrm{domain}) \rvert \cdot \begin{cases} s & \text{if }" in written
    assert r"\text{with } s = \frac{\rho}{\lvert \mathrm{trajectory}(\mathrm{domain}) \rvert}" in written


def test_mermaid_of_a_chain() -> None:
    assert mermaid(load("fiberpo")).splitlines() == [
        "---",
        "title: fiberpo",
        "---",
        "flowchart BT",
        '    s0["<b>token</b><br/>clip_gate(epsilon).per(1/count(token, over=trajectory))"]',
        '    s1["<b>trajectory</b><br/>aggregate_gate(C_trajectory, rollback=count(token))"]',
        '    s0 -->|"uniform()"| s1',
    ]


@pytest.mark.parametrize("hierarchy", ALL, ids=lambda h: h.name)
def test_mermaid_labels_hold_nothing_that_ends_them(hierarchy: Hierarchy) -> None:
    lines = mermaid(hierarchy).splitlines()
    assert len(lines) == 4 + len(hierarchy.strata) + len(hierarchy.fibrations)
    for line in lines[4:]:
        label = line.split('"', 1)[1].rsplit('"', 1)[0].replace("<b>", "").replace("</b>", "").replace("<br/>", "")
        assert not set(label) & set('"<>`')


def test_the_tree_of_strata() -> None:
    shown = text(TREE)
    assert shown.startswith(repr(TREE))
    assert shown.endswith(
        "end_of_all\n"
        "│  gate    identity_gate()\n"
        "└─ turn\n"
        "   │  kernel  uniform()\n"
        "   │  gate    identity_gate()\n"
        "   ├─ token\n"
        "   │     kernel  uniform()\n"
        "   │     gate    identity_gate()\n"
        "   └─ image\n"
        "         kernel  uniform()\n"
        "         gate    identity_gate()"
    )


def test_parameters_and_attributes_are_listed() -> None:
    assert "  Parameter('tau_high', default=1.5, per_channel=True)" in text(AWKWARD)
    assert "  Attribute('weight', on=token, positive=True)" in text(AWKWARD)


def test_a_cycle_is_shown_and_ends() -> None:
    assert "(see above)" in text(CYCLE)
    assert r"\mathrm{token} \to \mathrm{turn},\quad \mathrm{turn} \to \mathrm{token}" in latex(CYCLE)


def test_json_and_schema_on_the_command_line() -> None:
    shown = CliRunner().invoke(app, ["show", "fiberpo_domain", "--format", "json"])
    schema = CliRunner().invoke(app, ["show", "fiberpo", "--format", "schema"])
    assert shown.exit_code == schema.exit_code == 0
    jsonschema.validate(json.loads(shown.stdout), json.loads(schema.stdout))
    assert Hierarchy.model_validate_json(shown.stdout) == load("fiberpo_domain")


@pytest.mark.parametrize("form", ["text", "mermaid", "latex"])
def test_the_command_prints_what_the_functions_give(form: str) -> None:
    result = CliRunner().invoke(app, ["show", "gspo", "--format", form])
    assert result.exit_code == 0
    assert result.stdout == {"text": text, "mermaid": mermaid, "latex": latex}[form](load("gspo")) + "\n"
