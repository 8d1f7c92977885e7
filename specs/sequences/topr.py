"""TOPR (Le Roux et al. 2025, 2503.14286): good answers keep their score, bad ones get a ratio of at most 1.

`J = Σ μ·stop(w)·A·log π`, `w = 1` where `A >= 0` and `min(Π r, 1)` over the trajectory elsewhere, `μ = 1/trajectories`.
ROLL ships it as `topr`, with the token's own ratio for the trajectory's and the sign of the reward for that of the
advantage. All laws hold but `identity` and `first_order`, since the value of a score estimator is not the objective,
and `causal`: whole trajectories are weighed.
"""

from fibration import (
    Hierarchy,
    advantage,
    constant_normaliser,
    exp,
    minimum,
    ratio_deviation,
    strata,
    token_log_ratio,
    total,
    where,
    zero_gate,
)

token, trajectory = strata("token trajectory")

topr = Hierarchy(
    name="topr",
    gates={token: zero_gate()},
    decomposition=ratio_deviation(),
    objective=constant_normaliser(1)
    .score()
    .weigh(where(advantage >= 0, 1, exp(minimum(total(token_log_ratio, over=trajectory), 0)))),
    gives_up={
        "first_order": "a score estimator: its value is not the objective",
        "causal": "a trajectory is weighed whole",
    },
)
