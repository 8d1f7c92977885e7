"""FiberPO-Domain whose gates act only if the pull leads further from 0.

Ours, def:domain_fiberpo with `gate.inward()` and roll-backs of slope 1:
`log 𝒢 = Σ± ±(h(m_domain) + h(m_group - m_domain) + h(m_trajectory - m_group) + k(x - m_trajectory))`, where `h` and `k`
are FiberPO's `g` and clip wherever the pull has the sign of what they gate, and pass it unchanged elsewhere. On tokens
and trajectories the pull is `±A`; on prompt groups and domains it is `±Σ μ·A·r` over their tokens, detached, since
advantages with mean 0 have no pull of their own there. So no level reverses or stops a pull towards residual 0. For a
trajectory residual 0 is its group's mean (docs/how-laws-are-decided.md). All laws hold. `log 𝒢` has no bound, because
inward pulls are never cut. In a study real domains scored no better than shuffled ones (docs/which-loss-when.md).
"""

from fibration import (
    Fibration,
    Hierarchy,
    Parameter,
    aggregate_gate,
    clip_gate,
    count,
    proportional,
    signed_log_ratio,
    strata,
    trajectory_mean,
    uniform,
)

token, trajectory, prompt_group, domain = strata("token trajectory prompt_group domain")
M = count(trajectory)  # how many trajectories lie over an element
epsilon = Parameter("epsilon", default=0.05)


def budget(level):  # one trust-region budget per level and sign channel, in nats of mean log ratio
    return Parameter(f"C_{level.name}", per_channel=True, default={"+": 0.2, "-": 0.1})


fiberpo_domain_inward = Hierarchy(
    name="fiberpo_domain_inward",
    fibrations=[
        Fibration(token, trajectory, kernel=uniform()),
        Fibration(trajectory, prompt_group, kernel=uniform()),
        Fibration(prompt_group, domain, kernel=proportional(M)),
    ],
    gates={
        domain: aggregate_gate(budget(domain), rollback=1).per(M).inward(),
        prompt_group: aggregate_gate(budget(prompt_group), rollback=1).per(M).inward(),
        trajectory: aggregate_gate(budget(trajectory), rollback=1).inward(),
        token: clip_gate(epsilon).per(1 / count(token, over=trajectory)).inward(),
    },
    decomposition=signed_log_ratio(scale=1 / count(token, over=trajectory)),
    objective=trajectory_mean(),
)
