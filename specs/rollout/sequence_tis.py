"""TIS by sequences (Yao et al. 2025; Liu et al. 2025): PPO, weighed by the whole trajectory's ratio to the engine.

`J = Σ μ·min(ρ, ceiling)·min(r·A, clip(r, 1-low, 1+high)·A)`, `ρ = Π π_old/π_rollout` over the trajectory, `μ =
1/tokens`. verl's `rollout_is=sequence`, TRL's `sequence_truncate`, SkyRL's `tis_ratio_type=sequence`; verl and SkyRL
cut `log ρ` at ±20 first. All laws hold but `causal`: whole trajectories are weighed.
"""

from fibration import (
    Hierarchy,
    Parameter,
    exp,
    log_prob,
    minimum,
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
ceiling = Parameter("ceiling", default=2.0, lower=1)
log_rho = total(log_prob(old) - log_prob(rollout), over=trajectory)

sequence_tis = Hierarchy(
    name="sequence_tis",
    gates={token: pessimistic_clip_gate(low, high)},
    decomposition=ratio_deviation(),
    objective=token_mean().weigh(minimum(exp(log_rho), ceiling)),
    gives_up={"causal": "a trajectory is weighed whole"},
)
