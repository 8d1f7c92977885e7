"""REINFORCE (Williams 1992): every token keeps its score, whatever its ratio.

`J = Σ μ·A·log π`, a score estimator: `∇J = Σ μ·A·∇log π`. verl has it as `gpg`, and as `reinforce` in its bypass mode.
All laws hold but `identity` and `first_order`: it has no ratio, so off policy it is not the gradient of an objective.
"""

from fibration import Hierarchy, ratio_deviation, strata, token_mean, zero_gate

(token,) = strata("token")

reinforce = Hierarchy(
    name="reinforce",
    gates={token: zero_gate()},
    decomposition=ratio_deviation(),
    objective=token_mean().score(),
    gives_up={"first_order": "a score estimator without a ratio"},
)
