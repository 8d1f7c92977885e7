"""On-policy distillation beside a reward (Thinking Machines 2025): a teacher's log-probs added to centred rewards.

`J = Σ μ·r·A`, `A = R - mean` of the others in the prompt group `+ beta·(log π_teacher - log π_old)` of the token,
`μ = 1/tokens`. Tinker's recipe `on_policy_distillation` adds the two with `beta = kl_penalty_coef` and
`kl_discount_factor = 0`: rewards are centred in the group, times `G/(G - 1)`, which is this mean of the others. It sums
over tokens. All laws hold: the teacher's term is one more reward of the token, beside what rewards are compared with.
"""

from fibration import (
    Hierarchy,
    Parameter,
    centred,
    identity_gate,
    log_prob,
    policies,
    ratio_deviation,
    reward,
    strata,
    token_mean,
)

token, prompt_group = strata("token prompt_group")
old, teacher = policies("old teacher")
beta = Parameter("beta", default=1.0)

opd_reward = Hierarchy(
    name="opd_reward",
    gates={token: identity_gate()},
    decomposition=ratio_deviation(),
    objective=token_mean(),
    groups=[prompt_group],
    advantages=centred(reward, over=prompt_group, leave_one_out=True) + beta * (log_prob(teacher) - log_prob(old)),
)
