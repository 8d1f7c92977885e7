"""GSPO-token (Zheng et al. 2025, 2507.18071): the trajectory's ratio in value, each token's own in gradient.

`J = Σ μ·min(s'·A, clip(s', 1-low, 1+high)·A)` with `s' = stop(s)·π/stop(π)`, `s = exp(mean log r)` of the trajectory,
and an advantage that may vary by token. verl ships it as `gspo`, with its own reduction; so do SkyRL and Tinker, with
the ratio cut at `exp(10)`. TRL's `importance_sampling_level="sequence"` is `gspo`. Where advantages are constant on
trajectories the two have the same gradient. All laws hold but `identity` and `first_order`: the value of a token is its
trajectory's ratio.
"""

from fibration import (
    Fibration,
    Gate,
    Hierarchy,
    Parameter,
    advantage,
    count,
    density,
    log1p,
    log_ratio,
    maximum,
    minimum,
    residual,
    stop,
    strata,
    trajectory_mean,
    uniform,
    where,
    zero_gate,
)

token, trajectory = strata("token trajectory")
low = Parameter("epsilon_low", default=0.0003, upper=1)
high = Parameter("epsilon_high", default=0.0004)
T = count(token, over=trajectory)

mean_x = density(trajectory)
x = T * residual + mean_x  # the token's own log ratio
clipped = where(advantage >= 0, minimum(mean_x, log1p(high)), maximum(mean_x, log1p(-low)))
passes = ((advantage >= 0) & (mean_x <= log1p(high))) | ((advantage < 0) & (mean_x >= log1p(-low)))

gspo_token = Hierarchy(
    name="gspo_token",
    fibrations=[Fibration(token, trajectory, kernel=uniform())],
    gates={trajectory: zero_gate(), token: Gate((stop(clipped) + where(passes, x - stop(x), 0)) / T)},
    decomposition=log_ratio(scale=1 / T),
    objective=trajectory_mean(),
    gives_up={"first_order": "in value a token has the ratio of its trajectory"},
)
