"""SAPO (Gao et al. 2025, 2511.20347): a soft gate, `𝒢(r) = 4/τ·σ(τ·(r-1))`, with a temperature for each sign of `A`.

TRL's, verl's and SkyRL's `sapo`; TRL has the temperatures in float32. All laws hold but `identity` and `first_order`,
which fail in the value alone: at `r = 1` the slope is 1, so the gradient is the policy gradient, and the value is `2/τ`
instead of 1.
"""

from fibration import (
    Gate,
    Hierarchy,
    Parameter,
    advantage,
    ratio_deviation,
    residual,
    sigmoid,
    strata,
    trajectory_mean,
    where,
)

(token,) = strata("token")
tau = where(advantage > 0, Parameter("tau_pos", default=1.0), Parameter("tau_neg", default=1.05))

sapo = Hierarchy(
    name="sapo",
    gates={token: Gate(4 / tau * sigmoid(tau * residual) - 1)},
    decomposition=ratio_deviation(),
    objective=trajectory_mean(),
    gives_up={"first_order": "the value at r = 1 is 2/tau"},
)
