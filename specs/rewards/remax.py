"""ReMax (Li et al. 2023, 2310.10505): REINFORCE, where an answer is compared with the greedy one to its prompt.

`J = Σ μ·A·log π`, `A = R - b`, `b` the greedy answer's reward, an attribute of the row; `μ = 1/trajectories`. The
estimator `remax` of verl, where `R` is the sum of rewards from the token on: pass these. All laws hold but `identity`
and `first_order`: it has no ratio.

`op.index(mask=..., attributes={"greedy_reward": rewards})` takes one number per row.
"""

from fibration import Attribute, Hierarchy, constant_normaliser, ratio_deviation, reward, strata, zero_gate

token, trajectory = strata("token trajectory")
greedy = Attribute("greedy_reward", on=trajectory, positive=False)

remax = Hierarchy(
    name="remax",
    gates={token: zero_gate()},
    decomposition=ratio_deviation(),
    objective=constant_normaliser(1).score(),
    advantages=reward - greedy,
    gives_up={"first_order": "a score estimator without a ratio"},
)
