"""What numbers of runs say together, without a model of them: intervals, exact tests, areas, collapses.

Seeds are the last axis everywhere; a seed is one draw of a base policy, prompts and noise, shared by all arms.
"""

from __future__ import annotations

from functools import cache
from math import comb
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
RESAMPLES, LEVEL, DRAWN = 10_000, 0.95, 16  # and the seed that resamples are drawn with
IN_A_ROW, LEAST = 3, 8  # looks below half of a peak that make a collapse, and right answers that make a peak


class Estimate(NamedTuple):
    """A number and its interval of 95 %."""

    value: float
    low: float
    high: float


def area(curve: ArrayLike) -> Array:
    """Area under curves `[..., looks]` at equal distances, by trapezoids over a width of 1: a mean over training."""
    y = np.asarray(curve, float)
    return (y[..., 1:] + y[..., :-1]).mean(-1) / 2


def iqm(values: ArrayLike) -> Array:
    """Mean of what is left without the lowest and highest quarters, each rounded down, of `[..., seeds]`."""
    x = np.sort(np.asarray(values, float))
    cut = x.shape[-1] // 4
    return x[..., cut : x.shape[-1] - cut].mean(-1)


@cache
def resamples(seeds: int) -> NDArray[np.int64]:
    """Which seeds each bootstrap resample has, `[RESAMPLES, seeds]`, in order; always the same."""
    drawn = np.random.Generator(np.random.PCG64(DRAWN)).integers(seeds, size=(RESAMPLES, seeds))
    return np.sort(drawn, axis=1)


@cache
def weights(seeds: int, cut: int = 0) -> Array:
    """How much seeds count in each resample's mean without its `cut` least and greatest, `[RESAMPLES, seeds]`."""
    kept = resamples(seeds)[:, cut : seeds - cut]
    return np.stack([(kept == seed).mean(1) for seed in range(seeds)], axis=1)


def ends(statistics: Array) -> tuple[Array, Array]:
    """Percentile interval of what resamples say, `[RESAMPLES, ...]`."""
    low, high = np.quantile(statistics, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return low, high


def of_mean(values: ArrayLike) -> Estimate:
    """Mean of `[seeds]` with its bootstrap interval."""
    x = np.asarray(values, float)
    return Estimate(float(x.mean()), *map(float, ends(weights(len(x)) @ x)))


def of_iqm(values: ArrayLike) -> Estimate:
    """Interquartile mean of `[seeds]` with its bootstrap interval."""
    x = np.asarray(values, float)
    # Sorted once: a resample of what is sorted, by indices in order, is sorted.
    found = weights(len(x), len(x) // 4) @ np.sort(x)
    return Estimate(float(iqm(x)), *map(float, ends(found)))


def curves(values: ArrayLike) -> tuple[Array, Array, Array]:
    """Interquartile means of `[looks, seeds]` at every look, and the ends of their intervals."""
    x = np.sort(np.asarray(values, float))
    seeds = x.shape[1]
    return (iqm(x), *ends(weights(seeds, seeds // 4) @ x.T))


def improvement(x: ArrayLike, y: ArrayLike) -> Estimate:
    """How probably a run of `x` is better than one of `y`, over all pairs of seeds, equals by half; `[seeds]` each.

    Resamples of both are drawn apart: drawn together, a seed that comes twice would be paired with itself too often.
    """
    a, b = np.asarray(x, float)[:, None], np.asarray(y, float)[None]
    better = (a > b) + (a == b) / 2
    w = weights(len(better))
    return Estimate(float(better.mean()), *map(float, ends(((w @ better) * w[::-1]).sum(1))))


@cache
def subsets(seeds: int) -> Array:
    """Every set of seeds, the empty one first: `[2 ** seeds, seeds]` of 0 and 1."""
    return (np.arange(2**seeds)[:, None] >> np.arange(seeds) & 1).astype(float)


def flips(differences: ArrayLike) -> float:
    """Exact two-sided p of paired differences `[seeds]`, were the sign of each a fair coin: over all `2 ** seeds`."""
    d = np.asarray(differences, float)
    total = np.abs((1 - 2 * subsets(len(d))) @ d)
    return float((total >= abs(d.sum()) - 1e-12 * np.abs(d).sum()).mean())


def rank(seeds: int, alpha: float) -> int:
    """Which subset mean, counted from the lowest, ends the interval of `flips`; 0 where no interval does."""
    return int(alpha / 2 * 2**seeds)


def shifts(differences: ArrayLike, alpha: float = 1 - LEVEL) -> tuple[float, float]:
    """All shifts of the differences `[seeds]` that `flips` does not refuse at `alpha`: an exact interval.

    Its ends are means of subsets of the differences (Hartigan 1969), infinite where seeds are too few.
    """
    d = np.asarray(differences, float)
    k = rank(len(d), alpha)
    if not k:
        return -np.inf, np.inf
    some = subsets(len(d))[1:]
    means = np.sort(some @ d / some.sum(1))
    return float(means[k - 1]), float(means[-k])


@cache
def detectable(seeds: int, alpha: float = 1 - LEVEL, power: float = 0.8, studies: int = 2000) -> float:
    """Which mean of normal differences, in their standard deviations, `flips` finds so often at `alpha`.

    Of many studies without an effect, each would find one that is larger than how far its interval reaches below 0.
    """
    k = rank(seeds, alpha)
    if not k:
        return np.inf
    z = np.random.Generator(np.random.PCG64(DRAWN)).standard_normal((studies, seeds))
    some = subsets(seeds)[1:]
    below = [np.partition(part @ some.T / some.sum(1), k - 1)[:, k - 1] for part in np.array_split(z, 8)]
    return float(np.quantile(-np.concatenate(below), power))


def mcnemar(x: ArrayLike, y: ArrayLike) -> float:
    """Exact two-sided p that `x` and `y`, true or false by seed, are true equally often."""
    a, b = np.asarray(x, bool), np.asarray(y, bool)
    one, other = int((a & ~b).sum()), int((b & ~a).sum())
    n = one + other
    return min(1.0, 2 * sum(comb(n, k) for k in range(min(one, other) + 1)) / 2**n)


def holm(ps: ArrayLike) -> Array:
    """Holm's adjusted p of a family of tests, in their order."""
    p = np.asarray(ps, float)
    order = np.argsort(p, kind="stable")
    found = np.empty_like(p)
    found[order] = np.minimum(1, np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)))
    return found


def collapsed(right: ArrayLike) -> NDArray[np.bool_]:
    """Whether right answers `[looks, domains]` have collapsed at each look, or before it.

    Below half of the domain's own peak before, of at least `LEAST` answers, at `IN_A_ROW` looks in a row.
    """
    y = np.asarray(right, float)
    peak = np.maximum.accumulate(y)
    low = np.zeros(y.shape, bool)
    low[1:] = (y[1:] < peak[:-1] / 2) & (peak[:-1] >= LEAST)
    found = np.zeros(y.shape, bool)
    last = len(y) - IN_A_ROW + 1
    found[IN_A_ROW - 1 :] = np.logical_and.reduce([low[k : k + last] for k in range(IN_A_ROW)])
    return np.maximum.accumulate(found)
