"""Clip-Cov (Cui et al. 2025, 2505.22617): PPO, without tokens whose log-prob and advantage are both far up.

`J = Σ μ·min(r·A, clip(r, 1-low, 1+high)·A)` over all tokens but those with `least < cov < most`, `cov = (A - mean
A)·(log π - mean log π)` of the batch, which the clip has not stopped already; `μ = 1/tokens` of all tokens. verl's
`clip_cov` drops a random part of the tokens between the bounds, at most `clip_cov_ratio` of all tokens. This loss drops
all of them, as verl does at 1. All laws hold but `mask_open`, since it drops tokens on policy too, and `causal`, since
the means are of the whole batch.
"""

from fibration import (
    Hierarchy,
    Parameter,
    advantage,
    exp,
    log_prob,
    mean,
    pessimistic_clip_gate,
    policies,
    ratio_deviation,
    strata,
    token_log_ratio,
    token_mean,
)

token, batch = strata("token batch")
(current,) = policies("current")
low = Parameter("epsilon_low", default=0.2, upper=1)
high = Parameter("epsilon_high", default=0.2)
least = Parameter("least", default=1.0)
most = Parameter("most", default=5.0)

r = exp(token_log_ratio)
cov = (advantage - mean(advantage, over=batch)) * (log_prob(current) - mean(log_prob(current), over=batch))
closed = ((advantage > 0) & (r > 1 + high)) | ((advantage < 0) & (r < 1 - low))

clip_cov = Hierarchy(
    name="clip_cov",
    gates={token: pessimistic_clip_gate(low, high)},
    decomposition=ratio_deviation(),
    objective=token_mean().keep(closed | (cov <= least) | (cov >= most)),
    gives_up={"mask_open": "covariances are large on policy too", "causal": "means are of the whole batch"},
)
