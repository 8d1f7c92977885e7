"""What the trainer must not train with: the options, and the words by which its refusal names them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch


@dataclass(frozen=True)
class Refused:
    words: tuple[str, ...]
    config: dict[str, Any] = field(default_factory=dict)
    trainer: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    without: str = ""  # a column that the data lack
    streamed: bool = False  # data that are known by and by
    trains: bool = False  # only training shows it
    how: Callable[[Any], Any] = lambda config: nullcontext()  # makes it so, of the configuration


def losses() -> dict[str, Refused]:
    kinds = ("grpo", "bnpo", "dr_grpo", "cispo", "sapo", "vespo", "luspo")
    return {f"loss_type={kind}": Refused(("loss_type", kind, "dapo"), {"loss_type": kind}) for kind in kinds}


REFUSED = {
    **losses(),
    "importance_sampling_level": Refused(
        ("importance_sampling_level", "sequence"), {"importance_sampling_level": "sequence"}
    ),
    "delta": Refused(("delta", "2.0"), {"delta": 2.0}),
    "top_entropy_quantile": Refused(("top_entropy_quantile", "0.5"), {"top_entropy_quantile": 0.5}),
    "off_policy_mask_threshold": Refused(("off_policy_mask_threshold",), {"off_policy_mask_threshold": 0.5}),
    "use_bias_correction_kl": Refused(("use_bias_correction_kl",), {"use_bias_correction_kl": True, "beta": 0.1}),
    "epsilon": Refused(("epsilon", "0.3", "parameters"), {"epsilon": 0.3}),
    "epsilon_high": Refused(("epsilon_high", "0.28", "parameters"), {"epsilon_high": 0.28}),
    "a generation inside a window": Refused(
        ("gradient_accumulation_steps", "steps_per_generation", "2", "3"),
        {"gradient_accumulation_steps": 2, "num_iterations": 1},
    ),
    "a window of two generations": Refused(
        ("gradient_accumulation_steps", "steps_per_generation", "6", "3"),
        {"gradient_accumulation_steps": 6, "num_iterations": 1},
    ),
    "dropout": Refused(("dropout", "0.1", "disable_dropout"), model={"attention_dropout": 0.1}),
    "noise in embeddings": Refused(("neftune_noise_alpha", "5"), {"neftune_noise_alpha": 5.0}),
    "labels for completions": Refused(
        ("trajectory", "line"), trainer={"labels": {"domain": "domain", "trajectory": "line"}}
    ),
    "a column that lacks": Refused(("train_dataset", "domain"), without="domain"),
    "a column that lacks, in a stream": Refused(("domain",), without="domain", streamed=True, trains=True),
    "a window that is none": Refused(("window", "batch", "step", "generation"), trainer={"window": "batch"}),
    "metrics that are none": Refused(("metrics", "many", "levels", "all"), trainer={"metrics": "many"}),
    "a stratum without labels": Refused(("domain", "labels"), trainer={"labels": {}}),
    "labels for no stratum": Refused(("genre",), trainer={"labels": {"domain": "domain", "genre": "domain"}}),
    "an earlier release": Refused(
        ("loss_is_scaled_for_ga",), how=lambda _: patch("trl.GRPOTrainer.loss_is_scaled_for_ga", False)
    ),
    "a fused loss": Refused(
        ("use_liger_loss",), how=lambda config: patch.object(config, "use_liger_loss", True, create=True)
    ),
    "a fused loss of an earlier release": Refused(
        ("use_liger_kernel",),
        {"use_liger_kernel": True},
        how=lambda _: patch("trl.GRPOTrainer.compute_liger_loss", None, create=True),
    ),
    **{
        f"{kind} parallelism": Refused(
            (kind, "parallel"), how=lambda _, name=f"trl.GRPOTrainer.get_{kind}_size": patch(name, lambda self: 2)
        )
        for kind in ("tp", "cp", "sp")
    },
    "a parameter that is none": Refused(("C_domian", "C_domain"), trainer={"parameters": {"C_domian": 0.1}}),
    "a parameter out of bounds": Refused(("epsilon", "-0.1"), trainer={"parameters": {"epsilon": -0.1}}),
    "a hierarchy that is none": Refused(("no_such_loss",), trainer={"hierarchy": "no_such_loss"}),
}

# What looks like some of these, and is not.
ALLOWED = {
    "dropout, and one pass": Refused((), {"num_iterations": 1}, model={"attention_dropout": 0.1}),
    "a generation after the last window": Refused(
        (), {"gradient_accumulation_steps": 2, "num_iterations": 1, "max_steps": 1}
    ),
    "a divergence without correction": Refused((), {"use_bias_correction_kl": True}),
}
