"""DPPO by divergence (2026, 2602.04879): tokens are masked where "this token or another" has changed too much.

`J = Σ μ·stop(min(r, ceiling))·A·log π` over tokens with `KL <= epsilon` or on the side away from which the advantage
pulls, `KL = q·log(q/p) + (1-q)·log((1-q)/(1-p))`, `p = π`, `q = π_old` of the token, `μ = 1/tokens` of all tokens. As
verl's `dppo_kl`, with 1e-8 beside `1 - p` and `1 - q`, as in SkyRL's `dppo` of type `binary_kl`. All laws hold but
`first_order`: it is a score estimator, whose value is not the objective.
"""

from fibration import (
    Gate,
    Hierarchy,
    Parameter,
    advantage,
    exp,
    log,
    log_prob,
    minimum,
    policies,
    ratio_deviation,
    residual,
    strata,
    token_mean,
)

(token,) = strata("token")
current, old = policies("current old")
low = Parameter("epsilon_low", default=0.05)
high = Parameter("epsilon_high", default=0.05)
ceiling = Parameter("ceiling", default=20.0, lower=1)

p, q = exp(log_prob(current)), exp(log_prob(old))
kl = q * (log_prob(old) - log_prob(current)) + (1 - q) * log((1 - q + 1e-8) / (1 - p + 1e-8))

dppo_kl = Hierarchy(
    name="dppo_kl",
    gates={token: Gate(minimum(residual, ceiling - 1))},
    decomposition=ratio_deviation(),
    objective=token_mean()
    .score()
    .keep(((advantage > 0) & ((kl <= high) | (p <= q))) | ((advantage <= 0) & ((kl <= low) | (p >= q)))),
    gives_up={"first_order": "a score estimator: its value is not the objective"},
)
