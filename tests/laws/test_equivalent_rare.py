"""Losses that differ in one place that few batches reach: nothing is proved of them; where it cancels, all is."""

from __future__ import annotations

import pytest
from hierarchies.terms import T, current, less, old, r, token, trajectory, x

from fibration import (
    Attribute,
    before,
    count,
    equivalent,
    exp,
    largest,
    log_prob,
    mean,
    on_policy,
    stop,
    where,
)
from fibration.language.pairs import pair
from fibration.laws.proof.same_loss import same_loss

now, then = log_prob(current), log_prob(old)
v, u = Attribute("v", on=token, positive=False), Attribute("u", on=trajectory)
RARE = [
    *(n < T for n in (7, 30, 100, 1000)),
    count(trajectory, over=trajectory) + T * T > 1000,
    v > 1000,
    (v > 3) & (u > 1000 * v),
    then < -40,
    now < -40,
    then * then < 2**-12,
    mean(then, over=trajectory) < -40,
    largest(exp(now), over=trajectory) < 2**-30,
    before(1, over=trajectory) > 40,
]
MOVING = [now, r, 2 * now, x, exp(r), now**2, mean(now, over=trajectory), before(now, over=trajectory), now * stop(now)]


@pytest.mark.parametrize("rare", RARE, ids=str)
def test_a_slope_in_a_rare_branch_is_no_constant(rare):
    """Where all policies coincide the log ratio is 0, and its slope is not."""
    for moving in MOVING:
        for held in (0, stop(moving)):
            first, second = (less(r**2 / 2 + where(rare, e, 0)) for e in (moving, held))
            assert not same_loss(pair(first, second, on_policy)).proved


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (r**2 / 2, 3 * r**2 / 2),
        (r**2 / 2, exp(-r) - 1 + r),
        (x**2 / 2, exp(-x) - 1 + x),
        (now + r, 2 * now),
        (now * stop(now), now**2 / 2),
        (where(T > 7, now, 0) + r, where(T > 7, r, 0) + now),
        (mean(now, over=trajectory), mean(r, over=trajectory)),
        (r * mean(exp(now), over=trajectory), r * stop(mean(exp(now), over=trajectory))),
        (
            before(now, over=trajectory) * now,
            before(now, over=trajectory) * stop(now) + now * stop(before(now, over=trajectory)),
        ),
        (where(now < -40, now, 2 * now), where(then < -40, r, 2 * r)),
    ],
    ids=str,
)
def test_what_has_the_same_slope_there_is_the_same(first, second):
    assert equivalent(less(first), less(second), on_policy).ok
