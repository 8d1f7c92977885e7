"""RLOO with its KL in the reward (Ahmadian et al. 2024, 2402.14740): a trajectory's reward, minus its drift.

`J = Σ μ·A·log π`, `A = S - mean` of the others in the prompt group, `S = R - beta·Σ log(π_old/π_reference)` over the
trajectory, `μ = 1/trajectories`. TRL's `RLOOTrainer` subtracts the same from its rewards. All laws hold but `identity`
and `first_order`, as with `rloo`. In a reward k1 is right, because no gradient flows through it.
"""

from fibration import (
    Hierarchy,
    Parameter,
    centred,
    constant_normaliser,
    log_prob,
    policies,
    ratio_deviation,
    reward,
    strata,
    total,
    zero_gate,
)

token, trajectory, prompt_group = strata("token trajectory prompt_group")
old, reference = policies("old reference")
beta = Parameter("beta", default=0.03)

shaped = reward - beta * total(log_prob(old) - log_prob(reference), over=trajectory)

rloo_kl = Hierarchy(
    name="rloo_kl",
    gates={token: zero_gate()},
    decomposition=ratio_deviation(),
    objective=constant_normaliser(1).score(),
    groups=[prompt_group],
    advantages=centred(shaped, over=prompt_group, leave_one_out=True),
    gives_up={"first_order": "a score estimator without a ratio"},
)
