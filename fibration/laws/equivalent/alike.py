"""A batch that meets the conditions of a pair, among batches whose elements are all alike.

Such a batch is a number of elements over each, and one value of every parameter, attribute, log-prob and advantage. The
search moves one of these at a time, to where a condition changes or beside it. Nothing here uses sympy.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

from fibration.language.atoms import (
    BATCH,
    Attribute,
    Component,
    Count,
    Parameter,
    Stratum,
    Total,
    advantage,
    of_one_value,
    read_at,
    reward,
    token_log_ratio,
)
from fibration.language.conditions import One
from fibration.language.exact import NoValue, TooLarge
from fibration.language.expressions import Expression
from fibration.language.operators import COMPARISONS
from fibration.language.pairs import Pair
from fibration.language.policies import CURRENT, OLD, LogProb, Policy
from fibration.language.traversal import applications, atoms, desugar
from fibration.laws.batches.coefficients import differentiate
from fibration.laws.batches.concrete import rounding
from fibration.laws.batches.search import ends, parameter_values
from fibration.laws.equivalent.log_prob_samples import read_by
from fibration.laws.values.duals import STRICT, Real, TooClose, log_of, value_of
from fibration.laws.values.probes import between, crossings, whole_crossings

MOST_STEPS = 12  # values that are changed, one at a time
MOST_ELEMENTS = 10**6
NEAR, FAR, FAR_ROUNDED = -6, 6, 2  # powers of ten between which values are searched; the last with exponentials
Values = Mapping[object, Fraction]  # by stratum the number over each element, by atom its value
ONE, ZERO = Fraction(1), Fraction(0)


@dataclass(frozen=True)
class Alike:
    """The search for such a batch. `as_ratios`: log-probs are given as probabilities, so that ratios are rational."""

    pair: Pair
    as_ratios: bool

    def find(self) -> Values | None:
        """The values of a batch on which every comparison in the conditions holds; None if none is found."""
        at, rng = self.start, random.Random(0)
        for _ in range(MOST_STEPS):
            broken = [c for c in self.conditions if not self._value(c, at)]
            if not broken:
                return at
            moves = [{**at, v: x} for v in self._read_by(rng.choice(broken)) for x in self._tries(v, at)]
            left = [sum(not self._value(c, m) for c in self.conditions) for m in moves]
            at = rng.choice([m for m, n in zip(moves, left, strict=True) if n == min(left)] or [at])
        return None

    # ------------------------------------------------------------ conditions

    @cached_property
    def conditions(self) -> list[Expression]:
        """The comparisons that tokens of some leaf read, but those of advantages that are made of rewards."""
        shape, made = self.pair.shape, self.pair.takes_rewards
        found = []
        for c in (c for c in self.pair.conditions if isinstance(c, Expression)):
            places = {s for a in atoms(c) if isinstance(s := read_at(a), Stratum)}
            if any(places <= {leaf, *shape.coarser(leaf)} for leaf in shape.leaves):
                found += [] if made and advantage in atoms(c) else [desugar(c)]
        return found

    @cached_property
    def _differences(self) -> list[Expression]:
        compared = (c.arguments for e in self.conditions for c in applications(e, *COMPARISONS))
        return list(dict.fromkeys(a - b for a, b in compared))

    def _value(self, e: Expression, at: Values) -> Any:
        """The value of a formula; None where it has none."""
        try:
            return differentiate(e, lambda a: self._atom(a, at), STRICT)
        except (NoValue, TooClose, TooLarge):
            return None

    def _atom(self, a: Expression, at: Values) -> Any:
        if isinstance(a, (Count, Total)):
            number = Fraction(math.prod(int(at[s]) for s in self._counted(a)))
            return number * at[a.attribute] if isinstance(a, Total) else number
        if isinstance(a, LogProb):
            return log_of(at[self.one_of(a)], {}) if self.as_ratios else at[self.one_of(a)]
        return self.log_ratio(at) if a == token_log_ratio else at[self.one_of(a)]

    def log_ratio(self, at: Values) -> Real:
        """The log ratio of every token."""
        current, old = (at[self.one_of(LogProb(Policy(name)))] for name in (CURRENT, OLD))
        return log_of(current / old, {}) if self.as_ratios else current - old

    def _counted(self, a: Count | Total) -> frozenset[Stratum]:
        shape = self.pair.shape
        assert isinstance(a.of, Stratum) and isinstance(a.over, Stratum)
        return frozenset((a.of, *shape.coarser(a.of))) - {a.over, *shape.coarser(a.over)}

    def one_of(self, a: Expression) -> Expression:
        """The atom with the value of this one: of policies that are the same, and of parameters of one name, one."""
        if isinstance(a, LogProb):
            group = next((g for g in self.pair.same_policies if a.policy.name in g), frozenset({a.policy.name}))
            return LogProb(Policy(min(group)))
        return a.attribute if isinstance(a, Total) else of_one_value(a)

    # ------------------------------------------------------------ values

    @cached_property
    def read(self) -> tuple[Expression, ...]:
        """What the losses and the conditions read."""
        read = dict.fromkeys(a for h in self.pair for e in read_by(h) for a in atoms(e))
        read |= dict.fromkeys(a for c in self.conditions for a in atoms(c))
        policies = (Policy(CURRENT), Policy(OLD), *self.pair.policies)
        return (*read, *map(LogProb, policies))

    @cached_property
    def start(self) -> Values:
        """The values that are tried first."""
        found: dict[object, Fraction] = dict.fromkeys(self.pair.shape.order, ONE) | {advantage: ONE, reward: ONE}
        for a in map(self.one_of, self.read):
            if isinstance(a, LogProb):
                found[a] = Fraction(1, 2) if self.as_ratios else -ONE
            elif isinstance(a, (Parameter, Component)):
                found[a] = parameter_values(a.parameter if isinstance(a, Component) else a)[0]
            elif isinstance(a, Attribute):
                found[a] = a.nearest(ONE)
        return found

    def _read_by(self, formula: Expression) -> list[object]:
        """The values that a formula depends on, and that may be changed."""
        shape = self.pair.shape
        single = [c.stratum for c in self.pair.conditions if isinstance(c, One)]
        fixed = {Stratum(BATCH), *single, *(u for s in single for u in shape.coarser(s))}
        found: dict[object, None] = {}
        for a in atoms(formula):
            if isinstance(a, (Count, Total)):
                found |= dict.fromkeys(s for s in shape.order if s in self._counted(a) - fixed)
            if a == token_log_ratio:
                found |= dict.fromkeys(self.one_of(LogProb(Policy(name))) for name in (CURRENT, OLD))
            found[self.one_of(a)] = None
        return [v for v in found if v in self.start]

    def _tries(self, v: object, at: Values) -> list[Fraction]:
        """Values where a condition changes if one thing moves, beside and between them."""
        low, high = self._ends(v)
        points: set[Fraction] = set()
        for d in self._differences:
            if v in self._read_by(d):

                def f(x: Fraction, d: Expression = d) -> Fraction | None:
                    found = self._value(d, {**at, v: x})
                    return None if found is None else value_of(found)

                if isinstance(v, Stratum):
                    points |= {Fraction(n + k) for n in whole_crossings(f, MOST_ELEMENTS) for k in (-1, 0, 1)} | {ONE}
                else:
                    points |= set(crossings(f, low, high, NEAR, FAR_ROUNDED if rounding(d) else FAR))
        if isinstance(v, Stratum):
            return sorted(points)
        found = [*between(sorted(points)), *(end for end in (low, high) if end is not None)]
        return [x for x in found if self._is_value(v, x)]

    def _ends(self, v: object) -> tuple[Fraction | None, Fraction | None]:
        if isinstance(v, LogProb):
            return (ZERO, ONE) if self.as_ratios else (None, ZERO)
        p = v.parameter if isinstance(v, Component) else v
        return p.ends if isinstance(p, Attribute) else ends(p) if isinstance(p, Parameter) else (None, None)

    def _is_value(self, v: object, x: Fraction) -> bool:
        if isinstance(v, LogProb):
            return 0 < x <= 1 if self.as_ratios else x <= 0
        p = v.parameter if isinstance(v, Component) else v
        return not (isinstance(p, (Attribute, Parameter)) and p.is_outside(x))
