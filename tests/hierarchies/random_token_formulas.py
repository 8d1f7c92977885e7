"""Random chains, trees and quivers with token formulas: weights, conditions, statistics, policies."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import ClassVar

import numpy as np
from support import Batch

from fibration import (
    Decomposition,
    Gate,
    Hierarchy,
    Parameter,
    absolute,
    advantage,
    clip,
    count,
    exp,
    largest,
    log_prob,
    mass,
    mean,
    minimum,
    policies,
    quantile,
    residual,
    sigmoid,
    some,
    stop,
    tanh,
    token_log_ratio,
    total,
    where,
)
from fibration.language.atoms import BATCH, Stratum
from fibration.language.expressions import Expression

current, old, rollout, reference = policies("current old rollout reference")
now, before, k = log_prob(current), log_prob(old), log_prob(old) - log_prob(rollout)
bound, share = Parameter("bound", default=1.3), Parameter("share", default=0.75, upper=1)
RANGE = 0.4  # how far apart policies are, in nats


class Words:
    """What may be read at tokens of one hierarchy."""

    SIZE: ClassVar[Expression] = advantage / 4

    def __init__(self, h: Hierarchy, seed: int) -> None:
        self.h, self.random = h, random.Random(seed)
        shared = [s for s in h.strata if s not in h.leaves and all(s in h.coarser(leaf) for leaf in h.leaves)]
        self.over = list(dict.fromkeys([h.rows, Stratum(BATCH), *shared]))

    def one(self, *options: Expression) -> Expression:
        return self.random.choice(options)

    def number(self, depth: int = 2) -> Expression:
        """A number near 0."""
        plain = [k, k, token_log_ratio, now - log_prob(rollout), self.SIZE, exp(before) - exp(log_prob(rollout))]
        if not depth or self.random.random() < 0.4:
            return self.one(*plain)
        s = self.random.choice(self.over)
        inner = self.number(depth - 1)
        return self.one(
            mean(inner, over=s),
            inner - mean(inner, over=s),
            total(inner * absolute(inner), over=s) / 4,
            largest(absolute(inner), over=s) - 1,
            where(some(inner > 0.5, over=s), inner, -inner),
            quantile(inner, 0.3, over=s),
            mean(where(self.condition(0), inner, 0), over=s),
        )

    def weight(self) -> Expression:
        x = self.number()
        return self.one(minimum(exp(x), bound), where(k <= 0.2, exp(k), 0), 2 * sigmoid(4 * x), 1 + x * x, exp(x / 2))

    def condition(self, depth: int = 1) -> Expression:
        x, c = self.number(depth), self.random.choice([-0.05, 0.1, 0.3])
        plain = self.one(x <= c, absolute(x) < 0.5, x > -c, log_prob(reference) > -2)
        return self.one(plain, plain, plain | (k > 0.3)) if depth else plain

    def hierarchy(self) -> Hierarchy:
        h, chance = self.h, self.random.random
        objective = h.objective
        for _ in range(self.random.choice([0, 1, 1, 2])):
            objective = objective.weigh(self.weight())
        for _ in range(self.random.choice([0, 1, 1, 2])):
            objective = objective.keep(self.condition(), normaliser=self.random.choice(["all", "kept", "kept"]))
        gates = dict(h.gates)
        if chance() < 0.5:
            s = self.random.choice(list(gates))
            gates[s] = self.gate(s)
        split = self.decomposition() if chance() < 0.4 else h.decomposition
        return h.replace(name=f"words_{h.name}", objective=objective, gates=gates, decomposition=split)

    def decomposition(self) -> Decomposition:
        """What was there, by the sign of the advantage, and a part of it given back."""
        d = self.h.decomposition
        densities = {c: where(advantage >= 0, e, share * e) for c, e in d.densities}
        return Decomposition(densities, share * d.recovery + (1 - share), d.scale)

    def gate(self, s: Stratum) -> Gate:
        """What was there, changed by statistics over its element or a coarser one, or by what is frozen of a token."""
        over = self.random.choice([s, Stratum(BATCH)])
        inner = self.number(1)
        if s in self.h.leaves:
            inner = self.one(before / 4, k, mean(inner, over=over))
        else:
            inner = self.one(
                mean(inner, over=over), largest(inner, over=over), total(inner, over=over) / count(leaf_of(self.h, s))
            )
        scale = 1 + absolute(tanh(inner))
        g = self.h.gates[s].expression
        unit = mass if len(self.h.roots) > 1 else 1  # of several roots, the measure is fixed up to a factor for each
        steep = scale * g / stop(1 + (residual / unit) ** 2)
        return Gate(self.one(clip(g, -scale * unit, scale * unit), steep, where(inner > 0.1, residual / 2, g)))


def leaf_of(h: Hierarchy, s: Stratum) -> Stratum:
    return next(leaf for leaf in h.leaves if s in h.coarser(leaf))


def with_words(h: Hierarchy, seed: int) -> Hierarchy:
    return Words(h, seed).hierarchy()


def with_policies(batch: Batch, seed: int) -> Batch:
    """Log-probs of the further policies; those of `old` are drawn by `case`, between -3 and 0."""
    generator = np.random.default_rng([seed, 5])
    drawn = {p.name: generator.uniform(-3, -0.01, size=batch.tokens) for p in (rollout, reference)}
    return replace(batch, policies=drawn)
