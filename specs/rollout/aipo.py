"""AIPO (LlamaRL, Wu et al. 2025, 2505.24034): REINFORCE with a capped ratio to the engine, some updates behind.

`J = Σ μ·stop(min(π/π_rollout, ceiling))·A·log π`, `μ = 1/tokens`: one cap above, none below, and no policy between the
two. SkyRL's `rollout_is` drops what is out of a band, by its comment without another gradient, which is not so.
`cispo_absolute` is the same where the engine is `old`. All laws hold but `identity` and `first_order`: a score
estimator, whose value is no objective's.
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
    gives_up={"first_order": "a score estimator: its value is no objective's"},
)
