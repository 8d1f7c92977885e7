"""GSPO-token (Zheng et al. 2025): the trajectory's ratio is clipped as in GSPO, and tokens keep what they add to it.

The advantage may vary by token, so the trajectory's clip looks at neither sign of it. In the published loss a token's
own part enters by its gradient alone; here it enters the value as well, which changes nothing to first order.
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

gspo_token = Hierarchy(
    name="gspo_token",
    fibrations=[Fibration(token, trajectory, kernel=uniform())],
    gates={trajectory: Gate(clip(residual, log1p(-low), log1p(high))), token: identity_gate()},
    decomposition=log_ratio(scale=1 / count(token, over=trajectory)),
    objective=trajectory_mean(),
)
