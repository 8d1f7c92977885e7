"""VESPO (2026, 2602.10693): every token's score times a gamma weight of its trajectory's whole ratio.

`J = Σ μ·stop(φ(W))·A·log π` with `W = Π r` of the trajectory and `φ(W) = W^k·exp(λ·(1 - W))`, `k` and `λ` by the sign
of the advantage. TRL ships it as `vespo`: a mean over tokens, `log W` cut at ±20, and an engine's ratio multiplied into
`W`. All laws hold but `identity` and `first_order`, since the value of a score estimator is not the objective, and
`causal`: whole trajectories are weighed.
"""

from fibration import (
    Hierarchy,
    Parameter,
    advantage,
    exp,
    expm1,
    ratio_deviation,
    strata,
    token_log_ratio,
    token_mean,
    total,
    where,
    zero_gate,
)

token, trajectory = strata("token trajectory")
k = where(advantage >= 0, Parameter("k_pos", default=2.0), Parameter("k_neg", default=3.0))
rate = where(advantage >= 0, Parameter("lambda_pos", default=3.0), Parameter("lambda_neg", default=2.0))
log_w = total(token_log_ratio, over=trajectory)

vespo = Hierarchy(
    name="vespo",
    gates={token: zero_gate()},
    decomposition=ratio_deviation(),
    objective=token_mean().score().weigh(exp(k * log_w - rate * expm1(log_w))),
    gives_up={
        "first_order": "a score estimator: its value is not the objective",
        "causal": "a trajectory is weighed whole",
    },
)
