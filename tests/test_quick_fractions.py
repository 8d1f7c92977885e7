"""Quick fractions have the values of Python's fractions, computed here in whole numbers."""

import itertools
import operator
from fractions import Fraction
from math import gcd

import pytest
import quick_fractions
from thorough import ALL

pytestmark = pytest.mark.skipif(ALL, reason="fractions are as they come")

NUMBERS = [*range(-3, 4), 10**20, *(Fraction(n, d) for n in (-9, -4, 0, 1, 6, 10**30) for d in (1, 4, 6, 2**70))]
PAIRS = [(a, b) for a, b in itertools.product(NUMBERS, NUMBERS) if Fraction in (type(a), type(b))]


def parts(x):
    return (x, 1) if isinstance(x, int) else (x.numerator, x.denominator)


def test_the_tests_use_quick_fractions():
    assert vars(Fraction)["__new__"].__func__ is quick_fractions.new


@pytest.mark.parametrize("name", ["add", "sub", "mul", "truediv"])
def test_arithmetic_of_quick_fractions_equals_whole_numbers(name):
    for a, b in PAIRS:
        (na, da), (nb, db) = parts(a), parts(b)
        pair = {"add": (na * db + nb * da, da * db), "sub": (na * db - nb * da, da * db), "mul": (na * nb, da * db)}
        n, d = pair.get(name, (na * db, da * nb))
        if d == 0:
            with pytest.raises(ZeroDivisionError, match=r"Fraction\(-?\d+, 0\)"):
                a / b
            continue
        common = gcd(n, d) * (1 if d > 0 else -1)
        found = getattr(operator, name)(a, b)
        assert type(found) is Fraction
        assert parts(found) == (n // common, d // common)


def test_comparisons_of_quick_fractions_equal_whole_numbers():
    for a, b in PAIRS:
        (na, da), (nb, db) = parts(a), parts(b)
        for holds in (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne):
            assert holds(a, b) is holds(na * db, nb * da)
        assert hash(a) == hash(b) or a != b


def test_construction_of_quick_fractions_equals_whole_numbers():
    for n, d in itertools.product((-6, 0, 4, 10**30), (-4, 1, 6, 10**25)):
        common = gcd(n, d) * (1 if d > 0 else -1)
        made = Fraction(n, d)
        assert parts(made) == (n // common, d // common)
        assert [parts(x) for x in (Fraction(made), -made, abs(made))] == [
            (k // common, d // common) for k in (n, -n, abs(n) * (1 if common > 0 else -1))
        ]
    with pytest.raises(ZeroDivisionError, match=r"Fraction\(1, 0\)"):
        Fraction(1, 0)


def test_other_operands_use_pythons_fractions():
    half = Fraction(1, 2)
    assert Fraction("0.5") == Fraction(0.5) == half == 0.5 == Fraction(True, 2)
    assert type(half + 0.25) is float
    assert half + 0.25 == 0.25 + half == 0.75
    assert half < 0.75 and half > 0.25 and half * True == half
    assert half != "half"
    with pytest.raises(TypeError):
        half + "half"
    with pytest.raises(TypeError):
        assert half < "half"
    assert float("nan") != half and not half < float("nan")
