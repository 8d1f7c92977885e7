"""The veto of a token (Liu et al. 2025): PPO, without trajectories that have a token with a wild ratio to the engine.

`J = Σ μ·min(r·A, clip(r, 1-low, 1+high)·A)` over trajectories in which `least <= ρ <= most` for every token, `ρ =
π_old/π_rollout`, `μ = 1/tokens` of those kept. SkyRL's `outlier_token_is_threshold_low` and `_high`; verl's
`seq_max_k2` and `seq_max_k3` bound functions of `ρ`. All laws hold but `causal`: whole trajectories are dropped.
"""

from fibration import (
    Hierarchy,
    Parameter,
    exp,
    log_prob,
    pessimistic_clip_gate,
    policies,
    ratio_deviation,
    some,
    strata,
    token_mean,
)

token, trajectory = strata("token trajectory")
old, rollout = policies("old rollout")
low = Parameter("epsilon_low", default=0.2, upper=1)
high = Parameter("epsilon_high", default=0.28)
least = Parameter("least", default=0.0001, upper=1)
most = Parameter("most", default=100.0, lower=1)
rho = exp(log_prob(old) - log_prob(rollout))

token_veto = Hierarchy(
    name="token_veto",
    gates={token: pessimistic_clip_gate(low, high)},
    decomposition=ratio_deviation(),
    objective=token_mean().keep(~some((rho < least) | (rho > most), over=trajectory), normaliser="kept"),
    gives_up={"causal": "a trajectory is dropped whole"},
)
