"""The expression language: values of operators and sugar, also at their breakpoints, and refused expressions."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles.definition import Dual, Formulas
from support import token

from fibration import (
    Gate,
    Parameter,
    SpecError,
    absolute,
    clip,
    count,
    exp,
    log,
    maximum,
    minimum,
    residual,
    sigmoid,
    sign,
    softplus,
    where,
)
from fibration.language.exact import NoValue, TooLarge
from fibration.language.expressions import Apply, Number, apply, as_expression
from fibration.language.operators import OPERATORS, Sugar
from fibration.language.traversal import atoms, desugar, evaluate, substitute, transform

C = Parameter("C", default=0.5)
k = Parameter("k", default=3)
HALF = Fraction(1, 2)


def value(expression, **values):
    return evaluate(expression, {residual: values.get("r"), C: values.get("c", HALF), k: values.get("k", Fraction(3))})


# ---------------------------------------------------------------- values


@pytest.mark.parametrize(
    ("expression", "r", "expected"),
    [
        (residual + 1, 2, 3),
        (1 + residual, 2, 3),
        (residual - 1, 2, 1),
        (1 - residual, 2, -1),
        (residual * 3, 2, 6),
        (3 * residual, 2, 6),
        (residual / 4, 2, HALF),
        (4 / residual, 2, 2),
        (residual**3, -2, -8),
        (-residual, 2, -2),
        (where(residual > 0, 1, 2), 0, 2),
        (where(residual >= 0, 1, 2), 0, 1),
        (where(residual < 0, 1, 2), 0, 2),
        (where(residual <= 0, 1, 2), 0, 1),
        (where((residual > 0) & (residual < 1), 1, 2), HALF, 1),
        (where((residual > 0) & (residual < 1), 1, 2), 1, 2),
        (where((residual < 0) | (residual > 1), 1, 2), 2, 1),
        (where((residual < 0) | (residual > 1), 1, 2), 1, 2),
        (where(~(residual < 0), 1, 2), 0, 1),
    ],
    ids=str,
)
def test_operators_have_their_values(expression, r, expected):
    assert value(expression, r=Fraction(r)) == expected
    assert value(desugar(expression), r=Fraction(r)) == expected


def test_where_evaluates_only_the_branch_it_takes():
    assert value(where(residual > 0, log(residual), 1 / (residual + 1)), r=Fraction(0)) == 1
    with pytest.raises(NoValue):
        value(where(residual > 0, 1, 1 / residual), r=Fraction(0))


def squared(e, times):
    return e if times == 0 else squared(e * e, times - 1)


@pytest.mark.parametrize(
    "expression",
    [
        exp(residual + 10**30),
        exp(residual - 10**30),
        exp(200_000 - residual),
        softplus(residual + 10**30),
        sigmoid(residual - 10**30),
        squared(10**299 + residual, 9),
        squared(10**299 + residual, 5) ** 16,
        1 / squared(Fraction(1, 10**299) + residual, 9),
    ],
)
def test_a_value_of_too_many_digits_raises(expression):
    with pytest.raises(TooLarge, match="262144 binary digits"):
        value(expression, r=Fraction(0))
    assert not issubclass(TooLarge, NoValue)


@pytest.mark.parametrize("error", [TypeError, KeyError, AttributeError, ZeroDivisionError])
def test_an_exception_of_an_atom_is_raised_unchanged(error):
    def broken(_):
        raise error("planted")

    with pytest.raises(error, match="planted"):
        evaluate(1 / residual, broken)


def test_floats_count_as_the_decimals_they_print_as():
    assert as_expression(0.1) == Number(Fraction(1, 10))
    assert str(residual * 0.1) == "residual*0.1"


def test_a_fraction_without_a_finite_decimal_form_stays_exact():
    third = as_expression(Fraction(1, 3))
    assert isinstance(third, Apply)
    assert evaluate(third, {}) == Fraction(1, 3)


def test_a_formula_prints_as_it_was_written():
    written = C - k * (abs(residual) - C)
    assert str(written) == "C - k*(abs(residual) - C)"
    assert str((k + 1) * C - k * residual) == "(k + 1)*C - k*residual"
    assert str(residual - (C - k)) == "residual - (C - k)"
    assert str(residual / (C / k)) == "residual/(C/k)"


def test_structure_decides_equality_and_hash():
    assert residual + C == residual + C
    assert hash(residual + C) == hash(residual + C)
    assert residual + C != C + residual
    assert residual - C != residual + C
    assert len({residual * 2, residual * 2, residual * 3}) == 2
    assert Gate(residual) == Gate(residual) != Gate(residual * 1)


# ---------------------------------------------------------------- sugar at its breakpoints


def slope(expression, r, c=HALF):
    """The declared derivative in the residual, from the expansion into `where` alone."""
    run = Formulas()
    return run(desugar(expression), lambda a: Dual(Fraction(r), Fraction(1)) if a == residual else Dual(c)).slope


@pytest.mark.parametrize(
    ("expression", "r", "expected"),
    [
        (clip(residual, -C, C), HALF, 1),
        (clip(residual, -C, C), -HALF, 1),
        (clip(residual, -C, C), HALF + Fraction(1, 10**9), 0),
        (abs(residual), 0, 1),
        (sign(residual), 0, 0),
        (minimum(residual, C), HALF, 1),
        (minimum(C, residual), HALF, 0),
        (maximum(residual, C), HALF, 1),
        (maximum(C, residual), HALF, 0),
        (where(residual >= 0, residual, 0), 0, 1),
        (where(residual > 0, residual, 0), 0, 0),
    ],
    ids=str,
)
def test_the_branch_that_holds_at_a_breakpoint_is_differentiated(expression, r, expected):
    assert slope(expression, r) == expected


def test_desugar_leaves_only_where_and_arithmetic():
    sugar = {name for name, row in OPERATORS.items() if isinstance(row, Sugar)}
    assert sugar == {"abs", "sign", "minimum", "maximum", "clip"}
    expression = desugar(clip(minimum(abs(residual), C), sign(residual), maximum(C, k)))

    def operators(e):
        return {e.operator}.union(*(operators(a) for a in e.arguments)) if isinstance(e, Apply) else set()

    assert not operators(expression) & sugar


# ---------------------------------------------------------------- walking


def test_atoms_come_once_in_order():
    assert list(atoms(C * residual + count(token) * C - residual)) == [C, residual, count(token)]


def test_substitution_is_simultaneous():
    swapped = substitute(residual - C, {residual: C, C: residual})
    assert swapped == C - residual
    assert substitute(residual + 1, {residual: 2 * residual}) == 2 * residual + 1


def test_transform_keeps_what_it_does_not_change():
    expression = where(residual > C, residual, C)
    assert transform(expression, lambda a: a) is expression


numbers = st.fractions(min_value=-9, max_value=9, max_denominator=16)


@given(numbers, numbers)
def test_sugar_agrees_with_python(a, b):
    low, high = min(a, b), max(a, b)
    x, y = as_expression(a), as_expression(b)
    for expression, expected in (
        (minimum(x, y), low), (maximum(x, y), high), (abs(x), abs(a)), (absolute(x), abs(a)), (sign(x), (a > 0) - (a < 0)),
        (clip(x, as_expression(low), as_expression(high)), a), (clip(2 * high, low, as_expression(high)), min(max(2 * high, low), high)),
    ):  # fmt: skip
        assert value(expression) == value(desugar(expression)) == expected


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize("wrong", [True, None, "residual", [1], 1j, object(), math.inf, -math.inf, math.nan, 10**400])
def test_only_finite_numbers_and_expressions_are_operands(wrong):
    for build in (
        lambda: residual + wrong,
        lambda: wrong * residual if not isinstance(wrong, list) else residual * wrong,
    ):
        with pytest.raises((SpecError, TypeError)) as caught:
            build()
        assert isinstance(caught.value, SpecError)


@pytest.mark.parametrize("exponent", [0, -1, 17, 0.5, True, 2.0, Fraction(2), residual])
def test_powers_are_whole_and_small(exponent):
    with pytest.raises(SpecError, match="cannot raise residual to the power") as caught:
        residual**exponent
    assert caught.value.required == "a whole exponent from 1 to 16"


def test_conditions_stand_only_where_conditions_belong():
    with pytest.raises(SpecError, match=r"argument 1 of '\+' is residual < 1"):
        (residual < 1) + 1
    with pytest.raises(SpecError, match="argument 1 of 'where' is residual"):
        where(residual, 1, 2)
    with pytest.raises(SpecError, match="argument 2 of 'and' is residual"):
        (residual < 1) & residual
    with pytest.raises(SpecError, match="argument 1 of 'not' is residual"):
        ~residual
    with pytest.raises(SpecError, match="a gate cannot be the condition"):
        Gate(residual < 1)


def test_arity_is_checked():
    with pytest.raises(SpecError, match="'clip' takes 3 arguments, got 2"):
        apply("clip", residual, 1)


def test_an_expression_that_is_too_large_is_refused():
    deep = residual
    with pytest.raises(SpecError, match="too large") as caught:
        for _ in range(200):
            deep = exp(deep)
    assert "at most 100 levels" in caught.value.required
    wide = residual
    with pytest.raises(SpecError, match="too large"):
        for _ in range(20):
            wide = wide * wide


def test_powers_of_powers_count_as_the_products_they_are():
    """The short text `((x**16)**16)**16` stands for a product of 4096 factors."""
    assert (residual**16).size == 17
    with pytest.raises(SpecError, match="too large"):
        ((residual**16) ** 16) ** 16


def test_expressions_are_immutable():
    with pytest.raises(AttributeError):
        (residual + 1).operator = "-"
    with pytest.raises(AttributeError):
        as_expression(1).value = 2
