"""Configs of TRL: every value of every option that touches the loss, and random pairs of them."""

from __future__ import annotations

import random
from typing import Any

LOSS_TYPES = ("grpo", "sapo", "cispo", "dapo", "vespo", "bnpo", "dr_grpo", "luspo")
VLLM = {"use_vllm": True}


def _weighed(mode: str, **bounds: Any) -> dict[str, Any]:
    return {**VLLM, "vllm_importance_sampling_mode": mode, **bounds}


# Of each option, what a config may set, in groups of which a random config takes one each at most.
GROUPS: dict[str, list[dict[str, Any]]] = {
    "loss": [{"loss_type": kind} for kind in LOSS_TYPES],
    "level": [{"importance_sampling_level": "sequence"}, {"importance_sampling_level": "token"}],
    "bounds": [
        {"epsilon": 0.05},
        {"epsilon": 0.1, "epsilon_high": 0.3},
        {"epsilon_high": 1.5},
        {"epsilon": 1.0},
        {"epsilon": 2.0, "epsilon_high": 0.1},
    ],
    "ceiling": [{"delta": 1.5}, {"delta": 1.1}, {"delta": 1.1, "epsilon": 1.0}, {"delta": 4, "epsilon": 1.5}],
    "temperatures": [
        {"sapo_temperature_pos": 2.0, "sapo_temperature_neg": 0.5},
        {"sapo_temperature_pos": 0.5, "importance_sampling_level": "sequence"},
    ],
    "gammas": [
        {"vespo_k_pos": 1.0, "vespo_lambda_pos": 1.5, "vespo_k_neg": 2.0, "vespo_lambda_neg": 0.5},
        {"vespo_k_pos": 0.0, "vespo_lambda_neg": 0.0},
    ],
    "length": [{"max_completion_length": 64}],
    "batch": [{"per_device_train_batch_size": 1}],
    "off policy": [{"off_policy_mask_threshold": 0.02}, {"off_policy_mask_threshold": 0.1, "use_vllm": True}],
    "entropy": [{"top_entropy_quantile": 0.2}, {"top_entropy_quantile": 0.5}, {"top_entropy_quantile": 0.0}],
    "engine": [
        VLLM,
        {**VLLM, "vllm_importance_sampling_correction": False},
        _weighed("token_truncate"),
        _weighed("token_truncate", vllm_importance_sampling_clip_max=1.1, vllm_importance_sampling_clip_min=0.9),
        _weighed("token_truncate", vllm_importance_sampling_clip_max=None, vllm_importance_sampling_clip_min=0.95),
        _weighed("token_mask", vllm_importance_sampling_clip_max=1.1, vllm_importance_sampling_clip_min=0.9),
        _weighed("token_mask", vllm_importance_sampling_clip_max=None),
        _weighed("token_mask", vllm_importance_sampling_clip_max=1),
        _weighed("sequence_truncate", vllm_importance_sampling_cap=1.05),
        _weighed("sequence_truncate", vllm_importance_sampling_clip_max=1.0),
        _weighed("sequence_mask", vllm_importance_sampling_clip_max=1.2, vllm_importance_sampling_clip_min=0.8),
    ],
    "reference": [
        {"beta": 0.04},
        {"beta": 0.04, "use_bias_correction_kl": False},
        {"beta": "1e-1", "sync_ref_model": True},
        {"beta": 0.04, "importance_sampling_level": "sequence"},
    ],
    "rewards": [
        {"scale_rewards": False},
        {"scale_rewards": "batch"},
        {"scale_rewards": True, "reward_weights": [0.5, 2]},
        {"multi_objective_aggregation": "normalize_then_sum"},
        {"multi_objective_aggregation": "normalize_then_sum", "reward_weights": [2.0]},
        {"multi_objective_aggregation": "normalize_then_sum", "reward_funcs": ["accuracy_reward"]},
        {"num_generations": 2},
    ],
}
EVERY = {
    f"{group}: {', '.join(f'{k}={v}' for k, v in options.items())}": options
    for group, several in GROUPS.items()
    for options in several
}
# Options that only one loss reads.
READ_BY = {"temperatures": "sapo", "gammas": "vespo", "length": "dr_grpo", "batch": "bnpo"}


def is_left_out(options: dict[str, Any]) -> bool:
    """Whether TRL refuses the combination, or a quantile would be one of a single row.

    TRL refuses `vespo` with weights of sequences.
    """
    corrects = options.get("use_vllm") and options.get("vllm_importance_sampling_correction", True)
    mode = options.get("vllm_importance_sampling_mode", "sequence_mask")
    if options.get("per_device_train_batch_size") == 1 and "top_entropy_quantile" in options:
        return True
    return bool(options.get("loss_type") == "vespo" and corrects and mode.startswith("sequence"))


def with_loss(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """The options, with the loss that reads them."""
    group = name.partition(":")[0]
    return {"loss_type": READ_BY[group], **options} if group in READ_BY else options


def pairs(number: int) -> dict[str, dict[str, Any]]:
    """Random configs of a loss and of options of two groups."""
    draw = random.Random(7)
    found: dict[str, dict[str, Any]] = {}
    while len(found) < number:
        groups = draw.sample([group for group in GROUPS if group not in ("loss", "rewards")], 2)
        chosen: dict[str, Any] = dict(draw.choice(GROUPS["loss"]))
        for group in groups:
            options = draw.choice(GROUPS[group])
            chosen |= with_loss(group, options)
        if not is_left_out(chosen):
            found[", ".join(f"{k}={v}" for k, v in chosen.items())] = chosen
    return found
