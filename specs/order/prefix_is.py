"""Per-decision importance sampling (Precup et al. 2000; 2605.07331): every score times the ratio of its whole prefix.

`J = Σ μ·stop(min(p, ceiling))·A·log π`, `p` the product of the ratios of a trajectory's tokens up to this one, `μ =
1/trajectories`: without the ceiling the gradient is exact, wherever tokens were sampled. A token's own ratio ignores
the tokens before it; a trajectory's ratio reads later tokens. All laws hold but `identity` and `first_order`: it is a
score estimator, whose value is not the objective.
"""

from fibration import (
    Hierarchy,
    Parameter,
    before,
    constant_normaliser,
    exp,
    minimum,
    ratio_deviation,
    strata,
    token_log_ratio,
    zero_gate,
)

token, trajectory = strata("token trajectory")
ceiling = Parameter("ceiling", default=2.0, lower=1)

prefix = exp(before(token_log_ratio, over=trajectory) + token_log_ratio)

prefix_is = Hierarchy(
    name="prefix_is",
    gates={token: zero_gate()},
    decomposition=ratio_deviation(),
    objective=constant_normaliser(1).score().weigh(minimum(prefix, ceiling)),
    gives_up={"first_order": "a score estimator: its value is not the objective"},
)
