"""Random chains, trees and quivers with ordered sums in weights, conditions, statistics and decompositions."""

from __future__ import annotations

import random

from support import prompt_group, token, trajectory

from fibration import (
    Decomposition,
    Fibration,
    Hierarchy,
    Parameter,
    absolute,
    after,
    before,
    clip,
    clip_gate,
    count,
    exp,
    largest,
    log_prob,
    log_ratio,
    mean,
    policies,
    position,
    quantile,
    token_log_ratio,
    trajectory_mean,
    uniform,
    where,
)
from fibration.language.atoms import Stratum
from fibration.language.expressions import Expression

old, rollout = policies("old rollout")
x, k = token_log_ratio, log_prob(old) - log_prob(rollout)
gamma, lam = Parameter("gamma", default=0.9, upper=1), Parameter("lam", default=0.5, upper=1)


class InOrder:
    """What may be read in order by tokens of one hierarchy: over rows, and what lies over a row."""

    def __init__(self, h: Hierarchy, seed: int) -> None:
        self.h, self.random = h, random.Random(seed)
        leaves = h.leaves
        finer = [s for s in h.strata if s not in leaves and h.rows in h.coarser(s)]
        self.over = [h.rows, *(s for s in finer if all(s in h.coarser(leaf) for leaf in leaves))]
        self.of = [s for s in self.over if s != h.rows]

    def one(self, *options: Expression) -> Expression:
        return self.random.choice(options)

    def sum(self, inner: Expression, of: Stratum | None = None) -> Expression:
        """Before or after, with some discount."""
        way, share = self.random.choice([before, after]), self.random.choice([1, 0.5, 0, gamma, gamma * lam])
        return way(inner, over=self.h.rows if of else self.random.choice(self.over), discount=share, of=of)

    def number(self, depth: int = 1) -> Expression:
        """A number near 0, of which no gradient is taken."""
        plain = self.one(x, k, x * k, absolute(x) - 0.1)
        if self.of and self.random.random() < 0.4:
            s = self.random.choice(self.of)
            return (
                self.sum(
                    self.one(mean(plain, over=s), largest(absolute(plain), over=s), count(self.h.leaves[0]) / 9), s
                )
                / 4
            )
        inner = self.sum(self.number(depth - 1) if depth and self.random.random() < 0.3 else plain)
        over = self.random.choice(self.over)
        return self.one(
            inner / 4,
            inner / 4,
            inner / (1 + position(over=over)),
            mean(inner, over=over) / 2 - inner / 8,
            quantile(inner, 0.7, over=over) / 4,
            where(inner > 0.2, k, 0.1),
        )

    def hierarchy(self) -> Hierarchy:
        objective, split = self.h.objective, self.h.decomposition
        for _ in range(self.random.choice([1, 2])):
            objective = objective.weigh(exp(clip(self.number(), -1, 1)))
        if self.random.random() < 0.5:
            bounded = self.number() < self.random.choice([0.3, 0.05])
            objective = objective.keep(bounded, normaliser=self.random.choice(["all", "kept"]))
        if self.random.random() < 0.6:
            share = 1 + self.sum(self.one(x, x * x, self.sum(x) * k)) / 16
            split = Decomposition({c: e * share for c, e in split.densities}, split.recovery, split.scale)
        return self.h.replace(name=f"ordered_{self.h.name}", objective=objective, decomposition=split)


def with_order(h: Hierarchy, seed: int) -> Hierarchy:
    return InOrder(h, seed).hierarchy()


def interleaved() -> Hierarchy:
    """Weights by the position in a group, whose rows only the caller's `positions=` puts in order."""
    return Hierarchy(
        name="interleaved",
        fibrations=[Fibration(token, trajectory, uniform()), Fibration(trajectory, prompt_group, uniform())],
        gates={s: clip_gate(0.3) for s in (token, trajectory, prompt_group)},
        decomposition=log_ratio(),
        objective=trajectory_mean().weigh(exp(-0.1 * position(over=prompt_group))),
    )
