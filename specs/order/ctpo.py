"""CTPO (Zhang et al. 2026, 2605.07331): the product of a row's ratios up to a token, in a band that widens with it.

`J = Σ μ·min(p·A, clip(p, exp(-low·√t), exp(high·√t))·A)`, capped at `exp(ceiling·√t)` where `A < 0`, `p` the product of
the ratios of the first `t` tokens, in gradient the last one's alone; `μ = 1/(trajectories·T)`. The declaration has a
weight, the product of the earlier tokens' ratios, and a gate with the rest of the band. The paper's code,
`cum-token-cumprod-la`, cuts `p` at `exp(10)` too. All laws hold but `inward`: the band belongs to the prefix, and stops
a token whether it has moved outward or inward.
"""

from fibration import (
    Gate,
    Hierarchy,
    Parameter,
    advantage,
    before,
    exp,
    log_ratio,
    maximum,
    minimum,
    position,
    residual,
    sqrt,
    strata,
    token_log_ratio,
    trajectory_mean,
    where,
)

token, trajectory = strata("token trajectory")
low = Parameter("low", default=0.025)
high = Parameter("high", default=0.05)
ceiling = Parameter("ceiling", default=0.05)

drifted = before(token_log_ratio, over=trajectory)
scale = sqrt(position(over=trajectory) + 1)
good = minimum(residual, high * scale - drifted)
bad = minimum(maximum(residual, -low * scale - drifted), ceiling * scale - drifted)

ctpo = Hierarchy(
    name="ctpo",
    gates={token: Gate(where(advantage >= 0, good, bad))},
    decomposition=log_ratio(),
    objective=trajectory_mean().weigh(exp(drifted)),
    gives_up={"inward": "the band belongs to the prefix, and stops a token in whichever direction it has moved"},
)
