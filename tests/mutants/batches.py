"""Losses for mutants, and batches: near and far off policy, with parameters near what they bound."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from hierarchies.random_order import with_order
from hierarchies.random_quivers import batch_for, quiver
from hierarchies.random_token_formulas import with_policies
from oracles.backend_cases import F64, FLOAT64, Case, indexed
from oracles.dense_case import DenseCase
from support import raw_programs, spec

from fibration import Hierarchy, Parameter, absolute, clip, exp, quantile, token_log_ratio
from fibration.compiler.ir import BATCH, Input, Scan

SCALES = (0.0, 0.03, 0.1, 0.3, 1.0)  # of log ratios, which the tokens of an element share in part


def hierarchy(name: str) -> Hierarchy:
    """A shipped loss; `quiver 2`; `order 2`, a quiver with sums in order; `upto grpo`, which keeps tokens up to a quantile;
    `weighed grpo`, whose weights move with the policy."""
    kind, _, of = name.rpartition(" ")
    if kind == "upto":
        drift = absolute(token_log_ratio)
        objective = spec(of).objective.keep(drift <= quantile(drift, 0.7, over=spec(of).rows))
        return spec(of).replace(name=f"upto_{of}", objective=objective)
    if kind == "weighed":
        return spec(of).replace(
            name=f"weighed_{of}", objective=spec(of).objective.weigh(exp(clip(token_log_ratio, -1, 1)))
        )
    if kind == "order":
        return with_order(quiver(int(of)), int(of))
    return quiver(int(of)) if kind == "quiver" else spec(of)


def numbers(p: Parameter, generator: np.random.Generator, found: Any = ()) -> Any:
    """A value inside the bounds of a parameter, or one for each channel. `found`: sizes of what it may be a bound of."""
    low, high = (end if end is None else float(end) for end in (p.lower, p.upper))

    def one(default: float) -> float:
        near = [default * generator.uniform(0.5, 1.9), generator.uniform(0.05, 0.8), generator.uniform(1, 4)]
        near += [float(v) * generator.uniform(0.6, 1) for v in generator.permutation(found)[:3] if v < 1e3]
        inside = [v for v in near if (low is None or low < v) and (high is None or v < high)]
        return float(generator.choice(inside or [default]))

    default: Any = p.default
    return {c: one(float(default[c])) for c in "+-"} if p.per_channel else one(float(default))


def cases(h: Hierarchy) -> Iterator[Case]:
    """Batches near and far off policy, all elements of which drift. In every eighth, half of the log ratios are where exp
    overflows, which only a gate closes."""
    every = list(raw_programs(h)["objective"].nodes())
    made = Case if any(isinstance(n, Scan) for n in every) else DenseCase
    over = {n.key[0]: n.over for n in every if isinstance(n, Input) and n.kind == "parameter" and n.over != BATCH}
    for seed in itertools.count():
        generator = np.random.default_rng([seed, 5])
        batch = with_policies(batch_for(h, seed), seed) if h.policies else batch_for(h, seed)
        n, x = batch.tokens, np.zeros(batch.tokens)
        names = ([v[r] for r in batch.row] for v in batch.labels.values())
        for labels in (range(n), batch.row, [0] * n, *names):
            _, element = np.unique(list(map(str, labels)), return_inverse=True)
            drift = generator.choice(SCALES, size=n) * generator.normal(size=n)
            x += drift[element]
        if seed % 8 == 7:
            x = np.where(generator.random(n) < 0.5, 800 * np.sign(batch.advantages), x)
        batch, old = replace(batch, x=x, parameters={}), -generator.uniform(0.1, 3, size=n)
        truth = Case(h, batch, old, F64, seed).bounds(indexed(h, batch), FLOAT64)
        levels = truth.interpreted(raw_programs(h)["levels"])
        parameters = {}
        for name, p in h.parameters.items():
            residuals = [v for k, v in levels.items() if k.startswith(f"residual_{over.get(name, '')}")]
            parameters[name] = numbers(p, generator, np.abs(np.concatenate(residuals or [[]])))
        yield made(h, replace(batch, parameters=parameters), old, F64, seed)


def near_cases(h: Hierarchy, count: int) -> list[Case]:
    """Those in which no ratio overflows."""
    return list(itertools.islice((c for c in cases(h) if np.abs(c.batch.x).max() < 100), count))
