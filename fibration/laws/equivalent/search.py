"""Searches small batches for the smallest on which a coefficient of two losses differs. Nothing here uses sympy.

The batches fit both hierarchies and meet the conditions. Log ratios lie at the breakpoints of both losses, on both
sides of them, and far away. Parameters have their defaults and other values, different ones where possible.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction

from fibration.language.atoms import Attribute, Component, Parameter, Stratum, Total, advantage, read_at
from fibration.language.conditions import WHOLE, Equal
from fibration.language.exact import TooLarge
from fibration.language.expressions import Expression
from fibration.language.pairs import Pair
from fibration.language.traversal import applications, atoms
from fibration.laws.batches.coefficients import Place, Point, attempt
from fibration.laws.batches.concrete import Concrete, Witness, rounding
from fibration.laws.batches.search import OTHER_PATTERNS, POSITIVE_PATTERNS, find, in_step, parameter_values
from fibration.laws.batches.shapes import regular, small
from fibration.laws.equivalent import log_prob_samples as samples
from fibration.laws.equivalent.conditions_met import Points, alike, at_rest, holds_of, meets, points_at
from fibration.laws.values.duals import LogOf, Real, TooClose, value_of
from fibration.laws.values.numerals import in_brief, rounded, shown

ONE, ZERO = Fraction(1), Fraction(0)
MOST_TOKENS = 4
MOST_SHAPES = 40  # of one number of tokens
Tries = Mapping[int, int]  # how many points are tried per number of tokens; key 0: larger regular batches
FEW: Tries = {1: 16, 2: 16, 3: 10, 4: 0, 0: 0}
MANY: Tries = {1: 200, 2: 300, 3: 200, 4: 100, 0: 40}
MOST_WIDE = 40  # tokens of a regular batch
Breaks = Callable[[], samples.Breaks]
PER_BATCH = 4  # batches that are drawn for each that may be tried: conditions may be rare


def difference(pair: Pair, most: Tries, any_size: bool = False) -> Witness | None:
    """The smallest batch found on which a token has different coefficients in the two hierarchies; None if none is.

    `any_size`: the first batch found, which may not be the smallest. That takes less time.
    """
    if not is_evaluated(pair):
        return None
    off = rounding(*(e for h in pair for e in samples.read_by(h))) * 10**5
    for n, number in most.items():
        found = _first(pair, n, number, off)
        if found is not None and any_size:
            return found
        if found is not None:
            smaller = (_first(pair, k, MANY[k], off) for k in range(1, n or MOST_TOKENS + 1) if most[k] < MANY[k])
            return next((w for w in smaller if w is not None), found)
    return None


def is_evaluated(pair: Pair) -> bool:
    """Whether both losses are evaluated exactly: residuals of a projection are not."""
    return all(h.orthogonalise is None for h in pair)


def _first(pair: Pair, n: int, number: int, off: Fraction) -> Witness | None:
    """The first batch of `n` tokens on which a coefficient differs; rather one that differs in print too."""
    same: list[Witness] = []

    def fails(tried: Points) -> Witness | None:
        point, other, rewards = tried
        found = attempt(lambda: [_coefficients(p) for p in (point, other)], TooLarge, TooClose)
        if found is None:
            return None
        mine, yours = found
        for token, c in mine.items():
            d = yours[token]
            if abs(c - d) > off * max(ONE, abs(c), abs(d)):
                apart = witness(pair, (point, other), rewards, token, mine, yours, off)
                if in_brief(c) != in_brief(d):
                    return apart
                same.append(apart)
                break
        return None

    tried = (p for p in itertools.islice(points(pair, n), PER_BATCH * number) if p is not None)
    return find(itertools.islice(tried, number), fails) or next(iter(same), None)


@functools.lru_cache(64)
def has_batches(pair: Pair) -> bool:
    """Whether a batch was found that meets the conditions, so that a proof says something."""
    if not (pair.when or pair.ranges) or any(p is not None for p in alike(pair)):
        return True
    return any(p is not None for n, number in MANY.items() for p in itertools.islice(points(pair, n), number))


def _coefficients(point: Point) -> dict[Place, Fraction]:
    """The coefficient of every token: that of the advantages, less that of the penalties."""
    both = zip(point.coefficients, point.penalised, strict=True)
    return dict(zip(point.places, (c - p for c, p in both), strict=True))


def points(pair: Pair, n: int) -> Iterator[Points | None]:
    """Yields batches of `n` tokens, as a point for each hierarchy, and the tokens' rewards if there are any.

    None in the place of a batch that does not meet the conditions. `n = 0`: regular batches of more than `MOST_TOKENS`
    tokens. The first batch of at most `MOST_WIDE` tokens that meets the conditions may have another number.
    """
    rng = random.Random(n)
    if pair.when or pair.ranges:
        yield from alike(pair, n or MOST_WIDE)
    if n:
        found = list(itertools.islice(small(pair.shape, n, pair.assume), MOST_SHAPES))
    else:
        made = regular(pair.shape, [1, 2, 3, 7], MOST_TOKENS, 100)
        found = [c.make() for c in made if MOST_TOKENS < c.leaves <= MOST_WIDE]
    # per shape, values of attributes and parameters in turn, each with log ratios and advantages
    yield from _interleaved(
        _interleaved(_at(pair, c, rng) for c in _valued(pair, Concrete(pair.shape, maps)) if holds_of(pair, c))
        for maps in found
    )


def _interleaved(many: Iterable[Iterator[Points | None]]) -> Iterator[Points | None]:
    """Yields one item of each iterator in turn, so that no shape uses up all tries."""
    left = deque(many)
    while left:
        one = left.popleft()
        for found in itertools.islice(one, 1):
            yield found
            left.append(one)


def _valued(pair: Pair, shape: Concrete) -> Iterator[Concrete]:
    """Yields a shape with values of attributes and parameters; also parameters of equal range with unequal values."""
    read = dict.fromkeys(a for h in pair for e in samples.read_by(h) for a in atoms(e))
    read |= dict.fromkeys(a for c in pair.conditions if isinstance(c, Expression) for a in atoms(c))
    parameters = {
        a: a.parameter if isinstance(a, Component) else a for a in read if isinstance(a, (Parameter, Component))
    }
    attributes = dict.fromkeys(
        a.attribute if isinstance(a, Total) else a for a in read if isinstance(a, (Attribute, Total))
    )
    settings = in_step({a: parameter_values(p) for a, p in parameters.items()})
    unique = list({tuple(s.values()): s for s in settings}.values())
    patterns = [(p, q) for p, q in zip(POSITIVE_PATTERNS[:3], (*OTHER_PATTERNS[2:], *OTHER_PATTERNS[:2]), strict=True)]
    for k in range(max(len(unique), len(patterns) if attributes else 1)):
        positive, other = patterns[k % len(patterns)]
        chosen = {a: positive if a.positive else other for a in attributes}
        values = {a: tuple(a.nearest(v(i)) for i in range(shape.size[a.on])) for a, v in chosen.items()}
        yield Concrete(shape.shape, shape.maps, values, _per_element(shape, unique, k))


def _per_element(
    shape: Concrete, settings: Sequence[Mapping[Expression, Fraction]], k: int
) -> dict[Expression, Fraction | tuple[Fraction, ...]]:
    """The k-th values of parameters; of one with `on=`, those after it too, one for each element.

    Of one name in two losses, a parameter has the value of the first element where it has a single one.
    """
    found: dict[Expression, Fraction | tuple[Fraction, ...]] = {}
    first: dict[str, Fraction] = {}
    for p in sorted(settings[0], key=lambda p: read_at(p) is None):
        n = shape.size[on] if isinstance(on := read_at(p), Stratum) else 1
        each = [settings[(k + i) % len(settings)][p] for i in range(n)]
        value = first.setdefault(str(p), each[0])
        found[p] = (value, *each[1:]) if isinstance(on, Stratum) else value
    return found


# ---------------------------------------------------------------- log ratios and advantages


def _at(pair: Pair, concrete: Concrete, rng: random.Random) -> Iterator[Points | None]:
    steps = list(_advantages(pair, concrete, rng))
    # equal rewards make no advantage in most losses, so they are tried once
    telling = [a for a in steps if len(set(a)) > 1] if pair.takes_rewards else []
    turns = itertools.chain(steps, itertools.cycle(telling or steps))
    found = functools.cache(lambda: samples.breaks(pair, concrete))  # not for the first points
    read = samples.reads_policies(pair)
    for log_ratios in _log_ratios(pair, found, concrete.tokens, rng) if steps else ():
        for a in (next(turns), next(turns)) if len(steps) > 1 else steps:
            log_probs = samples.draw_log_probs(pair, found(), log_ratios, rng) if read else {}
            yield points_at(pair, concrete, log_ratios, a, log_probs)


def _advantages(pair: Pair, concrete: Concrete, rng: random.Random) -> Iterator[tuple[Fraction, ...]]:
    """Yields advantages, or rewards if the pair takes those, that meet the conditions: of one sign, of both, and 0."""
    of_rows = [pair.first.rows] if pair.has_rewards_of_rows else []
    same = [c.on for c in pair.conditions if isinstance(c, Equal) and c.value == advantage] or of_rows
    part = _parts(concrete, at_rest(pair, concrete).places, same)
    n = max(part) + 1
    patterns: list[tuple[Fraction, ...]] = [(ONE,) * n, (-ONE,) * n]
    mixed = [tuple(ONE if i == k else -ONE for i in range(n)) for k in range(min(n, 2)) if n > 1]
    # equal rewards often make no advantage; the first patterns are tried at ratio 1, where a batch is easy to read
    patterns = [*mixed, *patterns] if pair.takes_rewards else [*patterns, *mixed]
    patterns += [tuple(Fraction(rng.choice((-3, -2, -1, 0, 1, 2, 3)), 2) for _ in range(n)) for _ in range(3)]
    for pattern in dict.fromkeys(patterns):
        a = tuple(pattern[p] for p in part)
        if any(a) and (pair.takes_rewards or meets(pair, at_rest(pair, concrete, a), "advantages")):
            yield a


def _parts(concrete: Concrete, tokens: Sequence[Place], same: list[Stratum]) -> list[int]:
    """Numbers the advantages of the tokens: all tokens over one element of a stratum in `same` share a number."""
    part = list(range(len(tokens)))
    for s in same:
        seen: dict[int, int] = {}
        for k, (leaf, i) in enumerate(tokens):
            if s in (leaf, *concrete.shape.coarser(leaf)):
                first = seen.setdefault(concrete.below(leaf, i, s), part[k])
                part = [first if p == part[k] else p for p in part]
    names = {p: i for i, p in enumerate(dict.fromkeys(part))}
    return [names[p] for p in part]


def _log_ratios(pair: Pair, found: Breaks, n: int, rng: random.Random) -> Iterator[tuple[Real, ...]]:
    """Yields log ratios of all tokens: at and beside breakpoints, and far away.

    Of rational ratios first, which are at a breakpoint of ratios exactly: such values deviate from 1 as log ratios do
    from 0, so that a mean of ratios is at a breakpoint too.
    """
    acting = {any(applications(e, "exp", "expm1") for _, e in h.decomposition.densities) for h in pair}
    zero = (ZERO,) * n
    if pair.is_on_policy:
        yield from [zero] * (12 if samples.reads_policies(pair) else 4)
        return
    yield (samples.scale(True in acting)(ZERO + (True in acting)),) * n
    for in_ratios in (True, False):
        here = [x for x in found().current if isinstance(x, LogOf) is in_ratios]
        points = [x.ratio - 1 if isinstance(x, LogOf) else value_of(x) for x in here]
        if not points and in_ratios not in acting:
            continue
        sizes = sorted({*map(abs, points), Fraction(1, 3)})
        values = [*sorted(points), *(v for t in sizes for v in (t, 2 * t, t / 2, -t, -t / 2, -2 * t))]
        fine = [v for v in dict.fromkeys(values) if not in_ratios or v > -1]
        patterns = ((v,) for v in fine) if n == 1 else _patterns(zero, fine, rng)
        log_prob = samples.scale(in_ratios)
        yield from (tuple(log_prob(in_ratios + v) for v in p) for p in patterns if not in_ratios or min(p) > -1)


def _patterns(
    zero: tuple[Fraction, ...], values: Sequence[Fraction], rng: random.Random
) -> Iterator[tuple[Fraction, ...]]:
    """Yields values for the tokens: as `kinds`, and with their mean at a breakpoint."""
    for _ in range(200):
        v, u = rng.choice(values), rng.choice(values)
        around = [v + rng.choice((-1, 0, 1)) * u for _ in zero]
        yield from map(tuple, (*samples.kinds(len(zero), ZERO, values, rng), around))


# ---------------------------------------------------------------- the counterexample


def witness(
    pair: Pair,
    points: tuple[Point, Point],
    rewards: Sequence[Fraction],
    token: Place,
    mine: Mapping[Place, Fraction],
    yours: Mapping[Place, Fraction],
    off: Fraction,
) -> Witness:
    """The counterexample in words and in numbers: the batch, its policies, and its rewards if there are any."""
    point, other = points
    concrete, (leaf, element) = point.concrete, token
    first, second = (f"'{h.name}'" for h in pair)
    if first == second:
        first, second = "the first", "the second"
    what, given = _in_words("ratios", "log ratios", point.log_ratios)
    each = {p: _in_words("probabilities", "log-probs", values) for p, values in point.log_probs.items()}
    of_policies = "".join(f", {named} {_listed(*v)} under {p}" for p, (named, v) in each.items())
    attributes = "".join(f", {a.name} {_listed(*v)}" for a, v in concrete.attributes.items())
    advantages = f"advantages {_listed(*point.advantages)}"
    theirs = tuple(dict(zip(other.places, other.advantages, strict=True))[t] for t in mine)
    if rewards:
        who = f"both make the {advantages}"
        if theirs != point.advantages:
            who = f"{first} makes the {advantages} and {second} {_listed(*theirs)}"
        advantages = f"rewards {_listed(*rewards)}, of which {who}"
    text = (
        f"on {_place(pair, concrete)}{concrete.chosen}{attributes}: with {what} {_listed(*given)}{of_policies} and "
        f"{advantages}, {leaf} {element + 1} has the coefficient {_listed(mine[token])} in "
        f"{first} and {_listed(yours[token])} in {second}"
    )
    values = {
        "tokens": [f"{s} {i + 1}" for s, i in mine], what.replace(" ", "_"): given, "advantages": point.advantages,
        "token": f"{leaf} {element + 1}", "coefficients": tuple(rounded(c, off) for c in mine.values()),
        "other_coefficients": tuple(rounded(yours[t], off) for t in mine),
    }  # fmt: skip
    if rewards:
        values |= {"rewards": tuple(rewards), "other_advantages": theirs}
    values |= {f"{named.replace('-', '_')} of {p}": v for p, (named, v) in each.items()}
    return Witness(text, concrete, values)


def _in_words(rational: str, other: str, values: Sequence[Real]) -> tuple[str, tuple[Fraction, ...]]:
    """Log-probs by name: their exponentials if all of these are rational."""
    if all(isinstance(v, LogOf) for v in values):
        return rational, tuple(v.ratio for v in values if isinstance(v, LogOf))
    return other, tuple(map(value_of, values))


def _listed(*values: Fraction) -> str:
    """Rational numbers; of a long one six digits."""
    return ", ".join(str(v) if len(str(v)) <= 16 else shown(v) for v in values)


def _place(pair: Pair, concrete: Concrete) -> str:
    """The batch in words, from the finest stratum that has one element, as all coarser strata have."""
    single = [s for s in pair.shape.order if concrete.size[s] == 1 and pair.shape.above(s)]
    whole = [s for s in single if all(concrete.size[u] == 1 for u in pair.shape.strata if s in pair.shape.finer(u))]
    return concrete.describe(whole[-1] if whole else WHOLE)
