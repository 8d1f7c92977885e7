"""Whether a batch meets the conditions of a pair, and a search for one that does. Nothing here uses sympy."""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal

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
from fibration.language.conditions import Condition, Equal, One, reads_tokens
from fibration.language.declared import CURRENT, OLD, LogProb, Policy
from fibration.language.exact import TooLarge
from fibration.language.expressions import Expression
from fibration.language.pairs import Pair
from fibration.language.strata import Balanced
from fibration.language.traversal import applications, atoms, desugar
from fibration.laws.batches.coefficients import Point, attempt, differentiate, places_of
from fibration.laws.batches.concrete import Concrete, is_balanced, rounding
from fibration.laws.batches.search import counted, ends, parameter_values
from fibration.laws.batches.shapes import edges, regular_one
from fibration.laws.equivalent.log_prob_samples import read_by, reads_policies, scale
from fibration.laws.values.duals import STRICT, Real, TooClose, value_of
from fibration.laws.values.probes import between, crossings, turning, whole_crossings

MOST_STEPS = 12  # values that are changed, one at a time
MOST_ELEMENTS = 10**6
NEAR, FAR, FAR_ROUNDED = -6, 6, 2  # powers of ten between which values are searched; the last with exponentials
Values = Mapping[object, Fraction]  # by stratum the number over each element, by atom its value
ONE, ZERO = Fraction(1), Fraction(0)
Points = tuple[Point, Point, tuple[Fraction, ...]]  # a point for each hierarchy, and the tokens' rewards if any
Read = Literal["batch", "advantages", "log-probs"]


def points_at(
    pair: Pair,
    concrete: Concrete,
    log_ratios: Sequence[Real],
    given: Sequence[Fraction],
    log_probs: Mapping[str, Sequence[Real]],
) -> Points | None:
    """A batch as a point for each hierarchy; None if it does not meet the conditions on tokens.

    `given`: the tokens' advantages, or rewards. The tokens are in the order of the first hierarchy.
    """
    first = at_rest(pair, concrete, given)
    made: list[Point] = []
    for h in pair:
        order = [first.places.index(place) for place in places_of(h, concrete)]
        xs, mine = (tuple(values[k] for k in order) for values in (log_ratios, given))
        own = {name: tuple(values[k] for k in order) for name, values in log_probs.items()}
        made.append(Point(h, concrete, xs, mine, own, mine, domain=STRICT))  # type: ignore[arg-type]
    found = attempt(lambda: [p.with_advantages for p in made], TooLarge, TooClose)
    if found is None or not (all(meets(pair, p, "advantages") for p in found) and meets(pair, found[0], "log-probs")):
        return None
    return found[0], found[1], tuple(given) if pair.takes_rewards else ()


def at_rest(pair: Pair, concrete: Concrete, advantages: Sequence[Fraction] = ()) -> Point:
    """A batch as a point of the first hierarchy, on policy."""
    n = concrete.tokens
    return Point(pair.first, concrete, (ZERO,) * n, tuple(advantages) or (ONE,) * n, domain=STRICT)


def alike(pair: Pair, most: int | None = None) -> Iterator[Points | None]:
    """Batches of elements that are all alike, where the conditions hold; None for one on which they fail after all.

    One element of every stratum stands for many. `most`: with an element for each, if there are at most so many tokens.
    """
    rounded = any(applications(c, "exp") for c in pair.conditions if isinstance(c, Expression))
    for in_ratios in (rounded, not rounded):  # exact there first
        search = Alike(pair, in_ratios)
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
        n, given = concrete.tokens, at[reward if pair.takes_rewards else advantage]
        current, old = (search.one_of(LogProb(Policy(name))) for name in (CURRENT, OLD))
        for a, v in itertools.product(dict.fromkeys((given, -given)), ({}, {current: at[old]})):
            here = {**at, **v}
            policies = (Policy(OLD), *pair.policies) if reads_policies(pair) else ()
            log_probs = {p.name: (search.log_prob(p, here),) * n for p in policies}
            yield points_at(pair, concrete, (search.log_ratio(here),) * n, (a,) * n, log_probs)


@functools.lru_cache(64)
def _found(search: Alike) -> Values | None:
    return search.find()


# ---------------------------------------------------------------- conditions


def holds_of(pair: Pair, concrete: Concrete) -> bool:
    """Whether a batch meets the assumptions of both hierarchies, and the conditions that read no token."""
    balanced = ((h, a) for h in pair for a in h.assume if isinstance(a, Balanced))
    fits = all(is_balanced(h, concrete, a.first, a.second) for h, a in balanced)
    return fits and meets(pair, at_rest(pair, concrete), "batch")


def meets(pair: Pair, point: Point, what: Read) -> bool:
    """Whether a batch meets the conditions that read advantages, log-probs, or neither of them (`batch`)."""
    return all(_holds(c, point) for c in pair.conditions if _reads(c) == what)


def _reads(c: Condition) -> Read:
    if reads_tokens(c):
        return "log-probs"
    given = atoms(c) if isinstance(c, Expression) else [c.value] if isinstance(c, Equal) else []
    return "advantages" if advantage in given else "batch"


def _holds(c: Condition, point: Point) -> bool:
    """Whether a condition holds at every token to which it applies."""
    concrete = point.concrete
    if isinstance(c, One):
        return concrete.size[c.stratum] == 1
    if not isinstance(c, (Equal, Expression)):  # equal policies get equal log-probs
        return True
    formula, places = (c.value, [c.on]) if isinstance(c, Equal) else (c, [])
    places += [s for a in atoms(formula) if isinstance(s := read_at(a), Stratum)]
    there = [k for k, (leaf, _) in enumerate(point.places) if {*places} <= {leaf, *concrete.shape.coarser(leaf)}]
    found = attempt(lambda: [point.value(formula, k) for k in there], TooLarge, TooClose)
    if found is None or not isinstance(c, Equal):
        return found is not None and all(found)
    by_element = {(concrete.below(*point.places[k], c.on), value_of(v)) for k, v in zip(there, found, strict=True)}
    return len(by_element) == len({element for element, _ in by_element})


# ---------------------------------------------------------------- batches of elements that are all alike


@dataclass(frozen=True)
class Alike:
    """The search for a batch that meets the conditions, among batches whose elements are all alike.

    Such a batch is a number of elements over each, and one value of every parameter, attribute, log-prob and advantage.
    The search moves one of these at a time, to where a condition changes or beside it. `in_ratios`: log-probs are given
    as probabilities, so that ratios are rational.
    """

    pair: Pair
    in_ratios: bool

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

    def _value(self, e: Expression, at: Values) -> Any:
        """The value of a formula; None where it has none."""
        return attempt(lambda: differentiate(e, lambda a: self._atom(a, at), STRICT), TooClose, TooLarge)

    def _atom(self, a: Expression, at: Values) -> Any:
        if isinstance(a, (Count, Total)):
            number = Fraction(math.prod(int(at[s]) for s in counted(self.pair.shape, a)))
            return number * at[a.attribute] if isinstance(a, Total) else number
        if isinstance(a, LogProb):
            return self.log_prob(a.policy, at)
        return self.log_ratio(at) if a == token_log_ratio else at[self.one_of(a)]

    def log_prob(self, policy: Policy, at: Values) -> Real:
        """The log-prob of every token."""
        return scale(self.in_ratios)(at[self.one_of(LogProb(policy))])

    def log_ratio(self, at: Values) -> Real:
        """The log ratio of every token."""
        return self.log_prob(Policy(CURRENT), at) - self.log_prob(Policy(OLD), at)

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
                found[a] = Fraction(1, 2) if self.in_ratios else -ONE
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
                found |= dict.fromkeys(s for s in shape.order if s in counted(shape, a) - fixed)
            if a == token_log_ratio:
                found |= dict.fromkeys(self.one_of(LogProb(Policy(name))) for name in (CURRENT, OLD))
            found[self.one_of(a)] = None
        return [v for v in found if v in self.start]

    def _tries(self, v: object, at: Values) -> list[Fraction]:
        """Values where a condition changes if one thing moves, beside and between them."""
        p = v.parameter if isinstance(v, Component) else v
        low, high = p.ends if isinstance(p, Attribute) else ends(p) if isinstance(p, Parameter) else (None, None)
        if isinstance(v, LogProb):
            low, high = (ZERO, ONE) if self.in_ratios else (None, ZERO)
        points: set[Fraction] = set()
        for d in turning(self.conditions):
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
        if isinstance(v, LogProb):
            return [x for x in found if (0 < x <= 1 if self.in_ratios else x <= 0)]
        return [x for x in found if not (isinstance(p, (Attribute, Parameter)) and p.is_outside(x))]
