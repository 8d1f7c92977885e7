"""prime-rl's default (2026): importance sampling within DPPO's mask, and Kimi's square of every token's log ratio.

`J = Σ μ·(r·A - tau·(log r)²)`, without the first term where `π - π_old` is above `high` and `A > 0`, or below `-low`
and `A < 0`; `μ = 1/tokens`. Read in the sources of prime-rl, where `old` is the engine, `high` and `low` are
`dppo_mask_high` and `dppo_mask_low`, and `tau` is `kl_tau`. `dppo_tv` has the mask in a score estimator. All laws hold.
"""

from fibration import (
    Hierarchy,
    Parameter,
    advantage,
    exp,
    identity_gate,
    log_prob,
    policies,
    ratio_deviation,
    strata,
    token_log_ratio,
    token_mean,
)

(token,) = strata("token")
current, old = policies("current old")
low = Parameter("low", default=0.2)
high = Parameter("high", default=0.2)
tau = Parameter("tau", default=0.001)

moved = exp(log_prob(current)) - exp(log_prob(old))
outside = ((advantage > 0) & (moved > high)) | ((advantage < 0) & (moved < -low))

prime_rl = Hierarchy(
    name="prime_rl",
    gates={token: identity_gate()},
    decomposition=ratio_deviation(),
    objective=token_mean().keep(~outside),
    penalties={"square": tau * token_log_ratio**2},
)
