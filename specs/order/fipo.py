"""FIPO (Ma et al. 2026, 2603.19835): PPO, where tokens weigh more if what came after them has become more likely.

`J = Σ μ·w·min(r·A, clip(r, 1-low, 1+high)·A)`, capped at `ceiling` where `A < 0`; `w = clip(exp(F), 1, 1+range)`, `F_t
= Σ_{s>=t} γ^(s-t)·log r_s` without tokens of `r > ceiling`, `γ = 2^(-1/32)`; `w = 1` where `A < 0` and `r > safety`; `μ
= 1/tokens`. ms-swift's `fipo`, in whose sources the weight was read. All laws hold but `causal`: a weight reads later
tokens.
"""

from fibration import (
    Hierarchy,
    Parameter,
    advantage,
    after,
    clip,
    dual_clip_gate,
    exp,
    log,
    ratio_deviation,
    strata,
    token_log_ratio,
    token_mean,
    where,
)

token, trajectory = strata("token trajectory")
low = Parameter("epsilon_low", default=0.2, upper=1)
high = Parameter("epsilon_high", default=0.28)
ceiling = Parameter("ceiling", default=10.0, lower=1)
gamma = Parameter("gamma", default=2 ** (-1 / 32), upper=1)
spread = Parameter("range", default=0.2)
safety = Parameter("safety", default=4.0)

told = where(token_log_ratio > log(ceiling), 0, token_log_ratio)
future = told + after(told, over=trajectory, discount=gamma)
weight = clip(exp(future), 1, 1 + spread)

fipo = Hierarchy(
    name="fipo",
    gates={token: dual_clip_gate(low, high, ceiling)},
    decomposition=ratio_deviation(),
    objective=token_mean().weigh(where((advantage < 0) & (token_log_ratio > log(safety)), 1, weight)),
    gives_up={"causal": "a weight reads later tokens"},
)
