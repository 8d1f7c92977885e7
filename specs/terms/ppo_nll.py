"""PPO with the likelihood of good answers (VAPO: Yue et al. 2025, 2504.05118): right answers are also imitated.

`J = Σ μ·min(r·A, clip(r, 1-low, 1+high)·A) + share·Σ ν·log π`, `ν = 1/tokens` of those with `A > 0` and 0 elsewhere, `μ
= 1/tokens`. In VAPO these are the tokens of right answers, which are the same where advantages are centred rewards;
with a critic give an attribute of the rows instead. Its advantages are `ppo_gae`'s. The formula is from web pages that
quote the paper. All laws hold.
"""

from fibration import (
    Hierarchy,
    Parameter,
    Penalty,
    advantage,
    log_prob,
    pessimistic_clip_gate,
    policies,
    ratio_deviation,
    strata,
    token_mean,
)

(token,) = strata("token")
(current,) = policies("current")
low = Parameter("epsilon_low", default=0.2, upper=1)
high = Parameter("epsilon_high", default=0.28)
share = Parameter("share", default=0.1)

ppo_nll = Hierarchy(
    name="ppo_nll",
    gates={token: pessimistic_clip_gate(low, high)},
    decomposition=ratio_deviation(),
    objective=token_mean(),
    penalties={
        "nll": Penalty(-share * log_prob(current), objective=token_mean().keep(advantage > 0, normaliser="kept"))
    },
)
