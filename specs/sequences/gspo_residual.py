"""GSPO by residuals (after Zheng et al. 2025): the trajectory's ratio is clipped, tokens keep their deviation from it.

`𝒢(r) = clip(s, 1-low, 1+high)·r/s` with `s = exp(mean log r)` of the trajectory. The advantage may vary by token, so
the clip does not read its sign. All laws hold; `log 𝒢` has no bound, since nothing limits a token's deviation.

The published loss is `min(s'·A, clip(s', 1-low, 1+high)·A)` with `s' = stop(s)·π/stop(π)`: a token's own part has a
gradient and no value. The two agree to first order at `r = 1`, and only there. Within the clip `𝒢(r) = r` is plain
importance sampling, where the published loss weighs all tokens of a trajectory by `s`. Beyond it a token keeps the
gradient of what it adds, where the published loss has none, or all of it on the side that `min` lets through.
"""

from fibration import (
    Fibration,
    Gate,
    Hierarchy,
    Parameter,
    clip,
    count,
    identity_gate,
    log1p,
    log_ratio,
    residual,
    strata,
    trajectory_mean,
    uniform,
)

token, trajectory = strata("token trajectory")
low = Parameter("epsilon_low", default=0.0003, upper=1)
high = Parameter("epsilon_high", default=0.0004)

gspo_residual = Hierarchy(
    name="gspo_residual",
    fibrations=[Fibration(token, trajectory, kernel=uniform())],
    gates={trajectory: Gate(clip(residual, log1p(-low), log1p(high))), token: identity_gate()},
    decomposition=log_ratio(scale=1 / count(token, over=trajectory)),
    objective=trajectory_mean(),
)
