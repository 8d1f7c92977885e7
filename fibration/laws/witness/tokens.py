"""What a call gives for every token, and what is read there: log-probs, advantages, statistics over other tokens.

Nothing that is read here has a slope: no gradient flows through it.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any

from fibration.language.atoms import Stratum, advantage, at, token_log_ratio
from fibration.language.expressions import Expression
from fibration.language.policies import CURRENT, OLD, LogProb
from fibration.language.statistics import Aggregate
from fibration.language.traversal import atoms, evaluate
from fibration.laws.witness.batches import Concrete
from fibration.laws.witness.duals import Real, differentiate, held, value_of
from fibration.laws.witness.enclosures import Enclosed, enclosed

Read = Callable[[Expression, Callable[[Expression], Any]], Any]  # how formulas are evaluated: exactly, between bounds
Place = tuple[Stratum, int]  # a token: its leaf, and which element of it


@dataclass(frozen=True)
class Tokens:
    """The tokens of a batch, with a log ratio and an advantage each, and log-probs of frozen policies where given.

    A log-prob that is not given is that of `old`; where that is not given, both it and the current one are below 0.
    """

    concrete: Concrete
    places: Sequence[Place]
    log_ratios: Sequence[Real]
    advantages: Sequence[Fraction]
    read: Read
    log_probs: Mapping[str, Sequence[Real]] = field(default_factory=dict)

    def value(self, expression: Expression, k: int) -> Any:
        """A formula at a token; of a condition, whether it holds."""
        return self.read(at(expression, self.places[k][0]), lambda a: self.atom(a, k))

    def atom(self, atom: Expression, k: int) -> Any:
        if atom == token_log_ratio:
            return self._held[k]
        if atom == advantage:
            return self.advantages[k]
        if isinstance(atom, LogProb):
            return self.log_prob(atom.policy.name, k)
        if isinstance(atom, Aggregate):
            return self.statistic(atom, *self.places[k])
        return self.concrete.atom(atom, *self.places[k])

    def log_prob(self, policy: str, k: int) -> Any:
        if policy in self.log_probs:
            return held(self.log_probs[policy][k])
        if policy == CURRENT:
            return self.log_prob(OLD, k) + self._held[k]
        return -1 - max(value_of(self._held[k]), Fraction(0)) if policy == OLD else self.log_prob(OLD, k)

    def statistic(self, statistic: Aggregate, stratum: Stratum, element: int) -> Any:
        """A statistic read at an element, over all tokens that lie over the one that it names."""
        assert isinstance(statistic.over, Stratum)
        place = statistic.over, self.concrete.below(stratum, element, statistic.over)
        key = statistic, place
        if key not in self._known:
            inside = self.over(*place)
            values = [self.value(statistic.formula, k) for k in inside]
            numbers = [self._number(k, *place) for k in inside]
            level = Fraction(1)  # what is largest stands last
            if statistic.level is not None:
                level = evaluate(statistic.level, self.concrete.parameters)
            self._known[key] = _statistic(statistic.kind, values, numbers, level)
        return self._known[key]

    def over(self, stratum: Stratum, element: int) -> list[int]:
        """Which tokens lie over an element."""
        reach, below = self.concrete.shape.leaves_over(stratum), self.concrete.below
        return [k for k, (leaf, i) in enumerate(self.places) if leaf in reach and below(leaf, i, stratum) == element]

    def _number(self, k: int, stratum: Stratum, element: int) -> int:
        """How many tokens over one element such a token stands for."""
        number = Fraction(self.concrete.stands_for(*self.places[k]), self.concrete.stands_for(stratum, element))
        assert number.denominator == 1
        return int(number)

    @cached_property
    def _held(self) -> list[Any]:
        return [held(x) for x in self.log_ratios]

    @cached_property
    def _known(self) -> dict[tuple[Aggregate, Place], Any]:
        return {}


def read_on_policy(
    expression: Expression, concrete: Concrete, stratum: Stratum, element: int, a: Fraction, base: Fraction
) -> dict[Expression, Fraction]:
    """The log-probs and statistics that a formula reads at an element, where all policies coincide.

    All advantages are `a`, and all log-probs `base`.
    """
    read = [e for e in atoms(expression) if isinstance(e, (LogProb, Aggregate))]
    if not read:
        return {}
    places = [(leaf, i) for leaf in concrete.shape.leaves for i in range(concrete.size[leaf])]
    n = len(places)
    here = Tokens(concrete, places, [Fraction(0)] * n, [a] * n, differentiate, {OLD: [base] * n})
    first = here.over(stratum, element)[0]
    return {
        e: value_of(here.statistic(e, stratum, element) if isinstance(e, Aggregate) else here.atom(e, first))
        for e in read
    }


def _statistic(kind: str, values: list[Any], numbers: list[int], level: Fraction) -> Any:
    if kind == "some":
        return any(values)
    if kind in ("total", "mean"):
        total = sum((Fraction(n) * v for n, v in zip(numbers, values, strict=True)), Fraction(0))
        return total if kind == "total" else total * Fraction(1, sum(numbers))
    position = (sum(numbers) - 1) * level
    if not any(isinstance(v, Enclosed) for v in values):
        return _ordered(values, numbers, position)
    known = [enclosed(v) for v in values]
    return Enclosed(*(_ordered([getattr(v, end) for v in known], numbers, position) for end in ("low", "high")))


def _ordered(values: list[Any], numbers: list[int], position: Fraction) -> Any:
    """What stands at a position among the ordered values, linearly between two of them."""
    ranked = sorted(zip(values, numbers, strict=True), key=lambda found: value_of(found[0]))
    ends = list(itertools.accumulate(n for _, n in ranked))
    low, share = math.floor(position), position - math.floor(position)
    a = ranked[bisect.bisect_right(ends, low)][0]
    if not share:
        return a
    b = ranked[bisect.bisect_right(ends, low + 1)][0]
    return a * (1 - share) + b * share
