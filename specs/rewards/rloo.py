"""RLOO (Ahmadian et al. 2024, 2402.14740): REINFORCE, where an answer is compared with the others of its prompt.

`J = Σ μ·A·log π`, `A = R - mean` of the others in the prompt group, `μ = 1/trajectories`. The estimator `rloo` of verl,
which gives a group of one its reward; here that is an error. TRL's `RLOOTrainer` has PPO's clip of the whole
trajectory's ratio. All laws hold but `identity` and `first_order`: it has no ratio.
"""

from fibration import Hierarchy, centred, constant_normaliser, ratio_deviation, reward, strata, zero_gate

token, prompt_group = strata("token prompt_group")

rloo = Hierarchy(
    name="rloo",
    gates={token: zero_gate()},
    decomposition=ratio_deviation(),
    objective=constant_normaliser(1).score(),
    groups=[prompt_group],
    advantages=centred(reward, over=prompt_group, leave_one_out=True),
    gives_up={"first_order": "a score estimator without a ratio"},
)
