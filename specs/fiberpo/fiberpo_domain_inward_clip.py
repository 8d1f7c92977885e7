"""FiberPO-Domain with clips instead of roll-backs, each acts only if its element is pulled further from 0.

Ours, def:domain_fiberpo with `gate.inward()` and a clip at every budget:
`log 𝒢 = Σ± ±(h(m_domain) + h(m_group - m_domain) + h(m_trajectory - m_group) + k(x - m_trajectory))`, where `h` and `k`
clip wherever the pull has the sign of what they clip (as in `fiberpo_domain_inward`), and pass it unchanged elsewhere.
No level has a falling slope. All laws hold. `log 𝒢` has no bound, because inward pulls are never cut.
"""

from fibration import (
    Fibration,
    Hierarchy,
    Parameter,
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
epsilon = Parameter("epsilon", default=0.2)


def budget(level):  # one trust-region budget per level and sign channel, in nats of mean log ratio
    return Parameter(f"C_{level.name}", per_channel=True, default={"+": 0.2, "-": 0.1})


fiberpo_domain_inward_clip = Hierarchy(
    name="fiberpo_domain_inward_clip",
    fibrations=[
        Fibration(token, trajectory, kernel=uniform()),
        Fibration(trajectory, prompt_group, kernel=uniform()),
        Fibration(prompt_group, domain, kernel=proportional(M)),
    ],
    gates={
        domain: clip_gate(budget(domain)).per(M).inward(),
        prompt_group: clip_gate(budget(prompt_group)).per(M).inward(),
        trajectory: clip_gate(budget(trajectory)).inward(),
        token: clip_gate(epsilon).per(1 / count(token, over=trajectory)).inward(),
    },
    decomposition=signed_log_ratio(scale=1 / count(token, over=trajectory)),
    objective=trajectory_mean(),
)
