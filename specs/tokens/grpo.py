"""GRPO (Shao et al. 2024, 2402.03300; app:xxpo_rgf): PPO's gate, averaged over the tokens of each trajectory first.

`J = Σ μ·min(r·A, clip(r, 1-low, 1+high)·A)`, `μ = 1/(trajectories·T)` for `T` tokens of a trajectory. TRL's `grpo`,
verl's `vanilla` with `seq-mean-token-mean`. All laws hold.
"""

from fibration import Hierarchy, Parameter, pessimistic_clip_gate, ratio_deviation, strata, trajectory_mean

(token,) = strata("token")
low = Parameter("epsilon_low", default=0.2, upper=1)
high = Parameter("epsilon_high", default=0.2)

grpo = Hierarchy(
    name="grpo",
    gates={token: pessimistic_clip_gate(low, high)},
    decomposition=ratio_deviation(),
    objective=trajectory_mean(),
)
