"""TIS (Yao et al. 2025): PPO, with every token weighed by its ratio to the engine that sampled it.

`J = Σ μ·min(ρ, ceiling)·min(r·A, clip(r, 1-low, 1+high)·A)`, `ρ = π_old/π_rollout` of the token, `μ = 1/tokens`. verl's
`rollout_is=token`, TRL's `token_truncate`, SkyRL's `tis_ratio_type=token`, slime's `--use-tis`, `tis` of NeMo-RL and
OpenRLHF, which have a lower bound too; ROLL's `tis` is `cispo_absolute` at 1. All laws hold.
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
)

(token,) = strata("token")
old, rollout = policies("old rollout")
low = Parameter("epsilon_low", default=0.2, upper=1)
high = Parameter("epsilon_high", default=0.28)
ceiling = Parameter("ceiling", default=2.0, lower=1)

tis = Hierarchy(
    name="tis",
    gates={token: pessimistic_clip_gate(low, high)},
    decomposition=ratio_deviation(),
    objective=token_mean().weigh(minimum(exp(log_prob(old) - log_prob(rollout)), ceiling)),
)
