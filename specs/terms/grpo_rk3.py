"""GRPO with an unbiased KL (DeepSeek-V3.2 2025, 2512.02556): k3 times the ratio, through which gradients flow.

`J = Σ μ·(min(r·A, clip(r, 1-low, 1+high)·A) - beta·r·k3)`, `k3 = exp(-x) + x - 1`, `x = log(π/π_reference)`, `A` as in
`grpo_rewards`, `μ = 1/(trajectories·T)`. TRL with `beta`, where `use_bias_correction_kl` is on by default. All laws
hold but `baseline`: the gradient of `r·k3` is `r·x`, that of the divergence, off policy too. `opsm` is the mask of the
same report.
"""

from fibration import (
    Hierarchy,
    Parameter,
    exp,
    log_prob,
    pessimistic_clip_gate,
    policies,
    ratio_deviation,
    reward,
    standardised,
    strata,
    token_log_ratio,
    trajectory_mean,
)

token, prompt_group = strata("token prompt_group")
current, reference = policies("current reference")
low = Parameter("epsilon_low", default=0.2, upper=1)
high = Parameter("epsilon_high", default=0.2)
beta = Parameter("beta", default=0.04)

x = log_prob(current) - log_prob(reference)

grpo_rk3 = Hierarchy(
    name="grpo_rk3",
    gates={token: pessimistic_clip_gate(low, high)},
    decomposition=ratio_deviation(),
    objective=trajectory_mean(),
    groups=[prompt_group],
    advantages=standardised(reward, over=prompt_group),
    penalties={"kl": beta * exp(token_log_ratio) * (exp(-x) + x - 1)},
    gives_up={"baseline": "groups whose rewards differ less count for more"},
)
