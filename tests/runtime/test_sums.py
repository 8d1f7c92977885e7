"""Sums are exact before one rounding, so they do not depend on the order of terms."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from thorough import examples

from fibration.runtime import sums
from fibration.runtime.sums import WIDTH, Sums

numbers = (
    st.floats(-1e300, 1e300) | st.floats(-2, 2) | st.sampled_from([5e-324, 2.0**28, 2.0**28 - 1, 2.0**-28, 1e17, -1e17])
)


def exactly(found, element):
    return sum((int(d[element]) * Fraction(2) ** (WIDTH * k) for k, d in found.digits.items()), Fraction(0))


@given(st.lists(st.tuples(numbers, st.integers(0, 2)), max_size=20), st.randoms(), st.integers(0, 20))
@examples(150)
def test_a_sum_is_the_same_in_any_order_and_in_any_parts(drawn, random, cut):
    values, at = np.array([x for x, _ in drawn]), np.array([i for _, i in drawn], np.int64)
    found = Sums.of(values, at, 3)
    for element in range(3):
        assert exactly(found, element) == sum((Fraction(x) for x, i in drawn if i == element), Fraction(0))
    order = random.sample(range(len(drawn)), len(drawn))
    parts = [Sums.of(values[part], at[part], 3) for part in (order[:cut], order[cut:])]
    assert parts[0].plus(parts[1]).values().tobytes() == found.values().tobytes()
    below = np.array([1, 0, 1])
    assert found.over(below, 2).values().tobytes() == Sums.of(values, below[at], 2).values().tobytes()


def test_the_digits_of_a_number_do_not_depend_on_a_larger_one():
    small = 2.0**27 + 0.5
    alone = Sums.of(np.array([small]), np.zeros(1, np.int64), 1).digits
    beside = Sums.of(np.array([small, 2.0**28]), np.arange(2), 2).digits
    assert all(mine[0] == (alone[k][0] if k in alone else 0) for k, mine in beside.items())


@pytest.mark.parametrize("scale", [1e-310, 1e-3, 1, 1e5, 1e300])
def test_a_sum_of_one_sign_is_exact_to_one_rounding(scale):
    values = np.random.default_rng(0).uniform(0.1, 1, 1000) * scale
    (found,) = Sums.of(values, np.zeros(1000, np.int64), 1).values()
    assert abs(found - math.fsum(values)) <= 2 * np.spacing(math.fsum(values))


def test_a_sum_in_chunks_is_the_same(monkeypatch):
    values = np.random.default_rng(0).normal(size=100)
    at = np.arange(100) % 7
    whole = Sums.of(values, at, 7).values()
    monkeypatch.setattr(sums, "BLOCK", 9)
    assert Sums.of(values, at, 7).values().tobytes() == whole.tobytes()


def test_the_sum_over_no_element_is_0():
    assert Sums.of(np.zeros(0), np.zeros(0, np.int64), 2).values().tolist() == [0, 0]
    assert Sums(2, {}).over(np.array([0, 0]), 1).values().tolist() == [0]
