"""Whether a batch meets the conditions of a pair, and a search for one that does. Nothing here uses sympy."""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any

from fibration.language.assumptions import Balanced
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
from fibration.language.conditions import Equal, One, reads_tokens
from fibration.language.exact import NoValue, TooLarge
from fibration.language.expressions import Expression
from fibration.language.operators import COMPARISONS
from fibration.language.pairs import Pair
from fibration.language.policies import CURRENT, OLD, LogProb, Policy
from fibration.language.traversal import applications, atoms, desugar
from fibration.laws.batches.coefficients import Point, differentiate
from fibration.laws.batches.concrete import Concrete, is_balanced, rounding
from fibration.laws.batches.search import ends, parameter_values
from fibration.laws.batches.shapes import edges, regular_one
from fibration.laws.equivalent.log_prob_samples import PolicyLogProbs, read_by, reads_policies
from fibration.laws.values.duals import STRICT, LogOf, Real, TooClose, log_of, value_of
from fibration.laws.values.probes import between, crossings, whole_crossings

MOST_STEPS = 12  # values that are changed, one at a time
MOST_ELEMENTS = 10**6
NEAR, FAR, FAR_ROUNDED = -6, 6, 2  # powers of ten between which values are searched; the last with exponentials
Values = Mapping[object, Fraction]  # by stratum the number over each element, by atom its value
ONE, ZERO = Fraction(1), Fraction(0)
Token = tuple[Stratum, int]
Points = tuple[Point, Point, tuple[Fraction, ...]]  # a point for each hierarchy, and the tokens' rewards if any


def points_at(
    pair: Pair,
    concrete: Concrete,
    drifts: tuple[Fraction, ...],
    as_ratios: bool,
    given: tuple[Fraction, ...],
    drawn: PolicyLogProbs | None,
) -> Points | None:
    """A batch as a point for each hierarchy; None if it does not meet the conditions on tokens.

    `drifts`: the tokens' log ratios, or with `as_ratios` the deviations of their ratios from 1. `given`: their
    advantages, or rewards.
    """
    tokens, made = tokens_of(pair, concrete), list[Point]()
    for h in pair:
        order = [tokens.index((leaf, i)) for leaf in h.leaves for i in range(concrete.size[leaf])]
        xs, mine = tuple(drifts[k] for k in order), tuple(given[k] for k in order)
        ratios = tuple(1 + x for x in xs) if as_ratios else None
        log_probs = drawn.log_probs(order) if drawn else {}
        made.append(Point(h, concrete, xs, mine, ratios, domain=STRICT, log_probs=log_probs))
    if pair.takes_rewards:
        try:
            made = [_of_rewards(p) for p in made]
        except (NoValue, TooLarge, TooClose):
            return None
        if not all(_advantages_meet_conditions(pair, p) for p in made):
            return None
    of_tokens = [c for c in pair.conditions if isinstance(c, Expression) and reads_tokens(c)]
    if not all(_holds_at(c, made[0]) for c in of_tokens):
        return None
    return made[0], made[1], given if pair.takes_rewards else ()


def alike(pair: Pair, most: int | None = None) -> Iterator[Points | None]:
    """Batches of elements that are all alike, where the conditions hold; None for one on which they fail after all.

    One element of every stratum stands for many. `most`: with an element for each, if there are at most so many tokens.
    """
    rounded = any(applications(c, "exp") for c in pair.conditions if isinstance(c, Expression))
    for as_ratios in (rounded, not rounded):  # exact there first
        search = Alike(pair, as_ratios)
        if (at := _found(search)) is None:
            continue
        shape, fan = pair.shape, {s: int(at[s]) for s in pair.shape.order}
        if most is None:
            number = {s: (math.prod(fan[u] for u in (s, *shape.coarser(s))),) for s in shape.order}
            concrete = Concrete(shape, {edge: (0,) for edge in edges(shape)}, alike=number)
        elif (regular := regular_one(shape, fan)).leaves <= most:
            concrete = Concrete(shape, regular.make())
        else:
            continue
        attributes = {a: (v,) * concrete.size[a.on] for a, v in at.items() if isinstance(a, Attribute)}
        parameters: dict[Expression, Fraction] = {
            a: at[search.one_of(a)] for a in search.read if isinstance(a, (Parameter, Component))
        }
        concrete = replace(concrete, attributes=attributes, parameters=parameters)
        if not holds_of(pair, concrete):
            continue
        given = at[reward if pair.takes_rewards else advantage]
        current, old = (search.one_of(LogProb(Policy(name))) for name in (CURRENT, OLD))
        for a, v in itertools.product(dict.fromkeys((given, -given)), ({}, {current: at[old]})):
            yield _alike(pair, concrete, search, {**at, **v}, a)


def _alike(pair: Pair, concrete: Concrete, search: Alike, at: Values, given: Fraction) -> Points | None:
    n, ratio = len(tokens_of(pair, concrete)), search.log_ratio(at)
    values = {p.name: (at[search.one_of(LogProb(p))],) * n for p in (Policy(OLD), *pair.policies)}
    drawn = PolicyLogProbs(values, search.as_ratios) if reads_policies(pair) else None
    drift = ratio.ratio - 1 if isinstance(ratio, LogOf) else value_of(ratio)
    of_advantage = [] if pair.takes_rewards else of_advantages(pair)
    if not all(holds(c, concrete, t, given) for c in of_advantage for t in tokens_of(pair, concrete)):
        return None
    return points_at(pair, concrete, (drift,) * n, search.as_ratios, (given,) * n, drawn)


@functools.lru_cache(64)
def _found(search: Alike) -> Values | None:
    return search.find()


def has_shape(pair: Pair, concrete: Concrete) -> bool:
    """Whether a shape meets the `one(...)` conditions."""
    return not any(isinstance(c, One) and concrete.size[c.stratum] != 1 for c in pair.conditions)


def holds_of(pair: Pair, concrete: Concrete) -> bool:
    """Whether a batch meets the `Balanced` assumptions of both hierarchies and `equal(...)` of counts and totals."""
    for h in pair:
        for a in h.assume:
            if isinstance(a, Balanced) and not is_balanced(h, concrete, a.first, a.second):
                return False
    for c in pair.conditions:
        if isinstance(c, Equal) and c.value != advantage:
            tokens, places = tokens_of(pair, concrete), (c.on, read_at(c.value))
            there = (t for t in tokens if all(lies_over(concrete, t[0], s) for s in places))
            if not _is_equal(c, concrete, {t: concrete.value(c.value, *t) for t in there}):
                return False
    given = [c for c in pair.conditions if isinstance(c, Expression)]
    plain = [c for c in given if not (reads_tokens(c) or advantage in atoms(c))]
    return all(holds(c, concrete, token) for c in plain for token in tokens_of(pair, concrete))


def _is_equal(c: Equal, concrete: Concrete, values: Mapping[Token, Fraction]) -> bool:
    """Whether tokens over the same element of the condition's stratum have the same value."""
    there = {t: v for t, v in values.items() if lies_over(concrete, t[0], c.on)}
    seen: dict[int, Fraction] = {}
    return all(seen.setdefault(concrete.below(*t, c.on), v) == v for t, v in there.items())


def of_advantages(pair: Pair) -> list[Expression]:
    """The comparisons that read the advantage, and no log-prob."""
    given = [c for c in pair.conditions if isinstance(c, Expression)]
    return [c for c in given if advantage in atoms(c) and not reads_tokens(c)]


def lies_over(concrete: Concrete, leaf: Stratum, place: object) -> bool:
    """Whether a condition that is read at a place applies to the tokens of a leaf."""
    return not isinstance(place, Stratum) or place == leaf or place in concrete.shape.coarser(leaf)


def _applies(condition: Expression, concrete: Concrete, token: Token) -> bool:
    return all(lies_over(concrete, token[0], read_at(e)) for e in atoms(condition))


def tokens_of(pair: Pair, concrete: Concrete) -> list[Token]:
    """The tokens of a batch in the order of the first hierarchy."""
    return [(leaf, i) for leaf in pair.first.leaves for i in range(concrete.size[leaf])]


def _of_rewards(point: Point) -> Point:
    """The point with the advantages that its loss computes; `point.advantages` are taken as rewards."""
    assert point.h.advantages is not None
    here = replace(point, rewards=point.advantages)
    found = (value_of(here.value(point.h.advantages, k)) for k in range(len(point.advantages)))
    return replace(point, advantages=tuple(found))


def _advantages_meet_conditions(pair: Pair, point: Point) -> bool:
    """Whether advantages computed from rewards meet the conditions."""
    given = dict(zip(point.places, point.advantages, strict=True))
    equal = (c for c in pair.conditions if isinstance(c, Equal) and c.value == advantage)
    if not all(_is_equal(c, point.concrete, given) for c in equal):
        return False
    return all(holds(c, point.concrete, t, a) for c in of_advantages(pair) for t, a in given.items())


def holds(condition: Expression, concrete: Concrete, token: Token, a: Fraction | None = None) -> bool:
    """Whether a comparison without log-probs holds at a token of this advantage, or does not apply to it."""
    if not _applies(condition, concrete, token):
        return True
    try:
        return bool(concrete.value(condition, *token, {} if a is None else {advantage: a}))
    except (NoValue, TooLarge):
        return False


def _holds_at(condition: Expression, point: Point) -> bool:
    """Whether a condition on log-probs holds at every token."""
    read = [k for k, token in enumerate(point.places) if _applies(condition, point.concrete, token)]
    try:
        return all(point.value(condition, k) for k in read)
    except (NoValue, TooLarge, TooClose):
        return False


# ---------------------------------------------------------------- batches of elements that are all alike


@dataclass(frozen=True)
class Alike:
    """The search for a batch that meets the conditions, among batches whose elements are all alike.

    Such a batch is a number of elements over each, and one value of every parameter, attribute, log-prob and advantage.
    The search moves one of these at a time, to where a condition changes or beside it. `as_ratios`: log-probs are given
    as probabilities, so that ratios are rational.
    """

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
