"""The values that formulas read at the tokens of a batch: log-probs, advantages, statistics, ordered sums.

No gradient flows through what weights, conditions and gates read. Penalties and decompositions read with `flows`: a
gradient flows through log ratios, sums, means and ordered sums.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, TypeVar

from fibration.language.atoms import Attribute, Reading, Stratum, Summary, advantage, at, reward, token_log_ratio
from fibration.language.exact import NoValue
from fibration.language.expressions import Expression
from fibration.language.hierarchy import Hierarchy
from fibration.language.operators import sqrt
from fibration.language.order import Ordered
from fibration.language.policies import CURRENT, OLD, LogProb
from fibration.language.statistics import Aggregate
from fibration.language.traversal import atoms, evaluate
from fibration.laws.batches.concrete import Concrete
from fibration.laws.values.duals import Real, differentiate, value_of, without_slopes
from fibration.laws.values.intervals import Interval, interval

Read = Callable[[Expression, Callable[[Expression], Any]], Any]  # evaluates formulas, exactly or between bounds
Place = tuple[Stratum, int]  # a token: its leaf, and which element of it
LOG_RATIO, ADVANTAGE = "log ratio", "advantage"
T = TypeVar("T")


def attempt(evaluate: Callable[[], T]) -> T | None:
    """The result of `evaluate`; None if it has no value or no slope."""
    try:
        return evaluate()
    except NoValue:
        return None


def places_of(h: Hierarchy, concrete: Concrete) -> tuple[Place, ...]:
    """Every token of a batch, leaf after leaf."""
    return tuple((leaf, i) for leaf in h.leaves for i in range(concrete.size[leaf]))


def rows_of(h: Hierarchy, concrete: Concrete) -> list[int]:
    """The row of every token."""
    return [concrete.below(*place, h.rows) for place in places_of(h, concrete)]


@dataclass(frozen=True)
class Tokens:
    """The tokens of a batch, with a log ratio and an advantage each, and log-probs of frozen policies where given.

    A log-prob that is not given is that of `old`. If that is not given, it and the current one are below 0.
    `rewards` are those of the tokens' rows, or of the tokens.
    """

    concrete: Concrete
    places: Sequence[Place]
    log_ratios: Sequence[Real]
    advantages: Sequence[Fraction]
    read: Read = differentiate
    log_probs: Mapping[str, Sequence[Real]] = field(default_factory=dict)
    rewards: Sequence[Fraction] = ()
    flows: bool = False

    @classmethod
    def alike(
        cls, h: Hierarchy, concrete: Concrete, advantages: Sequence[Fraction], log_probs: Sequence[Fraction] = ()
    ) -> Tokens:
        """A batch in which all policies have these log-probs; default -1. Rewards are equal to advantages."""
        places = places_of(h, concrete)
        given = tuple(log_probs) or (Fraction(-1),) * len(places)
        frozen = {p: given for p in (OLD, *h.policies) if p != CURRENT}
        still = (Fraction(0),) * len(places)
        return cls(concrete, places, still, advantages, log_probs=frozen, rewards=advantages)

    def changed(self, what: str | Attribute, k: int, to: Fraction) -> Tokens:
        """The batch with another number at a token: its log ratio, its advantage, an attribute, or a policy's log-prob.

        Under a log ratio above 0, all log-probs are lower, so that those of the current policy stay below 0.
        """

        def replaced(values: Sequence[Any], k: int = k) -> tuple[Any, ...]:
            return (*values[:k], to, *values[k + 1 :])

        if isinstance(what, Attribute):
            attributes = self.concrete.attributes
            own = replaced(attributes[what], self.places[k][1])
            return replace(self, concrete=replace(self.concrete, attributes={**attributes, what: own}))
        if what == ADVANTAGE:
            return replace(self, advantages=replaced(self.advantages), rewards=replaced(self.advantages))
        if what != LOG_RATIO:
            return replace(self, log_probs={**self.log_probs, what: replaced(self.log_probs[what])})
        lower = {p: tuple(v - max(to, Fraction(0)) for v in values) for p, values in self.log_probs.items()}
        return replace(self, log_ratios=replaced(self.log_ratios), log_probs=lower)

    @property
    def numbers(self) -> dict[str, Any]:
        """The log ratios, advantages and log-probs that a call takes, by name."""
        given: dict[str, Any] = {"log_ratios": tuple(self.log_ratios), "advantages": tuple(self.advantages)}
        return given | {f"log_probs of {p}": tuple(values) for p, values in self.log_probs.items()}

    def attempt(self, expression: Expression, k: int, place: Stratum | None = None) -> Any:
        """A formula at a token, or at the element of `place` that the token lies over; None where it has no value."""
        if place is None:
            found = attempt(lambda: self.value(expression, k))
        else:
            element = self.concrete.below(*self.places[k], place)
            found = attempt(lambda: self.value_at(expression, place, element))
        return found if found is None or isinstance(found, bool) else value_of(found)

    def value(self, expression: Expression, k: int) -> Any:
        """The value of a formula at a token; for a condition, whether it holds."""
        return self.read(at(expression, self.places[k][0]), lambda a: self.atom(a, k))

    def value_at(self, expression: Expression, stratum: Stratum, element: int) -> Any:
        """The value of a formula at an element, or at a token."""
        if (stratum, element) in self._number_of:
            return self.value(expression, self._number_of[stratum, element])
        return self.read(at(expression, stratum), lambda a: self._atom_at(a, stratum, element))

    def atom(self, atom: Expression, k: int) -> Any:
        if atom == token_log_ratio:
            return self._moving[k]
        if isinstance(atom, LogProb):
            return self.log_prob(atom.policy.name, k)
        return self._atom_at(atom, *self.places[k])

    def _atom_at(self, atom: Expression, stratum: Stratum, element: int) -> Any:
        if atom in (advantage, reward):
            given = self.advantages if atom == advantage else self.rewards
            return given[self._first(stratum, element)]
        if isinstance(atom, Aggregate):
            return self.statistic(atom, stratum, element)
        if isinstance(atom, Ordered):
            return self.ordered(atom, stratum, element)
        return self.concrete.atom(atom, stratum, element)

    def log_prob(self, policy: str, k: int) -> Any:
        if policy in self.log_probs:
            return without_slopes(self.log_probs[policy][k])
        if policy == CURRENT:
            return self.log_prob(OLD, k) + self._moving[k]
        return -1 - max(value_of(self._moving[k]), Fraction(0)) if policy == OLD else self.log_prob(OLD, k)

    def statistic(self, statistic: Aggregate, stratum: Stratum, element: int) -> Any:
        """A statistic, read at an element. Without elements it raises `NoValue`, unless it is a total or `some`."""
        assert isinstance(statistic.over, Stratum)
        place = statistic.over, self.concrete.below(stratum, element, statistic.over)
        left = self.concrete.below(stratum, element, statistic.of) if statistic.others else None  # type: ignore[arg-type]
        key = statistic, place, left
        if key not in self._known:
            inside = [p for p in self._elements(statistic.of, *place) if left is None or p[1] != left]
            numbers = [self._number(*p, *place) for p in inside]
            if left is not None and (more := self.concrete.stands_for(statistic.of, left) - 1):  # type: ignore[arg-type]
                inside, numbers = [*inside, (statistic.of, left)], [*numbers, more]  # type: ignore[list-item]
            if not inside and statistic.kind not in ("total", "some"):
                raise NoValue(f"{statistic} of none")
            level = Fraction(1)  # the largest value is the last one in order
            if statistic.level is not None:
                level = evaluate(statistic.level, lambda a: self.concrete.atom(a, *place))
            values = [self.value_at(statistic.formula, *p) for p in inside]
            self._known[key] = self._gathered(statistic.kind, values, numbers, level)
        return self._known[key]

    def _gathered(self, kind: str, values: list[Any], numbers: list[int], level: Fraction) -> Any:
        if kind == "deviation":
            return self._deviation(values, numbers)
        found = _statistic(kind, values, numbers, level)
        return found if kind in ("some", "total", "mean") or isinstance(found, Interval) else without_slopes(found)

    def _deviation(self, values: list[Any], numbers: list[int]) -> Any:
        """The sample standard deviation; exactly 0 if all values are equal."""
        n = sum(numbers)
        if n == 1 or all(v == values[0] for v in values):
            return Fraction(0)
        words = [Reading(f"value {i + 1}") for i in range(len(values))]
        mean = sum((Fraction(m) * w for m, w in zip(numbers[1:], words[1:], strict=True)), numbers[0] * words[0]) / n
        squares = [Fraction(m) * (w - mean) ** 2 for m, w in zip(numbers, words, strict=True)]
        known = dict(zip(words, (v if isinstance(v, Interval) else without_slopes(v) for v in values), strict=True))
        found = sqrt(sum(squares[1:], squares[0]) / (n - 1))
        return self.read(found, known.__getitem__)  # type: ignore[arg-type]

    def ordered(self, o: Ordered, stratum: Stratum, element: int) -> Any:
        """The discounted sum over what comes before or after an element, in the order of the tokens."""
        assert isinstance(o.over, Stratum)
        if self.concrete.alike:
            raise NoValue(f"{o} of tokens that stand for several, of which none is the first")
        place = o.over, self.concrete.below(stratum, element, o.over)
        inside = self._elements(o.of, *place)
        own = inside.index((stratum, element) if o.of is None else (o.of, self.concrete.below(stratum, element, o.of)))  # type: ignore[arg-type]
        discount = evaluate(o.discount, lambda a: self.concrete.atom(a, stratum, element))
        found: Any = Fraction(0)
        for i in range(own) if o.is_forward else range(own + 1, len(inside)):
            key = o, inside[i], None
            if key not in self._known:
                self._known[key] = self.value_at(o.formula, *inside[i])
            found = found + discount ** abs(i - own) * self._known[key]
        return found

    def _elements(self, of: Any, stratum: Stratum, element: int) -> list[Place]:
        """The tokens over an element, or the `of` elements over it in the order of their first tokens."""
        inside = [self.places[k] for k in self.over(stratum, element)]
        if of is None:
            return inside
        lies = self.concrete.shape.leaves_over(of)
        return list(dict.fromkeys((of, self.concrete.below(*p, of)) for p in inside if p[0] in lies))

    def over(self, stratum: Stratum, element: int) -> list[int]:
        """Which tokens lie over an element."""
        reach, below = self.concrete.shape.leaves_over(stratum), self.concrete.below
        return [k for k, (leaf, i) in enumerate(self.places) if leaf in reach and below(leaf, i, stratum) == element]

    def _first(self, stratum: Stratum, element: int) -> int:
        own = self._number_of.get((stratum, element))
        return self.over(stratum, element)[0] if own is None else own

    def _number(self, source: Stratum, i: int, stratum: Stratum, element: int) -> int:
        """How many of the tokens or elements over one element this one stands for."""
        number = Fraction(self.concrete.stands_for(source, i), self.concrete.stands_for(stratum, element))
        assert number.denominator == 1
        return int(number)

    @cached_property
    def _number_of(self) -> dict[Place, int]:
        return {place: k for k, place in enumerate(self.places)}

    @cached_property
    def _moving(self) -> list[Any]:
        return list(self.log_ratios) if self.flows else [without_slopes(x) for x in self.log_ratios]

    @cached_property
    def _known(self) -> dict[Any, Any]:
        return {}


def read_on_policy(
    expression: Expression, concrete: Concrete, stratum: Stratum, element: int, a: Fraction, base: Fraction
) -> dict[Expression, Fraction]:
    """The log-probs and statistics that a formula reads at an element, where all policies coincide.

    All advantages are `a`, and all log-probs `base`.
    """
    read = list(atoms(expression, LogProb, Summary))
    if not read:
        return {}
    places = [(leaf, i) for leaf in concrete.shape.leaves for i in range(concrete.size[leaf])]
    n = len(places)
    here = Tokens(concrete, places, [Fraction(0)] * n, [a] * n, differentiate, {OLD: [base] * n})
    first = here.over(stratum, element)[0]
    return {
        e: value_of(here.atom(e, first) if isinstance(e, LogProb) else here.value_at(e, stratum, element)) for e in read
    }


def _statistic(kind: str, values: list[Any], numbers: list[int], level: Fraction) -> Any:
    if kind == "some":
        return any(values)
    if kind in ("total", "mean"):
        total = sum((Fraction(n) * v for n, v in zip(numbers, values, strict=True)), Fraction(0))
        return total if kind == "total" else total * Fraction(1, sum(numbers))
    position = (sum(numbers) - 1) * level
    if not any(isinstance(v, Interval) for v in values):
        return _ordered(values, numbers, position)
    known = [interval(v) for v in values]
    return Interval(*(_ordered([getattr(v, end) for v in known], numbers, position) for end in ("low", "high")))


def _ordered(values: list[Any], numbers: list[int], position: Fraction) -> Any:
    """The value at a position among the sorted values, linear between two of them."""
    ranked = sorted(zip(values, numbers, strict=True), key=lambda found: value_of(found[0]))
    ends = list(itertools.accumulate(n for _, n in ranked))
    low, share = math.floor(position), position - math.floor(position)
    a = ranked[bisect.bisect_right(ends, low)][0]
    if not share:
        return a
    b = ranked[bisect.bisect_right(ends, low + 1)][0]
    return a * (1 - share) + b * share
