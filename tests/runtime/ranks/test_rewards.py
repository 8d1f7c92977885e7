"""Rewards of a batch that is spread over ranks: the advantages of the whole, and errors on all."""

import functools

import numpy as np
import pytest
import torch
from hierarchies.advantage_formulas import FIELD, of_rows, rewarded
from oracles.backend_cases import BACKENDS_HERE
from oracles.rewards import Rewards
from rank_batches import part
from support import check, operator, packed, padded, prompt_group, spread_batch
from thread_ranks import on_ranks, try_on_ranks

from fibration import BatchError, RanksError, reward, standardised
from fibration.runtime import devices

BATCH = spread_batch((3, 1, 4, 2, 5, 2))
R = of_rows(BATCH)
POLICIES = {
    name: -np.random.default_rng(k).uniform(0.1, 2, BATCH.tokens) for k, name in enumerate(("old", "reference"))
}
WHOLE = [[(0, 0, 3), (3, 0, 2)], [], [(1, 0, 1), (2, 0, 4), (4, 0, 5), (5, 0, 2)]]  # rank 1 has nothing
CUT = [[(0, 0, 1), (3, 0, 2)], [(2, 3, 4), (0, 2, 3)], [(1, 0, 1), (2, 0, 3), (4, 0, 5), (5, 0, 2), (0, 1, 2)]]


@functools.cache
def op_of(name, backend="torch"):
    return operator(rewarded(FIELD[name]), backend)


def on_each(op, pieces, call, per_token=False, make=packed, rewards=R):
    """`call(layout, rewards, policies)` on every rank."""

    def work(group):
        mine = part(BATCH, pieces[group.rank])
        layout = make(op, mine.batch, group=group, trajectory=list(mine.rows))
        assert layout.index.ranks.cut == (pieces is CUT or pieces == CUT[::-1])
        given = {k: layout.tensor(v[mine.places]) for k, v in POLICIES.items() if k in op.hierarchy.policies}
        r = (
            layout.tensor(rewards[BATCH.row][mine.places])
            if per_token
            else torch.tensor([rewards[r] for r in mine.rows]).double()
        )
        return call(group.rank, layout, r, given, mine)

    return work


def advantages(op, pieces, per_token, make=packed):
    """Of every token of the batch."""

    def call(rank, layout, r, given, mine):
        a = op.advantages(r, layout.index, policies=given)
        of_row = tuple(a.shape) != layout.shape or layout.index.rows_are_tokens()
        return mine.places, a.numpy()[mine.batch.row] if of_row else layout.read(a)

    found = np.full(BATCH.tokens, np.nan)
    for places, values in on_ranks(len(pieces), on_each(op, pieces, call, per_token, make)):
        found[places] = values
    return found


@pytest.mark.sampled
@pytest.mark.parametrize("name", ["rloo", "grpo", "opo", "kl_of_rows", "kl_of_tokens"])
@pytest.mark.parametrize("per_token", [False, True])
def test_advantages_are_those_of_the_whole_batch(name, per_token):
    """Where rows are cut too, and whoever has which, to the bit; a rank without tokens, and one of whole tokens alone."""
    op = op_of(name)
    expected = Rewards(op.hierarchy, BATCH, R[BATCH.row], POLICIES).advantages()
    for pieces in (WHOLE, CUT):
        found = advantages(op, pieces, per_token, padded if per_token else packed)
        assert np.abs(found - expected).max() <= 1e-13
        assert found.tobytes() == advantages(op, pieces[::-1], per_token).tobytes()


@pytest.mark.parametrize("backend", [b.name for b in BACKENDS_HERE if b.device == "cpu" and b.name != "torch"])
def test_compiled_backends_compute_the_advantages_of_the_whole_batch(backend):
    op = op_of("kl_of_tokens", backend)
    expected = Rewards(op.hierarchy, BATCH, R[BATCH.row], POLICIES).advantages()
    assert np.abs(advantages(op, CUT, False) - expected).max() <= 1e-13


def test_a_loss_from_rewards_equals_the_loss_from_their_advantages():
    op = op_of("grpo")

    def call(rank, layout, r, given, mine):
        now, old = layout.tensor(mine.batch.x), layout.tensor(np.zeros(mine.batch.tokens))
        a = op.advantages(r, layout.index)
        one, other = (
            op.coefficients(now, old, index=layout.index, rewards=r),
            op.coefficients(now, old, a, layout.index),
        )
        assert torch.equal(one.values, other.values) and torch.equal(one.objective, other.objective)
        return float(one.values.abs().sum())

    assert sum(on_ranks(3, on_each(op, CUT, call))) > 0


def test_a_wrong_reward_on_one_rank_raises_on_all():
    op = op_of("grpo")

    def raised(call, pieces=WHOLE, **more):
        ran = try_on_ranks(3, on_each(op, pieces, call, **more))
        assert all(isinstance(e, Exception) for e in ran.errors), ran.errors
        return ran.errors

    def nan(rank, layout, r, given, mine):
        r[-1:] = float("nan") if rank == 2 else r[-1:]
        op.advantages(r, layout.index)

    for error in raised(nan):
        check(error, BatchError, what="rank 2: the reward of row 3 (trajectory 5) is nan")

    def both(rank, layout, r, given, mine):
        x = layout.tensor(mine.batch.x)
        op.coefficients(x, x, *([r] if rank == 2 else []), index=layout.index, rewards=r)

    for error in raised(both):
        check(error, BatchError, what="rank 2: both rewards and advantages are given")

    def either(rank, layout, r, given, mine):
        x = layout.tensor(mine.batch.x)
        op.coefficients(x, x, r, layout.index) if rank == 2 else op.coefficients(x, x, index=layout.index, rewards=r)

    for error in raised(either):
        check(error, RanksError, what="ranks are in different calls", found="advantages from rewards on ranks 0 and 1")

    def apart(rank, layout, r, given, mine):
        op.advantages(r + (rank == 1), layout.index)

    for error in raised(apart, CUT):
        check(
            error,
            RanksError,
            what="ranks have different rewards for the trajectory",
            required="one reward per trajectory",
        )

    flat = operator(rewarded(standardised(reward, over=prompt_group, epsilon=0)))

    def equal(rank, layout, r, given, mine):
        flat.advantages(torch.full_like(r, 0.1), layout.index)

    ran = try_on_ranks(3, on_each(flat, WHOLE, equal))
    for error in ran.errors:
        check(error, BatchError, what="are divided by a deviation of 0", remedy="epsilon=1e-6")


def test_pieces_of_a_row_with_different_rewards_are_refused(monkeypatch):
    """Nobody reads the rewards of rows but their tokens: ranks compare them."""
    op = op_of("kl_of_tokens")

    def apart(rank, layout, r, given, mine):
        return op.advantages(r + (rank == 1), layout.index, policies=given)

    for error in try_on_ranks(3, on_each(op, CUT, apart)).errors:
        check(error, BatchError, what="pieces of one trajectory have different rewards", remedy="rewards per token")
    monkeypatch.setattr(devices, "can_sync", lambda device: False)
    assert all(bool(a.isnan().any()) for a in on_ranks(3, on_each(op, CUT, apart)))


def test_the_traffic_of_rewards_is_one_number_per_row():
    """Words and one number per row; nothing more where advantages are given."""
    op = op_of("rloo")

    def traffic(rewards):
        def call(rank, layout, r, given, mine):
            x = layout.tensor(mine.batch.x)
            a = {"rewards": r} if rewards else {"advantages": r}
            op.coefficients(x, x, index=layout.index, metrics=False, **a)

        return try_on_ranks(3, on_each(op, WHOLE, call)).traffic.sent

    plain, made = traffic(False), traffic(True)
    more = len(op.calls.on(torch.device("cpu")).run.collectives("advantages_of_rows", False))
    assert len(made) == len(plain) + 3 + more and more <= 2
    assert max(size for kind, size in made if kind == "all_gather") <= max(
        64, *(s for k, s in plain if k == "all_gather")
    )
