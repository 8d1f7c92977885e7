"""OPO (Hao et al. 2025, 2505.23585): the baseline of least variance, a mean in which long answers count for more.

`J = Σ μ·A·log π`, `A = R - Σ T·R/Σ T` over the prompt group, `T` the tokens of an answer, `μ = 1/trajectories`: exact
on policy, as the paper trains. The estimator `opo` of verl, which gives a group of one its reward. All laws hold but
`identity` and `first_order`, since it has no ratio, and `baseline`: the baseline contains the answer's own length and
reward.
"""

from fibration import Hierarchy, constant_normaliser, mean, ratio_deviation, reward, strata, zero_gate

token, prompt_group = strata("token prompt_group")

opo = Hierarchy(
    name="opo",
    gates={token: zero_gate()},
    decomposition=ratio_deviation(),
    objective=constant_normaliser(1).score(),
    groups=[prompt_group],
    advantages=reward - mean(reward, over=prompt_group),
    gives_up={
        "first_order": "a score estimator without a ratio",
        "baseline": "an answer's own length and reward are in what it is compared with",
    },
)
