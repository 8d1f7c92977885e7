"""CISPO (MiniMax 2025, 2506.13585): the importance ratio is clipped and held fixed, and every token keeps its score.

`J = Σ μ·stop(clip(r, 1-low, 1+high))·A·log π`, a score estimator: `∇J = Σ μ·clip(r)·A·∇log π`. A `low` of 1 or more
never binds, as in the paper. verl's, SkyRL's and slime's `cispo`, NeMo-RL's `use_cispo`; for TRL and others see
`cispo_absolute`. All laws hold but `first_order`: at `r = 1` its gradient is the policy gradient; its value is not the
objective.
"""

from fibration import Gate, Hierarchy, Parameter, clip, ratio_deviation, residual, strata, token_mean

(token,) = strata("token")
low = Parameter("epsilon_low", default=1.0)
high = Parameter("epsilon_high", default=0.28)

cispo = Hierarchy(
    name="cispo",
    gates={token: Gate(clip(residual, -low, high))},
    decomposition=ratio_deviation(),
    objective=token_mean().score(),
    gives_up={"first_order": "a score estimator: its value is not the objective"},
)
