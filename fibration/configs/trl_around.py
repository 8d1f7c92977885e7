"""What TRL does around a loss that no hierarchy says, in sentences."""

from __future__ import annotations

import math
from collections.abc import Iterator

from fibration.configs.findings import NOTE, WARNING, Finding
from fibration.configs.options import Options
from fibration.configs.sampling import SETTINGS, Setting, find_sampling
from fibration.configs.trl_options import OF_MODEL
from fibration.configs.weights import EngineWeight, answer_weight
from fibration.errors import SpecError, listed, shown, suggest

COUNTS_ROWS = ("grpo", "sapo", "dr_grpo", "luspo")  # losses that divide by a number of rows
OF_GENERATIONS = ("dapo", "cispo", "vespo")  # losses that divide by the tokens of a generation


def find_around(o: Options, weight: EngineWeight | None) -> None:
    """Adds one finding for each thing. Call it last: the options that nobody has read by then have no effect.

    `weight`: what vLLM's log-probs are used for.
    """
    o.findings += [*_engine(o, weight), *_noise(o, weight)]
    for sentence in (*_steps(o), *_rows_and_rewards(o), *_terms(o)):
        o.find(f"{sentence}.")
    o.say_table()
    o.say_unread(o.said("loss_type"), ("max_completion_length",))


def _steps(o: Options) -> Iterator[str]:
    """Which rows share a step, and what a step is divided by."""
    kind, in_step = o["loss_type"], o["gradient_accumulation_steps"]
    rows, again = o["per_device_train_batch_size"], o["num_iterations"]
    if kind == "bnpo" and rows > 1:
        yield (
            f"loss_type=bnpo: every micro-batch of {rows} rows is divided by its own tokens, and a step is the mean of "
            "its micro-batches: the hierarchy's batch is one micro-batch"
        )
    in_generation = _in_generation(o)
    if in_generation is None:
        yield (
            f"{o.said('generation_batch_size')}: the number of processes decides how many optimizer steps one "
            "generation has"
        )
        return
    if _is_fresh(o):
        corrects = o["use_vllm"] and o["vllm_importance_sampling_correction"]
        exactly = "1 up to rounding" if corrects else "exactly 1"
        yield (
            f"All ratios are {exactly}, so that no clip ever acts: with {o.said('num_iterations')}, no optimizer step "
            f"comes after another one on the same generation. num_iterations=2 or steps_per_generation={2 * in_step} "
            "makes more steps"
        )
    else:
        passes = in_generation * again  # micro-batches; where they are no whole steps, generations begin within one
        away = (in_step - math.gcd(in_step, passes) + passes - 1) // in_step
        yield (
            f"A generation takes {passes / in_step:g} optimizer steps (num_iterations={again}, "
            f"steps_per_generation={in_generation}, gradient_accumulation_steps={in_step}): in the last, the policy is "
            f"{away} {'step' if away == 1 else 'steps'} away from the one that sampled"
        )
    if in_generation != in_step:
        both = f"steps_per_generation={in_generation} and gradient_accumulation_steps={in_step}"
        if kind in OF_GENERATIONS:
            yield (
                f"{both}: a step is divided by {in_step}/{in_generation} of its generation's tokens, not by its own "
                "tokens as the hierarchy's batch is"
            )
        yield f"{both}: rewards are compared within whole generations, and a step has other rows than one generation"


def _rows_and_rewards(o: Options) -> Iterator[str]:
    kind = o["loss_type"]
    if o["mask_truncated_completions"] and (
        kind in COUNTS_ROWS or (kind == "bnpo" and o["per_device_train_batch_size"] == 1)
    ):
        yield (
            "mask_truncated_completions=True: TRL divides by all rows, the hierarchy by rows with a token: its "
            "gradient is larger by their quotient"
        )
    number, weights = number_of_rewards(o), o["reward_weights"]
    weighed = f", weighed by reward_weights={weights}" if weights is not None else ""
    if o["multi_objective_aggregation"] == "normalize_then_sum":
        if number != 1:
            yield (
                "multi_objective_aggregation=normalize_then_sum: `reward` is the sum of the reward functions' values"
                f"{weighed}, each minus its mean in the prompt group and divided by its deviation there plus 0.0001"
            )
    elif number != 1 or weighed:
        yield f"`reward` is the sum of the reward functions' values{weighed}"


def _terms(o: Options) -> Iterator[str]:
    """Further terms of the loss, and the models."""
    adapts, coef = o["use_adaptive_entropy"], o["entropy_coef"]
    if adapts or coef:
        subset = " that top_entropy_quantile keeps" if o["top_entropy_quantile"] < 1 else ""
        changes = f"; {o.said('use_adaptive_entropy')} changes the factor after every step, to 0 above entropy_target"
        yield (
            f"{o.said('entropy_coef')}: minus {coef:g} times the mean over the tokens of each micro-batch{subset} of "
            f"the entropy of the whole vocabulary's distribution{changes * adapts}"
        )
    if o["beta"] and o["sync_ref_model"]:
        yield (
            f"{o.said('sync_ref_model')}: every {o['ref_model_sync_steps']} steps the reference model moves to the "
            f"policy by {o['ref_model_mixup_alpha']:g} of the way"
        )
    given = o["model_init_kwargs"]
    if given.get("output_router_logits"):
        yield (
            "model_init_kwargs.output_router_logits=True: the model may add the load balancing loss of a mixture of "
            "experts to its own loss, which TRL does not take"
        )
    if others := [f"model_init_kwargs.{n}={given[n]}" for n in given if n not in OF_MODEL and "drop" not in n]:
        yield f"{listed(others)}: another model, of which all policies are"


def _engine(o: Options, weight: EngineWeight | None) -> Iterator[Finding]:
    """What completions are sampled from."""
    names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
    settings = {name: Setting(name, o.raw(name)) for name in names}
    regex = "vllm_structured_outputs_regex"
    if o.raw(regex) is not None and o["use_vllm"]:
        settings["structured_outputs"] = Setting(regex, o.raw(regex))
    for name, value in o["generation_kwargs"].items():
        if name not in SETTINGS:
            raise SpecError(
                f"TRL: the option 'generation_kwargs.{name}' is not known",
                required="a setting of vLLM or of transformers' generation",
                found=f"{name} = {shown(value)}",
                remedy=suggest(str(name), SETTINGS),
            )
        settings[name] = Setting(f"generation_kwargs.{name}", value)
    yield from find_sampling(settings, o["temperature"], weight)
    if weight is None:
        return
    if o["loss_type"] != "vespo":
        change = "vllm_importance_sampling_mode=token_truncate"
        change += " vllm_importance_sampling_clip_max=3.0" * (weight.least is weight.most is None)
        yield from answer_weight(
            weight, 512 if o.raw("max_completion_length") is None else o["max_completion_length"], change
        )
    if o["vllm_mode"] == "server":
        yield Finding(
            NOTE,
            f"{o.said('vllm_mode')}: {weight.said} takes the server's log-probs for those after temperature and cuts: "
            "it has to run with --logprobs-mode processed_logprobs, as `trl vllm-serve` does.",
        )


def _noise(o: Options, weight: EngineWeight | None) -> Iterator[Finding]:
    """What makes log-probs of two passes of one policy differ."""
    given = o["model_init_kwargs"]
    drops = [f"model_init_kwargs.{n}={given[n]}" for n in given if "drop" in str(n) and given[n]]
    adapts = o["use_peft"] and o["lora_dropout"] > 0
    if (drops or adapts) and not o["disable_dropout"] and (weight is not None or not _is_fresh(o)):
        said = listed([*drops, *([o.said("lora_dropout")] if adapts else [])])
        yield Finding(
            WARNING, f"{said}: every pass draws other dropout, so that no ratio is 1.", "disable_dropout=true"
        )


def _is_fresh(o: Options) -> bool:
    """Whether no optimizer step comes after another one on the same generation, as far as the config says."""
    passes = _in_generation(o)
    return passes is not None and o["gradient_accumulation_steps"] % (passes * o["num_iterations"]) == 0


def _in_generation(o: Options) -> int | None:
    """How many micro-batches a generation has, or None where the number of processes decides it."""
    if (steps := o["steps_per_generation"]) is not None:
        return int(steps)
    return None if o.raw("generation_batch_size") is not None else int(o["gradient_accumulation_steps"])


def number_of_rewards(o: Options) -> int | None:
    """How many reward functions there are, or None if the config does not say."""
    if (weights := o["reward_weights"]) is not None:
        return len(weights)
    functions = o["reward_funcs"]
    if not isinstance(functions, list | tuple):
        return None
    return len(functions) + (o["reward_model_name_or_path"] is not None)
