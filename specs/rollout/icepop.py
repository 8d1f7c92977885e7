"""IcePop (Ling Team 2025, 2510.18855): as `tis`, and tokens on which training and engine disagree are dropped.

`J = Σ μ·ρ·min(r·A, clip(r, 1-low, 1+high)·A)` over tokens with `least <= ρ <= most`, `ρ = π_old/π_rollout` of the
token, `μ = 1/tokens` of all tokens. TRL's `token_mask`, verl's `rollout_is_threshold="0.5_5"`, `icepop` of slime,
NeMo-RL and OpenRLHF; SkyRL's `token_mask_eps_low` masks without a weight, and counts kept tokens. All laws hold.
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
high = Parameter("epsilon_high", default=0.28)
least = Parameter("least", default=0.5, upper=1)
most = Parameter("most", default=5.0, lower=1)
rho = exp(log_prob(old) - log_prob(rollout))

icepop = Hierarchy(
    name="icepop",
    gates={token: pessimistic_clip_gate(low, high)},
    decomposition=ratio_deviation(),
    objective=token_mean().weigh(rho).keep((rho >= least) & (rho <= most)),
)
