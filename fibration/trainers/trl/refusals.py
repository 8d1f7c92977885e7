"""Refuses TRL options, data, models and groups of ranks under which gradients would differ from the hierarchy's."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import fields
from enum import Enum
from typing import Any

from datasets import Dataset
from transformers import AutoConfig, PreTrainedModel

from fibration.errors import TrainerError, listed, shown
from fibration.language.hierarchy import Hierarchy, adds_up_tokens
from fibration.language.loading import shipped
from fibration.runtime.noise import rates
from fibration.trainers import intake
from fibration.trainers.clip_range import in_its_place

WINDOWS = ("step", "generation")


class Labels(Enum):
    """Sources of labels that are not columns."""

    BY_PROMPT = "the completions of one sampled prompt"


#: In place of a column: the completions of one sampled prompt are one element.
BY_PROMPT = Labels.BY_PROMPT

# Options that change the sum over tokens that coefficients need: the required value of each, and the reason.
OPTIONS: dict[str, tuple[Any, str]] = {
    "loss_type": ("dapo", "the hierarchy is the loss, and this is the sum over tokens of its coefficients"),
    "importance_sampling_level": ("token", "levels above the tokens are strata of the hierarchy, as in 'gspo'"),
    "delta": (None, "bounds of ratios are gates of the hierarchy; set them in parameters={...}"),
    "top_entropy_quantile": (1.0, "it masks tokens after the gates, which does not remove their elements"),
    "off_policy_mask_threshold": (None, "it masks rows after the gates, which does not remove their elements"),
}
# Options of TRL's losses that would have no effect.
BOUNDS = (
    "epsilon", "epsilon_high", "sapo_temperature_neg", "sapo_temperature_pos", "vespo_k_pos", "vespo_lambda_pos",
    "vespo_k_neg", "vespo_lambda_neg",
)  # fmt: skip
CLIP_RANGE = ("epsilon", "epsilon_high")
# Options that make advantages from rewards, which the hierarchy may do instead.
ADVANTAGES = ("scale_rewards", "multi_objective_aggregation")


def check_rows(window: str, together: str | None, columns: Mapping[str, str | Labels]) -> None:
    if window not in WINDOWS:
        raise TrainerError(f"window={shown(window)}", required=" or ".join(map(repr, WINDOWS)))
    if together is not None and together not in columns:
        raise TrainerError(
            f"together={shown(together)}",
            required=f"a stratum with labels: {listed(list(columns)) or 'this hierarchy has none'}",
            remedy="leave together out, so that TRL shuffles rows",
        )


def column_option(stratum: str) -> str:
    """The argument that names the column of a stratum's labels, and the alternative for strata of prompts."""
    if "prompt" not in stratum:
        return intake.label_option(stratum)
    return (
        f"{intake.label_option(stratum)}; or, where it is the completions of one sampled prompt, call it prompt_group, "
        f"or labels={{{stratum!r}: BY_PROMPT}} (from fibration.trainers.trl)"
    )


def check(
    trainer: Any,
    given: Mapping[str, Any],
    columns: Mapping[str, str | Labels],
    hierarchy: Hierarchy,
    parameters: Mapping[str, Any],
) -> None:
    """Refuse errors that show before a model is loaded, in the arguments `given` to TRL's trainer.

    `columns`: the sources of labels.
    """
    rows = hierarchy.rows.name
    if getattr(trainer, "loss_is_scaled_for_ga", None) is not True:
        raise TrainerError(
            "this release of TRL lets transformers divide its loss by the accumulation steps",
            required="a GRPOTrainer that divides by tokens itself (loss_is_scaled_for_ga), as that of trl 1.16",
            remedy="install fibration with its extra: pip install '.[trl]' in its checkout",
        )
    if rows in columns:
        raise TrainerError(
            f"labels for '{rows}', although every completion is one {rows}",
            required="labels for coarser strata",
            found=f"{rows}={shown(columns[rows])}: all completions of a line of the dataset would be one {rows}",
            remedy=f"leave {rows} out",
        )
    config = given.get("args")
    check_sampler(config, given.get("rollout_func"), hierarchy)
    if adds_up_tokens(hierarchy):
        raise TrainerError(
            f"'{hierarchy.name}' adds up the rewards of tokens, in {hierarchy.advantages}",
            required="advantages of one reward per completion, which is what TRL's reward functions give",
            remedy="hierarchy.replace(advantages=None), which takes TRL's advantages",
        )
    check_reference(config, hierarchy)
    if config is not None:  # the defaults are all accepted
        check_options(config, hierarchy)
        if getattr(config, "use_liger_loss", False) or (
            hasattr(trainer, "compute_liger_loss") and getattr(config, "use_liger_kernel", False)
        ):
            raise TrainerError(
                "Liger's loss computes log-probs and the loss in one kernel",
                required="TRL's own loss, which takes coefficients as advantages",
                remedy="leave use_liger_loss and use_liger_kernel out",
            )
        check_steps(config, given.get("train_dataset"))
        if given.get("peft_config") is None:  # with an adapter, the reference is the model without it
            check_loadable(given.get("model"), config, hierarchy)
    if given.get("rollout_func") is None:  # a rollout function may add fields to the rows
        for name in ("train_dataset", "eval_dataset"):
            for where, dataset in datasets(name, given.get(name)):
                for stratum, labels in _labels(where, dataset, columns):
                    if name == "train_dataset":  # evaluation runs at a ratio of 1, where gates read no parameters
                        intake.check_labelled(hierarchy, parameters, stratum, labels, where)


def check_options(config: Any, hierarchy: Hierarchy) -> None:
    for name, (must, why) in OPTIONS.items():
        if (value := getattr(config, name, must)) != must:
            own = f"; for the loss of that name, hierarchy={value!r}" if value in shipped() else ""
            if name == "top_entropy_quantile":
                own = f"; hierarchy='entropy_mask' with parameters={{'level': {1 - value:g}}} drops them as elements"
            raise TrainerError(
                f"{name}={shown(value)}", required=f"{name}={must!r}: {why}", remedy=f"leave {name} out{own}"
            )
    defaults = {field.name: field.default for field in fields(config)}
    for name in BOUNDS:
        if (value := getattr(config, name, None)) != defaults.get(name):
            raise TrainerError(
                f"{name}={shown(value)} has no effect",
                required=f"{name}={defaults[name]!r}, its default: the hierarchy has its own bounds",
                remedy=_own_bounds(config, hierarchy, defaults)
                if name in CLIP_RANGE
                else "leave it out, and set those in parameters={...}",
            )
    for name in ADVANTAGES if hierarchy.advantages is not None else ():
        if (value := getattr(config, name, None)) != defaults.get(name):
            raise TrainerError(
                f"{name}={shown(value)} has no effect",
                required=f"{name}={defaults[name]!r}, its default: '{hierarchy.name}' makes advantages of rewards, "
                f"{hierarchy.advantages}",
                remedy=f"leave {name} out; or hierarchy.replace(advantages=None), which takes TRL's advantages",
            )
    if config.beta and getattr(config, "use_bias_correction_kl", False):
        default = " (TRL's default)" if defaults.get("use_bias_correction_kl") else ""
        raise TrainerError(
            f"beta={config.beta:g} with use_bias_correction_kl=True{default}",
            required="use_bias_correction_kl=False",
            found="a divergence from the reference model times the ratio, and the ratio is 1 if advantages are "
            "coefficients",
            remedy=f"GRPOConfig(beta={config.beta:g}, use_bias_correction_kl=False), or leave beta at 0",
        )


def _own_bounds(config: Any, hierarchy: Hierarchy, defaults: Mapping[str, Any]) -> str:
    """What to set in place of TRL's clip range, in which `epsilon` is both bounds where `epsilon_high` is None."""
    below = config.epsilon if config.epsilon != defaults["epsilon"] else None
    above = below if config.epsilon_high is None else config.epsilon_high
    return in_its_place(hierarchy, below, above, lambda values: f"parameters={values!r}")


def check_sampler(config: Any, rollout_func: Any, hierarchy: Hierarchy) -> None:
    """Refuse a hierarchy whose rollout log-probs TRL lacks, and a second correction by them."""
    if intake.ROLLOUT not in hierarchy.policies:
        return
    used = getattr(config, "use_vllm", False)
    if not used and rollout_func is None:
        raise no_sampling_log_probs(hierarchy)
    if used and config.vllm_importance_sampling_correction:
        raise intake.read_twice(
            hierarchy,
            intake.ROLLOUT,
            "vllm_importance_sampling_correction=True (TRL's default) weights by it",
            "GRPOConfig(use_vllm=True, vllm_importance_sampling_correction=False)",
        )


def check_reference(config: Any, hierarchy: Hierarchy) -> None:
    """Refuse a hierarchy that reads the reference model if TRL cannot make one, or adds its own divergence from it."""
    if intake.REFERENCE not in hierarchy.policies:
        return
    if config is None:
        raise TrainerError(
            f"'{hierarchy.name}' reads log_prob({intake.REFERENCE}), and TRL makes its own options",
            required="args=GRPOConfig(...), in which TRL is asked for its reference model",
            remedy='args=GRPOConfig("out")',
        )
    if config.beta:
        raise intake.read_twice(
            hierarchy,
            intake.REFERENCE,
            f"beta={config.beta:g} adds TRL's own divergence from it",
            f"leave beta out: '{hierarchy.name}' gets the reference model without it",
        )


def check_loadable(model: Any, config: Any, hierarchy: Hierarchy) -> None:
    """Refuse a given model whose reference TRL cannot load: it loads the reference by the model's name."""
    reads = intake.REFERENCE in hierarchy.policies
    if not isinstance(model, PreTrainedModel) or not (reads or config.beta):
        return
    name, given = model.config.name_or_path, config.model_init_kwargs or {}
    trusted = given.get("trust_remote_code", getattr(config, "trust_remote_code", False))
    try:
        AutoConfig.from_pretrained(name, trust_remote_code=trusted)
    except (OSError, ValueError) as error:
        reader = f"'{hierarchy.name}' reads log_prob({intake.REFERENCE})" if reads else f"beta={config.beta:g}"
        raise TrainerError(
            f"{reader}, and TRL cannot load the reference of the {type(model).__name__}",
            required="the name of a model in model.config.name_or_path, from which TRL loads the reference: a folder "
            "that save_pretrained wrote, or a name on the hub",
            found=f"name_or_path={name!r}" + (f": {str(error).splitlines()[0]}" if name else ""),
            remedy='model.save_pretrained("start") once, then model.config.name_or_path = "start"',
        ) from None


def check_steps(config: Any, dataset: Any) -> None:
    """Refuse a generation that begins between two micro-batches of one optimizer step."""
    length = config.gradient_accumulation_steps
    whole = config.steps_per_generation * config.num_iterations
    rows = "steps_per_generation" if config.num_iterations == 1 else "steps_per_generation * num_iterations"
    if length > whole:
        raise TrainerError(
            f"gradient_accumulation_steps={length}, and completions are sampled anew every {whole} micro-batches",
            required=f"at most {rows}, so that an optimizer step has all its rows when it begins",
            remedy=f"steps_per_generation={length}, or a multiple of it",
        )
    each = config.generation_batch_size // config.num_generations  # prompts
    generations = 1.0 if dataset is None else len(dataset) // each if hasattr(dataset, "__len__") else float("inf")
    if whole % length and generations > 1 and not 0 < config.max_steps <= whole // length:
        raise TrainerError(
            f"completions are sampled anew after {whole} micro-batches, within optimizer step {whole // length + 1}",
            required=f"a multiple of gradient_accumulation_steps={length} for {rows}, so that an optimizer step has "
            "all its rows when it begins",
            remedy=f"steps_per_generation={length}, or a multiple of it",
        )


def datasets(name: str, given: Any) -> Iterator[tuple[str, Any]]:
    """Each dataset with its name in the trainer's arguments."""
    if isinstance(given, Mapping):
        yield from ((f"{name}[{key!r}]", dataset) for key, dataset in given.items())
    elif given is not None:
        yield name, given


def _labels(where: str, dataset: Any, columns: Mapping[str, str | Labels]) -> Iterator[tuple[str, Collection[Any]]]:
    """Per stratum with a column in a table, all labels. Raises TrainerError if one is not a label, and without the
    column.
    """
    known = getattr(dataset, "column_names", None)  # None for streams that were not read yet
    for stratum, column in columns.items():
        if known is not None and not isinstance(column, Labels) and column not in known:
            raise no_column(f"labels for '{stratum}'", column, known, f"labels={{{stratum!r}: ...}}", where)
        if not isinstance(column, Labels) and (labels := distinct(dataset, column, intake.as_label)):
            for label in labels:
                if intake.as_label(label) is None:
                    raise no_label(stratum, column, label, where)
            yield stratum, labels


def distinct(dataset: Any, column: str, read: Callable[[Any], Any]) -> Collection[Any]:
    """The different values in a column of a table, or its first one if `read` gives None for it; none of streams."""
    if not isinstance(dataset, Dataset) or dataset.format["type"] == "custom" or not len(dataset):
        return ()
    first = dataset[0][column]  # a column has one type, and `unique` does not support lists
    found: Collection[Any] = [first] if read(first) is None else dataset.unique(column)
    return found


# ------------------------------------------------------------ once the model is loaded

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
    found = [(f"'{name}'", word, value) for name, word, value, *_ in rates(trainer.model)]
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
    if intake.ROLLOUT in hierarchy.policies or coupling.frozen:
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


# ------------------------------------------------------------ during training


def no_column(
    what: str, column: object, known: Iterable[str], fix: str, where: str = "a row of the dataset"
) -> TrainerError:
    with_ = "the label of" if what.startswith("labels") else "a value for"
    return TrainerError(
        f"{where} has no column {column!r}, the source of {what}",
        required=f"a column with {with_} every row",
        found=f"columns {listed(known)}",
        remedy=fix,
    )


def no_label(stratum: str, column: str, value: Any, where: str = "the dataset") -> TrainerError:
    return TrainerError(
        f"{where} has {shown(value)} in the column {column!r}, the source of labels for '{stratum}'",
        required="a label for every row: a string, a number or a tuple; no list, None or NaN",
        remedy="drop such rows by dataset.filter, or label them by dataset.map",
    )


def no_sampling_log_probs(hierarchy: Hierarchy) -> TrainerError:
    return TrainerError(
        f"'{hierarchy.name}' reads log_prob({intake.ROLLOUT}), and TRL has no log-probs of the sampling policy",
        required="use_vllm=True, or a rollout_func whose result has 'logprobs': TRL's own generation gives none",
        remedy="GRPOConfig(use_vllm=True, vllm_importance_sampling_correction=False), or a hierarchy of two policies",
    )
