"""Formulas and constructors as text: printed text reads back equal, and no other text is read or run."""

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import token, trajectory
from thorough import ALL

from fibration import (
    Attribute,
    Gate,
    Parameter,
    SpecError,
    advantage,
    aggregate_gate,
    clip_gate,
    count,
    density,
    gated,
    residual,
    token_log_ratio,
    total,
    where,
)
from fibration.language.atoms import SOURCE, TARGET
from fibration.language.expressions import apply, as_expression
from fibration.language.grammar import CONSTRUCTORS, construct, parse
from fibration.language.operators import OPERATORS

C = Parameter("C", default={"+": 0.2, "-": 0.1}, per_channel=True)
epsilon = Parameter("epsilon", default=0.05, upper=1)
weight = Attribute("weight", on=token)
NAMES = {
    "source": SOURCE, "target": TARGET, "token": token, "trajectory": trajectory,
    "C": C, "epsilon": epsilon, "weight": weight,
}  # fmt: skip


# ---------------------------------------------------------------- text of expressions

numbers = st.one_of(
    st.integers(-20, 20),
    st.decimals(min_value=-100, max_value=100, places=3, allow_nan=False).map(lambda d: Fraction(Decimal(d))),
    st.floats(allow_nan=False, allow_infinity=False, min_value=1e-200, max_value=1e200),
    st.sampled_from([Fraction(1, 3), Fraction(-22, 7), Fraction(1, 2**70), 10**40, Fraction(1, 10**250)]),
).map(as_expression)
ATOMS = [
    residual, advantage, token_log_ratio, C, epsilon, weight, count(token), count(token, over=trajectory),
    count(SOURCE, over=TARGET), total(weight), total(weight, over=trajectory), density(trajectory),
    density(trajectory, "+"), gated("-"), gated(""),
]  # fmt: skip
values = st.deferred(lambda: st.one_of(numbers, st.sampled_from(ATOMS), applications))
conditions = st.deferred(
    lambda: st.one_of(
        st.builds(apply, st.sampled_from(["<", "<=", ">", ">="]), values, values),
        st.builds(apply, st.sampled_from(["and", "or"]), conditions, conditions),
        st.builds(apply, st.just("not"), conditions),
    )
)
ONE_ARGUMENT, TWO_ARGUMENTS, THREE_ARGUMENTS = (
    [name for name, row in OPERATORS.items() if row.arity == n and not row.is_condition and name not in ("**", "where")]
    for n in (1, 2, 3)
)
applications = st.one_of(
    st.builds(apply, st.sampled_from(TWO_ARGUMENTS), values, values),
    st.builds(apply, st.sampled_from(ONE_ARGUMENT), values),
    st.builds(lambda e, n: e**n, values, st.integers(1, 2)),
    st.builds(where, conditions, values, values),
    st.builds(apply, st.sampled_from(THREE_ARGUMENTS), values, values, values),
)


@settings(max_examples=400 if ALL else 150)
@given(values)
def test_reading_what_was_written_gives_the_same_expression(e):
    text = str(e)
    assert parse(text, NAMES) == e
    assert str(parse(text, NAMES)) == text


@settings(max_examples=100 if ALL else 40)
@given(conditions)
def test_reading_a_written_condition_gives_the_same_condition(c):
    assert parse(f"where({c}, 1, 0)", NAMES) == where(c, 1, 0)


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("1 - 2 - 3", as_expression(1) - 2 - 3),
        ("C/epsilon/2", C / epsilon / 2),
        ("C*(epsilon + 2)", C * (epsilon + 2)),
        ("-C**2", -(C**2)),
        ("(-C)**2", (-C) ** 2),
        ("-2**2", -(as_expression(2) ** 2)),
        ("(-2)**2", as_expression(-2) ** 2),
        ("2*-C", 2 * -C),
        ("- - C", apply("neg", apply("neg", C))),
        ("C - -1", C - as_expression(-1)),
        (".5 + 1.e1 + 2E-1", as_expression(Fraction(1, 2)) + 10 + as_expression(Fraction(1, 5))),
        ("where(C < 1 & epsilon > 2 | ~(C >= 3), 1, 2)", where(((C < 1) & (epsilon > 2)) | ~(C >= 3), 1, 2)),
        ("\n C\t+ 1 ", C + 1),
        ("count(token,over=trajectory)", count(token, over=trajectory)),
        ('density(trajectory, "+")', density(trajectory, "+")),
    ],
)
def test_operators_have_the_precedence_of_python(text, meaning):
    assert parse(text, NAMES) == meaning


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("where(0 < C < 1, 1, 2)", "'0 < C < 1' at character 7: "),  # comparisons do not chain
        ("C*(epsilon + * 2)", "'*' at character 14: "),
        ("C + ", "the end at character 5: "),
        ("C and epsilon", "'and' at character 3: "),
        ("clip_gate(C", "'(' at character 10: '(' was never closed"),
        ("C*(abs)(C)", "'(abs)(C)' at character 3: "),
        ("C*count(**C)", "'count(**C)' at character 3: "),
        ("C + -" + "9" * 1001, f"'{'9' * 37}...' at character 6: a number of 1001 characters"),
        ("-" * 101 + "C", "'C' at character 102: more than 100 operations in one another"),
    ],
)
def test_an_error_names_the_fault_and_its_place(text, found):
    with pytest.raises(SpecError, match="cannot be read") as caught:
        parse(text, NAMES)
    assert caught.value.found.startswith(found)


# Some would do harm if they were run.
HOSTILE = [
    "__import__('os').system('x')", "lambda: 0", "(1).__class__", "().__class__.__bases__[0]", "f'{1}'", "[x for x in (1, 2)]",
    "{1: 2}", "residual if C else 1", "residual := 1", "residual; 1", "import os", "open('/etc/passwd')", "eval('1')",
    "print(1)", "abs.__call__(1)", "count.__globals__", "C.default", "token.name", "uniform().__class__", "where", "@C", "C!",
    "C $ 1", "1_000", "0x10", "1e", "1.2.3", '\x00', 'C\\n', '\ud800', "Ｃ", "１", "'C'", '"C"', "(", ")", "()", "C C", "C,",
    "abs()", "abs(C, C)", "abs(x=C)", "clip(C, 1)", "count()", "count(C)", "count(token, trajectory, token)",
    "count(token, over=C)", "count(token, over=trajectory, over=token)", "count(token, below=trajectory)",
    "count(over=trajectory, token)", "total(token)", "density(C)", "density(trajectory, 3)", 'density(trajectory, "x")',
    "gated(3)", 'gated("up")', "token", "source", "nothing", "C**-1", "C**(-1)", "C**0", "C**17", "C**0.5", "C**C", "C**1e3000",
    "1e301", "1e-301", "1e9999", "1e99999", "9" * 5000, "C < 1", "where(C, 1, 2)", "unknown(C)", "C(1)", "residual()", "",
    "   ",
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE, ids=lambda t: repr(t[:40]))
def test_text_that_is_no_formula_is_refused(text, capsys):
    with pytest.raises(SpecError) as caught:
        Gate(parse(text, NAMES))  # a condition is an expression, but no gate
    assert len(str(caught.value)) < 2000
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("wrong", [None, 1, b"C", ["C"], {"C": 1}, residual, 1.5])
def test_only_text_is_read(wrong):
    with pytest.raises(SpecError, match="required: text in the expression grammar"):
        parse(wrong, NAMES)


@pytest.mark.parametrize(
    "text",
    [
        "(" * 5000 + "C" + ")" * 5000,
        "(" * 300 + "C" + ")" * 300,
        "-" * 5000 + "C",
        "~" * 3000 + "(C < 1)",
        "+".join(["C"] * 4000),
        "C**2" * 2000,
        f"where({' & '.join(['C<1'] * 1200)}, 1, 0)",
        "abs(" * 2400 + "C" + ")" * 2400,
        "where(C < 1, " * 700 + "C" + ", 1)" * 700,
        "abs(" * 60 + "C" + ("+1" * 60 + ")") * 60,
        "C*(" * 2500 + "C" + ")" * 2500,
        "uniform()" + ".per(C)" * 1300,
        "identity_gate()" + ".per(C)" * 1300,
        "x" * 1_000_000,
        "C+" * 500_000,
        " " * 1_000_000,
        "(" * 1_000_000,
    ],
    ids=lambda t: f"{t[:12]}...{len(t)}",
)
def test_huge_text_is_refused(text):
    with pytest.raises(SpecError) as caught:
        construct(Gate, text, NAMES, "a gate", Gate)
    assert len(str(caught.value)) < 2000


def test_text_at_the_limit_is_read():
    text = "(" * 90 + "C" + ")" * 90
    assert parse(text, NAMES) == C
    assert parse("+".join(["C"] * 100), NAMES).depth == 99


# ---------------------------------------------------------------- constructors

EXAMPLE_NAMES = {
    **NAMES,
    **{n: Parameter(n, default=2.0, lower=1) for n in "k bound low high ceiling".split()},
    "measure": count(token),
}


def examples():
    return [pytest.param(c, text, id=text) for c in CONSTRUCTORS.values() for text in c.examples]


def test_every_constructor_has_an_example():
    assert all(c.examples for c in CONSTRUCTORS.values())


@pytest.mark.parametrize(("entry", "text"), examples())
def test_constructor_examples_round_trip(entry, text):
    names = dict(EXAMPLE_NAMES)
    made = construct(entry.kind, text, names, "an example")
    again = construct(entry.kind, repr(made), names, "an example")
    assert type(made) is entry.kind
    assert again == made
    assert hash(again) == hash(made)
    assert repr(again) == repr(made)
    assert again.model_dump() == made.model_dump()


@pytest.mark.parametrize(
    "made",
    [
        Gate(where(abs(residual) <= C, residual, 0)),
        clip_gate(epsilon).per(1 / count(token)).per(3),
        Gate(residual * 2).per(C),
        aggregate_gate(budget=C, rollback=count(token)),
        aggregate_gate(C, rollback=2.5),
    ],
    ids=repr,
)
def test_gates_print_as_written_and_read_back(made):
    assert construct(Gate, repr(made), NAMES, "a gate", Gate) == made


def test_per_scales_argument_and_result():
    assert Gate(residual**2 + C).per(4).expression == 4 * ((residual / 4) ** 2 + C)
    assert repr(clip_gate(epsilon).per(4)) == "clip_gate(epsilon).per(4)"
