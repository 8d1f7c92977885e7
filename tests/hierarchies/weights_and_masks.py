"""Losses with weights, masks, statistics and `stop`: right ones, and slips with the law that refutes each.

Each has its own formula in numpy (`of`). Tests check counterexamples and proofs against it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from oracles.weights_and_masks import Batch

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
Value = Callable[[Batch], Any]


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


@dataclass(frozen=True)
class Weighed:
    """A hierarchy with one weight or one condition, and the same in numpy, per token."""

    hierarchy: Hierarchy
    of: Value


@dataclass(frozen=True)
class Slip(Weighed):
    """One that is refuted, by this law."""

    law: str


def weigh(formula: Any, of: Value, **more: Any) -> Weighed:
    return Weighed(one(mu.weigh(formula), **more), of)


def keep(condition: Any, of: Value, **more: Any) -> Weighed:
    return Weighed(one(mu.keep(condition, **more)), of)


def _named(law: str, **made: Weighed) -> dict[str, Slip]:
    return {name: Slip(w.hierarchy, w.of, law) for name, w in made.items()}


COV = (log_prob(old) - mean(log_prob(old), over=batch)) * (advantage - mean(advantage, over=batch))


def cov(b: Batch) -> Any:
    return (b.lp["old"] - b.lp["old"].mean()) * (b.a - b.a.mean())


WRONG: dict[str, Slip] = {
    **_named(
        "objective",
        log_for_ratio=weigh(k, lambda b: b.k),
        quotient_of_log_probs=weigh(log_prob(old) / log_prob(rollout), lambda b: b.lp["old"] / b.lp["rollout"]),
        advantage_twice=weigh(advantage, lambda b: b.a),
        one_over_log=weigh(1 / k, lambda b: 1 / b.k),
        linearised=weigh(1 - x, lambda b: 1 - b.x),
        root_of_log=weigh(sqrt(1 + k), lambda b: np.sqrt(1 + b.k)),
        odds=weigh(1 / (1 - exp(log_prob(old))), lambda b: 1 / (1 - np.exp(b.lp["old"]))),
        mean_of_logs=weigh(exp(mean(log(1 + k), over=trajectory)), lambda b: np.exp(b.per_row(np.log1p(b.k), np.mean)) + 0 * np.log1p(b.k)),
        not_kept_from_0=Weighed(
            one(mu.weigh(1 / k).keep(k >= 0)), lambda b: np.where(b.k >= 0, 1 / b.k, 1)
        ),
        condition_without_a_value=keep(log(1 + k) < 1, lambda b: np.where(np.log(1 + b.k) < 1, 1, 0) + 0 * np.log(1 + b.k)),
        mean_of_capped_logs=weigh(mean(minimum(k, C), over=trajectory), lambda b: b.per_row(np.minimum(b.k, b.p["C"]), np.mean)),
        less_than_its_divergence=weigh(rho - 3 * k, lambda b: np.exp(b.k) - 3 * b.k),
        root_of_a_mean=weigh(sqrt(1 + mean(k, over=trajectory)), lambda b: np.sqrt(1 + b.per_row(b.k, np.mean))),
        baseline_as_weight=weigh(2 - largest(rho, over=trajectory), lambda b: 2 - b.per_row(np.exp(b.k), np.max)),
    ),
    **_named(
        "agreement",
        twice=weigh(2 * rho, lambda b: 2 * np.exp(b.k)),
        cap_below_1=weigh(minimum(rho, D), lambda b: np.minimum(np.exp(b.k), b.p["D"])),
        cap_of_9_10=weigh(clip(rho, Fraction(1, 10), Fraction(9, 10)), lambda b: np.clip(np.exp(b.k), 0.1, 0.9)),
        sum_for_mean=weigh(total(rho, over=trajectory), lambda b: b.per_row(np.exp(b.k), np.sum)),
        shares_for_weights=weigh(rho / total(rho, over=batch), lambda b: np.exp(b.k) / np.exp(b.k).sum()),
        probability_for_ratio=weigh(exp(log_prob(rollout)), lambda b: np.exp(b.lp["rollout"])),
        surprise=weigh(-log_prob(old), lambda b: -b.lp["old"]),
        step_beside=weigh(where(x > 0, 2, 1), lambda b: np.where(b.x > 0, 2, 1)),
        length_twice=weigh(1 / T, lambda b: 1 / b.size),
        one_side_lost=weigh(where(k >= 0, rho, 0), lambda b: np.where(b.k >= 0, np.exp(b.k), 0)),
        logistic=weigh(rho / (1 + rho), lambda b: 1 / (1 + np.exp(-b.k))),
        temperature=weigh(rho * D, lambda b: np.exp(b.k) * b.p["D"]),
        policies_of_one_sum=weigh(exp(log_prob(old) + log_prob(rollout)), lambda b: np.exp(b.lp["old"] + b.lp["rollout"])),
        smallest_by_sign=weigh(-largest(-rho, over=trajectory) * T, lambda b: b.per_row(np.exp(b.k), np.min) * b.size),
    ),
    **_named(
        "mask_open",
        cap_at_1=keep(rho <= 1, lambda b: b.k <= 0),
        cap_below_or_at_1=keep(rho < 1, lambda b: b.k < 0),
        top_entropy=keep(entropy >= quantile(entropy, q, over=batch), lambda b: b.given["entropy"] >= np.quantile(b.given["entropy"], b.p["q"])),
        clip_cov=keep(quantile(COV, Fraction(9, 10), over=batch) >= COV, lambda b: cov(b) <= np.quantile(cov(b), 0.9)),
        likely_tokens=keep(log_prob(old) > quantile(log_prob(old), Fraction(1, 5), over=trajectory),
                           lambda b: b.lp["old"] > b.per_row(b.lp["old"], lambda v: np.quantile(v, 0.2))),
        margin_of_nothing=keep(absolute(k) < D - 1, lambda b: abs(b.k) < b.p["D"] - 1),
        good_ones_alone=keep(advantage > 0, lambda b: b.a > 0),
        some_second_moment=keep(sqrt(mean(k * k, over=trajectory)) > 0, lambda b: b.per_row(b.k**2, np.mean) > 0),
        mean_from_0=keep(mean(k, over=trajectory) >= 0, lambda b: b.per_row(b.k, np.mean) >= 0),
        mean_above_0=keep(mean(k, over=trajectory) > 0, lambda b: b.per_row(b.k, np.mean) > 0),
        one_must_rise=keep(some(k > 0, over=trajectory), lambda b: b.per_row(b.k > 0, np.any)),
        swapped=keep(log_prob(current) > log_prob(rollout), lambda b: b.current > b.lp["rollout"]),
        probable=keep(exp(log_prob(current)) > D, lambda b: np.exp(b.current) > b.p["D"]),
        too_many_terms=keep(total(rho, over=trajectory) < 3, lambda b: b.per_row(np.exp(b.k), np.sum) < 3, normaliser="kept"),
    ),
}  # fmt: skip

SURPRISE = -mean(x, over=trajectory)
TV = absolute(exp(log_prob(current)) - exp(log_prob(old)))
RIGHT: dict[str, Weighed] = {
    "TIS": weigh(minimum(rho, C), lambda b: np.minimum(np.exp(b.k), b.p["C"])),
    "decoupled": weigh(rho, lambda b: np.exp(b.k)),
    "its inverse": weigh(1 / rho, lambda b: np.exp(-b.k)),
    "sequence TIS": weigh(minimum(exp(total(k, over=trajectory)), C), lambda b: np.minimum(np.exp(b.per_row(b.k, np.sum)), b.p["C"])),
    "geometric TIS": weigh(exp(mean(k, over=trajectory)), lambda b: np.exp(b.per_row(b.k, np.mean))),
    "normalised": weigh(rho / mean(rho, over=batch), lambda b: np.exp(b.k) / np.exp(b.k).mean()),
    "normalised by a sum": weigh(rho * T / total(rho, over=trajectory), lambda b: np.exp(b.k) * b.size / b.per_row(np.exp(b.k), np.sum)),
    "least": weigh(-largest(-rho, over=trajectory), lambda b: b.per_row(np.exp(b.k), np.min)),
    "median": weigh(quantile(rho, q, over=batch), lambda b: np.full(len(b.k), np.quantile(np.exp(b.k), b.p["q"]))),
    "tapered": weigh(where(advantage >= 0, 1, clip(exp(x), 0, 1)), lambda b: np.where(b.a >= 0, 1, np.minimum(np.exp(b.x), 1))),
    "flipped": weigh(where(advantage > 0, exp(-2 * x), 1), lambda b: np.where(b.a > 0, np.exp(-2 * b.x), 1)),
    "mean of what is capped": weigh(mean(minimum(rho, C), over=trajectory), lambda b: b.per_row(np.minimum(np.exp(b.k), b.p["C"]), np.mean)),
    "less where it is far off": weigh(1 / maximum(1, mean(absolute(k), over=trajectory)), lambda b: 1 / np.maximum(1, b.per_row(abs(b.k), np.mean))),
    "one and its divergence": weigh(1 + (rho - 1 - k), lambda b: np.exp(b.k) - b.k),
    "less by its divergence": weigh(1 / (1 + k * (rho - 1)), lambda b: 1 / (1 + b.k * np.expm1(b.k))),
    "nested": weigh(exp(k - mean(k, over=trajectory)) / mean(exp(k - mean(k, over=trajectory)), over=batch),
                    lambda b: np.exp(b.k - b.per_row(b.k, np.mean)) / np.exp(b.k - b.per_row(b.k, np.mean)).mean()),
    "current over rollout": weigh(minimum(exp(log_prob(current) - log_prob(rollout)), C), lambda b: np.minimum(np.exp(b.x + b.k), b.p["C"])),
    "MIS": keep(rho <= C, lambda b: np.exp(b.k) <= b.p["C"]),
    "MIS of kept tokens": keep(rho <= C, lambda b: np.exp(b.k) <= b.p["C"], normaliser="kept"),
    "IcePop": keep((rho <= C) & (rho >= 1 / C), lambda b: abs(b.k) <= np.log(b.p["C"])),
    "any-token veto": keep(~some(k < -9, over=trajectory), lambda b: b.per_row(b.k >= -9, np.all)),
    "geometric mask": keep(absolute(mean(k, over=trajectory)) < D, lambda b: abs(b.per_row(b.k, np.mean)) < b.p["D"]),
    "off-policy sequences": keep((advantage >= 0) | (SURPRISE <= D), lambda b: (b.a >= 0) | (b.per_row(-b.x, np.mean) <= b.p["D"])),
    "total variation": keep(TV <= D, lambda b: abs(np.exp(b.current) - np.exp(b.lp["old"])) <= b.p["D"]),
    "second moment": keep(mean(k * k, over=batch) <= D, lambda b: np.full(len(b.k), (b.k**2).mean() <= b.p["D"])),
    "root of the second moment": keep(sqrt(mean(k * k, over=trajectory)) < D, lambda b: np.sqrt(b.per_row(b.k**2, np.mean)) < b.p["D"]),
    "worst token": keep(largest(absolute(k), over=trajectory) < D, lambda b: b.per_row(abs(b.k), np.max) < b.p["D"]),
    "masked pole": Weighed(one(mu.weigh(1 / (1 - k)).keep(k < Fraction(1, 2))), lambda b: np.where(b.k < 0.5, 1 / (1 - b.k), 1)),
    "tokens of the batch": Weighed(one(token_mean().weigh(minimum(rho, C))), lambda b: np.minimum(np.exp(b.k), b.p["C"])),
    "a score": Weighed(one(mu.weigh(minimum(rho, C)).score(), gives_up={"first_order": "a score estimator"}),
                       lambda b: np.minimum(np.exp(b.k), b.p["C"])),
}  # fmt: skip

# those of a whole row, or of the batch, know what comes later
AHEAD = (
    "sequence TIS", "geometric TIS", "normalised", "normalised by a sum", "least", "median", "mean of what is capped",
    "less where it is far off", "nested", "any-token veto", "geometric mask", "off-policy sequences", "second moment",
    "root of the second moment", "worst token",
)  # fmt: skip
WHOLE = {"causal": "it is of more than a prefix"}
for name in AHEAD:
    given = {**RIGHT[name].hierarchy.gives_up, **WHOLE}
    RIGHT[name] = replace(RIGHT[name], hierarchy=RIGHT[name].hierarchy.replace(gives_up=given))


# ---------------------------------------------------------------- what is stopped

HELD = residual - stop(residual)
CLOSED = ((advantage >= 0) & (density(trajectory) > log1p(epsilon))) | (
    (advantage < 0) & (density(trajectory) < log1p(-epsilon))
)
SEQUENCE = where(advantage >= 0, minimum(residual, log1p(epsilon)), maximum(residual, log1p(-epsilon)))
LATER = {"first_order": "the value is that of the trajectory"}
STOPPED = decomposition(density=x, recovery=exp(stop(gated(""))))

# Gates that stop something, refuted by the law of the gradient: 𝒢 of the log ratios, and of those that are held.
Gated = Callable[[Any, Any, Batch], Any]
STOPS_WRONG: dict[str, tuple[Hierarchy, Gated]] = {
    "all of it": (one(gate=Gate(stop(residual))), lambda v, held, b: np.exp(held)),
    "once too often": (one(gate=Gate(2 * residual - stop(residual))), lambda v, held, b: 1 + 2 * np.expm1(v) - np.expm1(held)),
    "half of it": (one(gate=Gate((residual + stop(residual)) / 2)), lambda v, held, b: 1 + (np.expm1(v) + np.expm1(held)) / 2),
    "in the recovery": (one(gate=identity_gate(), split=STOPPED), lambda v, held, b: np.exp(held)),
    "the trajectory": (
        two(Gate(stop(residual)), identity_gate()),
        lambda v, held, b: np.exp(v - b.per_row(v, np.mean) + b.per_row(held, np.mean)),
    ),
    "the level above": (
        two(identity_gate(), Gate(residual - stop(residual) - density(trajectory) + stop(density(trajectory)))),
        lambda v, held, b: np.exp(
            b.per_row(v, np.mean) + (v - 2 * b.per_row(v, np.mean)) - (held - 2 * b.per_row(held, np.mean))
        ),
    ),
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
