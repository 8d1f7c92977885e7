"""GMPO (Zhao et al. 2025, 2507.20673): the geometric mean of ratios that are clipped where the advantage pushes.

`J = Σ μ·A·exp(mean min(±x, ±clip(x, -low, high)))`, with the sign of `A`: bounds are on `x = log r`, and the advantage
is one per trajectory. verl ships it as `geo_mean`, averaged over trajectories. All laws hold but `recovery`, `identity`
and `first_order`: a clipped token is not recovered, and all tokens of a trajectory share one ratio.
"""

from fibration import (
    Fibration,
    Hierarchy,
    Parameter,
    advantage,
    count,
    decomposition,
    exp,
    gated,
    identity_gate,
    maximum,
    minimum,
    strata,
    token_log_ratio,
    trajectory_mean,
    uniform,
    where,
    zero_gate,
)

token, trajectory = strata("token trajectory")
low = Parameter("epsilon_low", default=0.4)
high = Parameter("epsilon_high", default=0.4)
T = count(token, over=trajectory)

x = where(advantage >= 0, minimum(token_log_ratio, high), maximum(token_log_ratio, -low))

gmpo = Hierarchy(
    name="gmpo",
    fibrations=[Fibration(token, trajectory, kernel=uniform())],
    gates={trajectory: identity_gate(), token: zero_gate()},
    decomposition=decomposition(density=x / T, recovery=exp(T * gated("")), scale=1 / T),
    objective=trajectory_mean(),
    gives_up={
        "recovery": "tokens are clipped before their mean is taken",
        "first_order": "one ratio per trajectory: what single tokens do beyond their mean is dropped",
    },
)
