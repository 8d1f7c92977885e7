"""FiberPO whose gates act only if the advantage pulls a residual further from 0.

Ours, def:fiberpo_main with `gate.inward()`, and the roll-back's slope 1 instead of `T`:
`log 𝒢 = Σ± ±(h(m±) + k(x± - m±))`, where `h` and `k` are FiberPO's `g` and clip wherever `±A` has the sign of what they
gate, and pass it unchanged elsewhere. So a ratio above 1 comes down if `A < 0`, as in PPO. `fiberpo` reverses this in
the strip beyond the budget, and stops it beyond the strip. All laws hold. `log 𝒢` has no bound, because inward pulls
are never cut.
"""

from fibration import (
    Fibration,
    Hierarchy,
    Parameter,
    aggregate_gate,
    clip_gate,
    count,
    signed_log_ratio,
    strata,
    trajectory_mean,
    uniform,
)

token, trajectory = strata("token trajectory")
budget = Parameter("C_trajectory", per_channel=True, default={"+": 0.2, "-": 0.1})
epsilon = Parameter("epsilon", default=0.05)

fiberpo_inward = Hierarchy(
    name="fiberpo_inward",
    fibrations=[Fibration(token, trajectory, kernel=uniform())],
    gates={
        trajectory: aggregate_gate(budget, rollback=1).inward(),
        token: clip_gate(epsilon).per(1 / count(token, over=trajectory)).inward(),
    },
    decomposition=signed_log_ratio(scale=1 / count(token, over=trajectory)),
    objective=trajectory_mean(),
)
