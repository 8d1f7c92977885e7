"""REINFORCE++ (Hu et al. 2025, 2501.03262): KL in the reward from each token on, whitened over all tokens.

`J = Σ μ·min(r·A, clip(r, 1-low, 1+high)·A)`, `A = (G - mean)/sqrt(std² + epsilon)` over the tokens of the batch, `G_t =
R - beta·Σ_{s>=t} log(π_old/π_reference)`, `μ = 1/(trajectories·T)`. The estimator `reinforce_plus_plus` of verl is this
`A`; OpenRLHF's has the variance with `n`. Rewards are per row. All laws hold but `baseline`: advantages are divided by
a deviation, and the row is part of their mean.
"""

from fibration import (
    Hierarchy,
    Parameter,
    after,
    deviation,
    log_prob,
    mean,
    pessimistic_clip_gate,
    policies,
    ratio_deviation,
    reward,
    sqrt,
    strata,
    trajectory_mean,
)

token, trajectory, batch = strata("token trajectory batch")
old, reference = policies("old reference")
low = Parameter("epsilon_low", default=0.2, upper=1)
high = Parameter("epsilon_high", default=0.2)
beta = Parameter("beta", default=0.001)

kl = log_prob(old) - log_prob(reference)
to_go = reward - beta * (kl + after(kl, over=trajectory))

reinforce_pp = Hierarchy(
    name="reinforce_pp",
    gates={token: pessimistic_clip_gate(low, high)},
    decomposition=ratio_deviation(),
    objective=trajectory_mean(),
    advantages=(to_go - mean(to_go, over=batch)) / sqrt(deviation(to_go, over=batch) ** 2 + 1e-8),
    gives_up={"baseline": "divided by a deviation of all tokens, the row's own among them"},
)
