"""Policy gradient whose outward tokens count less once their domain has drifted beyond its budget.

Ours, on a level of def:domain_fiberpo:
`J = Σ μ·w·r·A with w = min(1, C/d) where A·log r > 0, else 1`, `d = mean |log r|` of the domain, `μ =
1/(trajectories·T)`. Each domain has a budget `C` of its own for rises, and one for falls. The gate of a domain moves
nothing on policy if advantages are centred in prompt groups (`docs/facts.md`); these budgets act on the pull of each
token instead. All laws hold but `causal`: the drift of a domain includes the later tokens of each answer.
"""

from fibration import (
    Hierarchy,
    Parameter,
    absolute,
    advantage,
    identity_gate,
    maximum,
    mean,
    ratio_deviation,
    strata,
    token_log_ratio,
    trajectory_mean,
    where,
)

token, domain = strata("token domain")
high = Parameter("C_high", default=0.2, on=domain)
low = Parameter("C_low", default=0.1, on=domain)

drift = mean(absolute(token_log_ratio), over=domain)
budget = where(advantage > 0, high, low)
outward = advantage * token_log_ratio > 0

attenuated_domain = Hierarchy(
    name="attenuated_domain",
    gates={token: identity_gate()},
    decomposition=ratio_deviation(),
    groups=[domain],
    objective=trajectory_mean().weigh(where(outward, 1 / maximum(drift / budget, 1), 1)),
    gives_up={"causal": "the drift of a domain includes the later tokens of each answer"},
)
