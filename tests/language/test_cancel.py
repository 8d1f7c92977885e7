"""Cancelling: sizes cancel from a formula where possible, and no value changes."""

from fractions import Fraction

import pytest
from hierarchies.levels import one_level
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from support import operator, prompt_group, raw_programs, spec, token, trajectory

from fibration import Attribute, Gate, Parameter, aggregate_gate, count, exp, minimum, residual, total, where
from fibration.compiler.ir import Input, Key
from fibration.compiler.lower import lower
from fibration.language.exact import NoValue
from fibration.language.expressions import apply, as_expression
from fibration.language.strata import factors_over
from fibration.language.traversal import cancel, evaluate

M, T = count(trajectory), count(token)
C, k, eps = (Parameter(n, default=0.5) for n in ("C", "k", "eps"))
weight = Attribute("weight", on=token)


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("expression", "intended"),
    [
        ((M * residual) / M, residual),
        (M * (residual / M), residual),
        (residual / M * M, residual),
        ((M * residual) / (M * T), residual / T),
        ((residual / T) / (M / T), residual / M),
        (M / M, as_expression(1)),
        (M * M / M, M),
        (2 * residual / 2, residual),
        (residual * 0, as_expression(0)),
        (0 * residual + C, C),
        (C + 0 * residual, C),
        (0 * residual - C, -C),
        (M * residual - M * C, (residual - C) * M),
        (M * C - M * residual, (C - residual) * M),
        (M * residual + M * C, (residual + C) * M),
        ((M * residual - M * C) / M, residual - C),
        (M * minimum(residual / M, C), M * minimum(residual / M, C)),
        (-(-residual), residual),
        (M * residual - C / M, M * residual - C / M),
        (C - k * (abs(residual) - C), C - k * (abs(residual) - C)),
        ((1 + 1 / k) * C, (1 + 1 / k) * C),
        (exp(M * residual / M), exp(residual)),
        (where(M * residual / M > C, residual, 0), where(residual > C, residual, 0)),
        (M * where(residual > C, residual / M, 0), where(residual > C, residual, 0)),
        (where(residual > C, M * residual, 0) / M, where(residual > C, residual, 0)),
        (residual, residual),
        (residual / 3, residual / 3),
        (2 * residual / 3, 2 * residual / 3),
    ],
    ids=str,
)  # fmt: skip
def test_cancel_gives_the_intended_form(expression, intended):
    assert cancel(expression) == intended


def test_the_rollback_keeps_its_distance_from_the_budget():
    gate = aggregate_gate(C, rollback=k).per(M).expression
    assert "C - k*(" in str(cancel(gate))
    fiberpo = spec("fiberpo")
    body = next(n for n, name in lower(fiberpo).names.items() if name == Key("gated", "trajectory", "+")).body
    assert "sub(" in str(body)
    assert str(body).count("mul") == str(cancel(fiberpo.gate(trajectory))).count("*")


def test_sizes_cancel_from_shipped_gates():
    """theory: in intensive variables every gate of the paper is a plain scalar gate."""
    h = spec("fiberpo_domain")
    assert {s.name: str(m) for s, m in h.masses.items()} == {
        "domain": "count(trajectory, over=domain)",
        "prompt_group": "count(trajectory, over=prompt_group)",
        "trajectory": "1",
        "token": "1/count(token, over=trajectory)",
    }
    for name in ("fiberpo", "fiberpo_domain"):
        p = raw_programs(spec(name))["levels"]
        for s in spec(name).order[1:-1]:
            for channel in "+-":
                node = p.outputs[Key("gated", s.name, channel)]
                counts = [o for o in node.operands if isinstance(o, Input) and o.kind == "count"]
                assert "trajectory" not in {of for of, _ in (o.key for o in counts)}
        leaf = p.outputs[Key("gated", "token", "+")]
        assert not [o for o in leaf.operands if isinstance(o, Input) and o.kind == "count"]


SYMBOLS = [residual, C, k, M, T]
small = st.one_of(
    st.sampled_from(SYMBOLS), st.integers(-3, 3).map(as_expression), st.just(as_expression(Fraction(2, 5)))
)
formulas = st.recursive(
    small,
    lambda inner: st.one_of(
        st.builds(
            lambda op, a, b: {"+": a + b, "-": a - b, "*": a * b, "/": a / b}[op], st.sampled_from("+-*/"), inner, inner
        ),
        st.builds(lambda a: -a, inner),
        st.builds(lambda a, b: where(a <= b, a * b, b - a), inner, inner),
        st.builds(lambda a, b: where((a < b) | ~(a > 1), a, a / 3), inner, inner),
        st.builds(abs, inner),
        st.builds(lambda a: a**2, inner),
    ),
    max_leaves=14,
)
POINTS = [
    dict(zip(SYMBOLS, map(Fraction, row), strict=True))
    for row in (("1/3", "1/2", 3, 4, 9), (-2, "1/7", 5, 2, 3), (0, 1, 1, 1, 1), ("-1/2", "1/2", 2, 3, 5))
]


@settings(max_examples=400)
@given(formulas)
def test_cancelling_keeps_every_value(e):
    reduced = cancel(e)
    checked = 0
    for point in POINTS:
        try:
            before = evaluate(e, point)
        except NoValue:
            continue
        assert evaluate(reduced, point) == before
        checked += 1
    assume(checked)


@settings(max_examples=200)
@example(residual * apply("+", 0, 0.4))
@given(formulas)
def test_cancelling_twice_changes_nothing_more(e):
    once = cancel(e)
    assert cancel(once) == once


def test_a_sum_that_is_a_number_is_a_coefficient():
    assert cancel(residual * (0 + as_expression(0.4))) == cancel(residual * 0.4)


def test_cancelling_a_deep_sum_ends():
    e = residual
    for i in range(95):
        e = e + Parameter(f"p{i}")
    assert cancel(e) == e


def test_a_gate_of_many_terms_compiles():
    formula = residual
    for _ in range(40):
        formula = formula + C * (residual - residual)
    operator(one_level(Gate(formula)))


@pytest.mark.parametrize(
    ("weight_", "inside", "outside"),
    [
        (1 / count(token, over=trajectory), "1", "1/count(token, over=trajectory)"),
        (count(token, over=trajectory) / count(token, over=prompt_group), "count(token, over=trajectory)", "1/count(token, over=prompt_group)"),
        (total(weight, over=trajectory) / total(weight, over=prompt_group) / 2, "total(weight, over=trajectory)", "1/(2*total(weight, over=prompt_group))"),
    ],
)  # fmt: skip
def test_factors_that_are_constant_on_a_fibre_leave_the_sum(weight_, inside, outside):
    source = "token" if inside == "1" else "trajectory"
    assert tuple(map(str, factors_over(weight_, source))) == (inside, outside)
