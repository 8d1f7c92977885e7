"""The best of a group (Walder & Karkhanis 2025, 2503.19595, as in verl): the lead of the best answer over the second.

`J = Σ μ·min(r·A, clip(r, 1-low, 1+high)·A)`, `A = (R - second)/(std + epsilon)` for the single best answer to a prompt,
0 for the others, and for all if two are best; `μ = 1/tokens`. It is verl's estimator `grpo_passk`, which refuses a
group of one. All laws hold but `baseline`: an answer's own reward decides whether it is compared at all.
"""

from fibration import (
    Hierarchy,
    Parameter,
    deviation,
    largest,
    pessimistic_clip_gate,
    ratio_deviation,
    reward,
    strata,
    token_mean,
    total,
    where,
)

token, trajectory, prompt_group = strata("token trajectory prompt_group")
low = Parameter("epsilon_low", default=0.2, upper=1)
high = Parameter("epsilon_high", default=0.28)

best = largest(reward, over=prompt_group, of=trajectory)
least = -largest(-reward, over=prompt_group, of=trajectory)
second = largest(where(reward >= best, least, reward), over=prompt_group, of=trajectory)
at_best = total(where(reward >= best, 1, 0), over=prompt_group, of=trajectory)
spread = deviation(reward, over=prompt_group, of=trajectory) + 1e-6

best_of_group = Hierarchy(
    name="best_of_group",
    gates={token: pessimistic_clip_gate(low, high)},
    decomposition=ratio_deviation(),
    objective=token_mean(),
    groups=[prompt_group],
    advantages=where((reward >= best) & (at_best <= 1), (reward - second) / spread, 0),
    gives_up={"baseline": "an answer's own reward decides whether it is compared"},
)
