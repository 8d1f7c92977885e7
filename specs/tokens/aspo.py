"""ASPO (Wang et al. 2025, 2510.06062): where the advantage is positive the ratio is turned over.

`J = Σ μ·stop(w)·A·log π` over tokens that PPO's clip passes, `w = min(1/r, ceiling)` where `A >= 0` and `min(r,
ceiling)` elsewhere: a soft dual clip, which caps a weight and keeps the gradient. The authors' code (Archer 2.0) has
wider bounds on tokens of high entropy. Some of its tokens have the value of a ratio, others of a score; the gradients
are the same. All laws hold but `identity` and `first_order`: the weights are held, so the value is not the objective.
"""

from fibration import (
    Hierarchy,
    Parameter,
    advantage,
    exp,
    minimum,
    ratio_deviation,
    strata,
    token_log_ratio,
    token_mean,
    where,
    zero_gate,
)

(token,) = strata("token")
low = Parameter("epsilon_low", default=0.2, upper=1)
high = Parameter("epsilon_high", default=0.2)
ceiling = Parameter("ceiling", default=3.0, lower=1)
r = exp(token_log_ratio)

aspo = Hierarchy(
    name="aspo",
    gates={token: zero_gate()},
    decomposition=ratio_deviation(),
    objective=token_mean()
    .score()
    .weigh(minimum(where(advantage >= 0, 1 / r, r), ceiling))
    .keep(((advantage >= 0) & (r <= 1 + high)) | ((advantage < 0) & (r >= 1 - low))),
    gives_up={"first_order": "a score estimator: its value is not the objective"},
)
