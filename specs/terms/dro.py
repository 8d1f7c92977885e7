"""DRO (Richemond et al. 2024, 2405.19107, as in verl): REINFORCE, and the square of every token's log ratio.

`J = Σ μ·(A·log π - beta/2·(log r)²)`, `μ = 1/tokens`. verl's `dro` with `dro_beta`; the paper takes whole answers, and
learns a value too. All laws hold but `identity` and `first_order`: a score estimator.
"""

from fibration import Hierarchy, Parameter, ratio_deviation, strata, token_log_ratio, token_mean, zero_gate

(token,) = strata("token")
beta = Parameter("beta", default=0.1)

dro = Hierarchy(
    name="dro",
    gates={token: zero_gate()},
    decomposition=ratio_deviation(),
    objective=token_mean().score(),
    penalties={"square": beta / 2 * token_log_ratio**2},
    gives_up={"first_order": "a score estimator: its value is not the objective"},
)
