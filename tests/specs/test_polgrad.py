"""Every algorithm of polgrad's registry, a peer, on the same rows off policy: advantages, loss, gradient, KL and TIS."""

from dataclasses import replace

import numpy as np
import polgrad
import pytest
import torch
from oracles.published_comparison import compiled, difference, rows, shown
from polgrad import advantages as estimators
from polgrad.kl import kl_in_reward
from polgrad.registry import ALGORITHMS
from support import packed, padded, prompt_group, spec

from fibration import exp, log_prob, minimum, policies, reward, standardised

BOUND = 1e-12
old, rollout = policies("old rollout")


def from_rewards(name):
    return spec(name).replace(groups=[prompt_group], advantages=standardised(reward, over=prompt_group, epsilon=1e-4))


def tis():
    h = spec("grpo_k3")
    weight = minimum(exp(log_prob(old) - log_prob(rollout)), ALGORITHMS["grpo_tis"].loss.is_correction.cap)
    return h.replace(objective=h.objective.weigh(weight))


CLIP = {"epsilon_low": 0.2, "epsilon_high": 0.2}
# polgrad's name: ours, and what its constants are called here.
SAME = {
    "ppo": (lambda: spec("ppo_gae"), {**CLIP, "gamma": 0.99, "lam": 0.95}),
    "grpo": (lambda: spec("grpo_k3"), {**CLIP, "beta": 0.04}),
    "dr_grpo": (lambda: spec("dr_grpo_rewards"), {**CLIP, "length": 16.0}),
    "dapo": (lambda: from_rewards("dapo"), {"epsilon_low": 0.2, "epsilon_high": 0.28}),
    "gspo": (lambda: from_rewards("gspo"), {"epsilon_low": 3e-4, "epsilon_high": 4e-4}),
    "gspo_token": (lambda: from_rewards("gspo_token"), {"epsilon_low": 3e-4, "epsilon_high": 4e-4}),
    "cispo": (lambda: from_rewards("cispo_absolute"), {"ceiling": 1.2}),
    "rloo": (lambda: spec("rloo_kl"), {"beta": 0.03}),
    "reinforce_pp": (lambda: spec("reinforce_pp"), {**CLIP, "beta": 0.001}),
    "grpo_tis": (tis, {**CLIP, "beta": 0.04}),
}


def estimated(algorithm, b):
    """Advantages by polgrad's own estimators, as the notes of its registry compose them."""
    groups, config = torch.tensor(b.prompt_group), algorithm.advantage_config
    if algorithm.advantage == "gae":
        return estimators.gae(b.rewards * b.mask, b.values, config=config, response_mask=b.mask)[0]
    if algorithm.advantage == "grpo":
        return estimators.grpo_advantages(b.of_row, groups, config)
    last = b.mask & (b.mask.cumsum(-1) == b.length)
    placement = algorithm.kl_reward
    shaped = kl_in_reward(b.rewards * last, b.old, b.reference, placement.kind, placement.coef, response_mask=b.mask)
    if algorithm.advantage == "rloo":
        return estimators.rloo_advantages(shaped.sum(-1), groups)
    to_go = shaped.flip(-1).cumsum(-1).flip(-1)
    return estimators.whiten(to_go, b.mask)


def test_every_algorithm_of_polgrad_is_compared():
    assert list(SAME) == list(ALGORITHMS)


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("name", "backend", "place"), [(n, b, p) for n in SAME for b, p in (("torch", packed), ("c", padded))]
)
def test_an_algorithm_equals_polgrads(name, backend, place):
    algorithm, (made, given) = ALGORITHMS[name], SAME[name]
    h = made()
    b = rows("ppo_gae" if name == "ppo" else "grpo_k3", len(name))
    config = replace(algorithm.loss, norm_len=16) if name == "dr_grpo" else algorithm.loss
    a = estimated(algorithm, b)
    log_prob = b.log_prob.clone().requires_grad_()
    streams = dict(old_logprobs=b.old, advantages=a, response_mask=b.mask)
    streams |= dict(ref_logprobs=b.reference, rollout_logprobs=b.rollout)
    result = polgrad.policy_loss(config, logprobs=log_prob, **streams)
    (slope,) = torch.autograd.grad(result.loss, log_prob)

    loss, objective, values = compiled(h, backend, b, given, place)
    assert loss == pytest.approx(float(result.loss.detach()), rel=BOUND)
    assert objective == pytest.approx(-float(result.loss.detach()), rel=BOUND)
    assert difference(values, -slope[b.mask].numpy()) < 1e-10
    of_tokens = a if a.ndim == 2 else a[:, None].expand_as(b.mask)
    np.testing.assert_allclose(shown(h, backend, b, given, place), of_tokens[b.mask], rtol=1e-10, atol=1e-15)
    if name not in ("rloo", "cispo"):
        assert bool((result.clipped_low | result.clipped_high).any()), "no ratio was clipped"
