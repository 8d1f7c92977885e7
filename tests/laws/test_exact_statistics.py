"""Exact points beside what `test_coefficients.py` compares: missing log-probs, elements that stand for several."""

import math
from fractions import Fraction

from fibration import (
    Hierarchy,
    Parameter,
    count,
    exp,
    identity_gate,
    largest,
    log_prob,
    mean,
    policies,
    quantile,
    ratio_deviation,
    some,
    strata,
    token_log_ratio,
    token_mean,
    total,
    where,
)
from fibration.language.outline import whole_batch
from fibration.laws.batches.coefficients import Point
from fibration.laws.batches.concrete import Concrete
from fibration.laws.values.duals import LogOf, log_of, value_of, without_slopes

token, trajectory, batch = strata("token trajectory batch")
current, old, rollout = policies("current old rollout")
F = Fraction
k = log_prob(old) - log_prob(rollout)  # log ρ
q = Parameter("q", default=0.25, lower=0, upper=1)


def plain(objective):
    return Hierarchy(name="plain", gates={token: identity_gate()}, decomposition=ratio_deviation(), objective=objective)


FORMULAS = (
    total(k * k, over=trajectory), mean(exp(k), over=trajectory), largest(-token_log_ratio, over=batch),
    where(some(k > F(1, 2), over=trajectory), 3, 2), quantile(k, F(1, 2), over=trajectory), quantile(log_prob(current), q, over=trajectory),
    quantile(k, F(9, 10), over=batch), mean(where(k > mean(k, over=trajectory), 1, 0), over=batch),
    total(1 / count(token, over=trajectory), over=batch) + count(token),
)  # fmt: skip


def test_missing_log_probs_are_those_of_old_and_below_0():
    h = plain(token_mean().weigh(exp(k) * exp(log_prob(current) - token_log_ratio - log_prob(old))))
    maps = {(token, trajectory): (0, 0, 1), (trajectory, batch): (0, 0)}
    bare = Point(h, Concrete(whole_batch(h), maps, {}, {}), (F(1, 2), F(-1), F(0)), (F(1),) * 3)
    assert bare.output("weight_1") == [1] * 3
    assert all(value_of(bare.log_prob(p, i)) < 0 for p in ("current", "old", "rollout") for i in range(3))


def test_statistics_count_an_element_that_stands_for_several():
    h = plain(token_mean().weigh(sum(f * f for f in FORMULAS)))
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
    for f in FORMULAS:
        assert [value_of(few.value(f, i)) for i in (0, 1)] == [value_of(many.value(f, i)) for i in (0, 1)], f
    assert math.isclose(value_of(few.value(mean(token_log_ratio, over=trajectory), 0)), -1 / 6)


def test_what_is_stopped_has_no_slope():
    held = without_slopes(log_of(F(3, 2), {0: F(1)}))
    assert isinstance(held, LogOf) and held.ratio == F(3, 2) and not held.slopes


def test_a_dropped_token_has_no_weight_to_compute():
    nothing = plain(token_mean().weigh(1 / (k - F(1, 4))).keep(log_prob(old) > 0, normaliser="kept"))
    maps = {(token, trajectory): (0, 0), (trajectory, batch): (0,)}
    here = Point(nothing, Concrete(whole_batch(nothing), maps, {}, {}), (F(0),) * 2, (F(1),) * 2)
    assert here.weights == here.coefficients == [0, 0]
