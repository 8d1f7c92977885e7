"""verl's own estimators against `op.advantages`, and its KL estimators against penalties, on ragged rows off policy."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from oracles.published_comparison import compiled, difference, parameters, rows, shown
from support import packed, prompt_group, spec
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, agg_loss, get_adv_estimator_fn, kl_penalty
from verl.utils.torch_functional import masked_whiten

import fibration
from fibration import (
    Attribute,
    Fibration,
    Hierarchy,
    absolute,
    after,
    before,
    centred,
    count,
    deviation,
    exp,
    log_prob,
    mass,
    maximum,
    mean,
    policies,
    proportional,
    ratio_deviation,
    reward,
    sqrt,
    standardised,
    strata,
    token_mean,
    total,
    uniform,
    where,
    zero_gate,
)

current, old, reference = policies("current old reference")
token, cell, trajectory, batch = strata("token cell trajectory batch")
PLAIN = {"norm_adv_by_std_in_grpo": False}


ROUNDED = 3e-8  # it adds 1e-8 to counts of tokens


def whitened(compared):
    return (compared - mean(compared, over=batch)) / sqrt(deviation(compared, over=batch) ** 2 + 1e-8)


def of(advantages):
    return spec("grpo_rewards").replace(advantages=advantages)


# verl's name, ours, and what it is told.
SAME = [
    ("grpo", lambda: spec("grpo_rewards"), {}),
    ("grpo", lambda: spec("dr_grpo_rewards"), PLAIN),
    ("rloo", lambda: spec("rloo"), {}),
    ("rloo_vectorized", lambda: spec("rloo"), {}),
    ("opo", lambda: spec("opo"), {}),
    ("grpo_passk", lambda: spec("best_of_group"), {}),
    ("reinforce_plus_plus", lambda: of(whitened(reward)), {}),
    ("reinforce_plus_plus_baseline", lambda: of(whitened(centred(reward, over=prompt_group))), {}),
    ("gdpo", lambda: of(whitened(standardised(reward, over=prompt_group))), {}),
    ("remax", lambda: spec("remax"), {}),
]
CELLS = ("optimal_token_baseline", "tir_optimal_token_baseline")
NOT_HERE = {
    **dict.fromkeys(("gae", "grpo_vectorized", *CELLS), "below"),
    "gpg": "scaled by how many rewards are not 0",
}


def theirs(name, b, rewards, **told):
    given = dict(token_level_rewards=rewards, response_mask=b.mask.double(), values=b.values)
    given |= dict(index=np.array(b.prompt_group), reward_baselines=b.greedy)
    given |= dict(config=SimpleNamespace(gamma=1.0, get=told.get), gamma=told.get("gamma"), lam=told.get("lam"))
    function = get_adv_estimator_fn(name)
    known = function.__code__.co_varnames[: function.__code__.co_argcount]
    given |= {k: v for k, v in told.items() if k in known}
    found = function(**{k: v for k, v in given.items() if k in known})[0]
    return found[b.mask].numpy()


@pytest.mark.parametrize(("name", "ours", "told"), SAME, ids=[f"{c[0]}{'' if not c[2] else ' plain'}" for c in SAME])
def test_an_estimator_of_advantages_equals_verls(name, ours, told):
    h = ours()
    b = rows("best_of_group" if name == "grpo_passk" else "grpo_rewards", 2)
    last = b.mask & (b.mask.cumsum(-1) == b.length)
    expected = theirs(name, b, torch.where(last, b.rewards, 0), **told)
    given = {"length": 16.0} if "length" in h.parameters else {}
    found = shown(h, "torch", b, given, packed)
    np.testing.assert_allclose(found, expected, rtol=ROUNDED, atol=1e-9)
    assert np.abs(expected).max() > 0.1


def test_verls_vectorised_estimator_equals_ours_except_for_equal_rewards():
    """It takes a mean in float32, and divides what that is off by 1e-6; equal rewards get exactly 0 here."""
    b = rows("grpo_rewards", 2)
    last = b.mask & (b.mask.cumsum(-1) == b.length)
    expected = theirs("grpo_vectorized", b, torch.where(last, b.rewards, 0))
    found = shown(spec("dapo_rewards"), "torch", b, {}, packed)
    equal = np.array(b.prompt_group)[:, None].repeat(b.mask.shape[1], 1)[b.mask.numpy()] == 1
    np.testing.assert_allclose(found[~equal], expected[~equal], rtol=1e-5)
    assert (found[equal] == 0).all() and (np.abs(expected[equal]) > 0.01).all()


def test_verls_generalised_advantages_equal_ours_after_whitening():
    b = rows("ppo_gae", 0)
    given = parameters("ppo_gae", b)
    at = torch.zeros_like(b.old)
    at[b.mask] = torch.from_numpy(shown(spec("ppo_gae"), "torch", b, given, packed))
    expected = theirs("gae", b, b.rewards * b.mask, gamma=given["gamma"], lam=given["lam"])
    np.testing.assert_allclose(masked_whiten(at, b.mask.double())[b.mask].numpy(), expected, rtol=1e-9, atol=1e-14)


def optimal_token_baseline():
    """REINFORCE with a baseline per cell: the tokens at one position of the answers to one prompt.

    A cell has tokens of several rows, and a row has tokens of several cells. So cells are a stratum beside rows, whose
    gates remove it from the ratio, with every other ratio: no clip.
    """
    square = Attribute("sum_pi_squared", on=token, positive=False, lower=0, upper=1)
    norm = maximum(1 - 2 * exp(log_prob(old)) + square, 0)  # of the gradient in the logits; rounded below 0 at most
    so_far, to_go = norm + before(norm, over=trajectory), reward + after(reward, over=trajectory)
    baseline = total(so_far * to_go, over=cell) / (total(so_far, over=cell) + 1e-8)
    into = {trajectory: uniform(), cell: uniform()}
    reasons = ("first_order", "orthogonality", "baseline", "baseline of what is left of advantages")
    return Hierarchy(
        name="optimal_token_baseline",
        fibrations=[
            *(Fibration(token, s, kernel) for s, kernel in into.items()),
            *(Fibration(s, batch, proportional(count(token))) for s in into),
        ],
        gates=dict.fromkeys((token, *into, batch), zero_gate()),
        decomposition=ratio_deviation(scale=mass),
        objective=token_mean().score(),
        advantages=to_go - where(count(token, over=cell) > 1, baseline, 0),
        gives_up=dict.fromkeys(reasons, "the token's own reward and probability are in its baseline; no ratios"),
    )


@pytest.mark.parametrize("name", CELLS)
def test_verls_optimal_token_baseline_equals_a_baseline_per_cell(name):
    b = rows("ppo_gae", 1)
    draw = torch.Generator().manual_seed(2)
    p = b.old.exp()
    others = (1 - p) ** 2 * torch.rand(p.shape, generator=draw, dtype=p.dtype)  # Σπ² of what was not sampled
    mask = b.mask
    if name == "tir_optimal_token_baseline":  # with tools' tokens between the policy's
        mask = mask & (torch.rand(p.shape, generator=draw) > 0.3)
    given = dict(token_level_rewards=b.rewards * mask, response_mask=mask.double(), index=np.array(b.prompt_group))
    expected, _ = get_adv_estimator_fn(name)(**given, old_log_probs=b.old, sum_pi_squared=p**2 + others)
    op = fibration.compile(optimal_token_baseline(), "torch")
    cells = torch.tensor(b.prompt_group)[:, None] * 1000 + (mask.cumsum(-1) - 1).clamp(min=0)
    index = op.index(mask=mask, cell=cells, attributes={"sum_pi_squared": p**2 + others})
    made = op.advantages(b.rewards, index, policies={"old": b.old})
    torch.testing.assert_close(made[mask], expected[mask], rtol=1e-12, atol=1e-13)
    alone = torch.bincount(cells[mask])[cells[mask]] == 1
    assert 0 < alone.sum() < len(alone) / 2  # some positions are of one row


def test_every_estimator_of_verl_is_tested_or_listed_as_unsupported():
    assert {n if isinstance(n, str) else n.value for n in ADV_ESTIMATOR_REGISTRY} == {n for n, _, _ in SAME} | {
        *NOT_HERE
    }


x = log_prob(current) - log_prob(reference)
KL = {
    "k1": x,
    "abs": absolute(x),
    "k2": x**2 / 2,
    "k3": exp(-x) + x - 1,
    "k1+": x**2 / 2,
    "k3+": x**2 / 2,
}


@pytest.mark.parametrize("name", KL)
def test_a_penalty_equals_verls_kl_estimator(name):
    """Beside a score estimator, which is linear in log-probs; `+` has the value of one and the gradient of the other."""
    h = spec("dro").replace(penalties={"kl": 0.3 * KL[name]})
    b = rows("grpo_k3", 1)
    moved = b.log_prob.clone().requires_grad_()
    weight = b.mask.double()
    term = agg_loss(moved * b.advantages - 0.3 * kl_penalty(moved, b.reference, name), weight, "token-mean")
    (slope,) = torch.autograd.grad(term, moved)
    _, objective, values = compiled(h, "torch", b, {}, packed)
    assert difference(values, slope[b.mask].numpy()) < 1e-9
    assert (objective == pytest.approx(float(term.detach()), rel=1e-12)) is not name.endswith("+")
