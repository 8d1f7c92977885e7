"""Geometric masks (Liu et al. 2025): PPO, without trajectories whose mean ratio to the engine leaves a band.

`J = Σ μ·min(r·A, clip(r, 1-low, 1+high)·A)` over trajectories with `least <= exp(mean log ρ) <= most`, `ρ =
π_old/π_rollout`, `μ = 1/tokens` of those kept. SkyRL's `sequence_mask_metric=geometric`. verl's
`rollout_rs=seq_mean_k1` bounds `1/ρ`: it keeps `[1/most, 1/least]`, and its pages say `[least, most]`. All laws hold
but `causal`: whole trajectories are dropped.
"""

from fibration import (
    Hierarchy,
    Parameter,
    exp,
    log_prob,
    mean,
    pessimistic_clip_gate,
    policies,
    ratio_deviation,
    strata,
    token_mean,
)

token, trajectory = strata("token trajectory")
old, rollout = policies("old rollout")
low = Parameter("epsilon_low", default=0.2, upper=1)
high = Parameter("epsilon_high", default=0.28)
least = Parameter("least", default=0.99, upper=1)
most = Parameter("most", default=1.01, lower=1)
mean_ratio = exp(mean(log_prob(old) - log_prob(rollout), over=trajectory))

geometric_mask = Hierarchy(
    name="geometric_mask",
    gates={token: pessimistic_clip_gate(low, high)},
    decomposition=ratio_deviation(),
    objective=token_mean().keep((mean_ratio >= least) & (mean_ratio <= most), normaliser="kept"),
    gives_up={"causal": "a trajectory is dropped whole"},
)
