"""`fibration.audit` finds out which loss TRL's own `_compute_loss` is, with the numbers of its options."""

import os
from collections import defaultdict
from types import SimpleNamespace

os.environ |= {"HF_HUB_OFFLINE": "1"}

import pytest
from test_losses import Accelerator
from trl import GRPOTrainer

from fibration import audit

USUAL = dict(epsilon_low=0.2, epsilon_high=0.2, delta=None, beta=0.0, top_entropy_quantile=1.0)
USUAL |= dict(importance_sampling_level="token", off_policy_mask_threshold=None, max_completion_length=None)
USUAL |= dict(vllm_importance_sampling_correction=True, steps_per_generation=1, use_bias_correction_kl=False)
SEQUENCE = dict(importance_sampling_level="sequence")
VESPO = dict(vespo_k_pos=2.3, vespo_lambda_pos=2.7, vespo_k_neg=3.4, vespo_lambda_neg=2.2)


def trls(loss_type, weights=None, **options):
    """TRL's loss of padded tensors. `weights`: what it makes of the ratio of old and engine."""

    def of(log_probs, old_log_probs, advantages, mask, ratio=None, ref_log_probs=None):
        chosen = USUAL | options
        trainer = SimpleNamespace(
            **chosen,
            loss_type=loss_type,
            use_vllm=ratio is not None,
            args=SimpleNamespace(**chosen),
            accelerator=Accelerator(),
            model=SimpleNamespace(training=True),
            aux_loss_enabled=False,
            _entropy_bonus_enabled=False,
            current_gradient_accumulation_steps=1,
            _metrics=defaultdict(lambda: defaultdict(list)),
            _get_per_token_logps_and_entropies=lambda *a, **k: (log_probs, log_probs.detach() * 0, None),
            get_off_policy_mask=GRPOTrainer.get_off_policy_mask,
            get_gamma_weights=GRPOTrainer.get_gamma_weights,
        )
        tokens = mask.long()
        inputs = dict(prompt_ids=tokens[:, :1], prompt_mask=tokens[:, :1], completion_ids=tokens, completion_mask=mask)
        inputs |= dict(advantages=advantages, old_per_token_logps=old_log_probs, num_items_in_batch=mask.sum())
        inputs |= dict(importance_sampling_ratio=ratio, ref_per_token_logps=ref_log_probs)
        return GRPOTrainer._compute_loss(trainer, None, inputs)

    def plain(log_probs, old_log_probs, advantages, mask):
        return of(log_probs, old_log_probs, advantages, mask)

    def with_reference(log_probs, old_log_probs, advantages, mask, ref_log_probs):
        return of(log_probs, old_log_probs, advantages, mask, ref_log_probs=ref_log_probs)

    def with_engine(log_probs, old_log_probs, advantages, mask, rollout_log_probs):
        return of(log_probs, old_log_probs, advantages, mask, weights(old_log_probs - rollout_log_probs, mask))

    if weights is not None:
        return with_engine
    return with_reference if options.get("beta") else plain


CLIP, OTHER = dict(epsilon_low=0.2, epsilon_high=0.2), dict(epsilon_low=0.13, epsilon_high=0.31)
# TRL's loss_type, its options, and what it is.
SAME = {
    "grpo": (trls("grpo", **OTHER), "grpo", OTHER),
    "bnpo": (trls("bnpo", **OTHER), "dapo", OTHER),
    "dapo": (trls("dapo", **OTHER), "dapo", OTHER),
    "dapo with delta": (trls("dapo", **OTHER, delta=1.7), "ppo", OTHER | {"ceiling": 1.7}),
    "dr_grpo": (trls("dr_grpo", **OTHER, max_completion_length=256), "dr_grpo", OTHER | {"length": 256}),
    "luspo per token": (trls("luspo", **OTHER), "dr_grpo", OTHER | {"length": 1}),
    "cispo": (trls("cispo", epsilon_high=2.5), "cispo_absolute", {"ceiling": 2.5}),
    "sapo": (trls("sapo", sapo_temperature_pos=1.3, sapo_temperature_neg=1.7), "sapo", {"tau_pos": 1.3, "tau_neg": 1.7}),
    "grpo per sequence": (trls("grpo", **SEQUENCE, epsilon_low=3e-3, epsilon_high=4e-3), "gspo", None),
    "luspo": (trls("luspo", **SEQUENCE, epsilon_low=3e-3, epsilon_high=4e-3), "luspo", None),
    "vespo": (trls("vespo", **VESPO), "vespo", {k.removeprefix("vespo_"): v for k, v in VESPO.items()}),
    "grpo with an off-policy mask": (trls("grpo", **OTHER, off_policy_mask_threshold=0.17), "opsm", OTHER | {"delta": 0.17}),
    "dapo, weights truncated": (trls("dapo", lambda x, m: x.exp().clamp(max=1.7), **OTHER), "tis", OTHER | {"ceiling": 1.7}),
    "dapo, sequences truncated": (
        trls("dapo", lambda x, m: (x * m).sum(-1, keepdim=True).exp().clamp(max=1.7), **OTHER),
        "sequence_tis",
        OTHER | {"ceiling": 1.7},
    ),
    "dapo, weights masked": (
        trls("dapo", lambda x, m: x.exp() * ((x.exp() >= 0.7) & (x.exp() <= 1.6)), **OTHER),
        "icepop",
        OTHER | {"least": 0.7, "most": 1.6},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SAME)
def test_trls_loss_is_identified_with_its_numbers(name):
    function, expected, numbers = SAME[name]
    found = audit(function)
    assert found.identified, str(found)
    (own,) = (x for x in found.losses if x.name == expected)
    for key, value in (numbers or dict(epsilon_low=3e-3, epsilon_high=4e-3)).items():
        assert own.parameters[key] == pytest.approx(value, rel=1e-6)


def test_trls_divergence_is_none_of_the_shipped_losses_of_advantages():
    """They take rewards, where there is a reference: so the nearest is named, with a batch."""
    found = audit(trls("dapo", beta=0.1))
    assert not found.identified and found.losses[0].batch is not None
    assert "k3" in next(f.text for f in found.findings if f.name == "reference")


def test_trls_grpo_with_a_divergence_is_grpo_k3():
    found = audit(trls("grpo", **OTHER, beta=0.07))
    assert found.identified and found.losses[0].name == "grpo_k3"
    assert found.losses[0].parameters["beta"] == pytest.approx(0.07, rel=1e-6)
    unbiased = audit(trls("grpo", **OTHER, beta=0.07, use_bias_correction_kl=True))
    assert unbiased.identified and unbiased.losses[0].name == "grpo_rk3"


def test_an_option_that_no_loss_has_is_not_called_one():
    """Sequences are clipped, and tokens averaged: of rows of several lengths it is no shipped loss."""
    found = audit(trls("dapo", **SEQUENCE, epsilon_low=0.02, epsilon_high=0.03))
    assert not found.identified and found.losses[0].batch.tokens <= 4
