"""Kimi K2 (Kimi Team 2025, 2507.20534): a regression of centred rewards on `τ` times a trajectory's log ratio.

`J = Σ μ·A·log π - mean τ²·(Σ log r)²`, `A = R - mean` of the prompt group, `μ = 2·τ/trajectories`: up to terms that the
policy does not change, the paper's `-mean (A - τ·Σ log r)²`, as web pages quote it. `2·τ` times `kimi_k15`. All laws
hold but `identity` and `first_order`: a score estimator.
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

kimi_k2 = Hierarchy(
    name="kimi_k2",
    gates={token: zero_gate()},
    decomposition=ratio_deviation(),
    objective=constant_normaliser(1 / (2 * tau)).score(),
    groups=[prompt_group],
    advantages=centred(reward, over=prompt_group),
    penalties={"square": Penalty((tau * total(token_log_ratio, over=trajectory)) ** 2, over=trajectory)},
    gives_up={"first_order": "a score estimator: its value is not the objective"},
)
