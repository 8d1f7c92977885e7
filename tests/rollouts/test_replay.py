"""The batch that ships, gated by losses that make advantages of its rewards."""

from dataclasses import replace

import numpy as np
import pytest
import support

from fibration import RolloutsError, after, reward
from fibration.rollouts.file import load_rollouts
from fibration.rollouts.replay import build_index, disagreement, gate


def test_advantages_are_computed_from_the_recorded_rewards():
    op, r = support.operator(support.spec("rloo")), load_rollouts()
    found = gate(op, build_index(op, r), r, {})
    rewards = r.rewards.astype(float)
    group = r.labels["prompt_group"].of
    same = group[:, None] == group
    expected = rewards - (same @ rewards - rewards) / (same.sum(1) - 1)
    assert np.ptp(expected) > 1 and not np.allclose(expected, r.advantages)
    assert found.advantages.numpy() == pytest.approx(expected, abs=1e-12)
    assert max(disagreement(found).values()) < 1e-12


def test_a_sum_of_rewards_over_tokens_needs_rewards_per_token():
    """The sum of what comes from a token on: of one reward per row, each of its tokens would have it."""
    h = support.spec("rloo")
    op = support.operator(h.replace(name="to_go", advantages=reward + after(reward, over=h.rows), groups=[]))
    r = load_rollouts()
    with pytest.raises(RolloutsError, match="no rewards of tokens, which 'to_go' adds up"):
        gate(op, build_index(op, r), r, {})
    rewards = np.random.default_rng(0).normal(size=r.n_tokens)
    found = gate(op, build_index(op, r), replace(r, rewards=rewards), {})
    to_go = np.concatenate([np.cumsum(x[::-1])[::-1] for x in np.split(rewards, r.offsets[1:-1])])
    assert found.advantages.numpy() == pytest.approx(to_go, abs=1e-12)
    assert max(disagreement(found).values()) < 1e-12
