"""DHPO (Min et al. 2026, 2601.05607): GRPO's ratio and GSPO's, each in a trust region of its own, mixed afterwards.

`𝒢(r) = share·clip(r, 1-low, 1+high) + (1-share)·clip(s, 1-low_s, 1+high_s)`, each at the bound that the advantage
pushes against, `s = exp(mean log r)` of the trajectory: the averaged mixing, `share = 1/2`. The paper's second variant
takes a share per token from its entropy. No trainer and no author ships code, so the sides of its clips are read from
the paper. All laws hold but `recovery`, `identity` and `first_order`: tokens are clipped before they are mixed, and a
share `1 - share` of each token's deviation from its trajectory's mean is dropped.
"""

from fibration import (
    Fibration,
    Hierarchy,
    Parameter,
    advantage,
    count,
    decomposition,
    exp,
    gated,
    identity_gate,
    log1p,
    log_clip_gate,
    maximum,
    minimum,
    strata,
    token_log_ratio,
    trajectory_mean,
    uniform,
    where,
    zero_gate,
)

token, trajectory = strata("token trajectory")
low = Parameter("epsilon_low", default=0.2, upper=1)
high = Parameter("epsilon_high", default=0.28)
low_s = Parameter("epsilon_low_sequence", default=0.0003, upper=1)
high_s = Parameter("epsilon_high_sequence", default=0.0004)
share = Parameter("share", default=0.5, upper=1)
T = count(token, over=trajectory)

x = token_log_ratio
own = where(advantage >= 0, minimum(x, log1p(high)), maximum(x, log1p(-low)))

dhpo = Hierarchy(
    name="dhpo",
    fibrations=[Fibration(token, trajectory, kernel=uniform())],
    gates={
        trajectory: {"+": identity_gate(), "-": log_clip_gate(low_s, high_s)},
        token: {"+": identity_gate(), "-": zero_gate()},
    },
    decomposition=decomposition(
        plus=own / T,
        minus=x / T,
        recovery=share * exp(T * gated("+")) + (1 - share) * exp(T * gated("-")),
        scale=1 / T,
    ),
    objective=trajectory_mean(),
    gives_up={
        "recovery": "tokens are clipped where they are read",
        "first_order": "what single tokens do beyond their mean is dropped in part",
    },
)
