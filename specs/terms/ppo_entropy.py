"""PPO with an entropy bonus (after Schulman et al. 2017) from sampled tokens: `log π` alone has no gradient on average.

`J = Σ μ·(min(r·A, clip(r, 1-low, 1+high)·A) - bonus·r·(log π - 1))`, `μ = 1/tokens`. The derivative of `r·(log π - 1)`
is `r·log π`, in expectation minus that of the entropy, off policy too; its expectation is minus the entropy, less 1.
Trainers have the exact entropy of the whole vocabulary, which only the model can give. All laws hold.
"""

from fibration import (
    Hierarchy,
    Parameter,
    exp,
    log_prob,
    pessimistic_clip_gate,
    policies,
    ratio_deviation,
    strata,
    token_log_ratio,
    token_mean,
)

(token,) = strata("token")
(current,) = policies("current")
low = Parameter("epsilon_low", default=0.2, upper=1)
high = Parameter("epsilon_high", default=0.28)
bonus = Parameter("bonus", default=0.001)

ppo_entropy = Hierarchy(
    name="ppo_entropy",
    gates={token: pessimistic_clip_gate(low, high)},
    decomposition=ratio_deviation(),
    objective=token_mean(),
    penalties={"entropy": bonus * exp(token_log_ratio) * (log_prob(current) - 1)},
)
