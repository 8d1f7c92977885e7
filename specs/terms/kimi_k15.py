"""Kimi K1.5 (Kimi Team 2025, 2501.12599): REINFORCE from centred rewards, and the square of a trajectory's log ratio.

`J = Σ μ·A·log π - mean τ/2·(Σ log r)²`, `A = R - mean` of the prompt group, `Σ log r` and the mean over trajectories,
`μ = 1/trajectories`: the gradient that the paper takes of a policy mirror descent's squared loss, as web pages quote
it. All laws hold but `identity` and `first_order`: a score estimator.
"""

from fibration import (
    Hierarchy,
    Parameter,
    Penalty,
    centred,
    constant_normaliser,
    ratio_deviation,
    reward,
    strata,
    token_log_ratio,
    total,
    zero_gate,
)

token, trajectory, prompt_group = strata("token trajectory prompt_group")
tau = Parameter("tau", default=0.1)

kimi_k15 = Hierarchy(
    name="kimi_k15",
    gates={token: zero_gate()},
    decomposition=ratio_deviation(),
    objective=constant_normaliser(1).score(),
    groups=[prompt_group],
    advantages=centred(reward, over=prompt_group),
    penalties={"square": Penalty(tau / 2 * total(token_log_ratio, over=trajectory) ** 2, over=trajectory)},
    gives_up={"first_order": "a score estimator: its value is not the objective"},
)
