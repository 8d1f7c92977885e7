"""BAPO (Xi et al. 2025, 2510.18927): PPO's gate, whose bounds a trainer moves to balance good and bad answers.

`J = Σ μ·min(r·A, clip(r, c_low, c_high)·A)`, `μ = 1/tokens`. Before each step the paper widens `c_high` from 1.2 to 3
and `c_low` from 0.6 to 0.9 until tokens of positive advantage make up `rho_0` of the loss: that loop is outside of the
loss, and passes its result as parameters. All laws hold.
"""

from fibration import (
    Gate,
    Hierarchy,
    Parameter,
    advantage,
    maximum,
    minimum,
    ratio_deviation,
    residual,
    strata,
    token_mean,
    where,
)

(token,) = strata("token")
low = Parameter("c_low", default=0.6, upper=1)
high = Parameter("c_high", default=1.2, lower=1)

bapo = Hierarchy(
    name="bapo",
    gates={token: Gate(where(advantage >= 0, minimum(residual, high - 1), maximum(residual, low - 1)))},
    decomposition=ratio_deviation(),
    objective=token_mean(),
)
