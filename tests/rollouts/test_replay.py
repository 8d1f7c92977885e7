"""Batches gated by losses that make advantages of rewards, and batches that lack what a hierarchy needs."""

from dataclasses import replace

import numpy as np
import pytest
import support

from fibration import Attribute, Gate, RolloutsError, after, exp, log_prob, policies, residual, reward, trajectory_mean
from fibration.rollouts.file import load_rollouts
from fibration.rollouts.replay import build_index, disagreement, gate


def gated(h, rollouts, by=None):
    op = support.operator(h)
    return gate(op, build_index(op, rollouts), rollouts, {}, by)


def to_go():
    """The sum of what comes from a token on: of one reward per row, each of its tokens would have it."""
    h = support.spec("rloo")
    return h.replace(name="to_go", advantages=reward + after(reward, over=h.rows), groups=[])


def test_advantages_are_computed_from_the_recorded_rewards():
    r = load_rollouts()
    rewards, group = r.rewards.astype(float), r.labels["prompt_group"].of
    same = group[:, None] == group
    expected = rewards - (same @ rewards - rewards) / (same.sum(1) - 1)
    assert np.ptp(expected) > 1 and not np.allclose(expected, r.advantages)
    of_tokens = np.random.default_rng(0).normal(size=r.n_tokens)
    sums = np.concatenate([np.cumsum(x[::-1])[::-1] for x in np.split(of_tokens, r.offsets[1:-1])])
    given = (support.spec("rloo"), r, expected), (to_go(), replace(r, rewards=of_tokens), sums)
    for found, advantages in ((gated(h, batch), advantages) for h, batch, advantages in given):
        assert found.advantages.numpy() == pytest.approx(advantages, abs=1e-12)
        assert max(disagreement(found).values()) < 1e-12


def weighed():
    weight = Attribute("weight", on=support.token)
    gates = {support.token: Gate(residual * weight / weight)}
    return support.spec("grpo").replace(name="weighed", gates=gates, gives_up={"inward": "a test"})


def of_earlier():
    made = trajectory_mean().weigh(exp(log_prob(policies("old")[0]) - log_prob(policies("earlier")[0])))
    return support.spec("grpo").replace(name="mine", objective=made)


PER_TOKEN, PER_ROW = "one per row or per token", "one per trajectory or per token"
LACKS = {  # the hierarchy, what the shipped batch has instead; what is required, found and to be done
    "advantages": ("grpo", {"advantages": None, "rewards": None}, "advantages, " + PER_ROW, "neither advantages nor", "advantages, ...)"),
    "advantages of rewards": ("fiberpo_inward", {"advantages": None}, "advantages, ", "only rewards, and the hierarchy", "log_probs, old_log_probs, adv"),
    "rewards": ("rloo", {"rewards": None}, "rewards, " + PER_ROW, "advantages=", "(..., rewards=rewards)"),
    "rewards of tokens": (to_go, {}, "rewards, one per token", "advantages=", "a row's reward at its last token"),
    "a policy": (of_earlier, {}, "policies={'earlier': log_probs}, one for each of the", "current and old", "policies={'earlier': log_probs}"),
    "masks": ("fiberpo_modal", {}, "masks for text_token, image_token", "masks for none; labels for", "masks={'text_token': mask, 'image_token': mask}"),
    "a stratum": ("fiberpo_turns", {}, "labels for prompt_group, turn", "every segment is one trajectory", "turn=labels), " + PER_TOKEN),
    "a group": ("rloo", {"labels": {}}, "labels for prompt_group", "labels for nothing", "prompt_group=labels"),
    "an attribute": (weighed, {}, "numbers for weight", "numbers for none", "attributes={'weight': numbers}), " + PER_TOKEN),
    "parts": ("ppo", {}, "one of prompt_group, domain", "", "expert=labels"),
    "all parts": ("ppo", {"labels": {}}, "labels, to tell parts", "", "expert=labels"),
}  # fmt: skip


@pytest.mark.parametrize("name", LACKS)
def test_what_the_rollouts_lack_is_named(name):
    made, changes, required, found, remedy = LACKS[name]
    h = support.spec(made) if isinstance(made, str) else made()
    with pytest.raises(RolloutsError) as raised:
        gated(h, replace(load_rollouts(), **changes), by="expert" if "parts" in name else None)
    e = raised.value
    assert required in e.required and found in e.found and remedy in e.remedy, str(e)
    assert f"'{h.name}'" in e.what or "'expert'" in e.what
