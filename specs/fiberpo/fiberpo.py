"""FiberPO (def:fiberpo_main): a budget on each trajectory's drift per sign channel, a clip on what tokens add to it.

`log 𝒢 = Σ± ±(g(m±) + clip(x± - m±, -ε, ε))`: `x+` and `x-` are `|log r|` by its sign, `m±` their means over the
trajectory, and `g` passes up to the budget `C±`, rolls back with slope `-T`, then zeroes (eq:gagg_main).

All laws hold but `inward`: `g` reads the drift alone. An outward pull is pulled back. An inward pull is a ratio above 1
with `A < 0`, or below 1 with `A > 0`. In the strip beyond the budget `g` reverses it, `T` times as hard, and beyond the
strip `g` stops it. `fiberpo_inward` lets it pass. In a study `fiberpo` collapsed under large steps, and was never
better than `grpo` (docs/which-loss-when.md).
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

fiberpo = Hierarchy(
    name="fiberpo",
    fibrations=[Fibration(token, trajectory, kernel=uniform())],
    gates={
        trajectory: aggregate_gate(budget, rollback=count(token)),
        token: clip_gate(epsilon).per(1 / count(token, over=trajectory)),
    },
    decomposition=signed_log_ratio(scale=1 / count(token, over=trajectory)),
    objective=trajectory_mean(),
    gives_up={"inward": "roll-backs read drift alone, and reverse inward pulls"},
)
