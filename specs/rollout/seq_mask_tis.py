"""Masked by trajectory, weighed by token (Liu et al. 2025): `geometric_mask` with the ratios of tokens to the engine.

`J = Σ μ·ρ·min(r·A, clip(r, 1-low, 1+high)·A)` over trajectories with `least <= exp(mean log ρ) <= most`, `ρ =
π_old/π_rollout` of the token, `μ = 1/tokens` of all tokens. NeMo-RL's and OpenRLHF's `seq-mask-tis`, whose name says
that ratios are truncated. They are not. All laws hold but `causal`: whole trajectories are dropped.
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
log_rho = log_prob(old) - log_prob(rollout)
mean_ratio = exp(mean(log_rho, over=trajectory))

seq_mask_tis = Hierarchy(
    name="seq_mask_tis",
    gates={token: pessimistic_clip_gate(low, high)},
    decomposition=ratio_deviation(),
    objective=token_mean().weigh(exp(log_rho)).keep((mean_ratio >= least) & (mean_ratio <= most)),
    gives_up={"causal": "a trajectory is dropped whole"},
)
