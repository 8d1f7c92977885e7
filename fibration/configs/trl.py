"""The loss that a config of TRL's GRPOTrainer trains, as `GRPOTrainer._compute_loss` of TRL 1.16 computes it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from fibration.configs.draft import (
    Draft,
    batch,
    clip_gate,
    estimated_kl,
    prompt_group,
    sapo_gate,
    together,
    token,
    trajectory,
)
from fibration.configs.findings import ERROR, NOTE, WARNING, Finding
from fibration.configs.options import Option, Options, Table, TrainerLoss, Unfit, read_table
from fibration.configs.sampling import SETTINGS, EngineWeight, Setting, answer_weight, find_sampling, sequence_clip
from fibration.errors import SpecError, listed, shown, suggest
from fibration.language.atoms import Attribute, Parameter, advantage, count, residual, reward, token_log_ratio
from fibration.language.declared import log_prob, policies
from fibration.language.expressions import Expression, Operand
from fibration.language.gates import Gate, log_ratio, zero_gate
from fibration.language.objectives import constant_normaliser, token_mean, trajectory_mean
from fibration.language.operators import clip, exp, expm1, log, maximum, minimum, sigmoid, where
from fibration.language.statistics import centred, deviation, mean, quantile, standardised, total
from fibration.language.strata import Fibration, uniform

COUNTS_ROWS = ("grpo", "sapo", "dr_grpo", "luspo")  # losses that divide by a number of rows
OF_GENERATIONS = ("dapo", "cispo", "vespo")  # losses that divide by the tokens of a generation
MODE = "vllm_importance_sampling_mode"
SIGNS = ("pos", "neg")  # ends of the names of options for A > 0, and for the others
EPSILON = 1e-4  # TRL adds it to deviations of rewards
FAR, NEAR_ZERO = 20.0, math.log(1e-8)  # `vespo` cuts log ratios here
REMEDY = "fibration audit FILE.py:FUNCTION says which loss a function is, whichever trainer calls it"

current, old, rollout, reference = policies("current old rollout reference")
APART = log_prob(old) - log_prob(rollout)  # of a token: the log of what vLLM's weight is made of


def _mapping(value: Any, option: Option) -> Mapping[str, Any]:
    """A mapping, perhaps written as JSON; an empty one for None."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise Unfit("a mapping, or one in JSON") from None
    if not isinstance(value, Mapping | None):
        raise Unfit("a mapping")
    return value or {}


def _weights(value: Any, option: Option) -> list[float] | None:
    """The weights of the reward functions, or None if all are 1."""
    if value is None:
        return None
    if not isinstance(value, list | tuple) or not value:
        raise Unfit("a list of numbers, one for each reward function")
    try:
        weights = [float(w) for w in value]
    except (TypeError, ValueError):
        weights = [math.nan]
    if not all(map(math.isfinite, weights)):
        raise Unfit("a list of finite numbers, one for each reward function")
    return weights


def _scale(value: Any, option: Option) -> str:
    found = {True: "group", False: "none"}[value] if isinstance(value, bool) else value
    if found not in ("group", "batch", "none"):
        raise Unfit("group, batch or none; or true or false")
    return str(found)


TABLE = Table(read_table("trl"), {"mapping": _mapping, "weights": _weights, "scale": _scale})
OF_MODEL = frozenset(TABLE.data["of_model"].split())
OTHERS, LOSSES = (
    {trainer: frozenset(names.split()) for trainer, names in TABLE.data[key].items()} for key in ("others", "losses")
)


def hierarchy_of(config: Any) -> TrainerLoss:
    """Returns the loss that a config of TRL trains, and what TRL does around it.

    `config`: a `trl.GRPOConfig`, or a mapping of its options, as `yaml.safe_load` returns it. A mapping may have the
    options of models and scripts that `TrlParser` takes. TRL does not have to be installed.

    The hierarchy takes rewards, `op.loss(..., rewards=...)`, and makes TRL's advantages of them. Its parameters have
    the config's numbers as defaults. Laws that the loss breaks are given up, with the option that breaks each.

    Raises SpecError for an option that is unknown, for a value that TRL refuses, and for a loss that cannot be
    declared.
    """
    o = options_of(config)
    d = Draft(o)
    kind, by_sequence = o["loss_type"], o["importance_sampling_level"] == "sequence"
    weight = _engine_weight(d, kind)
    # Rows without a token are counted by TRL and not by `μ`: `around` says so where a config makes them.
    if kind in ("grpo", "sapo") or (kind == "bnpo" and o["per_device_train_batch_size"] == 1):
        d.objective = trajectory_mean()
    elif kind == "dr_grpo":
        d.objective = constant_normaliser(Parameter("length", default=o["max_completion_length"]))
    else:
        d.objective = constant_normaliser(1) if kind == "luspo" else token_mean()
    if kind in ("cispo", "vespo"):
        d.objective = d.objective.score()
        d.gives_up["first_order"] = f"{o.said('loss_type')}: a score estimator: its value is not the objective"
    if kind == "vespo":
        weight = _vespo(d, weight)
    elif kind == "cispo":
        _cispo(d, by_sequence)
    elif by_sequence:
        _of_sequence(d, kind)
    elif kind == "sapo":
        d.gates = {token: sapo_gate(*_temperatures(o))}
        d.gives_up["first_order"] = _slope(o)
    else:
        d.gates = {token: _clipped(d, False)}
    _masks(d)
    if kind != "vespo" and weight is not None:
        _weigh(d, weight)
    _divergence(d, by_sequence)
    d.advantages = _advantages(d)
    _find_around(o, weight)
    return d.loss(f"trl_{kind}" + "_sequence" * (by_sequence and kind != "vespo"), notes=False)


def options_of(config: Any) -> Options:
    if isinstance(config, Mapping):
        _refuse_others(config)
        options = Options(TABLE, config)
        if all(options.raw(name) is not None for name in ("steps_per_generation", "generation_batch_size")):
            raise options.refusal(
                "generation_batch_size", "nothing beside steps_per_generation, as TRL requires", "leave one of them out"
            )
        return options
    kinds = [base.__name__ for base in type(config).__mro__]
    if "GRPOConfig" not in kinds or not is_dataclass(config):
        raise SpecError(
            f"a {type(config).__name__} is no config of TRL's GRPOTrainer",
            required="a trl.GRPOConfig, or a mapping of its options",
            remedy="hierarchy_of(GRPOConfig(...)), or hierarchy_of(yaml.safe_load(text))",
        )
    made = type(config)
    if made.__name__ != "GRPOConfig" and (made.__module__.startswith("trl.") or "Unsloth" in made.__name__):
        raise _another(f"a {made.__name__} changes the loss of GRPOTrainer", made.__name__.replace("Config", "Trainer"))
    # A field of a subclass, or of another release, may touch the loss.
    others = {each.name: each.default for each in fields(config) if TABLE.find(each.name) is None}
    defaults = {**TABLE.defaults, **others}
    given = {name: value for name, plain in defaults.items() if (value := getattr(config, name, plain)) != plain}
    given.pop("generation_batch_size", None)  # GRPOConfig has made it, or steps_per_generation of it
    return Options(TABLE, given)


def _refuse_others(config: Mapping[str, Any]) -> None:
    """Raises SpecError for a config of another trainer: it has options, or a `loss_type`, that GRPOTrainer lacks."""
    kinds = config.get("loss_type")
    losses = {str(kind) for kind in (kinds if isinstance(kinds, list) else [kinds])}
    scores = {
        trainer: sum(name in config for name in names) + bool(losses & LOSSES.get(trainer, frozenset()))
        for trainer, names in OTHERS.items()
    }
    if not (most := max(scores.values())):
        return
    trainers = [trainer for trainer, score in scores.items() if score == most]
    option = next((name for name in config if any(name in OTHERS[t] for t in trainers)), "loss_type")
    what, found = f"the option '{option}' is not known to GRPOTrainer", f"{option} = {shown(config[option])}"
    raise _another(what, " or ".join(trainers), found)


def _another(what: str, trainer: str, found: str = "") -> SpecError:
    """The error for a config of another trainer."""
    return SpecError(
        f"TRL: {what}: this is a config of {trainer}, whose loss is not read",
        required="a config of TRL's GRPOTrainer",
        found=found,
        remedy=REMEDY,
    )


# ---------------------------------------------------------------- the term of a token


def _temperatures(o: Options) -> tuple[Parameter, ...]:
    return tuple(Parameter(f"tau_{sign}", default=o[f"sapo_temperature_{sign}"]) for sign in SIGNS)


def _slope(o: Options) -> str:
    return f"{o.said('loss_type')}: the value at ratio 1 is 2/temperature; the slope is 1"


def _of_sequence(d: Draft, kind: str) -> None:
    """One ratio per completion, the geometric mean of its tokens' ratios, as in GSPO."""
    level = d.options.said("importance_sampling_level")
    why = f"{level}: one ratio per completion, and what its tokens do beside it is lost"
    if kind == "sapo":
        tau = where(advantage > 0, *_temperatures(d.options))
        gate = Gate(log(4 / tau * sigmoid(tau * expm1(residual))))
        both = f"{d.options.said('loss_type')} with {level}"
        d.gives_up["first_order"] = f"{why}. {_slope(d.options)}"
        d.gives_up["gradient"] = d.say(f"{both}: no proof was found that the slope at ratio 1 is 1")
    else:
        gate = _clipped(d, True)
        d.gives_up["first_order"] = why
    d.gates, d.fibrations = {trajectory: gate, token: zero_gate()}, (Fibration(token, trajectory, kernel=uniform()),)
    d.decomposition = log_ratio(scale=1 / count(token, over=trajectory))


def _clipped(d: Draft, logs: bool) -> Gate:
    """PPO's clip, with `delta` as a second upper bound. `logs`: the residual is a log ratio, else a ratio minus 1."""
    o = d.options
    low, given = o["epsilon"], o["epsilon_high"]
    high, ceiling = low if given is None else given, o["delta"]
    if logs:
        names = ("epsilon", "epsilon_high")[: 1 if given is None else 2]
        bounds = f"{o.said('importance_sampling_level')} with {listed(map(o.said, names))}"
        o.findings += sequence_clip(bounds, low, high, "epsilon=0.0003 epsilon_high=0.0004")
    # A clip's own bound above delta limits A < 0, and delta limits A > 0.
    return clip_gate(low, high, ceiling, logs, caps_gains=ceiling is not None and ceiling < 1 + high)


def _cispo(d: Draft, by_sequence: bool) -> None:
    o = d.options
    name = "epsilon" if o.raw("epsilon_high") is None else "epsilon_high"
    cap = o[name]
    ceiling: Operand = Parameter("ceiling", default=cap, lower=1) if cap > 1 else cap
    low = ""
    if cap < 1:
        said = f"{o.said(name)}{' in the place of epsilon_high' * (name == 'epsilon')}"
        low = (
            f"{said}: loss_type=cispo reads it as the bound of the ratio itself, not as 1 + {cap:g}: at a ratio of 1 "
            f"the gradient is {cap:g} of the policy gradient"
        )
        d.say(low, ERROR, f"epsilon_high={1 + cap:g}")
    if by_sequence:
        d.gates = {token: zero_gate()}
        whole = f"{o.said('importance_sampling_level')}: a completion is weighed whole"
        d.weigh(minimum(exp(mean(token_log_ratio, over=trajectory)), ceiling), agreement=low, causal=whole)
    else:
        d.gates = {token: Gate(minimum(residual, ceiling - 1))}
        d.gives_up |= {"gradient": low} if low else {}


def _vespo(d: Draft, weight: EngineWeight | None) -> EngineWeight | None:
    """Its weight of a completion, which takes vLLM's into itself. Returns what the loss makes of vLLM's log-probs."""
    o = d.options
    numbers = ((f"k_{s}", o[f"vespo_k_{s}"]) for s in SIGNS)  # no parameter has 0 or less
    k = where(advantage >= 0, *(Parameter(name, default=value) if value > 0 else value for name, value in numbers))
    rates = ((f"lambda_{s}", max(o[f"vespo_lambda_{s}"], 1e-4)) for s in SIGNS)  # TRL raises them to 0.0001
    rate = where(advantage >= 0, *(Parameter(name, default=value) for name, value in rates))
    log_w: Expression = total(clip(token_log_ratio, -FAR, FAR), over=trajectory)
    edge, kind = "", o.said("loss_type")
    if weight is not None:
        edge = _edge(d, weight)
        least, most = _bounds(weight)
        inner = APART
        if not weight.masks:
            inner = inner if most is None else minimum(inner, log(most))
            inner = inner if least is None else maximum(inner, log(least))
        inner = clip(inner, NEAR_ZERO, FAR)
        if weight.masks:
            inner = inner if least is None else where(exp(APART) < least, NEAR_ZERO, inner)
            inner = inner if most is None else where(exp(APART) > most, NEAR_ZERO, inner)
        log_w = log_w + total(inner, over=trajectory)
        weight = EngineWeight(f"{kind} with {weight.said}", "answer", masks=False)
    log_w = clip(log_w, NEAR_ZERO, FAR)
    d.gates = {token: zero_gate()}
    d.weigh(exp(k * log_w - rate * expm1(log_w)), agreement=edge, causal=f"{kind}: a completion is weighed whole")
    return weight


# ---------------------------------------------------------------- masks and vLLM's weights


def _masks(d: Draft) -> None:
    o = d.options
    if (threshold := o["off_policy_mask_threshold"]) is not None:
        away = log_prob(rollout) - log_prob(current) if o["use_vllm"] else -token_log_ratio
        condition = (advantage >= 0) | (mean(away, over=trajectory) <= Parameter("threshold", default=threshold))
        d.keep(condition, causal=f"{o.said('off_policy_mask_threshold')}: a completion is dropped whole")
    if (dropped := o["top_entropy_quantile"]) < 1:
        entropy = Attribute("entropy", on=token, positive=False, lower=0)
        why = o.said("top_entropy_quantile")
        d.keep(
            entropy >= quantile(entropy, 1 - dropped, over=batch),
            causal=f"{why}: the bound is a quantile of all tokens of the batch, also of later ones",
            mask_open=d.say(f"{why}: tokens of low entropy have no gradient, from the first update on"),
        )


def _engine_weight(d: Draft, kind: str) -> EngineWeight | None:
    """vLLM's weight, or None where the loss ignores vLLM's log-probs."""
    o = d.options
    if not (o["use_vllm"] and o["vllm_importance_sampling_correction"]):
        return None
    mode, low, high = o[MODE], "vllm_importance_sampling_clip_min", "vllm_importance_sampling_cap"
    high = high if o.raw(high) is not None else "vllm_importance_sampling_clip_max"
    if kind == "vespo" and mode.startswith("sequence"):
        raise o.refusal(MODE, "token_truncate or token_mask with loss_type=vespo, as TRL requires")
    least, most = o[low], o[high]
    if most is not None and most < 1:
        raise o.refusal(high, "at least 1: below, no token keeps its weight of 1 where vLLM and the trainer agree")
    if least is not None and least > 1:
        raise o.refusal(low, "at most 1, the weight where vLLM and the trainer agree")
    if least is not None and most is not None and not least < most:
        raise o.refusal(low, f"less than {high}={most:g}")
    if mode.endswith("truncate") and least is None and most is None:
        raise o.refusal("vllm_importance_sampling_clip_max", f"a bound, for vllm_importance_sampling_mode={mode}")
    least = None if least is not None and least <= 0 else least
    level = "answer" if mode.startswith("sequence") else "token"
    return EngineWeight(o.said(MODE), level, mode.endswith("mask"), least, most)  # type: ignore[arg-type]


def _bounds(weight: EngineWeight) -> tuple[Operand | None, Operand | None]:
    """The bounds of vLLM's weight as parameters, or as numbers where they are 1."""
    least, most = weight.least, weight.most
    return (
        least if least in (None, 1) else Parameter("least", default=least, upper=1),
        most if most in (None, 1) else Parameter("most", default=most, lower=1),
    )


def _edge(d: Draft, weight: EngineWeight) -> str:
    """Why a mask of vLLM's weight drops tokens where vLLM and the trainer nearly agree, or ""."""
    if not weight.masks or 1 not in (weight.least, weight.most):
        return ""
    most = "cap=3.0" if d.options.raw("vllm_importance_sampling_cap") is not None else "clip_max=3.0"
    change = f"vllm_importance_sampling_{most if weight.most == 1 else 'clip_min=null'}"
    return d.say(f"{weight.said}: a bound of 1 drops tokens where vLLM and the trainer nearly agree", ERROR, change)


def _weigh(d: Draft, weight: EngineWeight) -> None:
    """vLLM's importance weights, which multiply every token's term but those of `beta`."""
    least, most = _bounds(weight)
    whole = weight.level == "answer"
    ratio = exp(total(APART, over=trajectory) if whole else APART)
    inside = [] if least is None else [ratio >= least]
    inside += [] if most is None else [ratio <= most]
    if not weight.masks:
        ratio = ratio if most is None else minimum(ratio, most)
        ratio = ratio if least is None else maximum(ratio, least)
    d.weigh(ratio, causal=f"{weight.said}: a completion is weighed whole" * whole)
    if weight.masks and inside:
        dropped = f"{weight.said}: a completion is dropped whole" * whole
        d.keep(together(inside), causal=dropped, mask_open=_edge(d, weight))


# ---------------------------------------------------------------- the reference model, and advantages


def _divergence(d: Draft, by_sequence: bool) -> None:
    """k3 to the reference model, by default times the ratio: `beta`."""
    o = d.options
    if (beta := o["beta"]) == 0:
        return
    kl: Expression = Parameter("beta", default=beta)
    said = f"{o.said('beta')} with {o.said('use_bias_correction_kl')}"
    if not o["use_bias_correction_kl"]:
        d.gives_up["kl_gradient"] = d.say(
            f"{said}: k3 in the loss: its gradient is that of the other divergence, KL(reference ‖ current)",
            WARNING,
            "use_bias_correction_kl=true",
        )
    elif by_sequence:
        kl = kl * exp(mean(token_log_ratio, over=trajectory))
        why = d.say(
            f"{said}: with {o.said('importance_sampling_level')} k3 is multiplied by the ratio of the whole "
            "completion. Its gradient is not shown to be a divergence's",
            WARNING,
        )
        rest = d.say(f"{why}, nor to pull towards the reference", WARNING)
        d.gives_up |= {"kl_gradient": why, "kl_gradient of what is left of kl": rest}
    else:
        kl = kl * exp(token_log_ratio)
    d.penalties["kl"] = kl * estimated_kl("k3", log_prob(current) - log_prob(reference))


def _advantages(d: Draft) -> Expression:
    """TRL's advantages of rewards."""
    o = d.options
    o["num_generations"]
    weights, itself = o["reward_weights"], "the completion's own reward among them"
    if o["multi_objective_aggregation"] == "normalize_then_sum":
        why = f"{o.said('multi_objective_aggregation')}: divided by deviations, {itself}"
        d.gives_up["baseline"] = why
        each: Expression = reward
        if _number_of_rewards(o) == 1:
            d.gives_up["baseline of what is left of advantages"] = f"{why}; whether A rises with it is not decided"
            each = standardised(reward, over=prompt_group, epsilon=EPSILON)
            each = weights[0] * each if weights is not None and weights[0] != 1 else each
        return standardised(each, over=batch, of=trajectory, epsilon=EPSILON)
    if (scale := o["scale_rewards"]) == "none":
        return centred(reward, over=prompt_group)
    if scale == "group":
        d.gives_up["baseline"] = f"{o.said('scale_rewards')}: groups whose rewards differ less count for more"
        return standardised(reward, over=prompt_group, epsilon=EPSILON)
    d.gives_up["baseline"] = f"{o.said('scale_rewards')}: divided by a deviation, {itself}"
    return centred(reward, over=prompt_group) / (deviation(reward, over=batch, of=trajectory) + EPSILON)


# ---------------------------------------------------------------- around the loss


def _find_around(o: Options, weight: EngineWeight | None) -> None:
    """Adds one finding for each thing. Call it last: the options that nobody has read by then have no effect.

    `weight`: what vLLM's log-probs are used for.
    """
    o.findings += [*_engine(o, weight), *_noise(o, weight)]
    for sentence in (*_say_steps(o), *_rows_and_rewards(o), *_terms(o)):
        o.find(f"{sentence}.")
    o.say_table()
    o.say_unread(o.said("loss_type"), ("max_completion_length",))


def _say_steps(o: Options) -> Iterator[str]:
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
    number, weights = _number_of_rewards(o), o["reward_weights"]
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


def _number_of_rewards(o: Options) -> int | None:
    """How many reward functions there are, or None if the config does not say."""
    if (weights := o["reward_weights"]) is not None:
        return len(weights)
    functions = o["reward_funcs"]
    if not isinstance(functions, list | tuple):
        return None
    return len(functions) + (o["reward_model_name_or_path"] is not None)
