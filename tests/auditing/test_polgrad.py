"""The losses of polgrad, a peer, are identified with the numbers of its registry."""

from dataclasses import replace

import polgrad
import pytest
from polgrad.registry import ALGORITHMS

from fibration import audit


def polgrads(name, **changes):
    """polgrad's loss of padded tensors, from advantages, or from rewards where it estimates them."""
    algorithm = ALGORITHMS[name]
    config = replace(algorithm.loss, **changes)

    def of(logprobs, old_logprobs, advantages, response_mask, ref=None, rollout=None):
        streams = dict(logprobs=logprobs, old_logprobs=old_logprobs, advantages=advantages)
        more = dict(response_mask=response_mask, ref_logprobs=ref, rollout_logprobs=rollout)
        return polgrad.policy_loss(config, **streams, **more).loss

    def of_advantages(logprobs, old_logprobs, advantages, response_mask):
        return of(logprobs, old_logprobs, advantages, response_mask)

    def estimated(rewards, group_ids):
        if algorithm.advantage == "rloo":
            return polgrad.rloo_advantages(rewards, group_ids)
        return polgrad.grpo_advantages(rewards, group_ids, algorithm.advantage_config)

    def of_rewards(logprobs, old_logprobs, rewards, response_mask, group_ids):
        return of(logprobs, old_logprobs, estimated(rewards, group_ids), response_mask)

    def near_a_reference(logprobs, old_logprobs, ref_logprobs, rewards, response_mask, group_ids):
        return of(logprobs, old_logprobs, estimated(rewards, group_ids), response_mask, ref_logprobs)

    def with_an_engine(logprobs, old_logprobs, rollout_logprobs, advantages, response_mask):
        return of(logprobs, old_logprobs, advantages, response_mask, rollout=rollout_logprobs)

    return dict(
        advantages=of_advantages, rewards=of_rewards, reference=near_a_reference, engine=with_an_engine
    )  # fmt: skip


BOUNDS = {"epsilon_low": 0.2, "epsilon_high": 0.2}
DAPO = {"epsilon_low": 0.2, "epsilon_high": 0.28}
# polgrad's name, how it is called, the changes of its config; what it is.
SAME = [
    ("ppo", "advantages", {}, "dapo", BOUNDS),
    ("dapo", "advantages", {}, "dapo", DAPO),
    ("dr_grpo", "rewards", {"norm_len": 16}, "dr_grpo_rewards", BOUNDS | {"length": 16}),
    ("gspo", "advantages", {}, "gspo", {"epsilon_low": 3e-4, "epsilon_high": 4e-4}),
    ("gspo_token", "advantages", {}, "gspo_token", {"epsilon_low": 3e-4, "epsilon_high": 4e-4}),
    ("cispo", "advantages", {}, "cispo_absolute", {"ceiling": 1.2}),
    ("rloo", "rewards", {}, "rloo", {}),
    ("grpo", "reference", {}, "grpo_k3", BOUNDS | {"beta": 0.04}),
    ("grpo_tis", "engine", {"kl": None, "aggregation": polgrad.Aggregation.TOKEN_MEAN}, "tis", BOUNDS),
]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "called", "changes", "expected", "numbers"), SAME, ids=[f"{c[0]}, {c[1]}" for c in SAME]
)
def test_polgrads_loss_is_identified_with_its_numbers(name, called, changes, expected, numbers):
    found = audit(polgrads(name, **changes)[called])
    assert found.identified, str(found)
    (own,) = (x for x in found.losses if x.name == expected)
    for key, value in numbers.items():
        assert own.parameters[key] == pytest.approx(value, rel=1e-6)


def test_another_epsilon_of_the_deviation_is_said():
    """polgrad adds 1e-4 to the deviation of rewards, `dapo_rewards` 1e-6."""
    found = audit(polgrads("dapo")["rewards"])
    assert (found.losses[0].name, found.losses[0].strength) == ("dapo_rewards", "proved"), str(found)
    assert "epsilon_std = 0.0001" in str(found)
