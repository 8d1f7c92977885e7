"""CE-GPPO (Su et al. 2025, 2509.20712; GPPO 2508.07629 at `beta = 1`): past its clip a token keeps a bounded gradient.

`𝒢(r) = beta·bound·r/stop(r)` beyond PPO's clip, at its `bound` `1 - low` or `1 + high`, and `𝒢(r) = r` elsewhere:
beyond the bound the value and the gradient are `beta·bound`. The authors' code, and trainers that copied it, add PPO's
dual clip at 3. All laws hold.
"""

from fibration import (
    Gate,
    Hierarchy,
    Parameter,
    advantage,
    log,
    log1p,
    log_ratio,
    residual,
    stop,
    strata,
    token_mean,
    where,
)

(token,) = strata("token")
low = Parameter("epsilon_low", default=0.2, upper=1)
high = Parameter("epsilon_high", default=0.28)
below = Parameter("beta_low", default=0.75)  # beta_1 of the paper, where the advantage is negative
above = Parameter("beta_high", default=1.0)  # beta_2, where it is positive

moved = residual - stop(residual)  # 0, with the slope of the log ratio

ce_gppo = Hierarchy(
    name="ce_gppo",
    gates={
        token: Gate(
            where(
                (advantage < 0) & (residual < log1p(-low)),
                log(below * (1 - low)) + moved,
                where((advantage > 0) & (residual > log1p(high)), log(above * (1 + high)) + moved, residual),
            )
        )
    },
    decomposition=log_ratio(),
    objective=token_mean(),
)
