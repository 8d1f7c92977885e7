"""GRPO from rewards (Shao et al. 2024, 2402.03300): standardised in the prompt group, then PPO's gate as in `grpo`.

`J = Σ μ·min(r·A, clip(r, 1-low, 1+high)·A)`, `A = (R - mean)/(std + epsilon)` of the prompt group, over answers, with
`n - 1`; `μ = 1/(trajectories·T)`. verl's estimator `grpo` with `epsilon = 1e-6`, and TRL's `scale_rewards="group"` with
`1e-4`. A group of one gets 0 here, and its undivided reward in verl. Equal rewards get exactly 0, and up to 0.01 in
verl's `grpo_vectorized`, whose means are in float32. All laws hold but `baseline`: groups whose rewards differ less
count for more.
"""

from fibration import (
    Hierarchy,
    Parameter,
    pessimistic_clip_gate,
    ratio_deviation,
    reward,
    standardised,
    strata,
    trajectory_mean,
)

token, prompt_group = strata("token prompt_group")
low = Parameter("epsilon_low", default=0.2, upper=1)
high = Parameter("epsilon_high", default=0.2)

grpo_rewards = Hierarchy(
    name="grpo_rewards",
    gates={token: pessimistic_clip_gate(low, high)},
    decomposition=ratio_deviation(),
    objective=trajectory_mean(),
    groups=[prompt_group],
    advantages=standardised(reward, over=prompt_group),
    gives_up={"baseline": "groups whose rewards differ less count for more"},
)
