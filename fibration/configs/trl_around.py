"""What TRL does around a loss that no hierarchy says, in sentences."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from fibration.configs.findings import NOTE, WARNING, Finding
from fibration.configs.options import Options
from fibration.configs.sampling import SETTINGS, Setting, find_sampling
from fibration.configs.trl_loss import number_of_rewards, reward_weights
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
    found = [*_steps(o), *_masked(o), *_rewards(o), *_terms(o), *_model(o)]
    if unused := o.unread():
        has = "have" if len(unused) > 1 else "has"
        options = listed(o.said(name) for name in unused)
        found.append(f"{options} {has} no effect with {o.said('loss_type')} and the other options")
    for sentence in found:
        o.find(f"{sentence}.")


def _steps(o: Options) -> Iterator[str]:
    """Which rows share a step, and what a step is divided by."""
    kind, in_step = o["loss_type"], o.whole("gradient_accumulation_steps")
    rows, again = o.whole("per_device_train_batch_size"), o.whole("num_iterations")
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
        corrects = o.flag("use_vllm") and o.flag("vllm_importance_sampling_correction")
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


def _masked(o: Options) -> Iterator[str]:
    if o.flag("mask_truncated_completions"):
        yield (
            "mask_truncated_completions=True: a completion that is cut has no token in the loss; TRL compares its "
            "reward with those of its prompt group, and the hierarchy leaves rows without a token out"
        )
        if o["loss_type"] in COUNTS_ROWS or (o["loss_type"] == "bnpo" and o.whole("per_device_train_batch_size") == 1):
            yield (
                "mask_truncated_completions=True: TRL divides by all rows, the hierarchy by rows with a token: its "
                "gradient is larger by their quotient"
            )
    if o.number("top_entropy_quantile") < 1:
        yield (
            f"{o.said('top_entropy_quantile')}: TRL takes the quantile of one micro-batch of all processes, and the "
            "hierarchy that of its batch. The attribute `entropy` of a token is the entropy of the whole vocabulary's "
            "distribution, in nats"
        )


def _rewards(o: Options) -> Iterator[str]:
    number, weights = number_of_rewards(o), reward_weights(o)
    weighed = f", weighed by reward_weights={list(weights)}" if weights is not None else ""
    if o["multi_objective_aggregation"] == "normalize_then_sum":
        if number != 1:
            yield (
                "multi_objective_aggregation=normalize_then_sum: `reward` is the sum of the reward functions' values"
                f"{weighed}, each minus its mean in the prompt group and divided by its deviation there plus 0.0001"
            )
    elif number != 1 or weighed:
        yield f"`reward` is the sum of the reward functions' values{weighed}"


def _terms(o: Options) -> Iterator[str]:
    """Further terms of the loss."""
    adapts, coef = o.flag("use_adaptive_entropy"), o.number("entropy_coef")
    if adapts or coef:
        subset = " that top_entropy_quantile keeps" if o.number("top_entropy_quantile") < 1 else ""
        changes = f"; {o.said('use_adaptive_entropy')} changes the factor after every step, to 0 above entropy_target"
        yield (
            f"{o.said('entropy_coef')}: minus {coef:g} times the mean over the tokens of each micro-batch{subset} of "
            f"the entropy of the whole vocabulary's distribution{changes * adapts}"
        )
    if (router := o.number_or_none("router_aux_loss_coef")) is not None and router:
        yield (
            f"{o.said('router_aux_loss_coef')}: plus that times the load balancing loss of a mixture of experts, "
            "of which a step has the mean over its micro-batches"
        )
    if o.number("beta") and o.flag("sync_ref_model"):
        steps, share = o.whole("ref_model_sync_steps"), o.number("ref_model_mixup_alpha")
        yield (
            f"{o.said('sync_ref_model')}: every {steps} steps the reference model moves to the policy by {share:g} of "
            "the way"
        )


def _model(o: Options) -> Iterator[str]:
    heat = o.number("temperature", above=0)
    if heat != 1:
        yield f"{o.said('temperature')}: all log-probs are those of logits divided by {heat:g}"
    given = _mapping(o, "model_init_kwargs")
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
    settings = {name: Setting(name, o[name]) for name in names}
    regex = "vllm_structured_outputs_regex"
    if o[regex] is not None and o.flag("use_vllm"):
        settings["structured_outputs"] = Setting(regex, o[regex])
    for name, value in _mapping(o, "generation_kwargs").items():
        if name not in SETTINGS:
            raise SpecError(
                f"TRL: the option 'generation_kwargs.{name}' is not known",
                required="a setting of vLLM or of transformers' generation",
                found=f"{name} = {shown(value)}",
                remedy=suggest(str(name), SETTINGS),
            )
        settings[name] = Setting(f"generation_kwargs.{name}", value)
    yield from find_sampling(settings, o.number("temperature", above=0), weight)
    length = o["max_completion_length"]
    if weight is not None and o["loss_type"] != "vespo":
        change = "vllm_importance_sampling_mode=token_truncate"
        change += " vllm_importance_sampling_clip_max=3.0" * (weight.least is weight.most is None)
        yield from answer_weight(weight, 512 if length is None else o.whole("max_completion_length"), change)
    if weight is not None and o["vllm_mode"] == "server":
        yield Finding(
            NOTE,
            f"{o.said('vllm_mode')}: {weight.said} takes the server's log-probs for those after temperature and cuts: "
            "it has to run with --logprobs-mode processed_logprobs, as `trl vllm-serve` does.",
        )


def _noise(o: Options, weight: EngineWeight | None) -> Iterator[Finding]:
    """What makes log-probs of two passes of one policy differ."""
    given = _mapping(o, "model_init_kwargs")
    drops = [f"model_init_kwargs.{n}={given[n]}" for n in given if "drop" in str(n) and given[n]]
    adapts = o.flag("use_peft") and o.number("lora_dropout") > 0
    if (drops or adapts) and not o.flag("disable_dropout") and (weight is not None or not _is_fresh(o)):
        said = listed([*drops, *([o.said("lora_dropout")] if adapts else [])])
        sentence = f"{said}: every pass draws other dropout, so that no ratio is 1."
        yield Finding(WARNING, sentence, "disable_dropout=true")
    if o["neftune_noise_alpha"]:
        yield Finding(
            WARNING,
            f"{o.said('neftune_noise_alpha')}: noise is added to embeddings in training, so that the gradient is that "
            "of another policy than the one that samples.",
            "neftune_noise_alpha=null",
        )


def _is_fresh(o: Options) -> bool:
    """Whether no optimizer step comes after another one on the same generation, as far as the config says."""
    passes = _in_generation(o)
    return passes is not None and o.whole("gradient_accumulation_steps") % (passes * o.whole("num_iterations")) == 0


def _in_generation(o: Options) -> int | None:
    """How many micro-batches a generation has, or None where the number of processes decides it."""
    if o["steps_per_generation"] is not None:
        return o.whole("steps_per_generation")
    return None if o["generation_batch_size"] is not None else o.whole("gradient_accumulation_steps")


def _mapping(o: Options, name: str) -> Mapping[str, Any]:
    """The mapping of an option, perhaps written as JSON; an empty one for None."""
    value = o[name]
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise o.refusal(name, "a mapping, or one in JSON") from None
    if not isinstance(value, Mapping | None):
        raise o.refusal(name, "a mapping")
    return value or {}
