"""DAPO from rewards (Yu et al. 2025, 2503.14476): GRPO's advantages, a wider bound above, all tokens alike.

`J = Σ μ·min(r·A, clip(r, 1-low, 1+high)·A)`, `A = (R - mean)/(std + epsilon)` of the prompt group, `μ = 1/tokens`.
Groups whose rewards are all equal get advantages of exactly 0. DAPO replaces groups of equal rewards, and lowers the
rewards of answers that are too long. Both steps happen before the loss. All laws hold but `baseline`, as with
`grpo_rewards`.
"""

from fibration import (
    Hierarchy,
    Parameter,
    pessimistic_clip_gate,
    ratio_deviation,
    reward,
    standardised,
    strata,
    token_mean,
)

token, prompt_group = strata("token prompt_group")
low = Parameter("epsilon_low", default=0.2, upper=1)
high = Parameter("epsilon_high", default=0.28)

dapo_rewards = Hierarchy(
    name="dapo_rewards",
    gates={token: pessimistic_clip_gate(low, high)},
    decomposition=ratio_deviation(),
    objective=token_mean(),
    groups=[prompt_group],
    advantages=standardised(reward, over=prompt_group),
    gives_up={"baseline": "groups whose rewards differ less count for more"},
)
