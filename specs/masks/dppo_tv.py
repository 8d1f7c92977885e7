"""DPPO with total variation (2026, 2602.04879): tokens are masked by how far their probability moved, not their ratio.

`J = Σ μ·stop(min(r, ceiling))·A·log π` over tokens with `p - q <= high` where `A > 0` and `p - q >= -low` elsewhere, `p
= π`, `q = π_old` of the token, `μ = 1/tokens` of all tokens. verl ships it as `dppo_tv`, with `clip_ratio` for both
bounds. SkyRL ships it as `dppo` without a ceiling, prime-rl with a squared log ratio in addition. SkyRL and prime-rl
take `old` from the engine. All laws hold but `first_order`: it is a score estimator, whose value is not the objective.
"""

from fibration import (
    Gate,
    Hierarchy,
    Parameter,
    advantage,
    exp,
    log_prob,
    minimum,
    policies,
    ratio_deviation,
    residual,
    strata,
    token_mean,
)

(token,) = strata("token")
current, old = policies("current old")
low = Parameter("epsilon_low", default=0.2)
high = Parameter("epsilon_high", default=0.2)
ceiling = Parameter("ceiling", default=20.0, lower=1)
moved = exp(log_prob(current)) - exp(log_prob(old))

dppo_tv = Hierarchy(
    name="dppo_tv",
    gates={token: Gate(minimum(residual, ceiling - 1))},
    decomposition=ratio_deviation(),
    objective=token_mean().score().keep(((advantage > 0) & (moved <= high)) | ((advantage <= 0) & (moved >= -low))),
    gives_up={"first_order": "a score estimator: its value is not the objective"},
)
