"""PPO with generalised advantages (Schulman et al. 2016, 1506.02438; 2017, 1707.06347) of the values of a critic.

`J = Σ μ·min(r·A, clip(r, 1-low, 1+high)·A)`, `A_t = Σ_{s>=t} (γ·λ)^(s-t)·(R_s + γ·V_{s+1} - V_s)` with `V = 0` past the
end, `μ = 1/tokens`. Rewards are per token; for a truncated trajectory, add `γ` times the value at its end to the last
reward. The estimator `gae` of verl whitens this over all tokens. All laws hold but `baseline`: later rewards count
less, which trades bias for variance.

`op.index(mask=..., attributes={"value": values})` takes a number per token. Bounds are strict: for a `γ` or a `λ` of 1
give `math.nextafter(1, 0)`.
"""

from fibration import (
    Attribute,
    Hierarchy,
    Parameter,
    after,
    pessimistic_clip_gate,
    ratio_deviation,
    reward,
    strata,
    token_mean,
)

token, trajectory = strata("token trajectory")
value = Attribute("value", on=token, positive=False)
low = Parameter("epsilon_low", default=0.2, upper=1)
high = Parameter("epsilon_high", default=0.2)
gamma = Parameter("gamma", default=0.99, upper=1)
lam = Parameter("lam", default=0.95, upper=1)

# What a value is worth at later tokens telescopes: it comes as `γ·V` of one difference and goes as `V` of the next.
later = after(reward + (1 - lam) / lam * value, over=trajectory, discount=gamma * lam)

ppo_gae = Hierarchy(
    name="ppo_gae",
    gates={token: pessimistic_clip_gate(low, high)},
    decomposition=ratio_deviation(),
    objective=token_mean(),
    advantages=reward - value + later,
    gives_up={"baseline": "later rewards count for less, for less variance"},
)
