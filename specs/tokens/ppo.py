"""PPO with dual clip (app:xxpo_rgf; dual clip: Ye et al. 2020): tokens are gated alone, against their advantage.

`J = Σ μ·min(r·A, clip(r, 1-low, 1+high)·A)`, `μ = 1/tokens`; for negative advantages the ratio counts as at most
`ceiling`. verl's `vanilla`, SkyRL's `dual_clip`, OpenRLHF's `dual_clip`, TRL's `delta`, slime's `eps_clip_c`; TRL has
no ceiling by default. All laws hold.
"""

from fibration import Hierarchy, Parameter, dual_clip_gate, ratio_deviation, strata, token_mean

(token,) = strata("token")
low = Parameter("epsilon_low", default=0.2, upper=1)  # below 1, so that the clipped ratio stays positive
high = Parameter("epsilon_high", default=0.2)
ceiling = Parameter("ceiling", default=3.0, lower=1)

ppo = Hierarchy(
    name="ppo",
    gates={token: dual_clip_gate(low, high, ceiling)},
    decomposition=ratio_deviation(),
    objective=token_mean(),
)
