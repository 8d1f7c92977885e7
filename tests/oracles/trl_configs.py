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
        _weighed("token_mask", vllm_importance_sampling_clip_max=1),
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


# Values of each option, odd ones among them. A random config takes each option in about one of three cases.
VALUES: dict[str, list[Any]] = {
    "importance_sampling_level": ["token", "sequence", "sequence"],
    "epsilon": [1e-4, "3e-4", 0.05, 0.2, "0.5", 0.99, 1, 1.0, 2, 1e6],
    "epsilon_high": [None, 1e-4, 0.1, 0.28, 0.999, 1, 1.0, 1.5, 5, 1e6],
    "delta": [None, 0.9, 1, "1.0001", 1.05, 1.2, 1.5, 3, 10],
    "sapo_temperature_pos": [1e-3, 0.5, 1, 3, 20],
    "sapo_temperature_neg": [1e-3, 0.5, 1.05, 4, 30],
    "vespo_k_pos": [-1, 0, 0.5, 2, 3.5],
    "vespo_k_neg": [-0.5, 0, 1, 3.0],
    "vespo_lambda_pos": [-1, 0, 1e-5, 0.5, 3, 10],
    "vespo_lambda_neg": [0.0, 1e-4, 2, 8],
    "max_completion_length": [1, 7, 64, 4096],
    "per_device_train_batch_size": [1, 2, 4, 8],
    "num_generations": [2, 4, 8],
    "num_iterations": [1, 2, 3],
    "scale_rewards": [True, False, "group", "batch", "none"],
    "multi_objective_aggregation": ["sum_then_normalize", "normalize_then_sum"],
    "reward_weights": [None, [1.0], [2.0], [-1.0], [0.5, 2], [-1, 1.5], [0.0, 1.0], [1.0, 1.0]],
    "reward_funcs": [["accuracy_reward"], ["accuracy_reward", "think_format_reward"]],
    "beta": [0, "0.0", 1e-3, 0.04, "1e-1", 1, 25],
    "use_bias_correction_kl": [True, False],
    "off_policy_mask_threshold": [None, 1e-6, 0.01, 0.05, 0.2, 10],
    "top_entropy_quantile": [0.0, 0.2, 0.5, 0.8, 0.99, 1.0],
    "use_vllm": [True],
    "vllm_importance_sampling_correction": [True, True, False],
    "vllm_importance_sampling_mode": ["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"],
    "vllm_importance_sampling_clip_max": [None, 1, 1.0, 1.05, 1.3, 3, 100],
    "vllm_importance_sampling_clip_min": [None, 0, 0.0, 0.5, 0.9, 0.99, 1],
    "vllm_importance_sampling_cap": [None, 1.5],
    "temperature": [0.7, 1.0, 1.3],
    "top_p": [0.9, 1.0],
    "top_k": [0, 50],
    "min_p": [None, 0.05],
    "repetition_penalty": [1.0, 1.1],
    "generation_kwargs": [{"seed": 3}, {"min_p": 0.1, "temperature": 0.6}],
    "sync_ref_model": [False, True],
    "disable_dropout": [True],
}


def random_config(seed: int) -> dict[str, Any]:
    """A random config. Sums and quantiles that TRL takes per micro-batch are those of the whole batch of eight rows."""
    draw = random.Random(seed)
    config: dict[str, Any] = {"loss_type": draw.choice(LOSS_TYPES)}
    config |= {name: draw.choice(values) for name, values in VALUES.items() if draw.random() < 0.35}
    if config.get("use_vllm"):
        config |= {n: draw.choice(v) for n, v in VALUES.items() if n.startswith("vllm_imp") and draw.random() < 0.35}
    rows = config.setdefault("per_device_train_batch_size", 4)
    if config.get("top_entropy_quantile", 1) < 1 or (config["loss_type"] == "bnpo" and rows > 1):
        config["per_device_train_batch_size"] = 8
    if "reward_weights" in config:
        config.pop("reward_funcs", None)
    if not float(config.get("beta", 0)):
        config.pop("sync_ref_model", None)  # TRL refuses it
    config["gradient_accumulation_steps"] = 8 // config["per_device_train_batch_size"]
    return {"num_iterations": 2, **config}
