"""CISPO with its bound as a ratio (MiniMax 2025, 2506.13585; ScaleRL 2025, 2510.13786): the ratio is capped and held.

`J = Σ μ·stop(min(r, ceiling))·A·log π`. TRL, Liger and ms-swift give the ceiling itself as `epsilon_high`; verl, slime,
NeMo-RL and `cispo` here give `high` with `ceiling = 1 + high`. A number copied from one group to the other is off by 1.
ROLL's `tis` has 1 for it. All laws hold but `first_order`: at `r = 1` its gradient is the policy gradient; its value is
not the objective.
"""

from fibration import Gate, Hierarchy, Parameter, minimum, ratio_deviation, residual, strata, token_mean

(token,) = strata("token")
ceiling = Parameter("ceiling", default=5.0, lower=1)

cispo_absolute = Hierarchy(
    name="cispo_absolute",
    gates={token: Gate(minimum(residual, ceiling - 1))},
    decomposition=ratio_deviation(),
    objective=token_mean().score(),
    gives_up={"first_order": "a score estimator: its value is not the objective"},
)
