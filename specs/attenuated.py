"""A budget for every level, in weights: tokens that move further out beyond it count less."""

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

token, domain, prompt_group, trajectory = strata("token domain prompt_group trajectory")
high = Parameter("C_high", default=0.2)
low = Parameter("C_low", default=0.1)


domain_high = Parameter("C_high", default=0.2, on=domain)
domain_low = Parameter("C_low", default=0.1, on=domain)
domain_drift = mean(absolute(token_log_ratio), over=domain)
domain_budget = where(advantage > 0, domain_high, domain_low)
outward = advantage * token_log_ratio > 0
attenuated_domain = Hierarchy(
    name="attenuated_domain",
    gates={token: identity_gate()},
    decomposition=ratio_deviation(),
    groups=[domain],
    objective=trajectory_mean().weigh(where(outward, 1 / maximum(domain_drift / domain_budget, 1), 1)),
    gives_up={"causal": "the drift of a domain includes the later tokens of each answer"},
)
"""Policy gradient whose outward tokens count less once their domain has drifted beyond its budget.

Ours, on a level of def:domain_fiberpo:
`J = Σ μ·w·r·A with w = min(1, C/d) where A·log r > 0, else 1`, `d = mean |log r|` of the domain, `μ =
1/(trajectories·T)`. Each domain has a budget `C` of its own for rises, and one for falls. The gate of a domain moves
nothing on policy if advantages are centred in prompt groups (`docs/facts.md`); these budgets act on the pull of each
token instead. All laws hold but `causal`: the drift of a domain includes the later tokens of each answer.
"""


group_drift = mean(absolute(token_log_ratio), over=prompt_group)
budget = where(advantage > 0, high, low)
attenuated_group = Hierarchy(
    name="attenuated_group",
    gates={token: identity_gate()},
    decomposition=ratio_deviation(),
    groups=[prompt_group],
    objective=trajectory_mean().weigh(where(outward, 1 / maximum(group_drift / budget, 1), 1)),
    gives_up={"causal": "the drift of a prompt group includes the later tokens of each answer"},
)
"""Policy gradient whose outward tokens count less once their prompt group has drifted beyond a budget.

Ours, on a level of def:domain_fiberpo:
`J = Σ μ·w·r·A with w = min(1, C/d) where A·log r > 0, else 1`, `d = mean |log r|` of the prompt group,
`μ = 1/(trajectories·T)`, with one budget `C` for rises and one for falls. The gate of a prompt group moves nothing on
policy if advantages are centred in the group (`docs/facts.md`); this budget acts on the pull of each token instead. All
laws hold but `causal`: the drift of a group includes the later tokens of each answer.
"""


own_drift = mean(absolute(token_log_ratio), over=trajectory)
attenuated_trajectory = Hierarchy(
    name="attenuated_trajectory",
    gates={token: identity_gate()},
    decomposition=ratio_deviation(),
    objective=trajectory_mean().weigh(where(outward, 1 / maximum(own_drift / budget, 1), 1)),
    gives_up={"causal": "the drift of an answer includes its later tokens"},
)
"""Policy gradient whose outward tokens count less once their answer has drifted beyond a budget.

Ours, on a level of def:domain_fiberpo:
`J = Σ μ·w·r·A with w = min(1, C/d) where A·log r > 0, else 1`, `d = mean |log r|` of the answer, `μ =
1/(trajectories·T)`, with one budget `C` for rises and one for falls. A token that its own advantage pulls back keeps
`r·A`, and the loss of one answer goes to no other. All laws hold but `causal`: the drift
of an answer includes its later tokens. `docs/which-loss-when.md` has a version whose drift counts earlier tokens only.
"""
