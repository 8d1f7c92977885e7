"""Pairs of losses with policies, weights, conditions and statistics: some pairs are equal, some differ."""

from __future__ import annotations

import math
from typing import Any

from fibration import (
    Gate,
    Hierarchy,
    Objective,
    Parameter,
    advantage,
    channel_sign,
    clip,
    clip_gate,
    count,
    decomposition,
    density,
    exp,
    gated,
    identity_gate,
    largest,
    load,
    log,
    log_prob,
    log_ratio,
    maximum,
    mean,
    minimum,
    pessimistic_clip_gate,
    policies,
    quantile,
    residual,
    signed_log_ratio,
    some,
    stop,
    strata,
    token_log_ratio,
    token_mean,
    total,
    trajectory_mean,
    where,
    zero_gate,
)
from fibration.language.declared import FrozenMap
from hierarchies.loss_pairs import Pair, of_tokens

token, trajectory, batch = strata("token trajectory batch")
current, old, rollout = policies("current old rollout")
A, x, T = advantage, token_log_ratio, count(token, over=trajectory)
rho, ratio = exp(log_prob(old) - log_prob(rollout)), exp(log_prob(current) - log_prob(old))
k1 = mean(log_prob(old) - log_prob(rollout), over=trajectory)
C, u = Parameter("C", default=2.0), Parameter("u", default=2.0, lower=1)
low, epsilon = Parameter("low", default=0.5, upper=1), Parameter("epsilon", default=0.2, upper=1)
bound = minimum(rho, C)
dapo, gspo, cispo = map(load, ("dapo", "gspo", "cispo"))
below, above = cispo.parameters["epsilon_low"], cispo.parameters["epsilon_high"]
TM = token_mean()


def with_objective(objective: Objective, name: str = "ours") -> Hierarchy:
    return dapo.replace(name=name, objective=objective)


def weighed(first: Any, second: Any, *when: str, **parameters: Any) -> Pair:
    return Pair(with_objective(TM.weigh(first)), with_objective(TM.weigh(second)), when, FrozenMap(parameters))


def kept(first: Any, second: Any, *when: str) -> Pair:
    return Pair(with_objective(TM.keep(first)), with_objective(TM.keep(second)), when)


def scored(gate: Any, objective: Objective = TM) -> Hierarchy:
    return of_tokens(gate, objective=objective.score())


def of_rows(own: Any, name: str = "ours") -> Hierarchy:
    """A gate on tokens alone, over trajectories that pass nothing."""
    return gspo.replace(name=name, gates={trajectory: zero_gate(), token: own if isinstance(own, Gate) else Gate(own)})


means = gspo.replace(name="means", gates={trajectory: identity_gate(), token: zero_gate()})
log_r = T * residual + density(trajectory)  # of the token itself
held = of_rows((stop(density(trajectory)) + log_r - stop(log_r)) / T)
by_channel = Hierarchy(
    name="by_channel",
    gates={token: Gate(where(channel_sign > 0, minimum(residual, above), minimum(residual, below)))},
    decomposition=signed_log_ratio(),
    objective=TM,
)
inside = ((A >= 0) & (ratio <= 1 + above)) | ((A < 0) & (ratio >= 1 - low))
one_sided = decomposition(
    density=where(A >= 0, minimum(x, C), maximum(x, -C)), recovery=exp(gated(""))
)  # fmt: skip

SAME = {
    "a truncation that never binds": weighed(bound, rho, C=math.inf),
    "a truncation by other words": weighed(bound, where(rho < C, rho, C)),
    "a truncation in logarithms": weighed(bound, exp(minimum(log_prob(old) - log_prob(rollout), log(C)))),
    "weights in another order": Pair(with_objective(TM.weigh(rho).weigh(bound)), with_objective(TM.weigh(bound * rho))),
    "what is kept is a weight": Pair(with_objective(TM.keep(rho <= u)), with_objective(TM.weigh(where(rho <= u, 1, 0)))),
    "two conditions are one": Pair(
        with_objective(TM.keep(rho <= u).keep(rho >= low)), with_objective(TM.keep((rho <= u) & (rho >= low)))
    ),
    "one condition not": kept(rho <= u, ~(rho > u)),
    "normalised by what is kept": Pair(
        with_objective(trajectory_mean().keep(rho <= u, normaliser="kept")),
        with_objective(trajectory_mean().keep(~(1 / rho < 1 / u), normaliser="kept")),
    ),
    "normalised by what is kept, of one trajectory": Pair(
        with_objective(trajectory_mean().keep(rho <= u, normaliser="kept")),
        with_objective(TM.keep(rho <= u, normaliser="kept")),
        ("one(trajectory)",),
    ),
    "a condition that always holds": Pair(with_objective(TM.keep(rho > 0, normaliser="kept")), dapo),
    "a mean is a total over the number": weighed(mean(rho, over=trajectory), total(rho, over=trajectory) / T),
    "the inverse of a mean": weighed(1 / mean(rho, over=trajectory), T / total(rho, over=trajectory)),
    "normalised by a mean, or by a total": weighed(rho / mean(rho, over=batch), rho * count(token, over=batch) / total(rho, over=batch)),
    "a mean of ratios is above 0": weighed(where(mean(rho, over=trajectory) > 0, rho, C), rho),
    "a mean of a truncation": weighed(1 + mean(bound, over=trajectory) ** 2, 1 + (total(where(rho >= C, C, rho), over=trajectory) / T) ** 2),
    "a mean with a factor": weighed(mean(C * rho + 1, over=trajectory), 1 + C * mean(rho, over=trajectory)),
    "a mean of a difference": weighed(
        exp(k1), exp(mean(log_prob(old), over=trajectory) - mean(log_prob(rollout), over=trajectory))
    ),
    "a mean of log ratios": weighed(
        exp(mean(x, over=trajectory)), exp(mean(log_prob(current) - log_prob(old), over=trajectory))
    ),
    "a quantile by other words": weighed(
        quantile(rho, 0.5, over=trajectory), quantile(exp(log_prob(old)) / exp(log_prob(rollout)), 0.5, over=trajectory)
    ),
    "none is what is largest": kept(~some(rho > C, over=trajectory), largest(rho, over=trajectory) <= C),
    "none is a total of 0": kept(~some(rho > C, over=trajectory), total(where(rho > C, 1, 0), over=trajectory) <= 0),
    "least is largest turned": kept(~some(rho < low, over=trajectory), -largest(-rho, over=trajectory) >= low),
    "old is rollout": Pair(with_objective(TM.weigh(rho)), dapo, ("same(old, rollout)",)),
    "weights on policy": Pair(with_objective(TM.weigh(bound).keep(k1 <= 1)), with_objective(TM.keep(C > -1)), ("on_policy",), FrozenMap(C=2)),
    "reinforce": Pair(scored(residual, TM.weigh(rho)), of_tokens(objective=TM), ("on_policy",)),
    "a score of 1 and a weight": Pair(scored(zero_gate(), TM.weigh(ratio)), of_tokens(objective=TM)),
    "cispo by a weight": Pair(
        scored(zero_gate(), TM.weigh(minimum(ratio, 1 + above))), cispo, (), FrozenMap(epsilon_low=math.inf)
    ),
    "a mask for a clip": Pair(
        of_tokens(objective=TM.keep(inside)), of_tokens(pessimistic_clip_gate(low, above), objective=TM)
    ),
    "a bound above 1, and one": Pair(
        load("cispo_absolute"), cispo, (), FrozenMap(ceiling="1 + epsilon_high", epsilon_low=math.inf)
    ),
    "inward is pessimistic": Pair(of_tokens(clip_gate(epsilon).inward()), of_tokens(pessimistic_clip_gate(epsilon, epsilon))),
    "inward, one sign": Pair(
        of_tokens(clip_gate(epsilon).inward()), of_tokens(minimum(residual, epsilon)), ("advantage >= 0",)
    ),
    "a gate per channel": Pair(by_channel, of_tokens(clip(residual, -below, above), split=log_ratio(), objective=TM)),
    "stopped and added": Pair(of_tokens(residual + stop(residual) - stop(residual)), of_tokens()),
    "what is stopped of a score": Pair(scored(stop(residual)), scored(residual)),
    "gspo token by token": Pair(load("gspo_token"), gspo, ("advantage=trajectory",)),
    "means held, and not": Pair(held, means, ("advantage=trajectory",)),
    "a one-sided clip in F": Pair(
        of_tokens(split=one_sided), of_tokens(where(A >= 0, minimum(residual, C), maximum(residual, -C)), log_ratio())
    ),
    "of the specs: old is rollout": Pair(load("decoupled_ppo"), dapo, ("same(old, rollout)",)),
    "of the specs: no truncation": Pair(load("tis"), load("decoupled_ppo"), (), FrozenMap(ceiling=math.inf)),
}  # fmt: skip

DIFFERENT = {
    "truncated, and not": weighed(bound, rho),
    "a weight, and none": Pair(with_objective(TM.weigh(rho)), dapo),
    "kept at the bound itself": kept(rho <= u, rho < u),
    "kept at the bound itself, in nats": kept(log_prob(old) - log_prob(rollout) <= u, log_prob(old) - log_prob(rollout) < u),
    "kept at the bound of a mean": kept(k1 <= u, k1 < u),
    "normalised by all, and by what is kept": Pair(
        with_objective(TM.keep(rho <= u)), with_objective(TM.keep(rho <= u, normaliser="kept"))
    ),
    "a weight of 0, and normalised by what is kept": Pair(
        with_objective(TM.weigh(where(rho <= u, 1, 0))), with_objective(TM.keep(rho <= u, normaliser="kept"))
    ),
    "rows that have none kept": Pair(
        with_objective(trajectory_mean().keep(k1 <= u, normaliser="kept")), with_objective(trajectory_mean().keep(k1 <= u))
    ),
    "kept between 1/u and 1/l, and between l and u": kept((1 / u <= rho) & (rho <= 1 / low), (low <= rho) & (rho <= u)),
    "a policy of another name": weighed(rho, exp(log_prob(old) - log_prob(current))),
    "a bound on a probability": kept(exp(log_prob(old)) < low, exp(log_prob(old)) <= low),
    "the inverse of a mean, and of one with a token more": weighed(
        1 / mean(rho, over=trajectory), (T + 1) / total(rho, over=trajectory)
    ),
    "a mean of what may be 0 everywhere": weighed(where(mean(where(rho > C, 1, 0), over=trajectory) > 0, rho, C), rho),
    "a mean of what may be 0 or less": weighed(where(mean(rho - 1, over=trajectory) > 0, rho, C), rho),
    "a mean, and what is largest": weighed(mean(rho, over=trajectory), largest(rho, over=trajectory)),
    "a mean over the batch": weighed(mean(rho, over=trajectory), mean(rho, over=batch)),
    "a median, and another quantile": weighed(quantile(rho, 0.5, over=batch), quantile(rho, 0.75, over=batch)),
    "some, and all": kept(some(rho <= u, over=trajectory), ~some(rho > u, over=trajectory)),
    "decoupled, and not": Pair(load("decoupled_ppo"), dapo),
    "held, and not": Pair(of_tokens(stop(residual)), of_tokens()),
    "means held, and not": Pair(held, means),
    "a weight on means of all": Pair(held, held.replace(objective=trajectory_mean().weigh(mean(rho, over=batch)))),
    "channels turned": Pair(by_channel, of_tokens(clip(residual, -above, below), split=log_ratio(), objective=TM)),
    "inward, one sign": Pair(of_tokens(clip_gate(epsilon).inward()), of_tokens(clip_gate(epsilon)), ("advantage >= 0",)),
    "a score of 1": Pair(scored(zero_gate()), of_tokens(objective=TM)),
}  # fmt: skip
