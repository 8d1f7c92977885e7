"""FiberPO over a quiver: a trajectory has a domain and a modality, each with a budget for its own drift.

Ours, a quiver as in rem:heterogeneous_fibration. With FiberPO's `g` and means `m`, on both sign channels:
`log 𝒢 = Σ± ±(g(m) + g(e_domain) + g(e_modality) + g(ρ) + clip(x - m_trajectory, -ε, ε))`, where `ρ = m_trajectory - m -
e_domain - e_modality`. Domain and modality share the batch's `m`, so nothing is gated twice. They rarely cross in equal
proportions, so least squares separates their effects `e` (`orthogonalise="projection"`). An index that does not
separate them is refused. All laws hold but `inward`: if the advantage is against the drift, roll-backs push further
out, as in `fiberpo`.
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

token, trajectory, domain, modality, batch = strata("token trajectory domain modality batch")
T, M = count(token), count(trajectory)  # how many tokens / trajectories lie over an element
epsilon = Parameter("epsilon", default=0.05)


def budget(level):  # one trust-region budget per level and sign channel, in nats of mean log ratio
    return Parameter(f"C_{level.name}", per_channel=True, default={"+": 0.2, "-": 0.1})


fiberpo_crossed = Hierarchy(
    name="fiberpo_crossed",
    fibrations=[
        Fibration(token, trajectory, kernel=uniform()),
        Fibration(trajectory, domain, kernel=uniform()),
        Fibration(trajectory, modality, kernel=uniform()),
        Fibration(domain, batch, kernel=proportional(M)),
        Fibration(modality, batch, kernel=proportional(M)),
    ],
    gates={
        batch: aggregate_gate(budget(batch), rollback=T).per(mass),
        domain: aggregate_gate(budget(domain), rollback=T).per(mass),
        modality: aggregate_gate(budget(modality), rollback=T).per(mass),
        trajectory: aggregate_gate(budget(trajectory), rollback=T).per(mass),
        token: clip_gate(epsilon).per(mass),
    },
    decomposition=signed_log_ratio(scale=mass),
    objective=trajectory_mean(),
    orthogonalise="projection",
    gives_up={"inward": "roll-backs read drift alone, and reverse inward pulls"},
)
