"""The batch that ships, gated by losses that make advantages of its rewards."""

import numpy as np
import pytest
import support

from fibration import RolloutsError, after, reward
from fibration.rollouts.file import load_rollouts
from fibration.rollouts.replay import build_index, disagreement, gate


def test_advantages_are_made_of_the_rewards_that_were_recorded():
    op, r = support.operator(support.spec("rloo")), load_rollouts()
    found = gate(op, build_index(op, r), r, {})
    rewards = r.rewards.astype(float)
    same = r.prompt_group[:, None] == r.prompt_group
    expected = rewards - (same @ rewards - rewards) / (same.sum(1) - 1)
    assert np.ptp(expected) > 1 and not np.allclose(expected, r.advantages)
    assert found.advantages.numpy() == pytest.approx(expected, abs=1e-12)
    assert max(disagreement(found).values()) < 1e-12


def test_rewards_of_tokens_are_not_recorded():
    h = support.spec("rloo")
    op = support.operator(h.replace(name="to_go", advantages=reward + after(reward, over=h.rows), groups=[]))
    with pytest.raises(RolloutsError, match="nothing about the rewards of tokens, which 'to_go' adds up"):
        build_index(op, load_rollouts())
