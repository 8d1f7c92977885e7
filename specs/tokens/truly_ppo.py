"""Truly PPO's rollback (Wang et al. 2019, PPO-RB): past its bound the ratio counts less the further it is.

`min(r·A, F(r)·A)`, where `F` follows the ratio inside `[1-ε, 1+ε]` and runs back with slope `-α` outside: PPO-RB, the
simpler variant. The paper's own Truly PPO rolls back if the KL divergence is too large. All laws hold but `positivity`:
far beyond the bound the gated ratio is negative, which pushes the token back.
"""

from fibration import Gate, Hierarchy, Parameter, advantage, ratio_deviation, residual, strata, token_mean, where

(token,) = strata("token")
epsilon = Parameter("epsilon", default=0.2, upper=1)
alpha = Parameter("alpha", default=0.3)

above = where(residual <= epsilon, residual, epsilon - alpha * (residual - epsilon))
below = where(residual >= -epsilon, residual, -epsilon - alpha * (residual + epsilon))

truly_ppo = Hierarchy(
    name="truly_ppo",
    gates={token: Gate(where(advantage >= 0, above, below))},
    decomposition=ratio_deviation(),
    objective=token_mean(),
    gives_up={"positivity": "a ratio far past its bound rolls back below 0"},
)
