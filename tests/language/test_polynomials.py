"""Quotients of polynomials against fractions: symbolic results have the same values as exact arithmetic."""

import math
from fractions import Fraction

import pytest
import sympy
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fibration import Parameter, count, strata
from fibration.language import polynomials
from fibration.language.polynomials import (
    Polynomial,
    TooLarge,
    as_quotient,
    constant,
    excesses,
    shifted,
    variable,
)
from fibration.language.sympy_bridge import atom_number, from_quotient, quotient, symbol, vanishes

NAMES = "abcd"
SYMBOLS = [symbol(Parameter(name)) for name in NAMES]
POINT = {s: Fraction(n, d) for s, n, d in zip(SYMBOLS, (3, -5, 7, 2), (2, 3, 1, 9), strict=True)}
VALUES = {atom_number(s): v for s, v in POINT.items()}
a, b, c, d = SYMBOLS

number = st.integers(-3, 3).map(sympy.Integer) | st.sampled_from([sympy.Rational(1, 2), sympy.Rational(-2, 7)])
formula = st.recursive(
    st.sampled_from(SYMBOLS) | number,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda p: p[0] + p[1]),
        st.tuples(inner, inner).map(lambda p: p[0] - p[1]),
        st.tuples(inner, inner).map(lambda p: p[0] * p[1]),
        st.tuples(inner, inner).map(lambda p: p[0] / p[1] if p[1] != 0 else p[0]),
        st.tuples(inner, st.integers(2, 3)).map(lambda p: p[0] ** p[1]),
    ),
    max_leaves=8,
)


def exact(value):
    """By sympy, on numbers alone."""
    found = value.xreplace({s: sympy.Rational(v.numerator, v.denominator) for s, v in POINT.items()})
    return Fraction(int(found.p), int(found.q)) if found.is_Rational else None


@settings(max_examples=150)
@given(formula)
def test_a_quotient_has_the_value_of_its_expression(value):
    wanted = exact(value)
    assume(wanted is not None)
    found = quotient(value)
    assert found.at(VALUES) == wanted
    assert exact(from_quotient(found)) == wanted


@settings(max_examples=100)
@given(formula, formula)
def test_a_quotient_that_is_0_for_all_values_is_found(x, y):
    assume(all(exact(v) is not None for v in (x, y)))
    assert vanishes((x + y) ** 2 - x**2 - 2 * x * y - y**2)
    assert vanishes(x - y) == (sympy.cancel(sympy.together(x - y)) == 0)


def test_common_factors_are_separated():
    assert quotient(a * b - a * c).factors == (quotient(a) * quotient(b - c)).factors
    assert quotient((a - b) / (b - a)).factors == {}
    assert quotient((2 * a + 2 * b) * (a + b) - 2 * (a + b) ** 2).number == 0
    assert quotient(a / (a + b) + b / (a + b)).factors == {}


def test_exponentials_are_powers():
    assert vanishes(sympy.exp(a) * sympy.exp(-a) - 1)
    assert vanishes((1 + sympy.exp(a)) ** 2 - 1 - 2 * sympy.exp(a) - sympy.exp(2 * a))
    assert vanishes(sympy.exp(a / 2 + b) ** 2 - sympy.exp(a) * sympy.exp(2 * b))
    assert not vanishes(sympy.exp(a) - sympy.exp(b))


def test_powers_of_roots_simplify():
    n = symbol(count(*strata("token trajectory")))
    assert vanishes(sympy.sqrt(n) ** 3 - n * sympy.sqrt(n))
    assert vanishes((1 + sympy.sqrt(n)) * (1 - sympy.sqrt(n)) - 1 + n)
    assert not vanishes(sympy.sqrt(n) - n)


@pytest.mark.parametrize("value", [sympy.oo, sympy.zoo, sympy.nan, sympy.log(0)])
def test_infinities_have_no_quotient(value):
    with pytest.raises(ValueError, match="has no value"):
        quotient(sympy.sympify(value))


def test_a_long_product_is_not_multiplied_out():
    """60 factors of two terms each: the expansion would have 2**60 terms."""
    names = [symbol(Parameter(f"{n}{i}")) for i in range(60) for n in "xy"]
    long = sympy.Mul(*(x + y for x, y in zip(names[::2], names[1::2], strict=True)))
    assert len(quotient(long).factors) == 60
    assert vanishes(long * a - long * b + long * (b - a))
    with pytest.raises(TooLarge):
        quotient(long - 1)
    assert not vanishes(long - 1), "what is too large is not said to vanish"


bounds = st.fractions(-3, 3, max_denominator=4)
monomial = st.lists(st.integers(0, 2), min_size=3, max_size=3)


@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(-4, 4), monomial), min_size=1, max_size=5), bounds, bounds, st.fractions(0, 5))
def test_an_atom_is_written_through_its_bounds(terms, low, high, t):
    """`shifted` returns a positive multiple of the polynomial, as a function of the `t` that stands for the atom."""
    p = sum((sympy.Mul(n, *(s**e for s, e in zip((a, b, c), m, strict=True))) for n, m in terms), a**2 - b)
    atom = atom_number(a)
    for f in quotient(p).factors:
        if not isinstance(f, Polynomial) or atom not in f.atoms:
            continue
        degree = max(f.powers(atom))
        for lower, upper in ((low, None), (None, high), (low, high)):
            ends = [None if end is None else (constant(end.numerator), end.denominator) for end in (lower, upper)]
            unit = math.lcm(*(end[1] for end in ends if end))  # that `t` counts in, of one bound alone
            at = low + t / unit if upper is None else high - t / unit if lower is None else (low + high * t) / (1 + t)
            multiple = unit**degree * ((1 + t) ** degree if None not in ends else 1)
            found = sum(q.at(VALUES) * t**k for k, q in enumerate(shifted(f, atom, *ends)))
            assert found == multiple * f.at({**VALUES, atom: at})


def test_excesses_write_a_multiple_of_a_polynomial_as_another_plus_few_terms():
    p, q = (quotient(v) for v in (2 * a - 4 * b + 6, a - 2 * b - 5))
    [first], [second] = p.factors, q.factors
    [(k, rest)] = excesses(first, second)
    assert not rest.atoms
    assert all(first.at(v) == k * second.at(v) + rest.at(v) for v in (VALUES, dict.fromkeys(VALUES, Fraction(1))))
    assert [(k, rest.terms) for k, rest in excesses(first, first)] == [(1, {})]
    assert not list(excesses(first, next(iter(quotient(a - 3 * b).factors))))
    assert not list(excesses(variable(0) + constant(1), variable(1) + constant(1)))
    [(k, rest)] = excesses(variable(0) + constant(1), variable(0) + variable(1) + constant(1))
    assert (k, rest) == (1, -variable(1))


def test_a_polynomial_is_split_by_powers_of_an_atom():
    [p] = quotient(a**2 * b + a * c - b + 1).factors
    atom = atom_number(a)
    again = [as_quotient(q) * polynomials.power(atom, n) for n, q in p.powers(atom).items()]
    assert polynomials.total(again).factors == {p: 1}
    assert p.without([atom]).atoms == {atom_number(b)}
