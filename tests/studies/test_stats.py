"""Intervals, exact tests and collapses of the study, against closed forms and brute force."""

import itertools
from fractions import Fraction
from math import comb, inf, sqrt

import numpy as np
import pytest
import stats

DRAW = np.random.default_rng(0)
DIFFERENCES = DRAW.normal(0.6, 1.0, 10)


def test_an_area_is_the_mean_height_of_a_broken_line():
    assert stats.area([0, 1]) == 0.5 and stats.area([3.0] * 7) == 3
    x = np.linspace(0, 1, 16)
    assert stats.area(2 * x) == pytest.approx(1)
    assert stats.area([[0, 1, 0], [1, 0, 1]]).tolist() == [0.5, 0.5]
    assert stats.area([1, 0, 0]) == 0.25  # the first look weighs half of the second


def test_quarters_are_cut_before_the_mean():
    assert stats.iqm([100, 1, 2, 3, -50]) == 2
    assert stats.iqm([*range(10)]) == 4.5 and stats.iqm([0, 0, 2, 3, 4, 5, 6, 7, 100, 100]) == 4.5
    assert stats.iqm([1, 2, 9]) == 4
    assert stats.iqm(np.array([[4.0, 1, 2, 3], [0, 0, 8, 8]])).tolist() == [2.5, 4]


def test_resamples_are_drawn_evenly_and_the_same_every_time():
    drawn = stats.resamples(10)
    assert len(drawn) >= 10_000 and (drawn == stats.resamples.__wrapped__(10)).all()
    counts = np.bincount(drawn.ravel(), minlength=10) / drawn.size
    assert np.abs(counts - 0.1).max() < 4 * sqrt(0.09 / drawn.size)
    repeated = np.mean([len(set(row)) == 10 for row in drawn[:2000]])
    assert repeated < 0.01  # with replacement: 10! / 10^10 are permutations


def test_intervals_are_those_of_the_resamples(monkeypatch):
    x, y = DRAW.normal(size=(2, 10))
    short = stats.resamples(10)[:400]
    monkeypatch.setattr(stats, "RESAMPLES", 400)
    monkeypatch.setattr(stats, "resamples", lambda seeds: short)
    stats.weights.cache_clear()
    better = lambda a, b: np.mean([(p > q) + (p == q) / 2 for p in a for q in b])  # noqa: E731
    sorted_x = np.sort(x)
    for found, statistic, columns in (
        (stats.of_mean(x), np.mean, (x,)),
        (stats.of_iqm(x), stats.iqm, (sorted_x,)),
    ):
        expected = np.quantile([statistic(*(c[..., drawn] for c in columns)) for drawn in short], [0.025, 0.975])
        assert found[1:] == pytest.approx(expected, abs=1e-12)
        assert found.value == pytest.approx(statistic(*columns)) and found.low < found.value < found.high
    apart = [better(x[drawn], y[other]) for drawn, other in zip(short, short[::-1], strict=True)]
    found = stats.improvement(x, y)
    assert found[1:] == pytest.approx(np.quantile(apart, [0.025, 0.975])) and found.value == better(x, y)
    middle, low, high = stats.curves(np.stack([x, y, x]))
    assert [middle[0], low[0], high[0]] == pytest.approx(list(stats.of_iqm(x)))
    assert (low[0], high[0], middle[1]) == (low[2], high[2], stats.iqm(y))
    stats.weights.cache_clear()


def test_equals_count_by_half_and_better_is_greater():
    assert stats.improvement([1, 2], [1, 2]).value == 0.5
    assert stats.improvement([3, 4], [1, 2]) == (1, 1, 1) and stats.improvement([1, 2], [3, 4]).value == 0
    assert stats.improvement([1, 3], [2, 2]).value == 0.5 and stats.improvement([2, 3], [2, 1]).value == 0.875


def test_an_arm_that_loses_a_little_on_every_seed_is_hardly_worse_over_all_pairs():
    """Its interval lies about the probability: each seed paired with itself too often would move it down."""
    x = np.arange(10.0)
    found = stats.improvement(x - 0.1, x)
    assert found.value == 0.45 and (found.low + found.high) / 2 == pytest.approx(0.45, abs=0.02)
    assert found.high - found.low > 0.3


def test_the_interval_of_a_mean_is_that_of_large_samples():
    x = DRAW.normal(size=40)
    found, spread = stats.of_mean(x), x.std() / sqrt(40)
    assert (found.high - found.low) / 2 == pytest.approx(1.96 * spread, rel=0.04)
    trimmed = stats.of_iqm(x)
    assert trimmed.value == pytest.approx(np.sort(x)[10:30].mean()) and trimmed.high - trimmed.low < 6 * spread


@pytest.mark.parametrize("differences", [DIFFERENCES[:7], [1, 2, 3], [0, 0, 1, -1], [0.1] * 6, [5, -1, -1, 2, 2]])
def test_the_sign_test_equals_brute_force_over_all_signs(differences):
    d = [Fraction(float(x)) for x in differences]
    signs = itertools.product((1, -1), repeat=len(d))
    counted = [abs(sum(s * x for s, x in zip(of, d, strict=True))) >= abs(sum(d)) for of in signs]
    assert stats.flips(differences) == sum(counted) / len(counted)


def test_all_of_one_sign_is_the_least_p():
    assert stats.flips(np.abs(DIFFERENCES)) == 2 / 1024 and stats.flips([1, 2, 3]) == 0.25
    assert stats.flips([0.0] * 4) == 1


@pytest.mark.parametrize("alpha", [0.05, 0.0125])
def test_the_exact_interval_has_the_shifts_that_are_not_refused(alpha):
    low, high = stats.shifts(DIFFERENCES, alpha)
    assert low < DIFFERENCES.mean() < high
    for end, outwards in ((low, -1), (high, 1)):
        assert (
            stats.flips(DIFFERENCES - end - outwards * 1e-9) <= alpha < stats.flips(DIFFERENCES - end + outwards * 1e-9)
        )
    assert stats.shifts([1, 2, 3]) == (-inf, inf)
    assert stats.shifts([1, 2, 3], 0.25) == (1, 3)  # p of 3 differences is at least 1/4
    for_six = stats.shifts(DIFFERENCES[:6])
    assert for_six == (DIFFERENCES[:6].min(), DIFFERENCES[:6].max())  # k = 1


def test_ten_pairs_find_a_difference_of_one_deviation():
    """A t test of ten finds 0.996 deviations with a power of 0.8, and 1.29 at a fourth of the level."""
    assert stats.detectable(10) == pytest.approx(1.0, abs=0.05)
    assert stats.detectable(10, 0.05 / 4) == pytest.approx(1.29, abs=0.08)
    assert stats.detectable(4) == inf and stats.detectable(10, power=0.5) < stats.detectable(10)
    z = DRAW.normal(stats.detectable(10), 1, (400, 10))
    found = np.mean([stats.flips(row) <= 0.05 for row in z])
    assert found == pytest.approx(0.8, abs=4 * sqrt(0.16 / 400))


@pytest.mark.parametrize(("one", "other"), [(0, 0), (3, 0), (1, 5), (4, 4), (0, 8), (2, 7)])
def test_mcnemar_is_a_binomial_of_pairs_that_differ(one, other):
    x = [True] * one + [False] * other + [True, False]
    y = [False] * one + [True] * other + [True, False]
    n = one + other
    tail = sum(comb(n, k) for k in range(n + 1) if abs(k - n / 2) >= abs(one - n / 2)) / 2**n
    assert stats.mcnemar(x, y) == stats.mcnemar(y, x) == pytest.approx(tail)


def test_holms_correction_equals_its_definition():
    assert stats.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert stats.holm([0.5, 0.9, 0.002]) == pytest.approx([1, 1, 0.006])
    assert stats.holm([0.01, 0.01]) == pytest.approx([0.02, 0.02])


@pytest.mark.parametrize(
    ("right", "at"),
    [
        ([20, 9, 9, 9, 20], 3),  # the third look below 10
        ([20, 9, 9, 10, 9, 9], None),  # half is not below half
        ([7, 0, 0, 0, 0], None),  # too low a peak
        ([8, 3, 3, 3], 3),
        ([2, 30, 20, 14, 14, 14], 5),
        ([9, 4, 4, 20, 9, 9], None),  # two in a row, twice
        ([10, 12, 14, 16, 60], None),  # below half of a peak to come
        ([20, 5, 5, 5, 30, 30], 3),  # who comes back had collapsed
        ([0, 0, 0, 40, 19, 0, 1, 0], 6),
    ],
)
def test_a_collapse_is_half_of_the_peak_at_three_evaluations_in_a_row(right, at):
    found = stats.collapsed(np.array([right, [64] * len(right)]).T)
    assert not found[:, 1].any()
    expected = np.arange(len(right)) >= (at if at is not None else len(right))
    assert found[:, 0].tolist() == expected.tolist()
