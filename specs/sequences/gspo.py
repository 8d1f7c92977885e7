"""GSPO (Zheng et al. 2025, 2507.18071; app:apc_obj_to_gspo): the geometric mean of a trajectory's ratios.

`J = Σ μ·min(s·A, clip(s, 1-low, 1+high)·A)` with `s = exp(mean log r)` of the trajectory. TRL's
`importance_sampling_level="sequence"`, OpenRLHF's and AReaL's too; verl and SkyRL ship `gspo_token` by this name. All
laws hold but `identity` and `first_order`: a token's deviation from its trajectory's mean is removed, so token by token
the gradient is not the policy gradient. For advantages that are constant on trajectories, such as GRPO's, it is.
"""

from fibration import (
    Fibration,
    Hierarchy,
    Parameter,
    count,
    log_clip_gate,
    log_ratio,
    strata,
    trajectory_mean,
    uniform,
    zero_gate,
)

token, trajectory = strata("token trajectory")
low = Parameter("epsilon_low", default=0.0003, upper=1)
high = Parameter("epsilon_high", default=0.0004)

gspo = Hierarchy(
    name="gspo",
    fibrations=[Fibration(token, trajectory, kernel=uniform())],
    gates={trajectory: log_clip_gate(low, high), token: zero_gate()},
    decomposition=log_ratio(scale=1 / count(token, over=trajectory)),
    objective=trajectory_mean(),
    gives_up={"first_order": "one ratio per trajectory: what single tokens do beyond their mean is dropped"},
)
