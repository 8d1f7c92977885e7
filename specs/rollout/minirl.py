"""MiniRL (Zheng et al. 2025, 2512.01374): REINFORCE with a capped ratio to the engine, within PPO's clip.

`J = Σ μ·stop(min(π/π_rollout, ceiling))·A·log π` over tokens that PPO's clip passes, `r <= 1 + high` where `A > 0` and
`r >= 1 - low` elsewhere, with `r = π/π_old`; `μ = 1/trajectories`, since the paper divides by no length. The formula is
from excerpts of the paper. All laws hold but `identity` and `first_order`: it is a score estimator, whose value is not
the objective.
"""

from fibration import (
    Hierarchy,
    Parameter,
    advantage,
    constant_normaliser,
    exp,
    log_prob,
    minimum,
    policies,
    ratio_deviation,
    strata,
    token_log_ratio,
    zero_gate,
)

(token,) = strata("token")
current, rollout = policies("current rollout")
low = Parameter("epsilon_low", default=0.2, upper=1)
high = Parameter("epsilon_high", default=0.27)
ceiling = Parameter("ceiling", default=5.0, lower=1)
r = exp(token_log_ratio)

minirl = Hierarchy(
    name="minirl",
    gates={token: zero_gate()},
    decomposition=ratio_deviation(),
    objective=constant_normaliser(1)
    .score()
    .weigh(minimum(exp(log_prob(current) - log_prob(rollout)), ceiling))
    .keep(((advantage > 0) & (r <= 1 + high)) | ((advantage <= 0) & (r >= 1 - low))),
    gives_up={"first_order": "a score estimator: its value is not the objective"},
)
