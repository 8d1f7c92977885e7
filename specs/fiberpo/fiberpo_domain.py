"""FiberPO-Domain (def:domain_fiberpo): a trust-region budget per level and sign channel, a clip on what is left.

Tokens deviate from their trajectory, trajectories from their prompt group, groups from their domain. Each deviation has
a gate of its own, so one domain's drift does not spend another's budget. With FiberPO's `g`, and `m` the means over a
trajectory's tokens and a group's or a domain's trajectories, on both sign channels: `log 𝒢 = Σ± ±(g(m_domain) +
g(m_group - m_domain) + g(m_trajectory - m_group) + clip(x - m_trajectory, -ε, ε))`. All laws hold but `inward`: if `A`
is against the drift, a level reverses the inward pull, `T` times as hard, as in `fiberpo`. `fiberpo_domain_inward` does
not. In a study `fiberpo_domain` collapsed under large steps, and was never better than `grpo`
(docs/which-loss-when.md).
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
T, M = count(token), count(trajectory)  # how many tokens / trajectories lie over an element
epsilon = Parameter("epsilon", default=0.05)


def budget(level):  # one trust-region budget per level and sign channel, in nats of mean log ratio
    return Parameter(f"C_{level.name}", per_channel=True, default={"+": 0.2, "-": 0.1})


fiberpo_domain = Hierarchy(
    name="fiberpo_domain",
    fibrations=[
        Fibration(token, trajectory, kernel=uniform()),
        Fibration(trajectory, prompt_group, kernel=uniform()),
        Fibration(prompt_group, domain, kernel=proportional(M)),
    ],
    gates={
        domain: aggregate_gate(budget(domain), rollback=T).per(M),
        prompt_group: aggregate_gate(budget(prompt_group), rollback=T).per(M),
        trajectory: aggregate_gate(budget(trajectory), rollback=T),
        token: clip_gate(epsilon).per(1 / count(token, over=trajectory)),
    },
    decomposition=signed_log_ratio(scale=1 / count(token, over=trajectory)),
    objective=trajectory_mean(),
    gives_up={"inward": "roll-backs read drift alone, and reverse inward pulls"},
)
