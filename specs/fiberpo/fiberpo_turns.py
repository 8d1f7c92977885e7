"""FiberPO for agents: tokens deviate from turns, turns from trajectories, trajectories from their prompt groups.

Ours, a chain as in def:fgh (rem:base_extensibility). With FiberPO's `g` and means `m`, on both sign channels:
`log 𝒢 = Σ± ±(g(m_group) + g(m_trajectory - m_group) + g(m_turn - m_trajectory) + clip(x - m_turn, -ε, ε))`. Turns are
weighed by their tokens, so that a trajectory's drift is the mean over its tokens, as in FiberPO. All laws hold but
`inward`: if the advantage is against the drift, roll-backs push further out, as in `fiberpo`.

`op.index(mask=..., turn=ids, prompt_group=...)` takes one turn per token, numbered through the batch.
"""

from fibration import (
    Fibration,
    Hierarchy,
    Parameter,
    aggregate_gate,
    clip_gate,
    count,
    mass,
    proportional,
    signed_log_ratio,
    strata,
    trajectory_mean,
    uniform,
)

token, turn, trajectory, prompt_group = strata("token turn trajectory prompt_group")
T = count(token)  # how many tokens lie over an element
epsilon = Parameter("epsilon", default=0.05)


def budget(level):  # one trust-region budget per level and sign channel, in nats of mean log ratio
    return Parameter(f"C_{level.name}", per_channel=True, default={"+": 0.2, "-": 0.1})


fiberpo_turns = Hierarchy(
    name="fiberpo_turns",
    fibrations=[
        Fibration(token, turn, kernel=uniform()),
        Fibration(turn, trajectory, kernel=proportional(T)),
        Fibration(trajectory, prompt_group, kernel=uniform()),
    ],
    gates={
        prompt_group: aggregate_gate(budget(prompt_group), rollback=T).per(mass),
        trajectory: aggregate_gate(budget(trajectory), rollback=T).per(mass),
        turn: aggregate_gate(budget(turn), rollback=T).per(mass),
        token: clip_gate(epsilon).per(mass),
    },
    decomposition=signed_log_ratio(scale=mass),
    objective=trajectory_mean(),
    gives_up={"inward": "roll-backs read drift alone, and reverse inward pulls"},
)
