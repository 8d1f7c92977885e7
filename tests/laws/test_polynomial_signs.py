"""Signs by whole numbers, squares, roots and ranges: right on values, and undecided just beyond the exact bound."""

import random
from fractions import Fraction

import pytest
import sympy
from hierarchies.builders import chain, prompt_group, token, trajectory

from fibration import Attribute, Parameter, count, maximum, residual, sqrt, total, uniform, where
from fibration.language.operators import ANY, NOT_ZERO, POSITIVE
from fibration.language.sympy_bridge import symbol, to_sympy
from fibration.laws.signs.assumptions import Assumptions
from fibration.laws.signs.branches import cases

SHAPE = chain(uniform(), uniform()).shape
T, M, TG = count(token, over=trajectory), count(trajectory, over=prompt_group), count(token, over=prompt_group)
SHARE = Attribute("share", on=token, upper=1)
LEVEL = Attribute("level", on=trajectory, positive=False, lower=-0.5, upper=0.25)
PRICE = Attribute("price", on=token, lower=2)
CLIP, ANYTHING, ABOVE = Parameter("small", upper=1), Parameter("anything", lower=None), Parameter("above")
NUMBERS = {
    SHARE: ("1/100", "1/4", "1/2", "3/4", "1"),
    LEVEL: ("-1/2", "-1/4", "0", "1/8", "1/4"),
    PRICE: ("2", "5/2", "3", "40"),
    CLIP: ("1/100", "1/4", "1/2", "99/100"),
    ANYTHING: ("-7", "-1", "-1/2", "0", "1/3", "1", "4"),
    ABOVE: ("1/100", "1/2", "1", "9"),
}


def values(rng):
    sizes = [rng.randint(1, 6) for _ in range(rng.randint(1, 3))]
    counts = {T: sizes[0], M: len(sizes), TG: sum(sizes)}
    return {symbol(a): sympy.Rational(rng.choice(n)) for a, n in NUMBERS.items()} | {
        symbol(a): sympy.Integer(n) for a, n in counts.items()
    }


def formulas(rng):
    """Polynomials that touch 0, cross it or just miss it."""
    a, b = (to_sympy(rng.choice([T, M, TG, *NUMBERS])) for _ in range(2))
    c, d = (sympy.Rational(rng.randint(-2, 8), rng.choice([1, 2, 4])) for _ in range(2))
    miss = rng.choice([0, 0, sympy.Rational(1, 100), sympy.Rational(-1, 100), 1])
    return rng.choice([
        (a - c) * (a - d) + miss, (a - c) ** 2 + miss, (a - b) * (a - b - 1) + miss, (a - c * b) ** 2 + miss,
        (a - c) * (b - d), (a - c) ** 2 * (a - d) + miss, a * a - 2 * c * a + d + (b - d) ** 2, a - c * b,
        sympy.sqrt(a * a + b * b + 1) - a - miss, sympy.sqrt(1 + c**2 * b**2) - 1 - miss, c - sympy.sqrt(d**2 + a**2 / 4),
        b * sympy.sqrt(1 + a**2) - b * a, a**4 - a + miss,
    ])  # fmt: skip


def test_polynomial_signs_contain_the_signs_of_values():
    rng = random.Random(3)
    samples, known = [values(rng) for _ in range(25)], Assumptions(SHAPE)
    decided = 0
    for _ in range(100):
        value, other = formulas(rng), formulas(rng)
        seen = {}
        for v in samples:
            first, second = (int(sympy.sign(e.xreplace(v))) for e in (other, value))
            seen.setdefault(first, set()).add(second)
        said = known.signs(value)
        assert set().union(*seen.values()) <= said, value
        decided += said != ANY
        for sign, found in seen.items():
            assert found <= known.with_signs({other: frozenset({sign})}).signs(value), (value, other, sign)
    assert decided > 30


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ((T - 3) * (T - 4), {0, 1}),
        ((T - 3) * (T - 5), ANY),
        ((T - 3) * (T - 4) + Fraction(1, 10), {1}),
        ((2 * T - 5) * (T - 3), {0, 1}),
        (2 * T - 3, NOT_ZERO),
        ((TG - M) * (TG - M - 1), {0, 1}),
        ((TG - M) * (TG - M - 2), ANY),
        (T * T - 4 * T + 5, {1}),
        (T * T - 4 * T + 4, {0, 1}),
        (T * T - 4 * T + 3, ANY),
        (LEVEL * LEVEL - LEVEL + 1, {1}),
        (LEVEL * LEVEL - Fraction(1, 2) * LEVEL + Fraction(1, 16), {0, 1}),
        (ANYTHING * ANYTHING + ANYTHING * T + T * T, {1}),
        (ANYTHING * ANYTHING + 2 * ANYTHING * T + T * T, {0, 1}),
        (ANYTHING * ANYTHING + 3 * ANYTHING * T + T * T, ANY),
        (ANYTHING**4 - ANYTHING + 1, {1}),
        (CLIP * CLIP - CLIP + Fraction(1, 4), {0, 1}),
        (CLIP * CLIP - CLIP + Fraction(26, 100), {1}),
        (1 - SHARE, {0, 1}),
        (SHARE, {1}),
        (SHARE - Fraction(101, 100), {-1}),
        (SHARE * CLIP - 1, {-1}),
        (SHARE * (1 + ABOVE) - 1, ANY),
        (LEVEL - Fraction(1, 4), {-1, 0}),
        (LEVEL + Fraction(1, 2), {0, 1}),
        ((LEVEL + Fraction(1, 2)) * (Fraction(1, 4) - LEVEL), {0, 1}),
        (LEVEL + Fraction(1, 2) + CLIP, {1}),
        (1 - 4 * LEVEL + CLIP, {1}),
        (PRICE - 2, {0, 1}),
        (1 / (PRICE - 1), {1}),
        (total(PRICE, over=trajectory) - 2 * T, {0, 1}),
        (T - total(SHARE, over=trajectory), {0, 1}),
        (T - 1 - total(SHARE, over=trajectory), ANY),
        (sqrt(1 + 4 * CLIP) - 1, {1}),
        (sqrt(1 + 4 * CLIP / SHARE) - sqrt(1 + CLIP), {1}),
        (1 - sqrt(1 - CLIP), {1}),
        (sqrt(1 + ANYTHING * ANYTHING) + ANYTHING, {1}),
        (sqrt(ANYTHING * ANYTHING) + ANYTHING, ANY),
        (sqrt(T) - 1, {0, 1}),
        (sqrt(T) - Fraction(11, 10), NOT_ZERO),
        (sqrt(T) - 2, ANY),
        (2 * T - 5 + sqrt(T / (2 * T)), ANY),
    ],
)
def test_polynomial_signs_are_decided_up_to_the_exact_bound(value, expected):
    assert Assumptions(SHAPE).signs(to_sympy(value)) == expected


def test_signs_of_counts_use_bounds_on_the_count():
    n, other = symbol(T), symbol(ABOVE)
    some = Assumptions(SHAPE).with_signs({n - 3: frozenset({0, 1}), n * n - 8 * n + 11: frozenset({-1})})  # 3 to 6
    assert some.signs(n - 2) == POSITIVE
    assert some.signs((n - 3) * (6 - n)) == {0, 1}
    assert some.signs(other * (7 - n)) == POSITIVE
    assert some.signs(other * (6 - n)) == {0, 1}
    assert some.signs(other * (5 - n)) == ANY
    assert Assumptions(SHAPE).with_signs({n - 1: frozenset({-1, 0})}).signs(other * n - other) == {0}


def test_the_maximum_of_a_count_and_1_is_positive():
    """`maximum(count, 1)` as a divisor equals the count where the count is at least 1."""
    value = ABOVE / maximum(T - 1, 1)
    known = Assumptions(SHAPE)
    assert all(case.defined(known) for case in cases(value, known))
    just = where(T - 1 >= 0, ABOVE / (T - 1), ABOVE + residual)
    assert not all(case.defined(known) for case in cases(just, known))
