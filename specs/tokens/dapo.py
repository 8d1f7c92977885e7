"""DAPO (Yu et al. 2025, 2503.14476): PPO's gate with a wider upper bound, averaged over all tokens of the batch.

`J = Σ μ·min(r·A, clip(r, 1-low, 1+high)·A)`, `μ = 1/tokens`. TRL's default, `dapo`; its `bnpo` counts the tokens of a
micro-batch; verl's `vanilla` with `token-mean`, SkyRL's `regular`. All laws hold.
"""

from fibration import Hierarchy, Parameter, pessimistic_clip_gate, ratio_deviation, strata, token_mean

(token,) = strata("token")
low = Parameter("epsilon_low", default=0.2, upper=1)
high = Parameter("epsilon_high", default=0.28)

dapo = Hierarchy(
    name="dapo",
    gates={token: pessimistic_clip_gate(low, high)},
    decomposition=ratio_deviation(),
    objective=token_mean(),
)
