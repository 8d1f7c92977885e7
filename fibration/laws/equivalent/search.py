"""Searches small batches for the smallest on which a coefficient of two losses differs. Nothing here uses sympy.

The batches fit both hierarchies and meet the conditions. Log ratios lie at the breakpoints of both losses, on both
sides of them, and far away. Parameters have their defaults and other values, different ones where possible.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction

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
from fibration.language.conditions import WHOLE, Equal
from fibration.language.exact import NoValue, TooLarge, transcendental
from fibration.language.expressions import Apply, Expression
from fibration.language.hierarchy import Hierarchy
from fibration.language.operators import COMPARISONS
from fibration.language.pairs import Pair
from fibration.language.policies import LogProb
from fibration.language.traversal import applications, atoms, desugar, evaluate
from fibration.laws.batches.coefficients import Point
from fibration.laws.batches.concrete import Concrete, Witness, rounding
from fibration.laws.batches.search import OTHER_PATTERNS, POSITIVE_PATTERNS, find, parameter_values
from fibration.laws.batches.shapes import regular, small
from fibration.laws.equivalent.conditions_met import (
    Points,
    Token,
    alike,
    has_shape,
    holds,
    holds_of,
    lies_over,
    of_advantages,
    points_at,
    tokens_of,
)
from fibration.laws.equivalent.log_prob_samples import Breaks, breaks, draw_log_probs, read_by, reads_policies
from fibration.laws.values.duals import LogOf, TooClose, value_of
from fibration.laws.values.numerals import in_brief, rounded, shown

MOST_TOKENS = 4
MOST_SHAPES = 40  # of one number of tokens
Tries = Mapping[int, int]  # how many points are tried per number of tokens; key 0: larger regular batches
FEW: Tries = {1: 16, 2: 16, 3: 10, 4: 0, 0: 0}
MANY: Tries = {1: 200, 2: 300, 3: 200, 4: 100, 0: 40}
MOST_WIDE = 40  # tokens of a regular batch
PER_BATCH = 4  # batches that are drawn for each that may be tried: conditions may be rare
ONE = Fraction(1)
exact_exp, exact_log = transcendental("exp"), transcendental("log")
HALF = exact_log(Fraction(1, 2))  # the log-prob used where a gate compares its residual with a function of one


def difference(pair: Pair, most: Tries, any_size: bool = False) -> Witness | None:
    """The smallest batch found on which a token has different coefficients in the two hierarchies; None if none is.

    `any_size`: the first batch found, which may not be the smallest. That takes less time.
    """
    if not is_evaluated(pair):
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


def is_evaluated(pair: Pair) -> bool:
    """Whether both losses are evaluated exactly: residuals of a projection are not."""
    return all(h.orthogonalise is None for h in pair)


def _first(pair: Pair, n: int, number: int, off: Fraction) -> Witness | None:
    """The first batch of `n` tokens on which a coefficient differs; rather one that differs in print too."""
    same: list[Witness] = []

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
                same.append(found)
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


def _coefficients(point: Point) -> dict[Token, Fraction]:
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
    shapes = (Concrete(pair.shape, maps) for maps in found)
    # per shape, values of attributes and parameters in turn, each with log ratios and advantages
    yield from _interleaved(
        _interleaved(_at(pair, c, rng) for c in _valued(pair, shape) if holds_of(pair, c))
        for shape in shapes
        if has_shape(pair, shape)
    )


def _interleaved(many: Iterable[Iterator[Points | None]]) -> Iterator[Points | None]:
    """Yields one item of each iterator in turn, so that no shape uses up all tries."""
    left = list(many)
    while left:
        for one in list(left):
            for found in one:
                yield found
                break
            else:
                left.remove(one)


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
    tokens = tokens_of(pair, concrete)
    steps = list(_advantages(pair, concrete, tokens, rng))
    # equal rewards make no advantage in most losses, so they are tried once
    telling = [a for a in steps if len(set(a)) > 1] if pair.takes_rewards else []
    turns = itertools.chain(steps, itertools.cycle(telling or steps))
    found = breaks(pair, concrete)
    for drifts, as_ratios in _drifts(pair, concrete, found, len(tokens), rng) if steps else ():
        for a in (next(turns), next(turns)) if len(steps) > 1 else steps:
            drawn = draw_log_probs(pair, found, drifts, as_ratios, rng) if reads_policies(pair) else None
            yield points_at(pair, concrete, drifts, as_ratios, a, drawn)


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
    asked = [] if pair.takes_rewards else of_advantages(pair)
    for pattern in dict.fromkeys(patterns):
        a = tuple(pattern[part[k]] for k in range(len(tokens)))
        if any(a) and all(holds(c, concrete, token, a[k]) for c in asked for k, token in enumerate(tokens)):
            yield a


def _parts(concrete: Concrete, tokens: Sequence[Token], same: list[Stratum]) -> list[int]:
    """Numbers the advantages of the tokens: all tokens over one element of a stratum in `same` share a number."""
    part = list(range(len(tokens)))
    for s in same:
        seen: dict[int, int] = {}
        for k, (leaf, i) in enumerate(tokens):
            if lies_over(concrete, leaf, s):
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
    logs = {t if t.denominator < 10**9 else t.limit_denominator(10**6) for t in points} | set(known.log_ratios)
    deviations = {d for t in points if (d := _deviation(t)) is not None}  # exact at a breakpoint
    deviations |= set(known.deviations)
    # gates of densities with an exponential have their breakpoints in the ratio
    acting = {any(applications(e, "exp", "expm1") for _, e in h.decomposition.densities) for h in pair}
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


def _deviation(t: Fraction) -> Fraction | None:
    """`r - 1` of the log ratio `t`, if `r` is a short rational."""
    r = exact_exp(t).limit_denominator(10**6)
    return r - 1 if r and abs(exact_log(r) - t) < Fraction(1, 10**40) else None


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


# ---------------------------------------------------------------- the counterexample


def witness(
    pair: Pair,
    points: tuple[Point, Point],
    rewards: Sequence[Fraction],
    token: Token,
    mine: Mapping[Token, Fraction],
    yours: Mapping[Token, Fraction],
    off: Fraction,
) -> Witness:
    """The counterexample in words and in numbers: the batch, its policies, and its rewards if there are any."""
    point, other = points
    concrete, (leaf, element) = point.concrete, token
    first, second = (f"'{h.name}'" for h in pair)
    if first == second:
        first, second = "the first", "the second"
    what, given = ("log ratios", point.log_ratios) if point.ratios is None else ("ratios", point.ratios)
    named, of_policy = _probabilities(point)
    of_policies = "".join(f", {named} {_listed(*v)} under {p}" for p, v in of_policy.items())
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
    values |= {f"{named.replace('-', '_')} of {p}": v for p, v in of_policy.items()}
    return Witness(text, concrete, values)


def _probabilities(point: Point) -> tuple[str, dict[str, tuple[Fraction, ...]]]:
    """The tokens' probabilities under each policy if all are rational, else their log-probs; and which it is."""
    if all(isinstance(v, LogOf) for values in point.log_probs.values() for v in values):
        found = {p: tuple(v.ratio for v in values if isinstance(v, LogOf)) for p, values in point.log_probs.items()}
        return "probabilities", found
    return "log-probs", {p: tuple(map(value_of, values)) for p, values in point.log_probs.items()}


def _listed(*values: Fraction) -> str:
    """Rational numbers; of a long one six digits."""
    return ", ".join(str(v) if len(str(v)) <= 16 else shown(v) for v in values)


def _place(pair: Pair, concrete: Concrete) -> str:
    """The batch in words, from the finest stratum that has one element, as all coarser strata have."""
    single = [s for s in pair.shape.order if concrete.size[s] == 1 and pair.shape.above(s)]
    whole = [s for s in single if all(concrete.size[u] == 1 for u in pair.shape.strata if s in pair.shape.finer(u))]
    return concrete.describe(whole[-1] if whole else WHOLE)
