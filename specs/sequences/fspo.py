"""FSPO (Mao et al. 2025, 2509.09177): the product of a trajectory's ratios, in a band as wide as its length's root.

`J = Σ μ·min(s·A, exp(clip(S, ±band·sqrt(T)))·A)` over trajectories, `S = Σ log r`, `s = exp(S)`, `μ = 1/trajectories`.
Its first version moves the band by a drift. Spread over tokens, each with `1 + (s-1)/T`, its value is `Σ
(T-1)·A/trajectories` more, which no gradient sees. The formula is from excerpts of the paper. All laws hold but
`identity` and `first_order`: each token has the product of all ratios.
"""

from fibration import (
    Fibration,
    Gate,
    Hierarchy,
    Parameter,
    advantage,
    constant_normaliser,
    count,
    expm1,
    log1p,
    log_ratio,
    maximum,
    minimum,
    residual,
    sqrt,
    strata,
    uniform,
    where,
    zero_gate,
)

token, trajectory = strata("token trajectory")
band = Parameter("band", default=0.05)
T = count(token, over=trajectory)

bound = band * sqrt(T)
S = T * residual
clipped = where(advantage >= 0, minimum(S, bound), maximum(S, -bound))

fspo = Hierarchy(
    name="fspo",
    fibrations=[Fibration(token, trajectory, kernel=uniform())],
    gates={trajectory: Gate(log1p(expm1(clipped) / T)), token: zero_gate()},
    decomposition=log_ratio(scale=1 / T),
    objective=constant_normaliser(1),
    gives_up={"first_order": "one ratio per trajectory: what single tokens do beyond their sum is dropped"},
)
