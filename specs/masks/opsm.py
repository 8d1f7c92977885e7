"""Off-policy sequence masks (DeepSeek-V3.2 2025, 2512.02556): GRPO without bad answers that the policy has left behind.

`J = Σ μ·min(r·A, clip(r, 1-low, 1+high)·A)` over tokens with `A >= 0` or `mean log(π_old/π) <= delta` over their
trajectory, `μ = 1/(trajectories·T)` of all tokens. TRL's `off_policy_mask_threshold` and slime's `--use-opsm`; in the
paper, and in TRL with vLLM, `old` is the engine. All laws hold but `causal`: whole trajectories are dropped.
"""

from fibration import (
    Hierarchy,
    Parameter,
    advantage,
    mean,
    pessimistic_clip_gate,
    ratio_deviation,
    strata,
    token_log_ratio,
    trajectory_mean,
)

token, trajectory = strata("token trajectory")
low = Parameter("epsilon_low", default=0.2, upper=1)
high = Parameter("epsilon_high", default=0.2)
delta = Parameter("delta", default=0.1)

opsm = Hierarchy(
    name="opsm",
    gates={token: pessimistic_clip_gate(low, high)},
    decomposition=ratio_deviation(),
    objective=trajectory_mean().keep((advantage >= 0) | (mean(-token_log_ratio, over=trajectory) <= delta)),
    gives_up={"causal": "a trajectory is dropped whole"},
)
