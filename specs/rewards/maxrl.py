"""MaxRL (Tajwar et al. 2026, 2602.02710): rewards centred in the prompt group and divided by its mean, the pass rate.

`J = Σ μ·min(r·A, clip(r, 1-low, 1+high)·A)`, `A = (R - mean)/(mean + epsilon)` of the prompt group, over answers,
`μ = 1/tokens`. Rewards are 0 or 1, at least not negative: a prompt that few answers solve counts for more, as `1/p` in
the gradient of `log p`. The estimator `maxrl` of SkyRL and of the authors' fork of verl is this `A`, with
`epsilon = 1e-6`. A group without a right answer gets exactly 0; so does a group of one, which gets its undivided reward
in SkyRL. All laws hold but `baseline`: it divides by a mean that the answer is part of.
"""

from fibration import (
    Hierarchy,
    Parameter,
    centred,
    maximum,
    mean,
    pessimistic_clip_gate,
    ratio_deviation,
    reward,
    strata,
    token_mean,
)

token, trajectory, prompt_group = strata("token trajectory prompt_group")
low = Parameter("epsilon_low", default=0.2, upper=1)
high = Parameter("epsilon_high", default=0.2)
pass_rate = mean(reward, over=prompt_group, of=trajectory)

maxrl = Hierarchy(
    name="maxrl",
    gates={token: pessimistic_clip_gate(low, high)},
    decomposition=ratio_deviation(),
    objective=token_mean(),
    groups=[prompt_group],
    advantages=centred(reward, over=prompt_group) / (maximum(pass_rate, 0) + 1e-6),
    gives_up={"baseline": "divided by a mean that the answer is part of"},
)
