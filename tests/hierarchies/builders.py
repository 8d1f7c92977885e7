"""Hierarchies of tokens alone, of tokens over trajectories, and of up to four strata. Parts that are not given are right."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fibration import (
    Attribute,
    Decomposition,
    Fibration,
    Gate,
    Hierarchy,
    MarkovKernel,
    Objective,
    Parameter,
    clip_gate,
    count,
    identity_gate,
    log_ratio,
    ratio_deviation,
    signed_log_ratio,
    strata,
    token_log_ratio,
    token_mean,
    total,
    trajectory_mean,
    uniform,
)
from fibration.language.atoms import Stratum
from fibration.language.expressions import Expression

token, turn, trajectory, prompt_group, domain = strata("token turn trajectory prompt_group domain")
FULL = (token, trajectory, prompt_group, domain)
T = count(token, over=trajectory)
x = token_log_ratio
epsilon = Parameter("epsilon", default=0.1, upper=1)
budget = Parameter("C", default=0.2)
weight = Attribute("weight", on=token)
signed = Attribute("signed", on=token, positive=False)
TG, M = count(token, over=prompt_group), count(trajectory, over=prompt_group)
W = total(weight, over=trajectory)

# The reason of every hierarchy whose gates roll back by the drift alone, as the paper's do.
INWARD = {"inward": "the paper's gates look at the drift alone"}


def two(
    kernel: MarkovKernel | Expression | None = None,
    *,
    outer: Gate | None = None,
    inner: Gate | None = None,
    split: Decomposition | None = None,
    objective: Objective | None = None,
    **more: Any,
) -> Hierarchy:
    """Tokens over trajectories, right in every part that is not given."""
    kernel = MarkovKernel(kernel) if isinstance(kernel, Expression) else kernel or uniform()
    return Hierarchy(
        name="two",
        fibrations=[Fibration(token, trajectory, kernel=kernel)],
        gates={trajectory: outer or clip_gate(budget), token: inner or clip_gate(epsilon).per(1 / T)},
        decomposition=split or signed_log_ratio(scale=1 / T),
        objective=objective or trajectory_mean(),
        **more,
    )


def one(gate: Gate | Expression, split: Decomposition | None = None, **more: Any) -> Hierarchy:
    """Tokens alone."""
    gate = gate if isinstance(gate, Gate) else Gate(gate)
    return Hierarchy(
        name="one", gates={token: gate}, decomposition=split or ratio_deviation(), objective=token_mean(), **more
    )


def chain(*kernels: MarkovKernel | Expression, gates: Mapping[Stratum, Gate] = {}, **more: Any) -> Hierarchy:
    """As many strata as there are kernels, and one; finest kernel first, identity gates unless given."""
    levels = (token, trajectory, prompt_group, domain)[: len(kernels) + 1]
    ready = [MarkovKernel(k) if isinstance(k, Expression) else k for k in kernels]
    return Hierarchy(
        name="chain",
        fibrations=[Fibration(a, b, kernel=k) for a, b, k in zip(levels, levels[1:], ready, strict=False)],
        gates={s: gates.get(s, identity_gate()) for s in levels},
        decomposition=more.pop("split", None) or log_ratio(),
        objective=more.pop("objective", None) or token_mean(),
        **more,
    )
