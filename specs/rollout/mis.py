"""MIS (Liu et al. 2025, "When Speed Kills Stability"): as `sequence_tis`, but trajectories above the cap are dropped.

`J = Σ μ·ρ·min(r·A, clip(r, 1-low, 1+high)·A)` over trajectories with `ρ <= ceiling`, `ρ = Π π_old/π_rollout` over the
trajectory, `μ = 1/tokens` of all tokens. TRL's `sequence_mask`, the default of its vLLM correction, at 3. All laws hold
but `causal`: whole trajectories are weighed or dropped.
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
    total,
)

token, trajectory = strata("token trajectory")
old, rollout = policies("old rollout")
low = Parameter("epsilon_low", default=0.2, upper=1)
high = Parameter("epsilon_high", default=0.28)
ceiling = Parameter("ceiling", default=3.0, lower=1)
rho = exp(total(log_prob(old) - log_prob(rollout), over=trajectory))

mis = Hierarchy(
    name="mis",
    gates={token: pessimistic_clip_gate(low, high)},
    decomposition=ratio_deviation(),
    objective=token_mean().weigh(rho).keep(rho <= ceiling),
    gives_up={"causal": "a trajectory is weighed whole, or dropped"},
)
