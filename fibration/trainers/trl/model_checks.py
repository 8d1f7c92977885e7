"""Refuses models and groups of ranks under which gradients would differ from the hierarchy's, once both are made."""

from __future__ import annotations

from typing import Any

from fibration.errors import TrainerError
from fibration.runtime.noise import noise
from fibration.trainers.policies import ROLLOUT

IN_PIECES = (
    "ranks that have pieces of the same rows, while TRL gathers neither tokens nor log-probs of a completion",
    "whole completions on each rank (DDP, FSDP, ZeRO); TRL's GRPOConfig refuses this option too",
    "verl's ulysses_sequence_parallel_size is exact",
)
SHARED = (
    "ranks that have the same rows, while TRL counts those of each rank as rows of their own",
    "different rows on each rank (DDP, FSDP, ZeRO)",
    "from_pretrained must not shard the model",
)
# Kinds of parallelism in which ranks share rows: what is wrong, what is required, and what to know for the fix.
PARALLEL = {"cp": IN_PIECES, "sp": IN_PIECES, "tp": SHARED}


def check_model(trainer: Any) -> None:
    """Refuse ranks that share rows, and noise in passes that have to agree."""
    for name, (found, required, further) in PARALLEL.items():
        if (size := getattr(trainer, f"get_{name}_size")()) > 1:
            fix = f"{name}_size=1 in parallelism_config and in the file or options of accelerate launch; {further}"
            raise TrainerError(f"{name}_size={size}", required=required, found=found, remedy=fix)
    if (sources := noise_of(trainer)) and (reason := passes_before(trainer)):
        where, word, value = sources[0]
        fixes = dict.fromkeys(_without_noise(trainer, word) for _, word, _ in sources)
        raise TrainerError(
            f"noise in {where} ({word}={value:g}), and {reason}: coefficients would come from a forward pass with "
            "other noise than the trained one",
            required="a model without noise, or a row-local loss (trainer.operator.coupling), whose coefficients come "
            "from the trained pass",
            remedy="; ".join(fixes),
        )


def noise_of(trainer: Any) -> list[tuple[str, str, float]]:
    """Where forward passes of the trained model draw random numbers: a place, the name of its rate, the rate."""
    found = [(f"'{name}'", word, value) for name, word, value in noise(trainer.model)]
    copied = {f"config.{word}" for _, word, _ in found}  # by a layer, which reads its copy
    found = [source for source in found if source[1] not in copied]
    if trainer.args.neftune_noise_alpha:
        found.append(("the embeddings", "neftune_noise_alpha", trainer.args.neftune_noise_alpha))
    return found


def passes_before(trainer: Any) -> str:
    """Why a step may need log-probs of a forward pass before the trained one; empty if none does."""
    config, hierarchy, coupling = trainer.args, trainer.operator.hierarchy, trainer.operator.coupling
    whole = config.steps_per_generation * config.num_iterations
    keeps = config.gradient_accumulation_steps % whole or (
        config.use_vllm and config.vllm_importance_sampling_correction
    )  # TRL keeps log-probs of when rows were sampled; otherwise every step is fresh
    coupled = "" if coupling.is_row_local else f"'{hierarchy.name}' {coupling}"
    if keeps or not hierarchy.policies:
        return coupled if keeps else ""
    if ROLLOUT in hierarchy.policies or coupling.frozen:
        return coupled or f"'{hierarchy.name}' reads old log-probs, of which TRL keeps none"
    return coupled


def _without_noise(trainer: Any, word: str) -> str:
    """What to set so that a rate is 0."""
    if word == "neftune_noise_alpha":
        return "leave neftune_noise_alpha out"
    if word == "p":
        return "GRPOConfig(disable_dropout=True)"
    if word.startswith("config."):
        return f"model.{word} = 0.0"
    if hasattr(trainer.model.config, word):
        return (
            f"from_pretrained(NAME, {word}=0.0), or GRPOConfig(model_init_kwargs={{{word!r}: 0.0}}) for a model given "
            "by name: disable_dropout does not reach this rate, and layers copy it from the config when they are made"
        )
    return f"load the model with the option of its config that sets {word} to 0"
