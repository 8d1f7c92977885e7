"""Pass@k training (Chen et al. 2025, 2508.10751): how much an answer raises the chance that one of `k = 4` is right.

`J = Σ μ·min(r·A, clip(r, 1-low, 1+high)·A)` with the closed form over all sets of `k` answers to a prompt, `N` of which
`M` are wrong: `P = 1 - C(M,k)/C(N,k)`, `σ = sqrt(P·(1-P))`; right ones have `A = (1-P)/(σ + epsilon)`, wrong ones `(1 -
P - C(M-1,k-1)/C(N-1,k-1))/(σ + epsilon)`; `μ = 1/tokens`. Rewards above 1/2 are right. The formula is from the paper as
others cite it. All laws hold but `baseline`: it divides by a deviation.
"""

from fibration import (
    Hierarchy,
    Parameter,
    count,
    maximum,
    mean,
    pessimistic_clip_gate,
    ratio_deviation,
    reward,
    sqrt,
    strata,
    token_mean,
    total,
    where,
)

token, trajectory, prompt_group = strata("token trajectory prompt_group")
low = Parameter("epsilon_low", default=0.2, upper=1)
high = Parameter("epsilon_high", default=0.28)

N = count(trajectory, over=prompt_group)
wrong = where(reward > 0.5, 0, 1)
M = total(wrong, over=prompt_group, of=trajectory)
# C(M,4)/C(N,4) and C(M-1,3)/C(N-1,3): falling products, which are 0 where there are too few to draw
others_wrong = (M - 1) * (M - 2) * (M - 3) / maximum((N - 1) * (N - 2) * (N - 3), 1)
all_wrong = mean(wrong, over=prompt_group, of=trajectory) * others_wrong
spread = sqrt(maximum(all_wrong * (1 - all_wrong), 0)) + 1e-6

pass_at_k = Hierarchy(
    name="pass_at_k",
    gates={token: pessimistic_clip_gate(low, high)},
    decomposition=ratio_deviation(),
    objective=token_mean(),
    groups=[prompt_group],
    advantages=where(reward > 0.5, all_wrong, all_wrong - others_wrong) / spread,
    gives_up={"baseline": "groups whose chances are near 0 or 1 count for more"},
)
