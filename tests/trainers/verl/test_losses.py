"""Shipped losses against verl's own functions of the same names, in float64: value and gradient, off policy."""

from dataclasses import replace

import pytest
import torch
from oracles.published_comparison import compiled, difference, parameters, rows
from support import packed, spec
from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY, get_policy_loss_fn
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights, compute_rollout_rejection_mask
from verl.workers.config.actor import ActorConfig, PolicyLossConfig

BOUND = 1e-9
# verl adds 1e-8 to lengths that it divides by, here and where it takes geometric means.
ROUNDED = 3e-8
ROWS = "seq-mean-token-mean"
CLIP = dict(clip_ratio_low="epsilon_low", clip_ratio_high="epsilon_high")
NO_DUAL = dict(CLIP, clip_ratio_c=1e9)
# Ours, verl's, how it reduces, and what its config calls our parameters.
SAME = [
    ("ppo", "vanilla", "token-mean", dict(CLIP, clip_ratio_c="ceiling")),
    ("dapo", "vanilla", "token-mean", NO_DUAL),
    ("grpo", "vanilla", ROWS, NO_DUAL),
    ("dr_grpo", "vanilla", "seq-mean-token-sum-norm", dict(NO_DUAL, loss_scale_factor="length")),
    ("reinforce", "gpg", "token-mean", {}),
    ("cispo", "cispo", "token-mean", CLIP),
    ("sapo", "sapo", ROWS, dict(tau_pos="tau_pos", tau_neg="tau_neg")),
    ("gspo_token", "gspo", ROWS, CLIP),
    ("gmpo", "geo_mean", "", CLIP),
    ("dppo_tv", "dppo_tv", "token-mean", dict(CLIP, clip_ratio_c="ceiling")),
    ("dppo_kl", "dppo_kl", "token-mean", dict(CLIP, clip_ratio_c="ceiling")),
]


def config_of(named, given, reduction="token-mean", policy_loss=None):
    found = {k: given.get(v, v) if isinstance(v, str) else v for k, v in named.items()}
    # As its workers do; without it the width of the padded rows is what a row is divided by.
    batch = {"loss_scale_factor": found["loss_scale_factor"]} if "loss_scale_factor" in found else {}
    return ActorConfig(
        global_batch_info=batch,
        strategy="fsdp",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        loss_agg_mode=reduction or "token-mean",
        policy_loss=policy_loss or PolicyLossConfig(),
        **found,
    )


def theirs(loss, b, config, reduction, mask=None, weights=None, old=None):
    """verl's objective and its gradient in the log-probs of the tokens."""
    log_prob = b.log_prob.clone().requires_grad_()
    mask = b.mask.double() if mask is None else mask.double()
    given = dict(old_log_prob=b.old if old is None else old, log_prob=log_prob, advantages=b.advantages)
    more = dict(response_mask=mask, config=config, rollout_is_weights=weights)
    value, _ = get_policy_loss_fn(loss)(**given, **more, **({"loss_agg_mode": reduction} if reduction else {}))
    (slope,) = torch.autograd.grad(value, log_prob)
    return -float(value.detach()), -slope[b.mask].numpy()


def same(name, b, given, expected, bound=BOUND):
    objective, slope = expected
    loss, own, values = compiled(spec(name), "torch", b, given, packed)
    assert own == pytest.approx(objective, rel=bound, abs=bound / 100)
    assert loss == pytest.approx(-objective, rel=bound, abs=bound / 100)
    assert difference(values, slope) < bound


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("name", "loss", "reduction", "named"), SAME, ids=[c[0] for c in SAME])
def test_a_shipped_loss_equals_verls(name, loss, reduction, named, seed):
    b = rows(name, seed)
    given = parameters(name, b)
    bound = ROUNDED if reduction in (ROWS, "") else BOUND
    same(name, b, given, theirs(loss, b, config_of(named, given, reduction), reduction), bound)


CORRECTIONS = [
    ("tis", "token", "{ceiling}"),
    ("sequence_tis", "sequence", "{ceiling}"),
    ("mis", "sequence", "1e-9_{ceiling}"),
    ("icepop", "token", "{least}_{most}"),
]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("name", "level", "threshold"), CORRECTIONS, ids=[c[0] for c in CORRECTIONS])
def test_a_rollout_correction_equals_verls(name, level, threshold, seed):
    b = rows(name, seed)
    given = parameters(name, b)
    weights, _ = compute_rollout_correction_weights(b.mismatch, b.mask.double(), level, threshold.format(**given))
    same(name, b, given, theirs("vanilla", b, config_of(NO_DUAL, given), "token-mean", weights=weights))


def test_verls_clip_cov_equals_ours_if_it_drops_every_candidate():
    b = rows("clip_cov", 0)
    given = parameters("clip_cov", b)
    chosen = PolicyLossConfig(clip_cov_ratio=1.0, clip_cov_lb=given["least"], clip_cov_ub=given["most"])
    expected = theirs("clip_cov", b, config_of(CLIP, given, policy_loss=chosen), "token-mean")
    same("clip_cov", b, given, expected)


def test_verls_dro_equals_ours():
    b = rows("dro", 0)
    given = parameters("dro", b)
    chosen = PolicyLossConfig(dro_beta=given["beta"])
    same("dro", b, given, theirs("dro", b, config_of({}, given, policy_loss=chosen), "token-mean"))


def test_verls_kl_cov_equals_ours_for_the_same_number_of_tokens():
    """It takes a share of all tokens; a quantile between two of them leaves that many above it."""
    b = rows("kl_cov", 1)
    tokens = int(b.mask.sum())
    for taken in (1, 5):
        given = parameters("kl_cov", b) | {"coef": 0.7, "level": 1 - (taken - 0.5) / (tokens - 1)}
        chosen = PolicyLossConfig(kl_cov_ratio=(taken + 0.25) / tokens, ppo_kl_coef=given["coef"])
        same("kl_cov", b, given, theirs("kl_cov", b, config_of({}, given, policy_loss=chosen), "token-mean"))
        other = given | {"level": 1 - (taken + 0.5) / (tokens - 1)}
        with pytest.raises(AssertionError):
            same("kl_cov", b, other, theirs("kl_cov", b, config_of({}, given, policy_loss=chosen), "token-mean"))


def test_every_loss_that_verl_registers_is_compared_with_ours():
    once = {"clip_cov", "kl_cov", "dro", "bypass_mode"}
    assert set(POLICY_LOSS_REGISTRY) - {"fibration"} == {loss for _, loss, _, _ in SAME} | once


def masked(b, given, low, high):
    keep, _ = compute_rollout_rejection_mask(b.mismatch, b.mask.double(), "seq_mean_k1", f"{low}_{high}")
    return theirs("vanilla", b, config_of(NO_DUAL, given), "token-mean", mask=keep)


def test_verls_rejection_by_k1_keeps_ratios_between_the_inverse_bounds():
    """Its statistic is `-log ρ`, its bounds are called those of `ρ`; ours are."""
    b = rows("geometric_mask", 2)
    given = parameters("geometric_mask", b) | {"least": 0.95, "most": 1.2}
    same("geometric_mask", b, given, masked(b, given, 1 / 1.2, 1 / 0.95))
    with pytest.raises(AssertionError):
        same("geometric_mask", b, given, masked(b, given, 0.95, 1.2))


def test_verls_bypass_mode_equals_aipo():
    """With REINFORCE and a capped ratio of each token to the engine, which it is given as `old`."""
    b = rows("aipo", 0)
    given = parameters("aipo", b)
    correction = dict(loss_type="reinforce", rollout_is="token", rollout_is_threshold=given["ceiling"])
    config = config_of({}, given, policy_loss=PolicyLossConfig(loss_mode="bypass_mode", rollout_correction=correction))
    same("aipo", b, given, theirs("bypass_mode", b, config, "token-mean", old=b.rollout))


def test_verls_bypass_mode_clips_without_weights():
    """Its other loss: PPO with dual clip, near the engine."""
    b = rows("ppo", 0)
    b = replace(b, old=b.rollout)
    given = parameters("ppo", b)
    correction = dict(loss_type="ppo_clip", rollout_is="token", rollout_is_threshold=1.1)
    chosen = PolicyLossConfig(loss_mode="bypass_mode", rollout_correction=correction)
    config = config_of(dict(CLIP, clip_ratio_c="ceiling"), given, policy_loss=chosen)
    same("ppo", b, given, theirs("bypass_mode", b, config, "token-mean"))
