"""FiberPO-Domain (def:fiberpo_main, def:fiberpo_domain) under engine mismatch: tokens weighed as in `tis`.

`J = Σ μ·min(ρ, ceiling)·𝒢(r)·A`, `ρ = π_old/π_rollout` of the token: budgets limit the drift since `old`, and the
weight corrects for the rollout engine. All laws hold but `inward`.
"""

from fibration import Parameter, exp, load, log_prob, minimum, policies

old, rollout = policies("old rollout")
ceiling = Parameter("ceiling", default=2.0, lower=1)
weight = minimum(exp(log_prob(old) - log_prob(rollout)), ceiling)

fiberpo_domain_tis = load("fiberpo_domain").replace(
    name="fiberpo_domain_tis", objective=load("fiberpo_domain").objective.weigh(weight)
)
