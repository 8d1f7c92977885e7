"""GRPO as published (Shao et al. 2024, 2402.03300): rewards standardised in the group, and k3 to a reference as a loss.

`J = Σ μ·(min(r·A, clip(r, 1-low, 1+high)·A) - beta·k3)`, `k3 = exp(-x) + x - 1`, `x = log(π/π_reference)`, `A` as in
`grpo_rewards`, `μ = 1/(trajectories·T)`. TRL with `beta` and `use_bias_correction_kl=False`, verl with
`kl_loss_type=low_var_kl`, and ms-swift; with weights for the engine, TRL adds the term after the weight, ms-swift
before it. All laws hold but `baseline`, and `kl_gradient`: the expectation of its gradient `1 - exp(-x)` is that of
KL(reference ‖ current), not of KL(current ‖ reference).
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
    trajectory_mean,
)

token, prompt_group = strata("token prompt_group")
current, reference = policies("current reference")
low = Parameter("epsilon_low", default=0.2, upper=1)
high = Parameter("epsilon_high", default=0.2)
beta = Parameter("beta", default=0.04)

x = log_prob(current) - log_prob(reference)

grpo_k3 = Hierarchy(
    name="grpo_k3",
    gates={token: pessimistic_clip_gate(low, high)},
    decomposition=ratio_deviation(),
    objective=trajectory_mean(),
    groups=[prompt_group],
    advantages=standardised(reward, over=prompt_group, epsilon=1e-4),
    penalties={"kl": beta * (exp(-x) + x - 1)},
    gives_up={
        "baseline": "groups whose rewards differ less count for more",
        "kl_gradient": "k3 has the value of the divergence, and the gradient of the forward one",
    },
)
