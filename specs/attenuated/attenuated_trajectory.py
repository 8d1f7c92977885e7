"""Policy gradient whose outward tokens count less once their answer has drifted beyond a budget.

Ours, on a level of def:domain_fiberpo:
`J = Σ μ·w·r·A with w = min(1, C/d) where A·log r > 0, else 1`, `d = mean |log r|` of the answer, `μ =
1/(trajectories·T)`, with one budget `C` for rises and one for falls. A token that its own advantage pulls back keeps
`r·A`, whatever its answer has done, and what one answer loses goes to no other. All laws hold but `causal`: the drift
of an answer includes its later tokens. `docs/which-loss-when.md` has a version whose drift counts earlier tokens only.
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

token, trajectory = strata("token trajectory")
high = Parameter("C_high", default=0.2)
low = Parameter("C_low", default=0.1)

drift = mean(absolute(token_log_ratio), over=trajectory)
budget = where(advantage > 0, high, low)
outward = advantage * token_log_ratio > 0

attenuated_trajectory = Hierarchy(
    name="attenuated_trajectory",
    gates={token: identity_gate()},
    decomposition=ratio_deviation(),
    objective=trajectory_mean().weigh(where(outward, 1 / maximum(drift / budget, 1), 1)),
    gives_up={"causal": "the drift of an answer includes its later tokens"},
)
