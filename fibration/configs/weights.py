"""Numbers of a config that are probably slips: bounds of an answer's ratio, and weights of whole answers.

Readers of configs (TRL's, verl's) say which numbers a config has. A function that warns yields its finding.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from fibration.configs.findings import WARNING, Finding
from fibration.errors import listed

GSPO = (3e-4, 4e-4)  # the bounds of GSPO's paper, below and above 1
WIDE = 0.01  # bounds of an answer's mean ratio from which on they hardly bind
LONG = 8192  # tokens of the answer in an example, where those of the config are few
DEVIATION = 0.05  # of a token's log ratio between trainer and engine, in examples


@dataclass(frozen=True)
class EngineWeight:
    """The weight of a token that a trainer makes of trainer/engine, the ratio of its and the engine's probability.

    - `said`: the option, as `rollout_is=sequence`.
    - `level`: "token", the token's ratio; "answer", the product of an answer's ratios; "mean", their geometric mean.
    - `least`, `most`: the bounds of the weight, or None. It is cut to them, or 0 beyond them if it `masks`.
    """

    said: str
    level: Literal["token", "answer", "mean"]
    masks: bool
    least: float | None = None
    most: float | None = None


def mean_bound(length: int, most: float, deviation: float = DEVIATION) -> float:
    """Returns an upper bound of `E[min(w, most)]`, of the product w of `length` ratios, over what the engine samples.

    `min(w, C) ≤ √(C·w)`, and `E[√w]` is a product of the Bhattacharyya coefficients of the tokens: √C·b^length, if each
    is at most b. Log ratios that are normal with this deviation have b = exp(-deviation²/8).
    """
    return min(1.0, math.sqrt(most) * math.exp(-length * deviation**2 / 8))


def answer_weight(weight: EngineWeight | None, length: int, change: str) -> Iterator[Finding]:
    """Warns of a weight of whole answers. `length`: the tokens of the longest; `change`: what to write instead."""
    if weight is None or weight.level != "answer":
        return
    per_token = round(8 / DEVIATION**2)
    given = f"b = exp(-s²/8) for normal log ratios of deviation s. With s = {DEVIATION:g} it is exp(-T/{per_token})"
    lengths = (length,) if mean_bound(length, weight.most or 1.0) < 0.9 else (length, LONG)  # short ones show nothing
    bounds = listed(f"{mean_bound(n, weight.most or 1.0):.2g} for T = {n}" for n in lengths)
    if weight.most is None:
        what = (
            "it has no upper bound: its mean is 1, and the mean of its root at most b^T for T tokens, so that few "
            f"answers carry the gradient. b is the largest Bhattacharyya coefficient of trainer and engine at a token, "
            f"{given}, which is {bounds}"
        )
    else:
        what = (
            f"{'it is 0 above' if weight.masks else 'it is cut at'} {weight.most:g}, so that it shrinks with the "
            f"answer's length: its mean is at most √{weight.most:g}·b^T for T tokens, and at most 1. b is the largest "
            f"Bhattacharyya coefficient of trainer and engine at a token, {given}: at most {bounds}"
        )
    if weight.least is not None:
        beyond = "answers below it are dropped" if weight.masks else "long answers have this weight"
        what += f". The lower bound is {weight.least:g}: {beyond}"
    yield Finding(WARNING, f"{weight.said}: an answer's weight is the product of its tokens' ratios; {what}.", change)


def sequence_clip(said: str, low: float, high: float, change: str) -> Iterator[Finding]:
    """Warns of bounds `1 - low`, `1 + high` of an answer's mean ratio that are as wide as those of a token's ratio."""
    if max(low, high) <= WIDE:
        return
    times = max(low / GSPO[0], high / GSPO[1])
    yield Finding(
        WARNING,
        f"{said}: the clip bounds the geometric mean of an answer's ratios, which lies much nearer to 1 than one "
        f"ratio. The bounds are about {times:.0f} times those of GSPO ({GSPO[0]:g} and {GSPO[1]:g}), and hardly "
        "ever bind.",
        change,
    )
