"""KL-Cov (Cui et al. 2025, 2505.22617): importance sampling, and a penalty on tokens of the largest covariances.

`J = Σ μ·(r·A - coef·|log r|·[cov > c])`, `cov = (A - mean A)·(log π - mean log π)` of the batch, `c` its quantile at
`level`, `μ = 1/tokens`. verl's `kl_cov` takes the `kl_cov_ratio` largest of all tokens, one at least. All laws hold.
"""

from fibration import (
    Hierarchy,
    Parameter,
    absolute,
    advantage,
    identity_gate,
    log_prob,
    mean,
    policies,
    quantile,
    ratio_deviation,
    strata,
    token_log_ratio,
    token_mean,
    where,
)

token, batch = strata("token batch")
(current,) = policies("current")
coef = Parameter("coef", default=1.0)
level = Parameter("level", default=0.9998, upper=1)

cov = (advantage - mean(advantage, over=batch)) * (log_prob(current) - mean(log_prob(current), over=batch))

kl_cov = Hierarchy(
    name="kl_cov",
    gates={token: identity_gate()},
    decomposition=ratio_deviation(),
    objective=token_mean(),
    penalties={"kl": where(cov > quantile(cov, level, over=batch), coef * absolute(token_log_ratio), 0)},
)
