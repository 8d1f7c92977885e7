"""Shipped losses against TRL's own `_compute_loss`, in float64: value and gradient, off policy."""

import os
from collections import defaultdict
from types import SimpleNamespace

os.environ |= {"HF_HUB_OFFLINE": "1"}

import pytest
import torch
from oracles.published_comparison import compiled, difference, parameters, rows
from support import packed, spec
from trl import GRPOTrainer

BOUND = 1e-9
ROUNDED = 3e-7  # its temperatures of SAPO and VESPO are float32, as `torch.where` makes of two numbers
CLIP = dict(epsilon_low="epsilon_low", epsilon_high="epsilon_high")
SEQUENCE = dict(importance_sampling_level="sequence")
VESPO = {f"vespo_{k}": k for k in ("k_pos", "k_neg", "lambda_pos", "lambda_neg")}
# Ours, TRL's, and what its trainer calls our parameters.
SAME = [
    ("grpo", "grpo", CLIP),
    ("dapo", "dapo", CLIP),
    ("dapo", "bnpo", CLIP),
    ("ppo", "dapo", dict(CLIP, delta="ceiling")),
    ("dr_grpo", "dr_grpo", dict(CLIP, max_completion_length="length")),
    ("cispo_absolute", "cispo", dict(epsilon_high="ceiling")),
    ("sapo", "sapo", dict(sapo_temperature_pos="tau_pos", sapo_temperature_neg="tau_neg")),
    ("gspo", "grpo", CLIP | SEQUENCE),
    ("luspo", "luspo", CLIP | SEQUENCE),
    ("vespo", "vespo", VESPO),
    ("opsm", "grpo", dict(CLIP, off_policy_mask_threshold="delta")),
]


class Accelerator:
    """Of one process, and one micro-batch."""

    num_processes = 1
    sync_gradients = True

    def gather(self, value):
        return value

    def reduce(self, value, reduction):
        return value


def theirs(loss, b, named, given, weights=None, unbiased=False):
    """TRL's objective and its gradient in the log-probs of the tokens."""
    log_prob = b.log_prob.clone().requires_grad_()
    chosen = {k: given.get(v, v) if isinstance(v, str) else v for k, v in named.items()}
    usual = dict(epsilon_low=0.2, epsilon_high=0.2, delta=None, beta=0.0, top_entropy_quantile=1.0)
    usual |= dict(importance_sampling_level="token", off_policy_mask_threshold=None, max_completion_length=None)
    usual |= dict(use_vllm=weights is not None, vllm_importance_sampling_correction=True, steps_per_generation=1)
    chosen = usual | chosen
    trainer = SimpleNamespace(
        **chosen,
        loss_type=loss,
        args=SimpleNamespace(**chosen, use_bias_correction_kl=unbiased),
        accelerator=Accelerator(),
        model=SimpleNamespace(training=True),
        aux_loss_enabled=False,
        _entropy_bonus_enabled=False,
        current_gradient_accumulation_steps=1,
        _metrics=defaultdict(lambda: defaultdict(list)),
        _get_per_token_logps_and_entropies=lambda *a, **k: (log_prob, torch.zeros_like(log_prob), None),
        get_off_policy_mask=GRPOTrainer.get_off_policy_mask,
        get_gamma_weights=GRPOTrainer.get_gamma_weights,
    )
    tokens, mask = b.mask.long(), b.mask.double()
    inputs = dict(prompt_ids=tokens[:, :1], prompt_mask=tokens[:, :1], completion_ids=tokens, completion_mask=mask)
    inputs |= dict(advantages=b.advantages, old_per_token_logps=b.old, num_items_in_batch=mask.sum())
    inputs |= {} if weights is None else {"importance_sampling_ratio": weights}
    inputs |= {"ref_per_token_logps": b.reference} if chosen["beta"] else {}
    value = GRPOTrainer._compute_loss(trainer, None, inputs)
    (slope,) = torch.autograd.grad(value, log_prob)
    return -float(value.detach()), -slope[b.mask].numpy()


def same(name, b, given, expected, bound=BOUND):
    objective, slope = expected
    loss, own, values = compiled(spec(name) if isinstance(name, str) else name, "torch", b, given, packed)
    assert own == pytest.approx(objective, rel=bound, abs=bound / 100)
    assert loss == pytest.approx(-objective, rel=bound, abs=bound / 100)
    assert difference(values, slope) < bound


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("name", "loss", "named"), SAME, ids=[f"{c[0]} as {c[1]}" for c in SAME])
def test_a_shipped_loss_equals_trls(name, loss, named, seed):
    b = rows(name, seed)
    given = parameters(name, b)
    same(name, b, given, theirs(loss, b, named, given), ROUNDED if loss in ("sapo", "vespo") else BOUND)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", ["tis", "sequence_tis", "mis", "icepop"])
def test_a_loss_with_the_engines_ratio_equals_trls(name, seed):
    """Its ratio is made where it samples; what it makes of it is `clamp` or `masked_fill` by `vllm_importance_sampling_mode`."""
    b = rows(name, seed)
    given = parameters(name, b)
    whole = name in ("sequence_tis", "mis")
    ratio = torch.exp(b.sum(b.mismatch) if whole else b.mismatch)
    low, high = given.get("least", 0.0), given.get("most", given.get("ceiling"))
    dropped = (ratio < low) | (ratio > high)
    weights = ratio.masked_fill(dropped, 0.0) if name in ("mis", "icepop") else ratio.clamp(max=high)
    same(name, b, given, theirs("dapo", b, CLIP, given, weights))


@pytest.mark.parametrize(("name", "base"), [("grpo_k3", "grpo"), ("grpo_rk3", "grpo"), ("grpo_k3", "tis")])
def test_a_divergence_is_added_as_in_trl(name, base):
    """After tokens are weighed by their ratio to the engine."""
    b = rows("grpo_k3", 0)
    h = spec(base).replace(penalties=spec(name).penalties)
    given = {"beta": 0.3, "epsilon_low": 0.2, "epsilon_high": 0.2} | ({"ceiling": 1.2} if base == "tis" else {})
    weights = torch.exp(b.mismatch).clamp(max=1.2) if base == "tis" else None
    loss = "dapo" if base == "tis" else "grpo"
    same(h, b, given, theirs(loss, b, CLIP | {"beta": "beta"}, given, weights, name == "grpo_rk3"))
