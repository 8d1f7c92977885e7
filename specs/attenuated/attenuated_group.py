"""Policy gradient whose outward tokens count less once their prompt group has drifted beyond a budget.

Ours, on a level of def:domain_fiberpo:
`J = Σ μ·w·r·A with w = min(1, C/d) where A·log r > 0, else 1`, `d = mean |log r|` of the prompt group,
`μ = 1/(trajectories·T)`, with one budget `C` for rises and one for falls. The gate of a prompt group moves nothing on
policy if advantages are centred in the group (`docs/facts.md`); this budget acts on the pull of each token instead. All
laws hold but `causal`: the drift of a group includes the later tokens of each answer.
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

token, prompt_group = strata("token prompt_group")
high = Parameter("C_high", default=0.2)
low = Parameter("C_low", default=0.1)

drift = mean(absolute(token_log_ratio), over=prompt_group)
budget = where(advantage > 0, high, low)
outward = advantage * token_log_ratio > 0

attenuated_group = Hierarchy(
    name="attenuated_group",
    gates={token: identity_gate()},
    decomposition=ratio_deviation(),
    groups=[prompt_group],
    objective=trajectory_mean().weigh(where(outward, 1 / maximum(drift / budget, 1), 1)),
    gives_up={"causal": "the drift of a prompt group includes the later tokens of each answer"},
)
