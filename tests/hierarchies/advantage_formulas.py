"""Formulas for advantages: published ones, and random ones for chains, trees and quivers."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
from support import Batch, domain, prompt_group, token, trajectory

from fibration import (
    Hierarchy,
    Parameter,
    after,
    centred,
    clip_gate,
    count,
    deviation,
    largest,
    log_prob,
    mean,
    policies,
    ratio_deviation,
    reward,
    standardised,
    token_mean,
    total,
    where,
)
from fibration.language.atoms import BATCH, Stratum
from fibration.language.expressions import Expression

old, reference = policies("old reference")
beta = Parameter("beta", default=0.25)
kl = log_prob(old) - log_prob(reference)
WHOLE = Stratum(BATCH)
spent = total(kl, over=trajectory)


def whitened(x: Any) -> Expression:
    return (x - mean(x, over=WHOLE)) / (deviation(x, over=WHOLE) + 0.25)


FIELD = {
    "rloo": centred(reward, over=prompt_group, leave_one_out=True),
    "grpo": standardised(reward, over=prompt_group),
    "dr_grpo": centred(reward, over=prompt_group),
    "opo": reward - mean(reward, over=prompt_group),
    "baselines": reward
    - (mean(reward, over=prompt_group, of=trajectory, others=True) + mean(reward, over=domain, of=trajectory)) / 2,
    "length": centred(reward - 0.125 * count(token, over=trajectory), over=prompt_group) / largest(1 + reward**2, over=domain),
    "kl_of_rows": whitened(reward - beta * spent),
    "kl_of_tokens": whitened(reward - beta * kl),
    "reinforce_pp": whitened(reward - beta * (kl + after(kl, over=trajectory))),
}  # fmt: skip
BY_ROW = ("rloo", "grpo", "dr_grpo", "opo", "baselines", "length", "kl_of_rows")


def rewarded(formula: Expression, **changes: Any) -> Hierarchy:
    given: dict[str, Any] = dict(
        name="rewarded",
        gates={token: clip_gate(Parameter("bound", default=0.2))},
        decomposition=ratio_deviation(),
        objective=token_mean(),
        groups=[prompt_group, domain],
        advantages=formula,
    )
    return Hierarchy(**{**given, **changes})


def with_formula(h: Hierarchy, seed: int) -> Hierarchy:
    """`h` with a group beside its rows, and a formula of statistics over all that rows lie over."""
    choose = random.Random(seed)
    group = Stratum("batch_half")
    coarser = h.coarser(h.rows) if h.rows in h.strata else ()
    overs = [group, WHOLE, *(s for s in coarser if s != WHOLE)]

    def number(depth: int) -> Expression:
        if not depth or choose.random() < 0.2:
            return choose.choice([reward, reward**2 / 4, where(reward > 0.3, reward, -1)])
        s, inner = choose.choice(overs), number(depth - 1)
        return choose.choice(
            [
                centred(inner, over=s),
                inner - mean(inner, over=s),
                standardised(inner, over=s, epsilon=0.25),
                inner - mean(inner, over=WHOLE, of=h.rows, others=True),
                inner / (1 + deviation(inner, over=s)),
                inner + total(inner, over=h.rows) / count(h.leaves[0], over=WHOLE),
                inner - largest(inner, over=s, of=h.rows) / 2,
            ]
        )

    return h.replace(groups=[group], advantages=number(2) - reward / 8)


def halved(batch: Batch) -> Batch:
    """With labels of the group that is beside the rows."""
    return replace(batch, labels={**batch.labels, "batch_half": [r % 2 for r in range(len(batch.lengths))]})


def of_rows(batch: Batch, seed: int = 0) -> np.ndarray:
    """A reward per row, in quarters: some are equal."""
    return np.random.default_rng(seed).integers(-4, 9, len(batch.lengths)) / 4
