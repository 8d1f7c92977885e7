"""Dr. GRPO from rewards (Liu et al. 2025, 2503.20783): the group's mean is subtracted, without a division.

`J = Σ μ·min(r·A, clip(r, 1-low, 1+high)·A)`, `A = R - mean` of the prompt group, `μ = 1/(trajectories·length)`. verl's
`norm_adv_by_std_in_grpo=False`, TRL's `scale_rewards="none"`. All laws hold: an answer is part of the mean that it is
compared with, so its gradient is `(G-1)/G` of the true one. `rloo` has the whole one.
"""

from fibration import (
    Hierarchy,
    Parameter,
    centred,
    constant_normaliser,
    pessimistic_clip_gate,
    ratio_deviation,
    reward,
    strata,
)

token, prompt_group = strata("token prompt_group")
low = Parameter("epsilon_low", default=0.2, upper=1)
high = Parameter("epsilon_high", default=0.2)
length = Parameter("length", default=1024)  # usually the longest response allowed, in tokens

dr_grpo_rewards = Hierarchy(
    name="dr_grpo_rewards",
    gates={token: pessimistic_clip_gate(low, high)},
    decomposition=ratio_deviation(),
    objective=constant_normaliser(length),
    groups=[prompt_group],
    advantages=centred(reward, over=prompt_group),
)
