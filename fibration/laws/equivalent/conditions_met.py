"""Whether a batch meets the conditions of a pair. Nothing here uses sympy."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

from fibration.language.assumptions import Balanced
from fibration.language.atoms import Attribute, Component, Parameter, Stratum, advantage, read_at, reward
from fibration.language.conditions import Equal, One, reads_tokens
from fibration.language.exact import NoValue, TooLarge
from fibration.language.expressions import Expression
from fibration.language.pairs import Pair
from fibration.language.policies import CURRENT, OLD, LogProb, Policy
from fibration.language.traversal import applications, atoms
from fibration.laws.batches.coefficients import Point
from fibration.laws.batches.concrete import Concrete, is_balanced
from fibration.laws.batches.shapes import edges, regular_one
from fibration.laws.equivalent.alike import Alike, Values
from fibration.laws.equivalent.counterexample import Token
from fibration.laws.equivalent.log_prob_samples import PolicyLogProbs, reads_policies
from fibration.laws.values.duals import STRICT, LogOf, TooClose, value_of

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
            seen: dict[int, Fraction] = {}
            for leaf, i in tokens_of(pair, concrete):
                if not all(lies_over(concrete, leaf, s) for s in (c.on, read_at(c.value))):
                    continue
                value = concrete.value(c.value, leaf, i)
                if seen.setdefault(concrete.below(leaf, i, c.on), value) != value:
                    return False
    given = [c for c in pair.conditions if isinstance(c, Expression)]
    plain = [c for c in given if not (reads_tokens(c) or advantage in atoms(c))]
    return all(holds(c, concrete, token) for c in plain for token in tokens_of(pair, concrete))


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
    for c in pair.conditions:
        if isinstance(c, Equal) and c.value == advantage:
            seen: dict[int, Fraction] = {}
            over = {t: a for t, a in given.items() if lies_over(point.concrete, t[0], c.on)}
            if any(seen.setdefault(point.concrete.below(*t, c.on), a) != a for t, a in over.items()):
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
