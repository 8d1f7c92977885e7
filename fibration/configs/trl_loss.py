"""The term of a token in TRL's losses, and TRL's advantages."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from fibration.configs.findings import ERROR
from fibration.configs.options import Options
from fibration.configs.parts import batch, prompt_group, token, trajectory
from fibration.configs.weights import sequence_clip
from fibration.errors import listed
from fibration.language.advantages import centred, standardised
from fibration.language.atoms import Parameter, Stratum, advantage, count, residual, reward, token_log_ratio
from fibration.language.decompositions import Decomposition, log_ratio, ratio_deviation
from fibration.language.expressions import Expression, Operand
from fibration.language.gates import Gate, dual_clip_gate, log_clip_gate, pessimistic_clip_gate, zero_gate
from fibration.language.kernels import Fibration, uniform
from fibration.language.operators import clip, exp, expm1, log, log1p, maximum, minimum, sigmoid, where
from fibration.language.statistics import deviation, mean, total

SIGNS = ("pos", "neg")  # ends of the names of options for A > 0, and for the others
SCORES = ("cispo", "vespo")  # values of loss_type that are score estimators
EPSILON = 1e-4  # TRL adds it to deviations of rewards
FAR, NEAR_ZERO = 20.0, math.log(1e-8)  # `vespo` cuts log ratios here


@dataclass(frozen=True)
class Token:
    """The gated ratio of a token, and weights beside it. `weights`: each with the reason why it reads later tokens.

    `reasons`: the laws that the loss of a token breaks, by key of `gives_up`.
    """

    gates: Mapping[Stratum, Gate]
    decomposition: Decomposition = field(default_factory=ratio_deviation)
    fibrations: tuple[Fibration, ...] = ()
    weights: tuple[tuple[Expression, str], ...] = ()
    reasons: Mapping[str, str] = field(default_factory=dict)


def token_loss(o: Options, kind: str, by_sequence: bool, engine: Expression | None, edge: str) -> Token:
    """The term of a token.

    `engine`: the log of vLLM's weight of a token, for `vespo`; None without a correction. `edge`: why that weight drops
    tokens where vLLM and the trainer nearly agree, or "".
    """
    if kind == "vespo":
        return _vespo(o, engine, edge)
    if kind == "cispo":
        return _cispo(o, by_sequence)
    if kind == "sapo":
        heats = (Parameter(f"tau_{s}", default=o.number(f"sapo_temperature_{s}", above=0)) for s in SIGNS)
        tau = where(advantage > 0, *heats)
        why = f"{o.said('loss_type')}: the value at ratio 1 is 2/temperature; the slope is 1"
        if by_sequence:
            both = f"{o.said('loss_type')} with {o.said('importance_sampling_level')}"
            unproved = o.find(f"{both}: no proof was found that the slope at ratio 1 is 1")
            return _of_sequence(o, Gate(log(4 / tau * sigmoid(tau * expm1(residual)))), why, {"gradient": unproved})
        return Token({token: Gate(4 / tau * sigmoid(tau * residual) - 1)}, reasons={"first_order": why})
    return _of_sequence(o, _clipped(o, True)) if by_sequence else Token({token: _clipped(o, False)})


def _of_sequence(o: Options, gate: Gate, why: str = "", more: Mapping[str, str] | None = None) -> Token:
    """One ratio per completion, the geometric mean of its tokens' ratios, as in GSPO."""
    said = f"{o.said('importance_sampling_level')}: one ratio per completion, and what its tokens do beside it is lost"
    return Token(
        {trajectory: gate, token: zero_gate()},
        log_ratio(scale=1 / count(token, over=trajectory)),
        (Fibration(token, trajectory, kernel=uniform()),),
        reasons={"first_order": f"{said}. {why}" if why else said, **(more or {})},
    )


def _clipped(o: Options, logs: bool) -> Gate:
    """PPO's clip, with `delta` as a second upper bound. `logs`: the residual is a log ratio, else a ratio minus 1."""
    low, high = o.number("epsilon", above=0), o.number_or_none("epsilon_high", above=0)
    if logs:
        names = ("epsilon", "epsilon_high")[: 1 if high is None else 2]
        bounds = f"{o.said('importance_sampling_level')} with {listed(map(o.said, names))}"
        change = "epsilon=0.0003 epsilon_high=0.0004"
        o.findings += sequence_clip(bounds, low, low if high is None else high, change)
    why = "above 1: TRL caps the ratio at delta, so at a ratio of 1 no token learns from A > 0"
    ceiling = o.number_or_none("delta", 1, why)
    upper: Expression = Parameter("epsilon_high", default=low if high is None else high)
    # From 1 on, TRL's lower bound 1 - epsilon never binds.
    lower = Parameter("epsilon_low", default=low, upper=1) if low < 1 else None
    top = None if ceiling is None else Parameter("ceiling", default=ceiling, lower=1)
    if lower is not None and top is None:
        return log_clip_gate(lower, upper) if logs else pessimistic_clip_gate(lower, upper)
    is_beyond = ceiling is not None and ceiling >= 1 + (low if high is None else high)
    if lower is not None and top is not None and is_beyond and not logs:
        return dual_clip_gate(lower, upper, top)
    most = log1p(upper) if logs else upper
    raised: Expression = residual
    if lower is not None:
        raised = maximum(residual, log1p(-lower) if logs else -lower)
    if top is None:
        return Gate(where(advantage >= 0, minimum(residual, most), raised))
    cap = log(top) if logs else top - 1
    if is_beyond:
        return Gate(where(advantage >= 0, minimum(residual, most), minimum(raised, cap)))
    # The clip's own bound is above delta: it limits A < 0, and delta limits A > 0.
    return Gate(where(advantage >= 0, minimum(residual, cap), minimum(raised, most)))


def _cispo(o: Options, by_sequence: bool) -> Token:
    name = "epsilon" if o["epsilon_high"] is None else "epsilon_high"
    cap = o.number(name, above=0)
    ceiling: Operand = Parameter("ceiling", default=cap, lower=1) if cap > 1 else cap
    kind, said = o.said("loss_type"), o.said(name)
    if name == "epsilon":
        said += " in the place of epsilon_high"
    score = f"{kind}: a score estimator: its value is not the objective"
    low = (
        f"{said}: loss_type=cispo reads it as the bound of the ratio itself, not as 1 + {cap:g}: at a ratio of 1 the "
        f"gradient is {cap:g} of the policy gradient"
    )
    if cap < 1:
        o.find(low, ERROR, f"epsilon_high={1 + cap:g}")
    if not by_sequence:
        reasons = {"first_order": score} | ({"gradient": low} if cap < 1 else {})
        return Token({token: Gate(minimum(residual, ceiling - 1))}, reasons=reasons)
    weight = minimum(exp(mean(token_log_ratio, over=trajectory)), ceiling)
    reasons = {"first_order": score} | ({f"agreement of weight {weight}": low} if cap < 1 else {})
    ahead = f"{o.said('importance_sampling_level')}: a completion is weighed whole"
    return Token({token: zero_gate()}, weights=((weight, ahead),), reasons=reasons)


def _vespo(o: Options, engine: Expression | None, edge: str) -> Token:
    numbers = ((f"k_{s}", o.number(f"vespo_k_{s}")) for s in SIGNS)  # no parameter has 0 or less
    k = where(advantage >= 0, *(Parameter(name, default=value) if value > 0 else value for name, value in numbers))
    rates = {s: max(o.number(f"vespo_lambda_{s}"), 1e-4) for s in SIGNS}  # TRL raises them to 0.0001
    rate = where(advantage >= 0, *(Parameter(f"lambda_{s}", default=value) for s, value in rates.items()))
    log_w: Expression = total(clip(token_log_ratio, -FAR, FAR), over=trajectory)
    if engine is not None:
        log_w = log_w + total(engine, over=trajectory)
    log_w = clip(log_w, NEAR_ZERO, FAR)
    kind = o.said("loss_type")
    weight = exp(k * log_w - rate * expm1(log_w))
    reasons = {"first_order": f"{kind}: a score estimator: its value is not the objective"}
    if edge:
        reasons[f"agreement of weight {weight}"] = edge
    return Token({token: zero_gate()}, weights=((weight, f"{kind}: a completion is weighed whole"),), reasons=reasons)


def vespo_log_weight(apart: Expression, least: Operand | None, most: Operand | None, masks: bool) -> Expression:
    """The log of vLLM's weight of a token in `vespo`, whose log ratio to the engine is `apart`."""
    if not masks:
        capped = apart if most is None else minimum(apart, log(most))
        return clip(capped if least is None else maximum(capped, log(least)), NEAR_ZERO, FAR)
    found = clip(apart, NEAR_ZERO, FAR)
    for outside in (None if least is None else exp(apart) < least, None if most is None else exp(apart) > most):
        found = found if outside is None else where(outside, NEAR_ZERO, found)
    return found


# ---------------------------------------------------------------- advantages


def advantages_of(o: Options) -> tuple[Expression, dict[str, str]]:
    """TRL's advantages of rewards, and the laws that they break, by key of `gives_up`."""
    o.whole("num_generations", least=2)
    weights = reward_weights(o)
    how = o.choice("multi_objective_aggregation", ("sum_then_normalize", "normalize_then_sum"))
    if how == "normalize_then_sum":
        of_one = standardised(reward, over=prompt_group, epsilon=EPSILON)
        if weights is not None and weights[0] != 1:
            of_one = weights[0] * of_one
        is_one = number_of_rewards(o) == 1
        why = f"{o.said('multi_objective_aggregation')}: divided by deviations, the completion's own reward among them"
        reasons = {"baseline": why}
        if is_one:
            reasons["baseline of what is left of advantages"] = f"{why}; whether A rises with it is not decided"
        return standardised(of_one if is_one else reward, over=batch, of=trajectory, epsilon=EPSILON), reasons
    scale = o["scale_rewards"]
    if isinstance(scale, bool):
        scale = "group" if scale else "none"
    if scale == "none":
        return centred(reward, over=prompt_group), {}
    if scale not in ("group", "batch"):
        raise o.refusal("scale_rewards", "group, batch or none; or true or false")
    why = f"{o.said('scale_rewards')}: "
    if scale == "group":
        why += "groups whose rewards differ less count for more"
        return standardised(reward, over=prompt_group, epsilon=EPSILON), {"baseline": why}
    spread = deviation(reward, over=batch, of=trajectory) + EPSILON
    why += "divided by a deviation, the completion's own reward among them"
    return centred(reward, over=prompt_group) / spread, {"baseline": why}


def reward_weights(o: Options) -> list[float] | None:
    """The weights of the reward functions, or None if all are 1."""
    given = o["reward_weights"]
    if given is None:
        return None
    if not isinstance(given, list | tuple) or not given:
        raise o.refusal("reward_weights", "a list of numbers, one for each reward function")
    try:
        weights = [float(w) for w in given]
    except (TypeError, ValueError):
        weights = [math.nan]
    if not all(map(math.isfinite, weights)):
        raise o.refusal("reward_weights", "a list of finite numbers, one for each reward function")
    return weights


def number_of_rewards(o: Options) -> int | None:
    """How many reward functions there are, or None if the config does not say."""
    weights = reward_weights(o)
    if weights is not None:
        return len(weights)
    functions = o["reward_funcs"]
    if not isinstance(functions, list | tuple):
        return None
    return len(functions) + (o["reward_model_name_or_path"] is not None)
