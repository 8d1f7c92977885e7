"""Dr. GRPO (Liu et al. 2025, 2503.20783): PPO's gate, a sum over tokens by a constant length: long answers weigh more.

`J = Σ μ·min(r·A, clip(r, 1-low, 1+high)·A)`, `μ = 1/(trajectories·length)`. TRL's `dr_grpo`; verl's
`seq-mean-token-sum-norm`, which divides by the padded width of each micro-batch unless it is given a
`loss_scale_factor`. All laws hold.
"""

from fibration import Hierarchy, Parameter, constant_normaliser, pessimistic_clip_gate, ratio_deviation, strata

(token,) = strata("token")
low = Parameter("epsilon_low", default=0.2, upper=1)
high = Parameter("epsilon_high", default=0.2)
length = Parameter("length", default=1024)  # usually the longest response allowed, in tokens

dr_grpo = Hierarchy(
    name="dr_grpo",
    gates={token: pessimistic_clip_gate(low, high)},
    decomposition=ratio_deviation(),
    objective=constant_normaliser(length),
)
