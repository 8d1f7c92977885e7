"""On-policy distillation (Thinking Machines 2025): a teacher's log-probs of the sampled tokens in place of a reward.

`J = Σ μ·r·A`, `A = beta·(log π_teacher - log π_old)` of the token, `μ = 1/tokens`: the negative reverse KL of one
sample, without a gradient. Tinker's recipe `on_policy_distillation` is this with `beta = kl_penalty_coef`,
`kl_discount_factor = 0` and `loss_fn = "importance_sampling"`, which sums over tokens. verl's distillation with
`loss_mode = "k1"` and `use_policy_gradient` has PPO's clip, and `log π` of each update in place of `log π_old`: equal
at the first update. On policy, this gradient is that of the penalty `beta·(log π - log π_teacher)²/2`. All laws hold
but `baseline`: no reward is read. Pass `rewards=` of zeros, which makes the advantages.
"""

from fibration import Hierarchy, Parameter, identity_gate, log_prob, policies, ratio_deviation, strata, token_mean

(token,) = strata("token")
old, teacher = policies("old teacher")
beta = Parameter("beta", default=1.0)

opd = Hierarchy(
    name="opd",
    gates={token: identity_gate()},
    decomposition=ratio_deviation(),
    objective=token_mean(),
    advantages=beta * (log_prob(teacher) - log_prob(old)),
    gives_up={
        "baseline": "the signal is the teacher's log-prob of the token",
        "baseline of what is left of advantages": "no reward is read",
    },
)
