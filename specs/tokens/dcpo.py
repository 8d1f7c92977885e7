"""DCPO (Yang et al. 2025, 2509.02333): PPO's clip with bounds that are wider for tokens that were improbable.

`J = Σ μ·min(r·A, clip(r, low, high)·A)`, `low = (1 + sqrt(max(1 - 4·epsilon_low/q, 0)))/2`, `high = (1 + sqrt(1 +
4·epsilon_high/q))/2` with `q = π_old` of the token, and no ratio above `ceiling`; `μ = 1/T` of the trajectory (its OTM,
a mean over the tokens of each response and a sum over responses). Its smoothed advantages are data here. All laws hold.
"""

from fibration import (
    Gate,
    Hierarchy,
    Objective,
    Parameter,
    advantage,
    count,
    exp,
    log_prob,
    maximum,
    minimum,
    policies,
    ratio_deviation,
    residual,
    sqrt,
    strata,
    where,
)

token, trajectory = strata("token trajectory")
old, *_ = policies("old")
low = Parameter("epsilon_low", default=0.16, upper=1)
high = Parameter("epsilon_high", default=0.2)
ceiling = Parameter("ceiling", default=10.0, lower=1)
rarity = exp(-log_prob(old))  # 1/q

upper = minimum((1 + sqrt(1 + 4 * high * rarity)) / 2, ceiling)
lower = (1 + sqrt(maximum(1 - 4 * low * rarity, 0))) / 2

dcpo = Hierarchy(
    name="dcpo",
    gates={
        token: Gate(
            where(advantage >= 0, minimum(residual, upper - 1), minimum(maximum(residual, lower - 1), ceiling - 1))
        )
    },
    decomposition=ratio_deviation(),
    objective=Objective(1 / count(token, over=trajectory)),
)
