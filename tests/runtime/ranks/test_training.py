"""Gradients of ranks and micro-batches equal those of `op.loss` on the whole batch, and not the mistakes of an example."""

import example_loops
import pytest
import torch
from example_loops import budgets, distance, every_regime, example, importance, operator, policy, wanted
from thread_ranks import on_ranks

F64, F32 = torch.float64, torch.float32
EXACT = {F64: 1e-13, F32: 1e-6}


def averaged(op, shares, dtype, step):
    """Gradients averaged over ranks, as DDP and FSDP leave them; `step(op, policy, pieces, group)` is a rank's work."""

    def work(group):
        model = policy(dtype)
        step(op, model, shares[group.rank], group)
        return example_loops.gradients(model)

    found = on_ranks(len(shares), work)
    assert all(one.keys() == found[0].keys() for one in found)
    return {name: sum(one[name] for one in found) / len(found) for name in found[0]}


def shares_of(dtype, ranks, pieces):
    """Each rank's micro-batches. Of few ranks, each has some of every prompt group; of many, two have nothing."""
    batch = example_loops.off_policy(dtype)[1]
    if ranks > 6:
        return [mine.split(pieces) for mine in (*batch.split(ranks - 2), batch.take(()), batch.take(()))]
    shares = batch.split(ranks)
    assert all(set(mine.prompt_group) == set(batch.prompt_group) for mine in shares)
    return [mine.split(pieces) for mine in shares]


def right(op, model, pieces, group, weights=None):
    mine = example("toy").join(pieces)
    index = example_loops.index(op, mine, group=group)
    with torch.no_grad():
        now = torch.cat([model(piece) for piece in pieces])
    a = mine.advantages if weights is None else mine.advantages * weights(mine)
    coef = op.coefficients(now, mine.old_log_probs, a, index, budgets(now.dtype))
    every_regime(coef.metrics)
    for piece, c in zip(pieces, coef.values.split([len(p.token) for p in pieces]), strict=True):
        (-(c * model(piece))).sum().mul(index.gradient_scale).backward()


SPLITS = [(n, k, dtype) for n, k in ((1, 1), (1, 12), (2, 3), (3, 4), (5, 2)) for dtype in (F64, F32)] + [(9, 1, F64)]


@pytest.mark.sampled
@pytest.mark.parametrize(("ranks", "pieces", "dtype"), SPLITS, ids=str)
def test_gradients_are_those_of_the_whole_batch(ranks, pieces, dtype):
    found = averaged(operator(), shares_of(dtype, ranks, pieces), dtype, right)
    assert distance(found, wanted(dtype)) <= EXACT[dtype]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_the_loss_of_each_rank_is_its_share_of_the_whole_loss(ranks):
    """What ranks compute in one piece each, with `op.loss`."""

    def step(op, model, pieces, group):
        (mine,) = pieces
        index = example_loops.index(op, mine, group=group)
        result = op.loss(model(mine), mine.old_log_probs, mine.advantages, index, budgets(F64))
        result.loss.mul(index.gradient_scale).backward()

    assert distance(averaged(operator(), shares_of(F64, ranks, 1), F64, step), wanted(F64)) <= EXACT[F64]


# ---------------------------------------------------------------- mistakes


def test_the_first_update_shows_no_mistake():
    first, later = example("mistakes").first_and_later()
    assert max(first.values()) <= EXACT[F64]
    assert first.keys() == later.keys() and min(later.values()) > 0.2


def test_weights_multiply_the_advantages_and_not_the_coefficients():
    """Multiplied onto the coefficients they give another gradient: what the gates let through depends on no weight."""
    op, shares = operator(), shares_of(F64, 2, 3)
    exact = averaged(op, shares, F64, lambda *a: right(*a, weights=importance))
    assert distance(exact, wanted(F64, weights=True)) <= EXACT[F64]

    def behind(op, model, pieces, group):
        """The mistake: a trainer's own weights, on what it takes for advantages."""
        mine = example("toy").join(pieces)
        now, index = model(mine), example_loops.index(op, mine, group=group)
        coef = op.coefficients(now.detach(), mine.old_log_probs, mine.advantages, index, budgets(F64))
        (-(coef.values * importance(mine) * now)).sum().mul(index.gradient_scale).backward()

    assert distance(averaged(op, shares, F64, behind), wanted(F64, weights=True)) > 0.01
