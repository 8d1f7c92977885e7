"""AIPO (LlamaRL, Wu et al. 2025, 2505.24034): REINFORCE with a capped ratio to the engine, some updates behind.

`J = Σ μ·stop(min(π/π_rollout, ceiling))·A·log π`, `μ = 1/tokens`. The weight has a cap and no lower bound, and the loss
has no third policy. SkyRL's `rollout_is` drops tokens outside a band. Its comment says that the gradient stays the
same; it changes. With the engine as `old` it is `cispo_absolute`. All laws hold but `identity` and `first_order`: it is
a score estimator, whose value is not the objective.
"""

from fibration import (
    Hierarchy,
    Parameter,
    exp,
    log_prob,
    minimum,
    policies,
    ratio_deviation,
    strata,
    token_mean,
    zero_gate,
)

(token,) = strata("token")
current, rollout = policies("current rollout")
ceiling = Parameter("ceiling", default=4.0, lower=1)

aipo = Hierarchy(
    name="aipo",
    gates={token: zero_gate()},
    decomposition=ratio_deviation(),
    objective=token_mean().score().weigh(minimum(exp(log_prob(current) - log_prob(rollout)), ceiling)),
    gives_up={"first_order": "a score estimator: its value is not the objective"},
)
