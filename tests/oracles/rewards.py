"""Advantages from rewards by definition: statistics in fractions, roots to sixty digits."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Iterable, Mapping
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any

import numpy as np
from support import Batch

from fibration import Hierarchy
from fibration.language.atoms import BATCH, Count, Parameter, Stratum, reward
from fibration.language.expressions import Expression
from fibration.language.order import Ordered
from fibration.language.policies import LogProb
from fibration.language.statistics import Aggregate
from fibration.language.traversal import evaluate

DIGITS = Context(prec=60)


class Rewards:
    """One batch: `rewards` per token, which are those of rows where rows have them."""

    def __init__(
        self, h: Hierarchy, batch: Batch, rewards: Iterable[float], log_probs: Mapping[str, Any] | None = None
    ):
        self.h, self.batch = h, batch
        self.given = [Fraction(float(r)) for r in rewards]
        self.log_probs = log_probs or {}
        self.values = functools.cache(self._value)

    def label(self, stratum: Any, token: int) -> Hashable:
        """Which element of a stratum a token lies over."""
        name = str(stratum)
        if name == BATCH:
            return 0
        if name == self.h.rows.name:
            return int(self.batch.row[token])
        leaf = next((s for s in self.h.leaves if s.name == name), None)
        if name in self.batch.token_labels and (leaf is None or self.batch.token_labels[name][token]):
            return token if leaf else self.batch.token_labels[name][token]
        return token if leaf else self.batch.labels[name][int(self.batch.row[token])]

    def own_leaf(self, token: int) -> Stratum:
        if len(self.h.leaves) == 1:
            return self.h.leaves[0]
        return next(s for s in self.h.leaves if self.batch.token_labels[s.name][token])

    def elements(self, of: Any, over: Any, token: int) -> dict[Hashable, int]:
        """A token of every element of `of` that lies over what the token does; None: of every token."""
        beside = [t for t in range(self.batch.tokens) if self.label(over, t) == self.label(over, token)]
        found: dict[Hashable, int] = {}
        for t in beside:
            if of in self.h.leaves and self.own_leaf(t) != of:
                continue
            found.setdefault(t if of is None else self.label(of, t), t)
        return found

    def _value(self, e: Expression, token: int, at: Any = None) -> Fraction:
        """A formula at a token, or at the element of `at` that it lies over."""

        def atom(a: Expression) -> Any:
            if a == reward:
                return self.given[token]
            if isinstance(a, LogProb):
                return Fraction(float(self.log_probs[a.policy.name][token]))
            if isinstance(a, Parameter):
                return Fraction(a.default)
            if isinstance(a, Count):
                over = a.over or at or self.own_leaf(token)
                return Fraction(len(self.elements(a.of, over, token)))
            if isinstance(a, Ordered):
                return self.ordered(a, token)
            assert isinstance(a, Aggregate), a
            return self.statistic(a, token)

        return evaluate(e, atom)

    def statistic(self, a: Aggregate, token: int) -> Any:
        of = self.elements(a.of, a.over, token)
        if a.others:
            del of[self.label(a.of, token)]
        each = [self.values(a.formula, t, a.of) for t in of.values()]
        if a.kind == "total":
            return sum(each)
        if a.kind == "mean":
            return sum(each) / Fraction(len(each))
        if a.kind == "largest":
            return max(each)
        assert a.kind == "deviation"
        mean = sum(each) / Fraction(len(each))
        square = sum((v - mean) ** 2 for v in each) / max(len(each) - 1, 1)
        return Fraction(DIGITS.sqrt(DIGITS.divide(Decimal(square.numerator), Decimal(square.denominator))))

    def ordered(self, a: Ordered, token: int) -> Fraction:
        assert a.of is None
        beside = list(self.elements(None, a.over, token).values())
        here, share = beside.index(token), self.values(a.discount, token)
        chosen = range(here) if a.is_forward else range(here + 1, len(beside))
        return sum((share ** abs(i - here) * self.values(a.formula, beside[i]) for i in chosen), Fraction(0))

    def advantages(self) -> np.ndarray:
        """Of every token, rounded once."""
        assert self.h.advantages is not None
        return np.array([float(self.values(self.h.advantages, t)) for t in range(self.batch.tokens)])
