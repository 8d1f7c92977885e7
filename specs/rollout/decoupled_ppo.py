"""Decoupled PPO (Hilton et al. 2021, 2110.00641; AReaL 2025, 2505.24298): near one policy, sampled by another.

`J = Σ μ·ρ·min(r·A, clip(r, 1-low, 1+high)·A)`, `ρ = π_old/π_rollout` of the token: `old` is the proximal policy,
`rollout` the behaviour policy, which may be many updates behind; `μ = 1/tokens`. If AReaL drops or caps `ρ`, the loss
is `icepop` or `tis`. All laws hold.
"""

from fibration import (
    Hierarchy,
    Parameter,
    exp,
    log_prob,
    pessimistic_clip_gate,
    policies,
    ratio_deviation,
    strata,
    token_mean,
)

(token,) = strata("token")
old, rollout = policies("old rollout")
low = Parameter("epsilon_low", default=0.2, upper=1)
high = Parameter("epsilon_high", default=0.2)

decoupled_ppo = Hierarchy(
    name="decoupled_ppo",
    gates={token: pessimistic_clip_gate(low, high)},
    decomposition=ratio_deviation(),
    objective=token_mean().weigh(exp(log_prob(old) - log_prob(rollout))),
)
