"""`fibration show --format python`: the printed module declares the same hierarchy, and does nothing else."""

from __future__ import annotations

import ast
import functools
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import thorough
from hierarchies import every
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import fibration
from fibration import (
    Gate,
    Hierarchy,
    Parameter,
    SpecError,
    centred,
    clip_gate,
    count,
    exp,
    identity_gate,
    load,
    log_prob,
    mean,
    minimum,
    policies,
    ratio_deviation,
    residual,
    reward,
    standardised,
    strata,
    token_mean,
    trajectory_mean,
)
from fibration.cli.main import app
from fibration.cli.project import init
from fibration.language.grammar import CONSTRUCTORS, constructor
from fibration.language.hierarchy import fingerprint
from fibration.language.loading import load_all, shipped, shipped_file
from fibration.pipeline import generate
from fibration.printing.layout import WIDTH, laid, quoted
from fibration.printing.python import python

METHODS = {"score", "weigh", "keep", "per", "inward"}
FIELDS = {"expression", "weight"}
token, trajectory, prompt_group = strata("token trajectory prompt_group")
old, rollout = policies("old rollout")


def declared(text: str) -> Hierarchy:
    """The one hierarchy that a module declares."""
    scope: dict[str, Any] = {}
    exec(compile(text, "printed", "exec"), scope)
    (found,) = (v for v in scope.values() if isinstance(v, Hierarchy))
    return found


def check(h: Hierarchy) -> str:
    """Checks the law for a hierarchy, and returns the text."""
    text = python(h)
    again = declared(text)
    assert again == h, text
    assert again.model_dump_json() == h.model_dump_json()
    assert (hash(again), repr(again), fingerprint(again)) == (hash(h), repr(h), fingerprint(h))
    assert python(again) == text
    check_only_declares(text)
    if max(map(len, (*h.parameters, *h.attributes, *h.policies, *map(str, h.strata)))) < 32:
        assert max(map(len, text.splitlines())) <= WIDTH
    return text


def check_only_declares(text: str) -> None:
    """Checks that a module imports public names, and assigns calls of these, each name once."""
    tree, known = ast.parse(text), set[str]()
    for statement in tree.body:
        if isinstance(statement, ast.ImportFrom):
            names = [a.name for a in statement.names]
            assert statement.module == "fibration" or (statement.module, names) == ("fractions", ["Fraction"])
            assert statement.module == "fractions" or set(names) <= set(fibration.__all__)
            assert names == sorted(names)
        else:
            assert isinstance(statement, ast.Assign), ast.unparse(statement)
            (target,) = statement.targets
            names = [n.id for n in (target.elts if isinstance(target, ast.Tuple) else [target])]  # type: ignore[attr-defined]
            for node in ast.walk(statement.value):
                assert not isinstance(node, ast.Name) or node.id in known or node.id == "float", node.id
                assert not isinstance(node, ast.Attribute) or node.attr in METHODS | FIELDS
        assert not known & set(names)
        known |= set(names)
    used = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    assert known - used <= {names[-1]}, "all but the hierarchy is used"


@functools.cache
def printed(name: str) -> str:
    """The module of a shipped loss."""
    return check(load(name))


def one(**changes: Any) -> Hierarchy:
    given = dict(name="one", gates={token: identity_gate()}, decomposition=ratio_deviation(), objective=token_mean())
    return Hierarchy(**{**given, **changes})


def from_json(**changes: Any) -> Hierarchy:
    document = json.loads(one(gates={token: clip_gate(Parameter("C", default=0.2))}).model_dump_json())
    return Hierarchy.model_validate({**document, **changes})


# ---------------------------------------------------------------- the same hierarchy


def test_every_shipped_loss_is_declared_by_its_text() -> None:
    for name in shipped():
        printed(name)


def test_specs_of_docs_and_of_new_projects_are_declared_by_their_texts(tmp_path: Path) -> None:
    check(load(Path(__file__).parents[2] / "docs" / "fiberpo_k.py"))
    init(tmp_path)
    for h in load_all(tmp_path / "specs"):
        check(h)


@pytest.mark.sampled
@pytest.mark.thorough
@pytest.mark.parametrize("module", every.MODULES)
def test_hierarchies_of_tests_are_declared_by_their_texts(module: str) -> None:
    found = list(every.hierarchies_of(module))
    assert found
    for h in found:
        check(h)


@pytest.mark.parametrize("family", every.FAMILIES)
def test_random_hierarchies_are_declared_by_their_texts(family: str) -> None:
    for seed in range(3 if thorough.LEVEL == "few" else 60):
        check(every.FAMILIES[family](seed))


def test_a_printed_module_is_loaded_like_any_spec(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(python(load("gspo_token")))
    assert load(file) == load("gspo_token")


def test_the_kernels_of_a_printed_module_are_the_same() -> None:
    for name in ("ppo", "fiberpo_domain", "grpo_k3"):
        h = load(name)
        assert generate(declared(python(h)), "torch").source == generate(h, "torch").source


@pytest.mark.thorough
def test_the_text_is_the_same_in_every_process() -> None:
    names = ("fiberpo_crossed", "gspo_token", "pass_at_k")
    code = (
        f"import fibration.printing.python as p, fibration as f\nfor n in {names}: print(p.python(f.load(n)), end='')"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert texts == {"".join(printed(name) for name in names)}


# ---------------------------------------------------------------- as it would be written


def test_a_plain_loss_is_printed_as_it_is_written() -> None:
    written = re.search(r"^dapo = .*?^\)$", shipped_file("dapo").read_text(), re.MULTILINE | re.DOTALL)
    assert written is not None
    code = written[0].replace("(low, dapo_high)", "(epsilon_low, epsilon_high)")
    assert python(load("dapo")).endswith(f"\n{code}\n")


def test_helpers_of_advantages_are_recognised() -> None:
    group = dict(over=prompt_group)
    for advantages, written in (
        (centred(reward, **group), "centred(reward, over=prompt_group)"),
        (centred(reward, **group, leave_one_out=True), "centred(reward, over=prompt_group, leave_one_out=True)"),
        (standardised(reward, **group), "standardised(reward, over=prompt_group)"),
        (standardised(reward, **group, epsilon=0.01), "standardised(reward, over=prompt_group, epsilon=0.01)"),
        (standardised(reward - 1, **group, of=token), "standardised(reward - 1, over=prompt_group, of=token)"),
        (reward - mean(reward, **group), "reward - mean(reward, over=prompt_group)"),
        (
            reward - mean(2 * reward, **group, of=trajectory),
            "reward - mean(2 * reward, over=prompt_group, of=trajectory)",
        ),
    ):
        text = check(one(groups=[prompt_group], advantages=advantages))
        assert f"    advantages={written},\n" in text


def test_parts_that_occur_twice_have_a_variable() -> None:
    rho = exp(log_prob(old) - log_prob(rollout))
    text = check(one(objective=token_mean().weigh(minimum(rho, 2)).keep(rho <= 5)))
    assert "\nold_by_rollout = exp(log_prob(old) - log_prob(rollout))\n" in text
    assert "objective=token_mean().weigh(minimum(old_by_rollout, 2)).keep(old_by_rollout <= 5),\n" in text


def test_lines_are_short_and_imports_sorted(tmp_path: Path) -> None:
    texts = {name: printed(name) for name in shipped()}
    assert max(len(line) for text in texts.values() for line in text.splitlines()) <= WIDTH
    for name, text in texts.items():
        (tmp_path / f"{name}.py").write_text(text)
    check = ["check", "--select", "E,F,I", "--isolated", "--line-length", str(WIDTH), str(tmp_path)]
    done = subprocess.run([sys.executable, "-m", "ruff", *check], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_shipped_files_hold_nothing_that_cannot_be_printed() -> None:
    """Every name that a family's file imports is imported by the printed form of one of its losses."""

    def imported(code: str) -> set[str]:
        return {a.name for n in ast.parse(code).body if isinstance(n, ast.ImportFrom) for a in n.names}

    of_family = defaultdict[Path, set[str]](set)
    for name in shipped():
        of_family[shipped_file(name)] |= imported(printed(name))
    for file, names in of_family.items():
        assert imported(file.read_text()) - {"load"} <= names, file


# ---------------------------------------------------------------- awkward names, numbers and texts


def test_names_that_python_or_fibration_has_taken_get_an_underscore() -> None:
    clip_gate_, ratio = strata("clip_gate ratio")
    p, q = Parameter("range", default=0.2, upper=1), Parameter("mine", default=0.3)
    (uniform,) = policies("uniform")
    r = exp(log_prob(uniform) - log_prob(old))
    h = Hierarchy(
        name="mine",
        gates={clip_gate_: fibration.pessimistic_clip_gate(p, q)},
        decomposition=ratio_deviation(),
        objective=token_mean().weigh(mean(r, over=ratio)).keep(r <= 2),
        rows=ratio,
    )
    text = check(h)
    assert 'clip_gate_, ratio = strata("clip_gate ratio")' in text
    assert 'range_ = Parameter("range", default=0.2, upper=1)' in text
    assert 'mine_ = Parameter("mine", default=0.3)' in text
    assert "\nmine = Hierarchy(\n" in text


@pytest.mark.parametrize(
    "formula",
    [
        "1/2*residual", "residual*(1/3)", "1/3 + 0*residual", "residual*(1/3 + 0)", "-(1/3)*residual", "where(1/3 < residual, 1, 2)", "2/4*residual", "(1 + 2)*residual", "residual*2**3", "-(1/2)*residual",
        "where(0 < residual, 1, 2)*residual", "where(1 < 2, residual, 0)", "0.1234567890123456789*residual",
        "12345678901234567890*residual", "1e30*residual", "3e-300*residual", "residual - -2", "(-2)*residual",
        "-residual**2", "(-residual)**2", "residual - (residual - (residual - 1))", "residual/(residual/C)",
        "where((residual > 0) & ((residual < 1) | ~(residual < 2)), residual, -(residual + 1))",
        "where(((residual > 0) & (residual < 1)) & (residual < 3), residual, abs(residual))",
        "total(1, over=token)*residual",
    ],
)  # fmt: skip
def test_formulas_of_json_keep_their_structure(formula: str) -> None:
    check(from_json(gates={"token": formula}, parameters=[{"name": "C", "default": 0.1}] if "C" in formula else []))


def test_reasons_are_quoted(tmp_path: Path) -> None:
    reasons = [
        '"""\n', "'", '"', "\\", """'' "" \\' \\" '""",
        "a\r\n\0\x7f\u202e\u2028\xa0", "} = __import__('os')", "long " * 199, "x" * 999,
    ]  # fmt: skip
    for reason in reasons:
        text = check(one(gives_up={"inward": reason, f"baseline of {reason[:20]}": "why"}))
        assert all(line.isprintable() for line in text.split("\n"))
        (tmp_path / "mine.py").write_text(text, encoding="utf-8")


@thorough.examples(120)
@given(st.text() | st.text("'\"\\ a"), st.integers(0, 80))
def test_a_quotation_has_the_value_of_its_text(text: str, indent: int) -> None:
    assert ast.literal_eval(quoted(text)) == text
    assert quoted(text).isprintable()
    whole = laid(quoted(text), indent)
    assert ast.literal_eval(f"({whole})") == text
    assert max(map(len, whole.split("\n")[1:]), default=0) <= max(WIDTH, indent + 16)


def test_parameters_and_attributes_keep_every_field() -> None:
    p = Parameter("p", default={"+": 0.25, "-": 1.0}, lower=None, upper=1e20, per_channel=True, on=trajectory)
    q = Parameter("q", lower=-1.5)
    a = fibration.Attribute("a", on=token, positive=False, lower=-1e-9, upper=2)
    two = fibration.Fibration(token, trajectory, kernel=fibration.uniform())
    gates = {trajectory: clip_gate(p), token: Gate(residual * a * q)}
    h = Hierarchy(
        name="h", fibrations=[two], gates=gates, decomposition=fibration.signed_log_ratio(), objective=trajectory_mean()
    )
    text = check(h)
    fields = text.partition("p = Parameter(")[2].partition("\n)")[0]
    assert (
        fields.split()
        == '"p", default={"+": 0.25, "-": 1}, lower=None, upper=1e20, per_channel=True, on=trajectory,'.split()
    )
    assert 'q = Parameter("q", lower=-1.5)' in text
    assert 'a = Attribute("a", on=token, positive=False, lower=-1e-9, upper=2)' in text


def test_long_names_leave_lines_short() -> None:
    rows, *_ = strata(" ".join(f"{letter}{'x' * 62}" for letter in "abc"))
    bounds = [Parameter(f"p{k}{'y' * 60}", default=0.1) for k in range(3)]
    gate = fibration.dual_clip_gate(*bounds)
    (current,) = policies("current")
    many = strata(" ".join(f"stratum_of_many_{k}" for k in range(9)))
    h = one(
        gates={token: gate.per(2)}, rows=rows, groups=many, penalties={"z" * 63: bounds[0] * log_prob(current) ** 2}
    )
    lines = check(h).splitlines()
    assert max(map(len, lines)) <= WIDTH + 40, "a name that is declared is 63 characters long, twice"
    assert max(len(line) for line in lines if "y" * 60 not in line) <= WIDTH


def test_a_method_of_a_long_call_leaves_lines_short() -> None:
    a, b, c, d = (Parameter(f"bound_{k}_of_{'y' * 8}", default=0.1) for k in range(4))
    check(one(gates={token: fibration.pessimistic_clip_gate(a * b, c * d).per(2)}))


@pytest.mark.parametrize(
    "deeper", [lambda g, k: minimum(k, g), lambda g, k: k - g * (k + residual), lambda g, k: k + g]
)
def test_deep_formulas_leave_lines_short(deeper: Any) -> None:
    formula = residual
    for k in range(45):
        formula = deeper(formula, k)
    check(one(gates={token: Gate(formula)}))


def test_weights_of_kernels_and_objectives_may_be_made_of_others() -> None:
    half = (fibration.uniform().weight + fibration.proportional(count(token) + 1).weight) / 2
    two = fibration.Fibration(token, trajectory, kernel=fibration.MarkovKernel(half))
    gates = {s: identity_gate() for s in (token, trajectory)}
    text = check(one(fibrations=[two], gates=gates, objective=fibration.Objective(token_mean().weight / 2)))
    assert "kernel_of_token = (uniform().weight + proportional(count(token) + 1).weight) / 2" in text
    assert "objective=Objective(token_mean().weight / 2)" in text
    check(one(objective=fibration.Objective(2 * fibration.constant_normaliser(Parameter("length", default=9)).weight)))


def test_strata_of_a_kernel_that_json_calls_source_and_target_are_named() -> None:
    document = json.loads(load("fiberpo_inward_clip").model_dump_json())
    document["fibrations"][0]["kernel"] = "MarkovKernel(2/(2*count(source, over=target)))"
    placed = Hierarchy.model_validate(document)
    again = declared(python(placed))
    assert "MarkovKernel(2 / (2 * count(token, over=trajectory)))" in python(placed)
    assert [f.weight for f in again.fibrations] == [f.weight for f in placed.fibrations]


def test_places_without_a_public_name_are_refused() -> None:
    with pytest.raises(SpecError, match="a formula of 'one' counts 'leaf', which has no public name"):
        python(one(objective=fibration.Objective(2 / token_mean().weight.arguments[1])))


def test_a_constructor_of_another_package_is_refused() -> None:
    def theirs(bound):  # type: ignore[no-untyped-def]
        return Gate(minimum(residual, bound))

    made = constructor(Gate, examples=())(theirs)
    try:
        with pytest.raises(SpecError, match=r"theirs\(...\).*no public name") as found:
            python(one(gates={token: made(0.5)}))
        assert "Gate(...)" in found.value.remedy
    finally:
        del CONSTRUCTORS["theirs"]


# ---------------------------------------------------------------- the command


def test_the_page_shows_the_module_that_is_printed() -> None:
    page = Path(__file__).parents[2] / "docs" / "how-to" / "own_loss.md"
    assert f"```python\n{python(load('dapo'))}```" in page.read_text()


def test_show_prints_the_module(tmp_path: Path) -> None:
    file = tmp_path / "h.json"
    file.write_text(load("fiberpo_turns").model_dump_json())
    for asked in ("fiberpo_turns", str(file)):
        done = CliRunner().invoke(app, ["show", asked, "--format", "python"])
        assert (done.exit_code, done.stdout) == (0, python(load("fiberpo_turns")))
