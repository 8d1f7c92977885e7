"""Losses with weights, masks, statistics and `stop`: right ones, and slips with the law that refutes each."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, NamedTuple

from fibration import (
    Attribute,
    Fibration,
    Gate,
    Hierarchy,
    Objective,
    Parameter,
    absolute,
    advantage,
    clip,
    clip_gate,
    count,
    decomposition,
    density,
    exp,
    gated,
    identity_gate,
    largest,
    log,
    log1p,
    log_prob,
    log_ratio,
    maximum,
    mean,
    minimum,
    policies,
    quantile,
    ratio_deviation,
    residual,
    some,
    sqrt,
    stop,
    strata,
    token_log_ratio,
    token_mean,
    total,
    trajectory_mean,
    uniform,
    where,
    zero_gate,
)

token, trajectory, batch = strata("token trajectory batch")
current, old, rollout = policies("current old rollout")
x, k = token_log_ratio, log_prob(old) - log_prob(rollout)
rho = exp(k)
T = count(token, over=trajectory)
epsilon = Parameter("epsilon", default=0.2, upper=1)
C = Parameter("C", default=2.0, lower=1)
D = Parameter("D", default=2.0)
q = Parameter("q", default=0.2, lower=0, upper=1)
entropy = Attribute("entropy", on=token, positive=False, lower=0)
mu = trajectory_mean()


def one(objective: Objective = mu, gate: Gate | None = None, **more: Any) -> Hierarchy:
    return Hierarchy(
        name="one", gates={token: gate or clip_gate(epsilon)}, decomposition=more.pop("split", ratio_deviation()),
        objective=objective, **more,
    )  # fmt: skip


def two(outer: Gate, inner: Gate, objective: Objective = mu, **more: Any) -> Hierarchy:
    """Gates of log ratios in the units of a trajectory's mean."""
    return Hierarchy(
        name="two", fibrations=[Fibration(token, trajectory, uniform())], gates={trajectory: outer, token: inner},
        decomposition=log_ratio(scale=1 / T), objective=objective, **more,
    )  # fmt: skip


class Slip(NamedTuple):
    """A hierarchy with one weight or one condition, and the law that refutes it."""

    law: str
    hierarchy: Hierarchy


def weigh(formula: Any) -> Hierarchy:
    return one(mu.weigh(formula))


def keep(condition: Any, normaliser: str = "all") -> Hierarchy:
    return one(mu.keep(condition, normaliser))


def _named(law: str, **made: Hierarchy) -> dict[str, Slip]:
    return {name: Slip(law, h) for name, h in made.items()}


COV = (log_prob(old) - mean(log_prob(old), over=batch)) * (advantage - mean(advantage, over=batch))

WRONG: dict[str, Slip] = {
    **_named(
        "objective",
        log_for_ratio=weigh(k),
        quotient_of_log_probs=weigh(log_prob(old) / log_prob(rollout)),
        advantage_twice=weigh(advantage),
        one_over_log=weigh(1 / k),
        linearised=weigh(1 - x),
        root_of_log=weigh(sqrt(1 + k)),
        odds=weigh(1 / (1 - exp(log_prob(old)))),
        mean_of_logs=weigh(exp(mean(log(1 + k), over=trajectory))),
        not_kept_from_0=one(mu.weigh(1 / k).keep(k >= 0)),
        condition_without_a_value=keep(log(1 + k) < 1),
        mean_of_capped_logs=weigh(mean(minimum(k, C), over=trajectory)),
        less_than_its_divergence=weigh(rho - 3 * k),
        root_of_a_mean=weigh(sqrt(1 + mean(k, over=trajectory))),
        baseline_as_weight=weigh(2 - largest(rho, over=trajectory)),
    ),
    **_named(
        "agreement",
        twice=weigh(2 * rho),
        cap_below_1=weigh(minimum(rho, D)),
        cap_of_9_10=weigh(clip(rho, Fraction(1, 10), Fraction(9, 10))),
        sum_for_mean=weigh(total(rho, over=trajectory)),
        shares_for_weights=weigh(rho / total(rho, over=batch)),
        probability_for_ratio=weigh(exp(log_prob(rollout))),
        surprise=weigh(-log_prob(old)),
        step_beside=weigh(where(x > 0, 2, 1)),
        length_twice=weigh(1 / T),
        one_side_lost=weigh(where(k >= 0, rho, 0)),
        logistic=weigh(rho / (1 + rho)),
        temperature=weigh(rho * D),
        policies_of_one_sum=weigh(exp(log_prob(old) + log_prob(rollout))),
        smallest_by_sign=weigh(-largest(-rho, over=trajectory) * T),
    ),
    **_named(
        "mask_open",
        cap_at_1=keep(rho <= 1),
        cap_below_or_at_1=keep(rho < 1),
        top_entropy=keep(entropy >= quantile(entropy, q, over=batch)),
        clip_cov=keep(quantile(COV, Fraction(9, 10), over=batch) >= COV),
        likely_tokens=keep(log_prob(old) > quantile(log_prob(old), Fraction(1, 5), over=trajectory)),
        margin_of_nothing=keep(absolute(k) < D - 1),
        good_ones_alone=keep(advantage > 0),
        some_second_moment=keep(sqrt(mean(k * k, over=trajectory)) > 0),
        mean_from_0=keep(mean(k, over=trajectory) >= 0),
        mean_above_0=keep(mean(k, over=trajectory) > 0),
        one_must_rise=keep(some(k > 0, over=trajectory)),
        swapped=keep(log_prob(current) > log_prob(rollout)),
        probable=keep(exp(log_prob(current)) > D),
        too_many_terms=keep(total(rho, over=trajectory) < 3, normaliser="kept"),
    ),
}  # fmt: skip

SURPRISE = -mean(x, over=trajectory)
TV = absolute(exp(log_prob(current)) - exp(log_prob(old)))
RIGHT: dict[str, Hierarchy] = {
    "TIS": weigh(minimum(rho, C)),
    "decoupled": weigh(rho),
    "its inverse": weigh(1 / rho),
    "sequence TIS": weigh(minimum(exp(total(k, over=trajectory)), C)),
    "geometric TIS": weigh(exp(mean(k, over=trajectory))),
    "normalised": weigh(rho / mean(rho, over=batch)),
    "normalised by a sum": weigh(rho * T / total(rho, over=trajectory)),
    "least": weigh(-largest(-rho, over=trajectory)),
    "median": weigh(quantile(rho, q, over=batch)),
    "tapered": weigh(where(advantage >= 0, 1, clip(exp(x), 0, 1))),
    "flipped": weigh(where(advantage > 0, exp(-2 * x), 1)),
    "mean of what is capped": weigh(mean(minimum(rho, C), over=trajectory)),
    "less where it is far off": weigh(1 / maximum(1, mean(absolute(k), over=trajectory))),
    "one and its divergence": weigh(1 + (rho - 1 - k)),
    "less by its divergence": weigh(1 / (1 + k * (rho - 1))),
    "nested": weigh(exp(k - mean(k, over=trajectory)) / mean(exp(k - mean(k, over=trajectory)), over=batch)),
    "current over rollout": weigh(minimum(exp(log_prob(current) - log_prob(rollout)), C)),
    "MIS": keep(rho <= C),
    "MIS of kept tokens": keep(rho <= C, normaliser="kept"),
    "IcePop": keep((rho <= C) & (rho >= 1 / C)),
    "any-token veto": keep(~some(k < -9, over=trajectory)),
    "geometric mask": keep(absolute(mean(k, over=trajectory)) < D),
    "off-policy sequences": keep((advantage >= 0) | (SURPRISE <= D)),
    "total variation": keep(TV <= D),
    "second moment": keep(mean(k * k, over=batch) <= D),
    "root of the second moment": keep(sqrt(mean(k * k, over=trajectory)) < D),
    "worst token": keep(largest(absolute(k), over=trajectory) < D),
    "masked pole": one(mu.weigh(1 / (1 - k)).keep(k < Fraction(1, 2))),
    "tokens of the batch": one(token_mean().weigh(minimum(rho, C))),
    "a score": one(mu.weigh(minimum(rho, C)).score(), gives_up={"first_order": "a score estimator"}),
}  # fmt: skip

# those of a whole row, or of the batch, know what comes later
AHEAD = (
    "sequence TIS", "geometric TIS", "normalised", "normalised by a sum", "least", "median", "mean of what is capped",
    "less where it is far off", "nested", "any-token veto", "geometric mask", "off-policy sequences", "second moment",
    "root of the second moment", "worst token",
)  # fmt: skip
WHOLE = {"causal": "it is of more than a prefix"}
for name in AHEAD:
    RIGHT[name] = RIGHT[name].replace(gives_up={**RIGHT[name].gives_up, **WHOLE})


# ---------------------------------------------------------------- what is stopped

HELD = residual - stop(residual)
CLOSED = ((advantage >= 0) & (density(trajectory) > log1p(epsilon))) | (
    (advantage < 0) & (density(trajectory) < log1p(-epsilon))
)
SEQUENCE = where(advantage >= 0, minimum(residual, log1p(epsilon)), maximum(residual, log1p(-epsilon)))
LATER = {"first_order": "the value is that of the trajectory"}
STOPPED = decomposition(density=x, recovery=exp(stop(gated(""))))

# Gates that stop something, refuted by the law of the gradient.
STOPS_WRONG: dict[str, Hierarchy] = {
    "all of it": one(gate=Gate(stop(residual))),
    "once too often": one(gate=Gate(2 * residual - stop(residual))),
    "half of it": one(gate=Gate((residual + stop(residual)) / 2)),
    "in the recovery": one(gate=identity_gate(), split=STOPPED),
    "the trajectory": two(Gate(stop(residual)), identity_gate()),
    "the level above": two(identity_gate(), Gate(residual - stop(residual) - density(trajectory) + stop(density(trajectory)))),
}  # fmt: skip
# Gates that read frozen probabilities, an advantage in `F`, a parameter in `R`, and one gate per channel.
p_old, ratio = exp(log_prob(old)), 1 + residual


def kl(margin: float) -> Any:
    """Of "this token or another", by the old policy; 1e-8 keeps it finite where a probability is 1."""
    return -p_old * log(ratio) + (1 - p_old) * log((1 - p_old + margin) / (1 - p_old * ratio + margin))


def dppo(margin: float) -> Hierarchy:
    return one(gate=Gate(where((kl(margin) > D) & (advantage * residual > 0), 0, residual)))


share = Parameter("share", default=0.5, upper=1)
NOT_R = {"first_order": "one ratio per trajectory", "recovery": "ratios are cut before their mean is taken"}
GATES_RIGHT: dict[str, Hierarchy] = {
    "DPPO by divergence": dppo(1e-8),
    "DCPO": one(gate=Gate(where(
        advantage >= 0,
        minimum(residual, (sqrt(1 + 4 * C / p_old) - 1) / 2),
        maximum(residual, (sqrt(maximum(1 - 4 * D / p_old, 0)) - 1) / 2),
    ))),
    "GMPO": Hierarchy(
        name="gmpo", fibrations=[Fibration(token, trajectory, uniform())],
        gates={trajectory: identity_gate(), token: zero_gate()}, objective=mu, gives_up=NOT_R,
        decomposition=decomposition(
            density=where(advantage >= 0, minimum(x, epsilon), maximum(x, -epsilon)) / T,
            recovery=exp(T * gated("")), scale=1 / T,
        ),
    ),
    "DHPO": Hierarchy(
        name="dhpo", fibrations=[Fibration(token, trajectory, uniform())], objective=mu,
        gates={token: {"+": clip_gate(epsilon), "-": zero_gate()}, trajectory: identity_gate()},
        decomposition=decomposition(
            plus=x, minus=x, recovery=share * exp(gated("+")) + (1 - share) * exp(gated("-")), scale=1,
        ),
        gives_up={"first_order": "half of it is a trajectory's ratio"},
    ),
}  # fmt: skip
QUIET = where(mean(absolute(x), over=trajectory) <= epsilon, residual, 0)
GATES_RIGHT |= {
    "a trajectory that drifts is closed": two(Gate(QUIET), clip_gate(epsilon)),
    "a token whose trajectory drifts is closed": one(gate=Gate(QUIET)),
    "halved once some token drifts": one(gate=Gate(where(some(absolute(x) > epsilon, over=batch), residual / 2, residual))),
    "closed where the engine is far off": one(gate=Gate(where(k < C, residual, 0))),
}  # fmt: skip
GATES_WRONG: dict[str, Hierarchy] = {
    "halved once a token rises": one(gate=Gate(where(largest(x, over=batch) > 0, residual / 2, residual))),
    "open below alone": one(gate=Gate(where(k < 0, residual, 0))),
    "a sum for a mean": one(gate=Gate(residual * total(rho, over=trajectory))),
    "closed by what is sampled": one(gate=Gate(where(quantile(entropy, q, over=batch) > 1, residual, 0))),
}
STOPS_RIGHT: dict[str, Hierarchy] = {
    "GSPO-token": two(Gate(SEQUENCE), Gate(where(CLOSED, 0, HELD)), gives_up=LATER),
    "a held value": one(gate=Gate(residual - stop(residual)), gives_up=LATER),
    "a stopped factor": one(gate=Gate(residual / stop(1 + absolute(residual)))),
}  # fmt: skip
