"""The losses of the study: one formula at two levels, three losses beside it, and what scales each of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

import fibration
from fibration import (
    Hierarchy,
    Parameter,
    Stratum,
    absolute,
    advantage,
    dual_clip_gate,
    identity_gate,
    maximum,
    mean,
    ratio_deviation,
    strata,
    token_log_ratio,
    trajectory_mean,
    where,
)

token, trajectory = strata("token trajectory")


def attenuated(level: Stratum) -> Hierarchy:
    """`attenuated_trajectory`, whose drift is the mean over an element of `level`, with one budget for both signs."""
    drift = mean(absolute(token_log_ratio), over=level)
    weight = where(advantage * token_log_ratio > 0, 1 / maximum(drift / Parameter("C", default=0.1), 1), 1)
    return Hierarchy(
        name=f"one_budget_{level}",
        gates={token: identity_gate()},
        decomposition=ratio_deviation(),
        objective=trajectory_mean().weigh(weight),
        gives_up={} if level is token else {"causal": "the drift of an answer includes its later tokens"},
    )


def dual_clip() -> Hierarchy:
    """GRPO's clip with a ceiling of 3 on the ratio where the advantage is negative."""
    low, high = Parameter("epsilon_low", default=0.2, upper=1), Parameter("epsilon_high", default=0.2)
    return Hierarchy(
        name="dual_clip",
        gates={token: dual_clip_gate(low, high, 3.0)},
        decomposition=ratio_deviation(),
        objective=trajectory_mean(),
    )


@dataclass(frozen=True)
class LevelArm:
    """A loss, and its parameters at a scale of trust."""

    hierarchy: Callable[[], Hierarchy]
    parameters: Callable[[float], Mapping]


def clips(low: float, high: float) -> Callable[[float], Mapping]:
    return lambda scale: {"epsilon_low": min(0.999, scale * low), "epsilon_high": scale * high}


def budgets(scale: float) -> Mapping:
    return {"C_trajectory": {"+": 0.2 * scale, "-": 0.1 * scale}, "epsilon": 0.2 * scale}


TOKEN, TRAJECTORY = "attenuated_token", "attenuated_trajectory"
LEVEL_ARMS = {
    TOKEN: LevelArm(lambda: attenuated(token), lambda scale: {"C": 0.1 * scale}),
    TRAJECTORY: LevelArm(lambda: attenuated(trajectory), lambda scale: {"C": 0.1 * scale}),
    "gspo": LevelArm(lambda: fibration.load("gspo"), clips(0.03, 0.04)),
    "dual_clip": LevelArm(dual_clip, clips(0.2, 0.2)),
    "fiberpo_inward_clip": LevelArm(lambda: fibration.load("fiberpo_inward_clip"), budgets),
}
EXPLORED = {"grpo": LevelArm(lambda: fibration.load("grpo"), clips(0.2, 0.2))}  # by which the learning rate is found


@cache
def operator(arm: str) -> fibration.Operator:
    return fibration.compile((LEVEL_ARMS | EXPLORED)[arm].hierarchy(), backend="c")
