"""Losses that differ only on a branch that few batches reach are not proved the same."""

from __future__ import annotations

import pytest
from hierarchies.loss_pairs_with_penalties import T, current, less, loss, old, r, token, trajectory, x

from fibration import (
    Attribute,
    Gate,
    Objective,
    before,
    count,
    deviation,
    equivalent,
    exp,
    largest,
    load,
    log_prob,
    mean,
    on_policy,
    residual,
    sqrt,
    stop,
    strata,
    where,
)
from fibration.language.pairs import pair
from fibration.laws.equivalent.same_loss import same_loss
from fibration.laws.law import Proved, Unknown

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


@pytest.mark.sampled
@pytest.mark.parametrize("rare", RARE, ids=str)
def test_on_policy_a_slope_in_a_rare_branch_makes_losses_differ(rare):
    """On policy the log ratio is 0, and its slope is not."""
    for moving in MOVING:
        for held in (0, stop(moving)):
            first, second = (less(r**2 / 2 + where(rare, e, 0)) for e in (moving, held))
            assert isinstance(same_loss(pair(first, second, on_policy)), Unknown)


@pytest.mark.sampled
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
def test_on_policy_penalties_with_equal_slopes_are_the_same(first, second):
    assert equivalent(less(first), less(second), on_policy).ok


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (where(r >= 0, sqrt(r) ** 2, r), r),
        (where(r >= 0, sqrt(r) ** 2, 2 * r), where(r >= 0, r, 2 * r)),
        (sqrt(mean(r**2, over=trajectory)) ** 2, mean(r**2, over=trajectory)),
        (mean(where(r >= 0, sqrt(r) ** 2, r), over=trajectory), mean(r, over=trajectory)),
        (r + (mean(1 / v, over=trajectory) - mean(1 / v, over=trajectory)), r),
        (r + 0 * deviation(v / v, over=trajectory), r),
        (r + before(1 / v, over=trajectory, discount=0), r),
    ],
    ids=str,
)
@pytest.mark.parametrize("when", [(), on_policy])
def test_a_term_without_a_value_or_slope_makes_losses_differ(first, second, when):
    """A root of 0 has a value and no slope. Terms that cancel have no value where one of them has none."""
    for one, other in ((first, second), (second, first)):
        assert isinstance(same_loss(pair(less(one), less(other), when)), Unknown)
    assert isinstance(same_loss(pair(less(first), less(first + 0), when)), Proved)


def test_gates_without_a_value_on_some_batch_differ_from_the_identity():
    none = mean(1 / v, over=trajectory) - mean(1 / v, over=trajectory)
    first, second = (loss(gates={token: Gate(residual + e)}) for e in (none, 0 * none + none - none))
    assert isinstance(same_loss(pair(first, second)), Proved)
    assert isinstance(same_loss(pair(first, loss())), Unknown)


@pytest.mark.thorough
def test_a_branch_may_have_no_kept_token_although_it_is_populated():
    """If the kept tokens of a trajectory are all images, no text is counted, and the weight is not 0."""
    text, image = strata("text_token image_token")
    texts, images = (count(s, over=trajectory) for s in (text, image))
    tree = load("fiberpo_modal")
    kept, with_texts, with_images, with_some = (
        tree.replace(objective=Objective(w).keep(then < -1, "kept"))
        for w in (
            1 / (texts + images),
            where(texts > 0, 1 / (texts + images), 0),
            where(images > 0, 1 / (texts + images), 0),
            where(texts + images > 0, 1 / (texts + images), 0),
        )
    )
    assert isinstance(same_loss(pair(kept, with_texts)), Unknown)
    assert isinstance(same_loss(pair(kept, with_images)), Unknown)
    assert isinstance(same_loss(pair(kept, with_some)), Proved)
