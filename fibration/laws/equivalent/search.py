"""Searches small batches for the smallest on which a coefficient of two losses differs. Nothing here uses sympy.

The batches fit both hierarchies and meet the conditions. Log ratios lie at the breakpoints of both losses, on both
sides of them, and far away. Parameters have their defaults and other values, different ones where possible.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from fibration.language.assumptions import Balanced
from fibration.language.atoms import (
    Attribute,
    Component,
    Density,
    Parameter,
    Stratum,
    Summary,
    Total,
    advantage,
    in_channel,
    read_at,
    residual,
)
from fibration.language.conditions import Equal, One, reads_tokens
from fibration.language.exact import NoValue, TooLarge, transcendental
from fibration.language.expressions import Apply, Expression
from fibration.language.hierarchy import Hierarchy
from fibration.language.operators import COMPARISONS
from fibration.language.pairs import Pair
from fibration.language.policies import LogProb
from fibration.language.traversal import applications, atoms, desugar, evaluate
from fibration.laws.batches.coefficients import Point
from fibration.laws.batches.concrete import Concrete, is_balanced, rounding
from fibration.laws.batches.search import find
from fibration.laws.batches.shapes import regular, small
from fibration.laws.batches.values_tried import OTHER_PATTERNS, POSITIVE_PATTERNS, parameter_values
from fibration.laws.batches.words import Witness
from fibration.laws.equivalent.counterexample import Token, witness
from fibration.laws.equivalent.log_prob_samples import Breaks, breaks, draw_log_probs, read_by, reads_policies
from fibration.laws.values.duals import TooClose, value_of
from fibration.laws.values.numerals import in_brief

MOST_TOKENS = 4
MOST_SHAPES = 40  # of one number of tokens
Points = tuple[Point, Point, tuple[Fraction, ...]]
Tries = Mapping[int, int]  # how many points are tried per number of tokens; key 0: larger regular batches
FEW: Tries = {1: 16, 2: 16, 3: 10, 4: 0, 0: 0}
MANY: Tries = {1: 200, 2: 300, 3: 200, 4: 100, 0: 40}
MOST_WIDE = 40  # tokens of a regular batch
ONE = Fraction(1)
exact_exp, exact_log = transcendental("exp"), transcendental("log")
HALF = exact_log(Fraction(1, 2))  # the log-prob used where a gate compares its residual with a function of one


def difference(pair: Pair, most: Tries, any_size: bool = False) -> Witness | None:
    """The smallest batch found on which a token has different coefficients in the two hierarchies; None if none is.

    `any_size`: the first batch found, which may not be the smallest. That takes less time.
    """
    if any(h.orthogonalise is not None for h in pair):
        return None
    off = rounding(*(e for h in pair for e in read_by(h))) * 10**5
    for n, number in most.items():
        found = _first(pair, n, number, off)
        if found is not None and any_size:
            return found
        if found is not None:
            smaller = (_first(pair, k, MANY[k], off) for k in range(1, n or MOST_TOKENS + 1) if most[k] < MANY[k])
            return next((w for w in smaller if w is not None), found)
    return None


def _first(pair: Pair, n: int, number: int, off: Fraction) -> Witness | None:
    """The first batch of `n` tokens on which a coefficient differs; rather one that differs in print too."""
    alike: list[Witness] = []

    def fails(tried: Points) -> Witness | None:
        point, other, rewards = tried
        try:
            mine, yours = map(_coefficients, (point, other))
        except (NoValue, TooLarge, TooClose):
            return None
        for token, c in mine.items():
            d = yours[token]
            if abs(c - d) > off * max(ONE, abs(c), abs(d)):
                found = witness(pair, (point, other), rewards, token, mine, yours, off)
                if in_brief(c) != in_brief(d):
                    return found
                alike.append(found)
                break
        return None

    return find(itertools.islice(points(pair, n), number), fails) or next(iter(alike), None)


def _coefficients(point: Point) -> dict[Token, Fraction]:
    """The coefficient of every token: that of the advantages, less that of the penalties."""
    both = zip(point.coefficients, point.penalised, strict=True)
    return dict(zip(point.dense.tokens, (c - p for c, p in both), strict=True))


def points(pair: Pair, n: int) -> Iterator[Points]:
    """Yields batches of `n` tokens, as a point for each hierarchy, and the tokens' rewards if there are any.

    `n = 0`: regular batches of more than `MOST_TOKENS` tokens.
    """
    rng = random.Random(n)
    if n:
        found = list(itertools.islice(small(pair.shape, n, pair.assume), MOST_SHAPES))
    else:
        made = regular(pair.shape, [1, 2, 3, 7], MOST_TOKENS, 100)
        found = [c.make() for c in made if MOST_TOKENS < c.leaves <= MOST_WIDE]
    shapes = [Concrete(pair.shape, maps) for maps in found]
    yield from _interleaved([_on(pair, c, rng) for c in shapes if allowed(pair, c)])


def _interleaved(many: Sequence[Iterator[Points]]) -> Iterator[Points]:
    """Yields one item of each iterator in turn, so that no shape uses up all tries."""
    left = list(many)
    while left:
        for one in list(left):
            found = next(one, None)
            if found is None:
                left.remove(one)
            else:
                yield found


def allowed(pair: Pair, concrete: Concrete) -> bool:
    """Whether a shape meets the `one(...)` conditions."""
    return not any(isinstance(c, One) and concrete.size[c.stratum] != 1 for c in pair.conditions)


def _on(pair: Pair, shape: Concrete, rng: random.Random) -> Iterator[Points]:
    """Yields points on one shape: values of attributes and parameters in turn, each with log ratios and advantages."""
    made = [_at(pair, c, rng) for c in _valued(pair, shape) if _holds_of(pair, c)]
    yield from _interleaved(made)


def _valued(pair: Pair, shape: Concrete) -> Iterator[Concrete]:
    """Yields a shape with values of attributes and parameters; also parameters of equal range with unequal values."""
    read = dict.fromkeys(a for h in pair for e in read_by(h) for a in atoms(e))
    read |= dict.fromkeys(a for c in pair.conditions if isinstance(c, Expression) for a in atoms(c))
    parameters: list[Expression] = [a for a in read if isinstance(a, (Parameter, Component))]
    attributes = list(
        dict.fromkeys(a.attribute if isinstance(a, Total) else a for a in read if isinstance(a, (Attribute, Total)))
    )
    choices = [parameter_values(a.parameter if isinstance(a, Component) else a) for a in parameters]  # type: ignore[arg-type]
    settings = [
        {p: c[(k + turn * j) % len(c)] for j, (p, c) in enumerate(zip(parameters, choices, strict=True))}
        for turn in (0, 1)
        for k in range(max((len(c) for c in choices), default=1))
    ]
    unique = list({tuple(s.values()): s for s in settings}.values())
    patterns = [(p, q) for p, q in zip(POSITIVE_PATTERNS[:3], (*OTHER_PATTERNS[2:], *OTHER_PATTERNS[:2]), strict=True)]
    for k in range(max(len(unique), len(patterns) if attributes else 1)):
        positive, other = patterns[k % len(patterns)]
        chosen = {a: positive if a.positive else other for a in attributes}
        values = {a: tuple(a.nearest(v(i)) for i in range(shape.size[a.on])) for a, v in chosen.items()}
        yield Concrete(shape.shape, shape.maps, values, unique[k % len(unique)])


def _holds_of(pair: Pair, concrete: Concrete) -> bool:
    """Whether a batch meets the `Balanced` assumptions of both hierarchies and `equal(...)` of counts and totals."""
    for h in pair:
        for a in h.assume:
            if isinstance(a, Balanced) and not is_balanced(h, concrete, a.first, a.second):
                return False
    for c in pair.conditions:
        if isinstance(c, Equal) and c.value != advantage:
            seen: dict[int, Fraction] = {}
            for leaf, i in _tokens(pair, concrete):
                if not all(_lies_over(concrete, leaf, s) for s in (c.on, read_at(c.value))):
                    continue
                value = concrete.value(c.value, leaf, i)
                if seen.setdefault(concrete.below(leaf, i, c.on), value) != value:
                    return False
    return True


def _lies_over(concrete: Concrete, leaf: Stratum, place: object) -> bool:
    """Whether a condition that is read at a place applies to the tokens of a leaf."""
    return not isinstance(place, Stratum) or place == leaf or place in concrete.shape.coarser(leaf)


def _tokens(pair: Pair, concrete: Concrete) -> list[Token]:
    return [(leaf, i) for leaf in pair.first.leaves for i in range(concrete.size[leaf])]


# ---------------------------------------------------------------- log ratios and advantages


def _at(pair: Pair, concrete: Concrete, rng: random.Random) -> Iterator[Points]:
    tokens = _tokens(pair, concrete)
    steps = list(_advantages(pair, concrete, tokens, rng))
    turns = itertools.cycle(steps)
    found = breaks(pair, concrete)
    of_tokens = [c for c in pair.conditions if isinstance(c, Expression) and reads_tokens(c)]
    for drifts, as_ratios in _drifts(pair, concrete, found, len(tokens), rng) if steps else ():
        for a in (next(turns), next(turns)) if len(steps) > 1 else steps:
            drawn = draw_log_probs(pair, found, drifts, as_ratios, rng) if reads_policies(pair) else None
            made = []
            for h in pair:
                order = [tokens.index((leaf, i)) for leaf in h.leaves for i in range(concrete.size[leaf])]
                xs, mine = tuple(drifts[k] for k in order), tuple(a[k] for k in order)
                ratios = tuple(1 + x for x in xs) if as_ratios else None
                log_probs = drawn.log_probs(order) if drawn else {}
                made.append(Point(h, concrete, xs, mine, ratios, strict=True, log_probs=log_probs))
            if pair.takes_rewards:
                try:
                    made = [_of_rewards(p) for p in made]
                except (NoValue, TooLarge, TooClose):
                    continue
                if not all(_advantages_meet_conditions(pair, p) for p in made):
                    continue
            if all(_holds_at(c, made[0]) for c in of_tokens):
                yield made[0], made[1], a if pair.takes_rewards else ()


def _of_rewards(point: Point) -> Point:
    """The point with the advantages that its loss computes; `point.advantages` are taken as rewards."""
    assert point.h.advantages is not None
    here = replace(point.at_tokens, rewards=point.advantages)
    found = (value_of(here.value(point.h.advantages, k)) for k in range(len(point.advantages)))
    return replace(point, advantages=tuple(found))


def _advantages_meet_conditions(pair: Pair, point: Point) -> bool:
    """Whether advantages computed from rewards meet the conditions."""
    given = dict(zip(point.dense.tokens, point.advantages, strict=True))
    for c in pair.conditions:
        if isinstance(c, Equal) and c.value == advantage:
            seen: dict[int, Fraction] = {}
            over = {t: a for t, a in given.items() if _lies_over(point.concrete, t[0], c.on)}
            if any(seen.setdefault(point.concrete.below(*t, c.on), a) != a for t, a in over.items()):
                return False
    of_advantages = [c for c in pair.conditions if isinstance(c, Expression) and not reads_tokens(c)]
    return all(_holds(c, point.concrete, t, a) for c in of_advantages for t, a in given.items())


def _advantages(
    pair: Pair, concrete: Concrete, tokens: Sequence[Token], rng: random.Random
) -> Iterator[tuple[Fraction, ...]]:
    """Yields advantages, or rewards if the pair takes those, that meet the conditions: of one sign, of both, and 0."""
    of_rows = [pair.first.rows] if pair.has_rewards_of_rows else []
    same = [c.on for c in pair.conditions if isinstance(c, Equal) and c.value == advantage] or of_rows
    part = _parts(concrete, tokens, same)
    n = max(part) + 1
    patterns: list[tuple[Fraction, ...]] = [(ONE,) * n, (-ONE,) * n]
    mixed = [tuple(ONE if i == k else -ONE for i in range(n)) for k in range(min(n, 2)) if n > 1]
    # equal rewards often make no advantage; the first patterns are tried at ratio 1, where a batch is easy to read
    patterns = [*mixed, *patterns] if pair.takes_rewards else [*patterns, *mixed]
    patterns += [tuple(Fraction(rng.choice((-3, -2, -1, 0, 1, 2, 3)), 2) for _ in range(n)) for _ in range(3)]
    of_advantages = [c for c in pair.conditions if isinstance(c, Expression) and not reads_tokens(c)]
    of_advantages = [c for c in of_advantages if not (pair.takes_rewards and advantage in atoms(c))]
    for pattern in dict.fromkeys(patterns):
        a = tuple(pattern[part[k]] for k in range(len(tokens)))
        if any(a) and all(_holds(c, concrete, token, a[k]) for c in of_advantages for k, token in enumerate(tokens)):
            yield a


def _holds(condition: Expression, concrete: Concrete, token: Token, a: Fraction) -> bool:
    if not all(_lies_over(concrete, token[0], read_at(e)) for e in atoms(condition)):
        return True
    try:
        return bool(evaluate(condition, lambda e: a if e == advantage else concrete.atom(e, *token)))
    except (NoValue, TooLarge):
        return False


def _holds_at(condition: Expression, point: Point) -> bool:
    """Whether a condition on log-probs holds at every token."""
    try:
        return all(point.at_tokens.value(condition, k) for k in range(len(point.advantages)))
    except (NoValue, TooLarge, TooClose):
        return False


def _parts(concrete: Concrete, tokens: Sequence[Token], same: list[Stratum]) -> list[int]:
    """Numbers the advantages of the tokens: all tokens over one element of a stratum in `same` share a number."""
    part = list(range(len(tokens)))
    for s in same:
        seen: dict[int, int] = {}
        for k, (leaf, i) in enumerate(tokens):
            if _lies_over(concrete, leaf, s):
                first = seen.setdefault(concrete.below(leaf, i, s), part[k])
                part = [first if p == part[k] else p for p in part]
    names = {p: i for i, p in enumerate(dict.fromkeys(part))}
    return [names[p] for p in part]


def _drifts(
    pair: Pair, concrete: Concrete, known: Breaks, n: int, rng: random.Random
) -> Iterator[tuple[tuple[Fraction, ...], bool]]:
    """Yields all tokens' log ratios, or (True) deviations of ratios from 1: at and beside breakpoints, and far away."""
    zero = (Fraction(0),) * n
    if pair.is_on_policy:
        yield from [(zero, False)] * (12 if reads_policies(pair) else 4)
        return
    points = breakpoints(pair, concrete)
    logs = {_readable_size(t) for t in points} | set(known.log_ratios)
    deviations = {d for t in points if (d := _deviation(t)) is not None}  # exact at a breakpoint
    deviations |= set(known.deviations)
    acting = {_acts_on_ratios(h) for h in pair}
    if True in acting:
        deviations |= logs
    for as_ratios, found in ((True, deviations), (False, logs if False in acting else set())):
        if not found and as_ratios not in acting:
            continue
        sizes = sorted({*map(abs, found), Fraction(1, 3)})
        values = [*sorted(found), *(v for t in sizes for v in (t, 2 * t, t / 2, -t, -t / 2, -2 * t))]
        yield from ((d, as_ratios) for d in _patterns(zero, list(dict.fromkeys(values)), as_ratios, rng))


def _patterns(
    zero: tuple[Fraction, ...], values: list[Fraction], as_ratios: bool, rng: random.Random
) -> Iterator[tuple[Fraction, ...]]:
    """Yields values for the tokens: all equal, one different, with their mean at a breakpoint, alternating, or any."""
    n, fine = len(zero), [v for v in values if not as_ratios or v > -1]
    yield zero
    if n == 1:
        yield from ((v,) for v in fine)
        return
    for _ in range(200):
        v, u = rng.choice(fine), rng.choice(fine)
        kinds = (
            [v] * n,
            [v if i == n - 1 else Fraction(0) for i in range(n)],
            [v + rng.choice((-1, 0, 1)) * u for i in range(n)],
            [v if i % 2 else u for i in range(n)],
            [rng.choice(fine) for _ in range(n)],
        )
        yield from (tuple(kind) for kind in kinds if not as_ratios or all(d > -1 for d in kind))


def _readable_size(t: Fraction) -> Fraction:
    return t if t.denominator < 10**9 else t.limit_denominator(10**6)


def _deviation(t: Fraction) -> Fraction | None:
    """`r - 1` of the log ratio `t`, if `r` is a short rational."""
    r = exact_exp(t).limit_denominator(10**6)
    return r - 1 if r and abs(exact_log(r) - t) < Fraction(1, 10**40) else None


def _acts_on_ratios(h: Hierarchy) -> bool:
    """Whether densities contain an exponential, so that gates have their breakpoints in the ratio."""
    return any(applications(e, "exp", "expm1") for _, e in h.decomposition.densities)


def breakpoints(pair: Pair, concrete: Concrete) -> list[Fraction]:
    """Residuals, in units of the leaf measure, at which a comparison of a gate changes sides, if it is affine."""
    found: dict[Fraction, None] = {}
    for h in pair:
        for s, m, comparison in comparisons(h):
            if not concrete.size[s]:
                continue
            size = concrete.attempt(m, s, 0)
            read = [a for a in atoms(comparison) if a not in (residual, advantage) and not isinstance(a, Density)]
            if any(isinstance(a, Summary) for a in read):
                continue
            known = tuple((a, HALF if isinstance(a, LogProb) else concrete.atom(a, s, 0)) for a in read)
            for a in (ONE, -ONE) if size else ():
                root = _root(comparison, known, size or ONE, a)
                if root and Fraction(1, 10**9) < abs(root) < 50:
                    found[root] = None
    return list(found)[:12]


@functools.lru_cache(maxsize=64)
def comparisons(h: Hierarchy) -> tuple[tuple[Stratum, Expression, Apply], ...]:
    """The comparisons of gates that read the residual, each with its stratum and the stratum's mass."""
    found: dict[tuple[Stratum, Expression, Apply], None] = {}
    for s in h.order:
        for channel in h.decomposition.channels:
            compared = applications(desugar(in_channel(h.gate(s), channel)), *COMPARISONS)
            found |= {(s, h.masses[s], c): None for c in compared if residual in atoms(c)}
    return tuple(found)


@functools.lru_cache(maxsize=4096)
def _root(
    comparison: Apply, known: tuple[tuple[Expression, Fraction], ...], m: Fraction, a: Fraction
) -> Fraction | None:
    """The residual, in units of `m`, at which both sides are equal; None if their difference is not affine in it."""
    difference = comparison.arguments[0] - comparison.arguments[1]
    at = dict.fromkeys((d for d in atoms(difference, Density)), Fraction(0)) | dict(known)
    try:
        y = [evaluate(difference, {**at, residual: m * t, advantage: a}) for t in (0, 1, 2)]
    except (NoValue, TooLarge):
        return None
    return None if y[2] - y[1] != y[1] - y[0] or y[1] == y[0] else -y[0] / (y[1] - y[0])
