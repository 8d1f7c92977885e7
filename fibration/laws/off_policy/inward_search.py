"""Searches small batches, in exact rationals, for gates that push a residual further out than their budget.

A level passes on the pull on its residual times the slope of its gate. So it pushes further out where the product of
slope, pull and residual is above 0.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

from fibration.compiler.keys import Key
from fibration.language.assumptions import balanced
from fibration.language.atoms import (
    Attribute,
    Component,
    Count,
    Density,
    Parameter,
    Reading,
    Stratum,
    Summary,
    Total,
    advantage,
    gated,
    in_channel,
    pull,
)
from fibration.language.exact import NoValue, TooLarge
from fibration.language.expressions import Expression
from fibration.language.hierarchy import Hierarchy
from fibration.language.places import whole_batch
from fibration.language.policies import LogProb
from fibration.language.statistics import Aggregate
from fibration.language.traversal import atoms
from fibration.laws.batches import caps
from fibration.laws.batches.coefficients import Point, differentiate, formulas
from fibration.laws.batches.concrete import Concrete, Witness, in_batch, rounding
from fibration.laws.batches.first_update import directions
from fibration.laws.batches.search import concretes, find, leaves_one_alone, smallest
from fibration.laws.values.duals import Dual, slopes_of, value_of
from fibration.laws.values.intervals import branching
from fibration.laws.values.numerals import in_brief, rounded
from fibration.laws.values.probes import between

MOST_TOKENS, MOST_SHAPES = 4, 60  # of batches with usual values
MOST_POINTS = 500  # drifts of all batches together
SIZES = tuple(Fraction(n, 100) * Fraction(5, 4) ** k for n in (1, 100) for k in range(20))  # how far tokens drift
FALLS = (Fraction(1, 10), Fraction(3, 5), Fraction(9, 10))  # of ratios, where densities are read
MOST_DOUBLED = 8
PLACES = (Fraction(1, 2), Fraction(1, 10))  # within an interval
TURNED, LOST, OPENED = "turned", "lost", "opened"
Span = tuple[Expression | None, Expression | None]  # of residuals in units of the leaf measure; None: without an end


@dataclass(frozen=True)
class Level:
    """A gate at one element: the residual that it reads, its slope there, and the upward pull on the residual."""

    element: int
    residual: Fraction
    slope: Fraction
    pull: Fraction

    @property
    def is_outward(self) -> bool:
        return self.pull * self.residual > 0

    @property
    def is_inward(self) -> bool:
        return self.pull * self.residual < 0


def levels(point: Point, stratum: Stratum, channel: str) -> Iterator[Level]:
    """Yields the gate of a stratum at each of its elements whose residual is not 0; nothing if the pull is unknown."""
    base = point.h.pulled_by(stratum)
    if base == pull:
        return
    for element, (tokens, unit) in enumerate(residuals(point, stratum, channel)):
        if not unit:
            continue
        pulled = base if isinstance(base, Aggregate) else advantage
        yield Level(
            element,
            unit * point.concrete.value(point.h.masses[stratum], stratum, element),
            point.slope(stratum, channel, element),
            _way_up(point, channel, tokens[0]) * value_of(point.value_at(pulled, stratum, element)),
        )


def residuals(point: Point, stratum: Stratum, channel: str) -> Iterator[tuple[list[int], Fraction]]:
    """Yields the tokens over each element of a stratum, and its residual in units of the leaf measure."""
    node = point.nodes.program.outputs[Key("residual", stratum.name, channel)]
    for element in range(point.concrete.size[stratum]):
        tokens = point.over(stratum, element)
        yield tokens, value_of(point.read(node, element)) if tokens else Fraction(0)


def _way_up(point: Point, channel: str, token: int) -> Fraction:
    """The slope of the recovery in the density of a channel, at a token whose levels all pass."""
    leaf, i = point.places[token]
    split, bound = point.h.decomposition, dict[Expression, Any]()
    for c, density in split.densities:
        passed = value_of(point.value(in_channel(point.h.with_mass(density, leaf), c), token))
        bound[gated(c)] = Dual(passed, {0: Fraction(1)} if c == channel else {})
    bound[advantage] = point.advantages[token]
    recovery, atom = point.h.with_mass(split.recovery, leaf), point.concrete.atom
    found = differentiate(recovery, lambda a: bound[a] if a in bound else atom(a, leaf, i))
    return slopes_of(found).get(0, Fraction(0))


# ---------------------------------------------------------------- the search


def pushed_further_out(
    h: Hierarchy, stratum: Stratum, channel: str, what: set[str], spans: Sequence[Span], of: str
) -> Witness | None:
    """The smallest batch found on which a level has one of the faults `what`, with residuals in the spans; or None.

    Where a gate reads densities of ratio deviations, all ratios but one may fall too: sums get below -1 there.

    `of`: what drifts by multiples of one number, so that residuals do too: log ratios ("log") or ratios ("deviation").
    """
    h, tried = _by_recursion(h), 0
    gate = in_channel(h.gate(stratum), channel)
    mixed = bool(atoms(gate, Summary))
    together = of == "deviation" and bool(atoms(gate, Density))
    for concrete, way in _batches(h, together):
        spread = _sizes(h, concrete, stratum, channel, way, spans, of)
        if together and spread == list(SIZES):
            spread = list(FALLS)
        others = _others_than_signs(gate, concrete, stratum) if advantage in atoms(gate) else []
        other: Witness | None = None
        for advantages in (*_advantages(h, concrete, way, mixed), *((a,) * len(way) for a in others)):
            found: list[tuple[Point, list[Level]]] = []
            for t in spread:
                point = _point(h, concrete, way, t, advantages, of)
                tried += point is not None
                if tried > MOST_POINTS:
                    return other
                if point is not None and (here := _levels(point, stratum, channel)):
                    found.append((point, here))
            # another element of the batch may have no value; the coefficients then have none either
            if witness := _attempt(partial(_fault, found, stratum, channel, what, of)):
                if witness.values["what"] != OPENED:
                    return witness
                other = other or witness
        if other is not None:
            return other
    return None


def _levels(point: Point, stratum: Stratum, channel: str) -> list[Level]:
    return _attempt(lambda: list(levels(point, stratum, channel))) or []


def _advantages(h: Hierarchy, concrete: Concrete, way: Sequence[int], mixed: bool) -> Iterator[tuple[Fraction, ...]]:
    """Yields all 1 and all -1; `mixed`: others in rows that drift up too, so that sums of several weights disagree."""
    for sign in (1, -1):
        yield (Fraction(sign),) * len(way)
    rows = [concrete.below(leaf, i, h.rows) for leaf in h.leaves for i in range(concrete.size[leaf])]
    if mixed and len(set(zip(rows, way, strict=True))) == len(set(rows)) > 1:
        for sign in (1, -1):
            yield tuple(Fraction(-9 * sign, 10) if d > 0 else Fraction(sign) for d in way)


def _others_than_signs(gate: Expression, concrete: Concrete, stratum: Stratum) -> list[Fraction]:
    """Advantages between and beyond those, other than 0, at which the gate's branch changes; and their negatives."""
    measured = [a for a in atoms(gate) if isinstance(a, (Attribute, Component, Count, Parameter, Total))]
    found: set[Fraction] = set()
    for element in range(concrete.size[stratum]):
        here: dict[Expression, Fraction] = {a: concrete.atom(a, stratum, element) for a in measured}
        found |= {c for c in branching(gate, here) if c}
    around = between(sorted({*found, Fraction(0)})) if found else []
    either = {sign * a for a in around for sign in (1, -1)} - {Fraction(-1), Fraction(0), Fraction(1)}
    return sorted(either, key=lambda a: (a.denominator, abs(a), -a))


def _by_recursion(h: Hierarchy) -> Hierarchy:
    """The hierarchy on balanced batches, on which least squares give the residuals of the recursion."""
    if h.orthogonalise is None:
        return h
    crossed = itertools.combinations(h.shape.crossed(), 2)
    even = [balanced(a, b) for a, b in crossed if not h.shape.comparable(a, b)]
    return h.replace(orthogonalise=None, assume=(*h.assume, *even))


def _batches(h: Hierarchy, together: bool = False) -> Iterator[tuple[Concrete, tuple[int, ...]]]:
    """Yields batches with the direction in which each token drifts; batches of usual values come first."""
    shape = whole_batch(h)
    usual = (c for n in range(1, MOST_TOKENS + 1) for c in itertools.islice(smallest(h, shape, n), MOST_SHAPES))
    read = [*formulas(h), h.objective.spelled_out(h.leaves, h.rows)]
    for concrete in itertools.chain(usual, concretes(h, read, caps.INWARD, shape)):
        if not leaves_one_alone(h, concrete):
            n = concrete.tokens
            yield from ((concrete, way) for way in directions(n))
            if together and n > 2:  # sums of deviations get below -1 where several ratios fall
                yield from ((concrete, tuple(-int(i != k) for i in range(n))) for k in range(n))


def _attempt(evaluate: Callable[[], Any]) -> Any:
    try:
        return evaluate()
    except (NoValue, TooLarge):
        return None


def _point(
    h: Hierarchy, concrete: Concrete, way: Sequence[int], t: Fraction, advantages: tuple[Fraction, ...], of: str
) -> Point | None:
    if of != "deviation":
        return Point(h, concrete, tuple(t * d for d in way), advantages)
    ratios = tuple(1 + t * d for d in way)
    return Point(h, concrete, (Fraction(0),) * len(way), advantages, ratios) if min(ratios) > 0 else None


def _sizes(
    h: Hierarchy,
    concrete: Concrete,
    stratum: Stratum,
    channel: str,
    way: Sequence[int],
    spans: Sequence[Span],
    of: str,
) -> list[Fraction]:
    """How far tokens drift so that residuals lie in the spans; `SIZES` if an end is not a number yet.

    Nothing if every residual is 0, so that such batches do not use up the points that the search tries.
    """
    ends_of = (e for span in spans for e in span if e is not None)
    known = spans and not any(atoms(e, Reading, Density, LogProb, Summary) for e in ends_of)
    one = Fraction(1, 2)
    point = _point(h, concrete, way, one, (Fraction(1),) * len(way), of)
    drifted = None if point is None else _attempt(lambda: list(residuals(point, stratum, channel)))
    if drifted is None:
        return [] if known else list(SIZES)
    found: set[Fraction] = set()
    for element, unit in ((e, v / one) for e, (_, v) in enumerate(drifted) if v):
        if not known:
            return list(SIZES)
        for low, high in spans:
            ends = [None if e is None else concrete.attempt(e, stratum, element) for e in (low, high)]
            found |= {rho / unit for rho in _within(*ends) if rho / unit > 0}
    return sorted(found)


def _within(low: Fraction | None, high: Fraction | None) -> list[Fraction]:
    if low is not None and high is not None:
        return [low + t * (high - low) for t in PLACES]
    if low is None and high is None:
        return []
    end, step = (low, 1) if low is not None else (high, -1)
    assert end is not None
    return [end + step * t * (abs(end) or 1) for t in PLACES]


# ---------------------------------------------------------------- what is seen


def _fault(
    found: Sequence[tuple[Point, list[Level]]], stratum: Stratum, channel: str, what: set[str], of: str
) -> Witness | None:
    for point, here in found if TURNED in what else ():
        if level := next((v for v in here if v.is_inward and v.slope < 0), None):
            why = "is pulled back, and its gate turns that round with the slope"
            return _witness(point, stratum, channel, level, f"{why} {in_brief(level.slope)}", TURNED, of)
    for (point, here), (before, there) in itertools.permutations(found, 2) if OPENED in what else ():
        for level, stopped in itertools.product(here, there):
            same = level.element == stopped.element and 0 < stopped.residual / level.residual < 1
            if same and level.is_outward and stopped.is_outward and stopped.slope <= 0 < level.slope:
                why = f"is pulled further out, which its gate stops at {in_brief(stopped.residual)} and lets pass here"
                return _witness(point, stratum, channel, level, why, OPENED, of, before)
    for point, level in ((p, v) for p, here in found for v in here) if LOST in what else ():
        turned = _turned(point)
        back = _same(level, _levels(turned, stratum, channel))
        passes = level.is_outward and level.slope > 0 and back is not None and back.slope <= 0
        if passes and all(v.slope > 0 for v in _further(point, stratum, channel, level)):
            why = "is pulled further out, which its gate lets pass, though it stops what would come back from there"
            return _witness(point, stratum, channel, level, why, LOST, of, turned)
    return None


def _same(level: Level, others: Iterable[Level]) -> Level | None:
    return next((v for v in others if v.element == level.element), None)


def _further(point: Point, stratum: Stratum, channel: str, level: Level) -> Iterator[Level]:
    """Yields the element with all drifts halved, and multiplied by powers of 2."""
    for t in (Fraction(1, 2), *(Fraction(2**k) for k in range(1, MOST_DOUBLED))):
        ratios = None if point.ratios is None else tuple(1 + t * (r - 1) for r in point.ratios)
        if ratios is None or min(ratios) > 0:
            moved = Point(point.h, point.concrete, tuple(t * x for x in point.log_ratios), point.advantages, ratios)
            if (there := _same(level, _levels(moved, stratum, channel))) is not None:
                yield there


def _turned(point: Point) -> Point:
    """The point with all advantages negated."""
    return Point(point.h, point.concrete, point.log_ratios, tuple(-a for a in point.advantages), point.ratios)


def _witness(
    point: Point,
    stratum: Stratum,
    channel: str,
    level: Level,
    why: str,
    what: str,
    of: str,
    other: Point | None = None,
) -> Witness:
    h, concrete = point.h, point.concrete
    exact = rounding(*formulas(h), h.objective.spelled_out(h.leaves, h.rows))
    far = Fraction(1, 10**30)
    coefficients = tuple(rounded(c, exact) for c in point.coefficients)
    ungated = tuple(rounded(c, far) for c in point.ungated)
    kind = "ratios" if of == "deviation" else "log ratios"
    drift = point.ratios if of == "deviation" else point.log_ratios
    assert drift is not None
    many, a = len(drift) > 1, point.advantages
    given = f"advantage {a[0]}" if len(set(a)) == 1 else f"advantages {in_brief(*a)}"
    who = "it" if stratum in h.leaves and not many else f"{stratum} {level.element + 1}"
    side = f' on channel "{channel}"' if channel else ""
    beside = f" instead of μ·A·r = {in_brief(*ungated)}"
    if what != TURNED:  # the coefficient has the right sign, and should be nearer to 0
        beside = f", of μ·A·r = {in_brief(*ungated)}"
    if all(abs(c - u) <= max(exact, far) for c, u in zip(coefficients, ungated, strict=True)):
        beside = ", all of μ·A·r" if what != TURNED else ", those of μ·A·r: other tokens make up for it on this batch"
    text = (
        f"{in_batch(h, concrete)} with {given} and {kind if many else kind[:-1]} "
        f"{in_brief(*drift)}, "
        f"{who}{side} has the residual {in_brief(level.residual)} and {why}: the "
        f"{'coefficients ∂J/∂log π are' if many else 'coefficient ∂J/∂log π is'} {in_brief(*coefficients)}{beside}"
    )
    values = {
        "what": what, "stratum": stratum.name, "channel": channel, "element": level.element,
        "advantages": point.advantages, kind.replace(" ", "_"): drift,
        "residual": rounded(level.residual, exact), "slope": rounded(level.slope, exact),
        "coefficients": coefficients, "ungated": ungated,
    }  # fmt: skip
    if other is not None:
        values["beside"] = other.advantages if what == LOST else other.ratios or other.log_ratios
    return Witness.on(concrete, text, values)


def negative_ratio(h: Hierarchy) -> Witness | None:
    """A batch of a score estimator with a gated ratio below 0, on a token whose advantage opposes its drift."""
    h = _by_recursion(h)
    exact = rounding(*formulas(h), h.objective.spelled_out(h.leaves, h.rows))

    def fails(tried: tuple[Concrete, tuple[int, ...], Fraction, int]) -> Witness | None:
        concrete, way, t, sign = tried
        point = Point(h, concrete, tuple(t * d for d in way), (Fraction(sign),) * len(way))
        for k, g in enumerate(_attempt(lambda: point.gated) or ()):
            if g < 0 and sign * way[k] < 0:
                coefficients = tuple(rounded(c, exact) for c in point.coefficients)
                many, verb = ("s", "are") if len(way) > 1 else ("", "is")
                text = (
                    f"with advantage {sign} and log ratio{many} {in_brief(*point.log_ratios)}, token {k + 1} has the "
                    f"gated ratio {in_brief(rounded(g, exact))}: the coefficient{many} ∂J/∂log π {verb} "
                    f"{in_brief(*coefficients)}"
                )
                values = {
                        "what": TURNED, "advantages": point.advantages, "log_ratios": point.log_ratios, "token": k,
                        "gated": rounded(g, exact), "coefficients": coefficients,
                    }  # fmt: skip
                return Witness.on(concrete, text, values)
        return None

    tried = ((c, way, t, sign) for c, way in _batches(h) for t in SIZES[::3] for sign in (1, -1))
    return find(itertools.islice(tried, MOST_POINTS), fails)
