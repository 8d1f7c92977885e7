"""REAL (Zhai et al. 2026, 2602.05630): rewards are labels, and the answers to a prompt are classified by them.

`J = -mean(log(1 + Σ_right exp(-s/τ)) + log(1 + Σ_wrong exp(s/τ)))` over prompt groups, `s = mean log r` of a
trajectory. Rewards above 1/2 are right. ms-swift's `real`, from whose page the formula is; the mean over groups is
ours. All laws hold but `agreement`, `gradient`, `identity` and `first_order`: the whole loss is a penalty, without an
advantage.
"""

from fibration import (
    Hierarchy,
    Parameter,
    Penalty,
    advantage,
    exp,
    log1p,
    mean,
    ratio_deviation,
    reward,
    strata,
    token_log_ratio,
    token_mean,
    total,
    where,
    zero_gate,
)

token, trajectory, prompt_group = strata("token trajectory prompt_group")
tau = Parameter("tau", default=0.5)

s = mean(token_log_ratio, over=trajectory) / tau
right = total(where(advantage > 0, exp(-s), 0), over=prompt_group, of=trajectory)
wrong = total(where(advantage > 0, 0, exp(s)), over=prompt_group, of=trajectory)

real = Hierarchy(
    name="real",
    gates={token: zero_gate()},
    decomposition=ratio_deviation(),
    objective=token_mean().weigh(0),
    groups=[prompt_group],
    advantages=reward - 0.5,
    penalties={"classified": Penalty(log1p(right) + log1p(wrong), over=prompt_group)},
    gives_up={
        "agreement": "the objective is its penalty",
        "gradient": "the objective is its penalty",
        "first_order": "the objective is its penalty",
    },
)
