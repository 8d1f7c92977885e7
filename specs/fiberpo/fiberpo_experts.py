"""FiberPO for mixtures of experts: a token has a trajectory and an expert, which cross each other.

Ours, a quiver as in rem:heterogeneous_fibration. With FiberPO's `g` and means `m` over tokens, on both sign channels:
`log 𝒢 = Σ± ±(g(m) + g(m_expert - m) + g(m_trajectory - m) + clip(x - m_expert - m_trajectory + m, -ε, ε))`. Experts
serve trajectories as the router decides, never in equal proportions, and there are too many trajectories for least
squares. All laws hold but `orthogonality` and `inward`: a token's residual is not quite orthogonal to either stratum,
and if the advantage is against the drift, roll-backs push further out, as in `fiberpo`.

`op.index(mask=..., expert=ids)` takes one id per token, from 0. A negative id, which in most data means none, is
refused unless the token is masked.
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
    token_mean,
    uniform,
)

token, expert, trajectory, batch = strata("token expert trajectory batch")
T = count(token)  # how many tokens lie over an element
epsilon = Parameter("epsilon", default=0.05)


def budget(level):  # one trust-region budget per level and sign channel, in nats of mean log ratio
    return Parameter(f"C_{level.name}", per_channel=True, default={"+": 0.2, "-": 0.1})


fiberpo_experts = Hierarchy(
    name="fiberpo_experts",
    fibrations=[
        Fibration(token, trajectory, kernel=uniform()),
        Fibration(token, expert, kernel=uniform()),
        Fibration(trajectory, batch, kernel=proportional(T)),
        Fibration(expert, batch, kernel=proportional(T)),
    ],
    gates={
        batch: aggregate_gate(budget(batch), rollback=T).per(mass),
        expert: aggregate_gate(budget(expert), rollback=T).per(mass),
        trajectory: aggregate_gate(budget(trajectory), rollback=T).per(mass),
        token: clip_gate(epsilon).per(mass),
    },
    decomposition=signed_log_ratio(scale=mass),
    objective=token_mean(),
    gives_up={
        "orthogonality": "experts and trajectories cross as the router decides",
        "inward": "roll-backs read drift alone, and reverse inward pulls",
    },
)
