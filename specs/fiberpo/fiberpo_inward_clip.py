"""FiberPO with clips instead of roll-backs, each acts only if the advantage pulls a residual further from 0.

Ours, after def:fiberpo_main:
`log 𝒢 = Σ± ±(h(m±) + k(x± - m±))`, with FiberPO's means, where `h` clips at the budget `C±` and `k` at `ε` wherever
`±A` has the sign of what they clip, and pass it unchanged elsewhere: PPO's `min`, per trajectory and per token. All
laws hold. `log 𝒢` has no bound, because inward pulls are never cut.
"""

from fibration import (
    Fibration,
    Hierarchy,
    Parameter,
    clip_gate,
    count,
    signed_log_ratio,
    strata,
    trajectory_mean,
    uniform,
)

token, trajectory = strata("token trajectory")
budget = Parameter("C_trajectory", per_channel=True, default={"+": 0.2, "-": 0.1})
epsilon = Parameter("epsilon", default=0.2)

fiberpo_inward_clip = Hierarchy(
    name="fiberpo_inward_clip",
    fibrations=[Fibration(token, trajectory, kernel=uniform())],
    gates={
        trajectory: clip_gate(budget).inward(),
        token: clip_gate(epsilon).per(1 / count(token, over=trajectory)).inward(),
    },
    decomposition=signed_log_ratio(scale=1 / count(token, over=trajectory)),
    objective=trajectory_mean(),
)
