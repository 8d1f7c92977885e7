"""GRPO with k2 (Schulman 2020; 2501.03262, appendix A): the square whose gradient is that of the divergence.

`J = Σ μ·(min(r·A, clip(r, 1-low, 1+high)·A) - beta·x²/2)`, `x = log(π/π_reference)`, `A` as in `grpo_rewards`, `μ =
1/(trajectories·T)`. verl's `kl_loss_type=mse`; its `k1+` and `k3+` have this gradient and another value. All laws hold
but `baseline`: the penalty's gradient is right in expectation on policy. Off policy it lacks the weight that `grpo_rk3`
has.
"""

from fibration import (
    Hierarchy,
    Parameter,
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

grpo_k2 = Hierarchy(
    name="grpo_k2",
    gates={token: pessimistic_clip_gate(low, high)},
    decomposition=ratio_deviation(),
    objective=trajectory_mean(),
    groups=[prompt_group],
    advantages=standardised(reward, over=prompt_group),
    penalties={"kl": beta * (log_prob(current) - log_prob(reference)) ** 2 / 2},
    gives_up={"baseline": "groups whose rewards differ less count for more"},
)
