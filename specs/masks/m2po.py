"""M2PO (Zheng et al. 2025, 2510.01161): importance sampling, without tokens that make `(log r)^2` too large.

`J = Σ μ·r·A` over tokens with `(log r)^2 <= threshold`, `μ = 1/tokens` of all tokens. The paper drops the largest until
the mean of the rest is at most 0.04. A trainer finds this threshold by sorting, and passes it as a parameter. AReaL
takes the moment of `π_old/π_rollout`, and has PPO's clip beside it. All laws hold.
"""

from fibration import (
    Hierarchy,
    Parameter,
    identity_gate,
    ratio_deviation,
    strata,
    token_log_ratio,
    token_mean,
)

(token,) = strata("token")
threshold = Parameter("threshold", default=0.25)

m2po = Hierarchy(
    name="m2po",
    gates={token: identity_gate()},
    decomposition=ratio_deviation(),
    objective=token_mean().keep(token_log_ratio**2 <= threshold),
)
