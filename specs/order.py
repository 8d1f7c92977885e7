"""Order of tokens: prefix ratios and discounted futures."""

from fibration import (
    Gate,
    Hierarchy,
    Parameter,
    advantage,
    after,
    before,
    clip,
    constant_normaliser,
    dual_clip_gate,
    exp,
    log,
    log_ratio,
    maximum,
    minimum,
    position,
    ratio_deviation,
    residual,
    sqrt,
    strata,
    token_log_ratio,
    token_mean,
    trajectory_mean,
    where,
    zero_gate,
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
"""CTPO (Zhang et al. 2026, 2605.07331): the product of a row's ratios up to a token, in a band that widens with it.

`J = Σ μ·min(p·A, clip(p, exp(-low·√t), exp(high·√t))·A)`, capped at `exp(ceiling·√t)` where `A < 0`, `p` the product of
the ratios of the first `t` tokens, in gradient the last one's alone; `μ = 1/(trajectories·T)`. The declaration has a
weight, the product of the earlier tokens' ratios, and a gate with the rest of the band. The paper's code,
`cum-token-cumprod-la`, cuts `p` at `exp(10)` too. All laws hold but `inward`: the band belongs to the prefix, and stops
a token whether it has moved outward or inward.
"""


fipo_low = Parameter("epsilon_low", default=0.2, upper=1)
fipo_high = Parameter("epsilon_high", default=0.28)
fipo_ceiling = Parameter("ceiling", default=10.0, lower=1)
gamma = Parameter("gamma", default=2 ** (-1 / 32), upper=1)
spread = Parameter("range", default=0.2)
safety = Parameter("safety", default=4.0)
told = where(token_log_ratio > log(fipo_ceiling), 0, token_log_ratio)
future = told + after(told, over=trajectory, discount=gamma)
weight = clip(exp(future), 1, 1 + spread)
fipo = Hierarchy(
    name="fipo",
    gates={token: dual_clip_gate(fipo_low, fipo_high, fipo_ceiling)},
    decomposition=ratio_deviation(),
    objective=token_mean().weigh(where((advantage < 0) & (token_log_ratio > log(safety)), 1, weight)),
    gives_up={"causal": "a weight reads later tokens"},
)
"""FIPO (Ma et al. 2026, 2603.19835): PPO, where tokens weigh more if their later tokens have become more likely.

`J = Σ μ·w·min(r·A, clip(r, 1-low, 1+high)·A)`, capped at `ceiling` where `A < 0`; `w = clip(exp(F), 1, 1+range)`, `F_t
= Σ_{s>=t} γ^(s-t)·log r_s` without tokens of `r > ceiling`, `γ = 2^(-1/32)`; `w = 1` where `A < 0` and `r > safety`; `μ
= 1/tokens`. ms-swift's `fipo`, in whose sources the weight was read. All laws hold but `causal`: a weight reads later
tokens.
"""


prefix_is_ceiling = Parameter("ceiling", default=2.0, lower=1)
prefix = exp(before(token_log_ratio, over=trajectory) + token_log_ratio)
prefix_is = Hierarchy(
    name="prefix_is",
    gates={token: zero_gate()},
    decomposition=ratio_deviation(),
    objective=constant_normaliser(1).score().weigh(minimum(prefix, prefix_is_ceiling)),
    gives_up={"first_order": "a score estimator: its value is not the objective"},
)
"""Per-decision importance sampling (Precup et al. 2000; 2605.07331): every score times the ratio of its whole prefix.

`J = Σ μ·stop(min(p, ceiling))·A·log π`, `p` the product of the ratios of a trajectory's tokens up to this one, `μ =
1/trajectories`: without the ceiling the gradient is exact, wherever tokens were sampled. A token's own ratio ignores
the tokens before it; a trajectory's ratio reads later tokens. All laws hold but `identity` and `first_order`: it is a
score estimator, whose value is not the objective.
"""
