"""Policies, statistics, weights and conditions on small batches, evaluated exactly, against numpy."""

import math
import random
from fractions import Fraction

import numpy as np
import pytest

from fibration import (
    Attribute,
    Fibration,
    Gate,
    Hierarchy,
    Parameter,
    clip_gate,
    count,
    exp,
    identity_gate,
    largest,
    log_prob,
    log_ratio,
    mean,
    minimum,
    policies,
    quantile,
    ratio_deviation,
    residual,
    some,
    stop,
    strata,
    token_log_ratio,
    token_mean,
    total,
    trajectory_mean,
    uniform,
    where,
)
from fibration.language.places import whole_batch
from fibration.laws.batches.coefficients import Point
from fibration.laws.batches.concrete import Concrete
from fibration.laws.values.duals import LogOf, log_of, slopes_of, value_of, without_slopes

token, trajectory, batch = strata("token trajectory batch")
current, old, rollout = policies("current old rollout")
F = Fraction
LENGTHS = (3, 1, 4, 2)
ROWS = [r for r, n in enumerate(LENGTHS) for _ in range(n)]
N = len(ROWS)
k = log_prob(old) - log_prob(rollout)  # log ρ
price = Attribute("price", on=trajectory)
q = Parameter("q", default=0.25, lower=0, upper=1)


def plain(objective, gate=None, **more):
    return Hierarchy(
        name="plain", gates={token: gate or identity_gate()}, decomposition=ratio_deviation(), objective=objective, **more
    )  # fmt: skip


def drawn(seed):
    """Log-probs that are rational, of which some are alike."""
    rng = random.Random(seed)
    lp = {p: [F(-rng.randint(4, 12), 4) for _ in range(N)] for p in ("old", "rollout")}
    return [F(rng.randint(-8, 8), 8) for _ in range(N)], [F(rng.randint(-3, 3), 2) for _ in range(N)], lp


def point(h, seed=0, attributes=(2, 1, 3, 5), **more):
    xs, advantages, lp = drawn(seed)
    maps = {(token, trajectory): tuple(ROWS), (trajectory, batch): (0,) * len(LENGTHS)}
    chosen = {a: F(str(dict(a.default_items())[""])) for a in h.parameters.values()}
    given = {a: tuple(map(F, attributes)) for a in h.attributes.values()}
    return Point(h, Concrete(whole_batch(h), maps, given, chosen), tuple(xs), tuple(advantages), log_probs=lp, **more)


def arrays(seed=0):
    xs, advantages, lp = drawn(seed)
    return (np.array(list(map(float, v))) for v in (xs, advantages, lp["old"], lp["rollout"]))


def over(values, f, rows=ROWS):
    """A statistic of every token's row."""
    rows, values = np.array(rows), np.asarray(values)
    return np.array([f(values[rows == r]) for r in rows])


STATISTICS = {
    "total": (total(k * k, over=trajectory), lambda x, o, r: over((o - r) ** 2, np.sum)),
    "mean": (mean(exp(k), over=trajectory), lambda x, o, r: over(np.exp(o - r), np.mean)),
    "largest": (largest(-token_log_ratio, over=batch), lambda x, o, r: np.full(N, -x.min())),
    "some": (where(some(k > F(1, 2), over=trajectory), 3, 2), lambda x, o, r: over(np.where(over(o - r > 0.5, np.any), 3, 2), np.max)),
    "median": (quantile(k, F(1, 2), over=trajectory), lambda x, o, r: over(o - r, np.median)),
    "quantile": (quantile(log_prob(current), q, over=trajectory), lambda x, o, r: over(o + x, lambda v: np.quantile(v, 0.25))),
    "quantile of all": (quantile(k, F(9, 10), over=batch), lambda x, o, r: np.full(N, np.quantile(o - r, 0.9))),
    "least and largest": (quantile(k, 0, over=batch) + quantile(k, 1, over=trajectory), lambda x, o, r: (o - r).min() + over(o - r, np.max)),
    "nested": (mean(where(k > mean(k, over=trajectory), 1, 0), over=batch), lambda x, o, r: np.full(N, np.mean(o - r > over(o - r, np.mean) + 1e-12))),
    "counts": (total(1 / count(token, over=trajectory), over=batch) + count(token), lambda x, o, r: np.full(N, len(LENGTHS) + 1.0)),
}  # fmt: skip


@pytest.mark.parametrize("name", STATISTICS)
@pytest.mark.parametrize("seed", range(3))
def test_each_statistic_equals_numpy(name, seed):
    formula, reference = STATISTICS[name]
    x, _, o, r = arrays(seed)
    here = point(plain(token_mean().weigh(formula * formula)), seed)
    found = [float(value_of(here.value(formula, i))) for i in range(N)]
    np.testing.assert_allclose(found, reference(x, o, r), rtol=1e-12, atol=1e-12)


def test_weighted_and_masked_objectives_equal_numpy():
    """Weights are truncated. Masks count dropped tokens or leave them out. Totals are over rows with a kept token."""
    cap = Parameter("C", default=1.5, lower=1)
    h = plain(
        trajectory_mean().weigh(minimum(exp(k), cap)).weigh(price)
        .keep(k <= F(1, 2), normaliser="kept").keep(token_log_ratio < F(3, 4)).keep(~some(k > 1, over=trajectory), normaliser="kept"),
        clip_gate(F(3, 10)),
    )  # fmt: skip
    prices = np.array((2.0, 1, 3, 5))[ROWS]
    for seed in range(6):
        x, a, o, r = arrays(seed)
        d = o - r
        counted = (d <= 0.5) & ~over(d > 1, np.any)
        kept = counted & (x < 0.75)
        own = over(counted, np.sum)
        rows = len({row for row, c in zip(ROWS, counted, strict=True) if c})
        w = np.minimum(np.exp(d), 1.5) * prices
        slope = np.where(abs(np.expm1(x)) <= 0.3, np.exp(x), 0)
        expected = np.where(kept, w * a * slope / np.where(counted, own * rows, 1), 0)
        here = point(h, seed)
        assert here.output("kept") == list(kept) and [w > 0 for w in here.weights] == list(counted)
        np.testing.assert_allclose(list(map(float, here.coefficients)), expected, rtol=1e-12, atol=1e-15)
        assert all(c == 0 for c, k_ in zip(here.coefficients, kept, strict=True) if not k_)
    score = point(h.replace(objective=h.objective.score()), 5)
    gated = 1 + np.clip(np.expm1(x), -0.3, 0.3)
    scores = np.where(kept, w * a * gated / np.where(counted, own * rows, 1), 0)
    np.testing.assert_allclose(list(map(float, score.coefficients)), scores, rtol=1e-12, atol=1e-15)


def test_a_dropped_token_has_no_weight_to_compute():
    h = plain(token_mean().weigh(1 / (k - F(1, 4))).keep((k < F(1, 4)) | (k > F(1, 4)), normaliser="kept"))
    seed = next(s for s in range(50) if F(1, 4) in [a - b for a, b in zip(*drawn(s)[2].values(), strict=True)])
    found = point(h, seed).coefficients
    assert F(0) in found and any(found)
    nothing = point(plain(token_mean().keep(log_prob(old) > 0, normaliser="kept")), 0)
    assert nothing.weights == nothing.coefficients == [0] * N


def test_a_row_without_a_kept_token_is_in_no_count_and_no_total():
    h = plain(trajectory_mean().keep(k < 0, normaliser="kept"))
    h = h.replace(objective=type(h.objective)(price / total(price, over=batch)).keep(k < 0, normaliser="kept"))
    x, a, o, r = arrays(2)
    prices = np.array((2.0, 1, 3, 5))
    rows = sorted({row for row, c in zip(ROWS, o < r, strict=True) if c})
    assert 0 < len(rows) < len(LENGTHS)
    expected = np.where(o < r, prices[ROWS] / prices[rows].sum(), 0)
    np.testing.assert_allclose(list(map(float, point(h, 2).weights)), expected, rtol=1e-14)


def test_gates_that_read_frozen_policies_and_statistics_equal_numpy():
    """A trajectory's gate closes by a share of its tokens. A token's gate reads its probability."""
    closes = mean(where(absolute_drift > F(1, 4), 1, 0), over=trajectory) > F(1, 2)
    h = Hierarchy(
        name="two", fibrations=[Fibration(token, trajectory, uniform())],
        gates={trajectory: Gate(where(closes, 0, residual)), token: Gate(where(exp(log_prob(old)) < F(1, 5), residual, residual / 2))},
        decomposition=log_ratio(scale=1 / count(token, over=trajectory)), objective=trajectory_mean(),
    )  # fmt: skip
    x, _, o, _ = arrays(1)
    base = over(x, np.mean)
    kept = np.where(over(np.abs(x) > 0.25, np.mean) > 0.5, 0, base)
    expected = np.exp(kept + (x - base) * np.where(np.exp(o) < 0.2, 1, 0.5))
    np.testing.assert_allclose(list(map(float, point(h, 1).gated)), expected, rtol=1e-12)


absolute_drift = where(token_log_ratio < 0, -token_log_ratio, token_log_ratio)


def test_a_statistic_in_a_gate_has_no_slope():
    here = point(plain(token_mean(), Gate(residual * exp(mean(token_log_ratio, over=trajectory)))), 1)
    x, _, _, _ = arrays(1)
    held = np.exp(over(x, np.mean))
    np.testing.assert_allclose(list(map(float, here.gated)), 1 + np.expm1(x) * held, rtol=1e-12)
    found = np.array([[float(slopes_of(g).get(i, 0)) for i in range(N)] for g in here.output("gated_ratio", True)])
    np.testing.assert_allclose(found, np.diag(np.exp(x) * held), rtol=1e-12)


def test_a_stopped_formula_has_a_value_and_no_slope():
    h = plain(token_mean(), Gate(residual - stop(residual) / 2))
    x, _, _, _ = arrays()
    here = point(h)
    np.testing.assert_allclose(list(map(float, here.gated)), 1 + np.expm1(x) / 2, rtol=1e-12)
    found = [float(slopes_of(g)[i]) for i, g in enumerate(here.output("gated_ratio", True))]
    np.testing.assert_allclose(found, np.exp(x), rtol=1e-12)
    held = without_slopes(log_of(F(3, 2), {0: F(1)}))
    assert isinstance(held, LogOf) and held.ratio == F(3, 2) and not held.slopes


def test_missing_log_probs_are_those_of_old_and_below_0():
    h = plain(token_mean().weigh(exp(k) * exp(log_prob(current) - token_log_ratio - log_prob(old))))
    xs, advantages, _ = drawn(0)
    here = point(h)
    bare = Point(h, here.concrete, tuple(xs), tuple(advantages))
    assert bare.output("weight_1") == [1] * N
    assert all(value_of(bare.log_prob(p, i)) < 0 for p in ("current", "old", "rollout") for i in range(N))


def test_statistics_count_an_element_that_stands_for_several():
    formulas = [f for f, _ in STATISTICS.values()]
    h = plain(token_mean().weigh(sum(f * f for f in formulas)))
    numbers, xs, olds, rolls = (1, 4), (F(1, 2), F(-1, 3)), (F(-2), F(-3)), (F(-5, 2), F(-9, 4))
    chosen = {a: F(1, 4) for a in h.parameters.values()}

    def made(number, alike):
        size = sum(number) if not alike else len(number)
        maps = {(token, trajectory): (0,) * size, (trajectory, batch): (0,)}
        spread = [i for i, n in enumerate(number) for _ in range(1 if alike else n)]
        lp = {"old": [olds[i] for i in spread], "rollout": [rolls[i] for i in spread]}
        concrete = Concrete(whole_batch(h), maps, {}, chosen, {token: number} if alike else {})
        return Point(h, concrete, tuple(xs[i] for i in spread), (F(1),) * size, log_probs=lp)

    few, many = made(numbers, True), made(numbers, False)
    for f in formulas:
        assert [value_of(few.value(f, i)) for i in (0, 1)] == [value_of(many.value(f, i)) for i in (0, 1)], f
    assert math.isclose(value_of(few.value(mean(token_log_ratio, over=trajectory), 0)), -1 / 6)
