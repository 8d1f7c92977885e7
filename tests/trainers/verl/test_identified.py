"""`fibration.audit` finds out which loss each policy loss of verl is, with the numbers of its config."""

import pytest
from test_losses import CLIP, NO_DUAL, ROWS, config_of
from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY, get_policy_loss_fn
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights
from verl.workers.config.actor import PolicyLossConfig

from fibration import audit


def verls(mode, reduction, named, given, chosen=None, weights=None):
    """verl's policy loss of padded tensors; its advantages are per token."""
    config = config_of(named, given, reduction, chosen)

    def of(old_log_prob, log_prob, advantages, response_mask, ratios=None):
        more = {"loss_agg_mode": reduction} if reduction else {}
        a = advantages[:, None].expand_as(log_prob).contiguous()
        return get_policy_loss_fn(mode)(
            old_log_prob=old_log_prob, log_prob=log_prob, advantages=a, response_mask=response_mask, config=config,
            rollout_is_weights=ratios, **more,
        )  # fmt: skip

    def plain(old_log_prob, log_prob, advantages, response_mask):
        return of(old_log_prob, log_prob, advantages, response_mask)

    def with_engine(old_log_prob, log_prob, rollout_log_probs, advantages, response_mask):
        made = compute_rollout_correction_weights(old_log_prob - rollout_log_probs, response_mask, *weights)[0]
        return of(old_log_prob, log_prob, advantages, response_mask, made)

    def of_the_engine(log_prob, rollout_log_probs, advantages, response_mask):
        return of(rollout_log_probs, log_prob, advantages, response_mask)

    if weights is not None:
        return with_engine
    return of_the_engine if mode == "bypass_mode" else plain


CLIPPED = dict(epsilon_low=0.13, epsilon_high=0.31)
SEQUENCE = dict(epsilon_low=3e-3, epsilon_high=4e-3)
DUAL, FREE = dict(CLIP, clip_ratio_c="ceiling"), {}
SCALED = dict(NO_DUAL, loss_scale_factor="length")
BYPASS = PolicyLossConfig(
    loss_mode="bypass_mode",
    rollout_correction=dict(loss_type="reinforce", rollout_is="token", rollout_is_threshold=1.7),
)
COV = PolicyLossConfig(clip_cov_ratio=1.0, clip_cov_lb=0.31, clip_cov_ub=0.83)
# verl's loss_mode and loss_agg_mode, and what it is.
SAME = {
    "vanilla": ("ppo", CLIPPED | {"ceiling": 1.7}, verls("vanilla", "token-mean", DUAL, CLIPPED | {"ceiling": 1.7})),
    "vanilla without c": ("dapo", CLIPPED, verls("vanilla", "token-mean", NO_DUAL, CLIPPED)),
    "vanilla, seq-mean-token-mean": ("grpo", CLIPPED, verls("vanilla", ROWS, NO_DUAL, CLIPPED)),
    "vanilla, seq-mean-token-sum": (
        "dr_grpo", CLIPPED | {"length": 1}, verls("vanilla", "seq-mean-token-sum", NO_DUAL, CLIPPED),
    ),
    "vanilla, seq-mean-token-sum-norm": (
        "dr_grpo",
        CLIPPED | {"length": 256},
        verls("vanilla", "seq-mean-token-sum-norm", SCALED, CLIPPED | {"length": 256}),
    ),
    "gpg": ("reinforce", {}, verls("gpg", "token-mean", FREE, {})),
    "cispo": ("cispo", CLIPPED, verls("cispo", "token-mean", CLIP, CLIPPED)),
    "sapo": (
        "sapo", dict(tau_pos=1.3, tau_neg=1.7), verls("sapo", ROWS, dict(tau_pos=1.3, tau_neg=1.7), {}),
    ),
    "gspo": ("gspo", SEQUENCE, verls("gspo", ROWS, CLIP, SEQUENCE)),
    "geo_mean": ("gmpo", CLIPPED, verls("geo_mean", "", CLIP, CLIPPED)),
    "dppo_tv": ("dppo_tv", CLIPPED | {"ceiling": 1.7}, verls("dppo_tv", "token-mean", DUAL, CLIPPED | {"ceiling": 1.7})),
    "dppo_kl": (
        "dppo_kl",
        dict(epsilon_low=0.03, epsilon_high=0.07, ceiling=1.7),
        verls("dppo_kl", "token-mean", DUAL, dict(epsilon_low=0.03, epsilon_high=0.07, ceiling=1.7)),
    ),
    "dro": ("dro", {"beta": 0.37}, verls("dro", "token-mean", FREE, {}, PolicyLossConfig(dro_beta=0.37))),
    "clip_cov": ("clip_cov", CLIPPED | {"least": 0.31, "most": 0.83}, verls("clip_cov", "token-mean", CLIP, CLIPPED, COV)),
    "bypass_mode": ("aipo", {"ceiling": 1.7}, verls("bypass_mode", "token-mean", FREE, {}, BYPASS)),
    "vanilla, tokens truncated": (
        "tis", CLIPPED | {"ceiling": 1.7},
        verls("vanilla", "token-mean", NO_DUAL, CLIPPED, weights=("token", "1.7")),
    ),
    "vanilla, sequences truncated": (
        "sequence_tis", CLIPPED | {"ceiling": 1.7},
        verls("vanilla", "token-mean", NO_DUAL, CLIPPED, weights=("sequence", "1.7")),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SAME)
def test_verls_loss_is_identified_with_its_numbers(name):
    expected, numbers, function = SAME[name]
    found = audit(function)
    assert found.identified, str(found)
    (own,) = (x for x in found.losses if x.name == expected)
    for key, value in numbers.items():
        assert own.parameters[key] == pytest.approx(value, rel=1e-6)


def test_a_share_of_the_tokens_is_not_called_a_quantile():
    """verl's kl_cov takes so many of `n` tokens; no level of a quantile is that for every `n`."""
    chosen = PolicyLossConfig(kl_cov_ratio=0.2, ppo_kl_coef=0.7)
    found = audit(verls("kl_cov", "token-mean", FREE, {}, chosen))
    assert not found.identified and found.losses[0].batch is not None


def test_the_sum_of_tokens_is_no_shipped_loss():
    found = audit(verls("vanilla", "token-sum", NO_DUAL, CLIPPED))
    assert not found.identified
    assert "the sum over all tokens" in next(f.text for f in found.findings if f.name == "normaliser")


def test_the_padded_width_is_not_called_a_length():
    """Without its factor, verl divides by the width of the padded tensors."""
    found = audit(verls("vanilla", "seq-mean-token-sum-norm", NO_DUAL, CLIPPED))
    assert not found.identified and any(f.name == "padding" for f in found.failures)


def test_every_loss_that_verl_registers_is_audited():
    audited = {name.partition(",")[0].partition(" ")[0] for name in SAME} | {"kl_cov"}
    assert set(POLICY_LOSS_REGISTRY) - {"fibration"} == audited
