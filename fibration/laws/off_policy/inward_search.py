"""Searches small batches, in exact rationals, for gates that push a residual further out than their budget.

A level passes on the pull on its residual times the slope of its gate. So it pushes further out where the product of
slope, pull and residual is above 0.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any

from fibration.compiler.ir import Key
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
from fibration.language.declared import LogProb
from fibration.language.exact import TooLarge
from fibration.language.expressions import Expression
from fibration.language.hierarchy import Hierarchy
from fibration.language.outline import whole_batch
from fibration.language.statistics import Aggregate
from fibration.language.strata import balanced
from fibration.language.traversal import atoms
from fibration.laws.batches import caps
from fibration.laws.batches.coefficients import Point, attempt, differentiate, formulas
from fibration.laws.batches.concrete import Concrete, Witness, coefficients_are, in_batch, rounding
from fibration.laws.batches.first_update import directions
from fibration.laws.batches.search import concretes, leaves_one_alone, smallest
from fibration.laws.values.duals import Dual, Real, log_of, slopes_of, value_of
from fibration.laws.values.intervals import branching
from fibration.laws.values.numerals import in_brief, named, rounded
from fibration.laws.values.probes import between

MOST_TOKENS, MOST_SHAPES = 4, 60  # of batches with usual values
MOST_POINTS = 500  # drifts of all batches together
SIZES = tuple(Fraction(n, 100) * Fraction(5, 4) ** k for n in (1, 100) for k in range(20))  # how far tokens drift
FALLS = (Fraction(1, 10), Fraction(3, 5), Fraction(9, 10))  # of ratios, where densities are read
FURTHER = (Fraction(1, 2), *(Fraction(2**k) for k in range(1, 8)))  # times a drift
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


@dataclass(frozen=True)
class Drift:
    """A batch whose tokens drift by `size` times `way`, and the gate of a stratum that is looked at.

    `of`: what drifts so, and residuals with it: log ratios ("log") or ratios, from 1 ("deviation").
    """

    h: Hierarchy
    concrete: Concrete
    way: tuple[int, ...]
    stratum: Stratum
    channel: str
    of: str
    size: Fraction = Fraction(1, 2)
    advantages: tuple[Fraction, ...] = ()

    @cached_property
    def numbers(self) -> tuple[Fraction, ...]:
        """The log ratios, or the ratios."""
        return tuple((self.of == "deviation") + self.size * d for d in self.way)

    @cached_property
    def point(self) -> Point | None:
        """The batch; None if a ratio is not above 0."""
        log_ratios: tuple[Real, ...] = self.numbers
        if self.of == "deviation":
            if min(self.numbers) <= 0:
                return None
            log_ratios = tuple(log_of(r, {}) for r in self.numbers)
        return Point(self.h, self.concrete, log_ratios, self.advantages)

    @cached_property
    def levels(self) -> list[Level]:
        """The gate at each element whose residual is not 0; nothing if the pull or a value is unknown."""
        return attempt(lambda: list(self._levels()), TooLarge) or []

    def _levels(self) -> Iterator[Level]:
        base, point, stratum = self.h.pulled_by(self.stratum), self.point, self.stratum
        if base == pull or point is None:
            return
        for element, (tokens, unit) in enumerate(self.residuals(point)):
            if unit:
                pulled = base if isinstance(base, Aggregate) else advantage
                yield Level(
                    element,
                    unit * self.concrete.value(self.h.masses[stratum], stratum, element),
                    point.slope(stratum, self.channel, element),
                    self._way_up(point, tokens[0]) * value_of(point.value_at(pulled, stratum, element)),
                )

    def residuals(self, point: Point) -> Iterator[tuple[list[int], Fraction]]:
        """Yields the tokens over each element of the stratum, and its residual in units of the leaf measure."""
        node = point.nodes.program.outputs[Key("residual", self.stratum.name, self.channel)]
        for element in range(self.concrete.size[self.stratum]):
            tokens = point.over(self.stratum, element)
            yield tokens, value_of(point.read(node, element)) if tokens else Fraction(0)

    def _way_up(self, point: Point, token: int) -> Fraction:
        """The slope of the recovery in the density of the channel, at a token whose levels all pass."""
        leaf, i = point.places[token]
        split, bound = self.h.decomposition, dict[Expression, Any]()
        for c, density in split.densities:
            passed = value_of(point.value(in_channel(self.h.with_mass(density, leaf), c), token))
            bound[gated(c)] = Dual(passed, {0: Fraction(1)} if c == self.channel else {})
        bound[advantage] = point.advantages[token]
        recovery, atom = self.h.with_mass(split.recovery, leaf), self.concrete.atom
        found = differentiate(recovery, lambda a: bound[a] if a in bound else atom(a, leaf, i))
        return slopes_of(found).get(0, Fraction(0))

    def at(self, element: int) -> Level | None:
        """The gate at an element; None if its residual is 0, or something is unknown."""
        return next((v for v in self.levels if v.element == element), None)

    def sizes(self, spans: Sequence[Span]) -> list[Fraction]:
        """How far tokens drift so that residuals lie in the spans; `SIZES` if an end is not a number yet.

        Nothing if every residual is 0, so that such batches do not use up the points that the search tries.
        """
        ends_of = (e for span in spans for e in span if e is not None)
        known = spans and not any(atoms(e, Reading, Density, LogProb, Summary) for e in ends_of)
        point = self.point
        drifted = None if point is None else attempt(lambda: [v for _, v in self.residuals(point)], TooLarge)
        if not known:
            return list(SIZES) if drifted is None or any(drifted) else []
        found: set[Fraction] = set()
        for element, unit in ((e, v / self.size) for e, v in enumerate(drifted or ()) if v):
            for span in spans:
                ends = [None if e is None else self.concrete.attempt(e, self.stratum, element) for e in span]
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


# ---------------------------------------------------------------- the search


def pushed_further_out(
    h: Hierarchy, stratum: Stratum, channel: str, what: set[str], spans: Sequence[Span], of: str
) -> Witness | None:
    """The smallest batch found on which a level has one of the faults `what`, with residuals in the spans; or None.

    Where a gate reads densities of ratio deviations, all ratios but one may fall too: sums get below -1 there.
    `of`: as in `Drift`.
    """
    h, tried = by_recursion(h), 0
    gate = in_channel(h.gate(stratum), channel)
    mixed = bool(atoms(gate, Summary))
    together = of == "deviation" and bool(atoms(gate, Density))
    for concrete, way in _batches(h, together):
        start = Drift(h, concrete, way, stratum, channel, of, advantages=(Fraction(1),) * len(way))
        spread = start.sizes(spans)
        if together and spread == list(SIZES):
            spread = list(FALLS)
        others = _others_than_signs(gate, concrete, stratum) if advantage in atoms(gate) else []
        other: Witness | None = None
        for advantages in (*_advantages(h, concrete, way, mixed), *((a,) * len(way) for a in others)):
            found: list[Drift] = []
            for t in spread:
                drift = replace(start, size=t, advantages=advantages)
                tried += drift.point is not None
                if tried > MOST_POINTS:
                    return other
                found += [drift] if drift.levels else []
            # another element of the batch may have no value; the coefficients then have none either
            if witness := attempt(lambda found=found: _fault(found, what), TooLarge):  # type: ignore[misc]
                if witness.values["what"] != OPENED:
                    return witness
                other = other or witness
        if other is not None:
            return other
    return None


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


def by_recursion(h: Hierarchy) -> Hierarchy:
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


# ---------------------------------------------------------------- what is seen


def _fault(found: Sequence[Drift], what: set[str]) -> Witness | None:
    for drift in found if TURNED in what else ():
        if level := next((v for v in drift.levels if v.is_inward and v.slope < 0), None):
            why = "is pulled back, and its gate turns that round with the slope"
            return _witness(drift, level, f"{why} {in_brief(level.slope)}", TURNED)
    for drift, before in itertools.permutations(found, 2) if OPENED in what else ():
        for level, stopped in itertools.product(drift.levels, before.levels):
            same = level.element == stopped.element and 0 < stopped.residual / level.residual < 1
            if same and level.is_outward and stopped.is_outward and stopped.slope <= 0 < level.slope:
                why = f"is pulled further out, which its gate stops at {in_brief(stopped.residual)} and lets pass here"
                return _witness(drift, level, why, OPENED, before.numbers)
    for drift, level in ((d, v) for d in found for v in d.levels) if LOST in what else ():
        turned = replace(drift, advantages=tuple(-a for a in drift.advantages))
        back = turned.at(level.element)
        if level.is_outward and level.slope > 0 and back is not None and back.slope <= 0:
            further = (replace(drift, size=t * drift.size).at(level.element) for t in FURTHER)
            if all(v is None or v.slope > 0 for v in further):
                why = "is pulled further out, which its gate lets pass, though it stops what would come back from there"
                return _witness(drift, level, why, LOST, turned.advantages)
    return None


def _witness(drift: Drift, level: Level, why: str, what: str, beside: tuple[Fraction, ...] = ()) -> Witness:
    h, point, a = drift.h, drift.point, drift.advantages
    assert point is not None
    exact = rounding(*formulas(h), h.objective.spelled_out(h.leaves, h.rows))
    far = Fraction(1, 10**30)
    coefficients = tuple(rounded(c, exact) for c in point.coefficients)
    ungated = tuple(rounded(c, far) for c in point.ungated)
    kind = "ratio" if drift.of == "deviation" else "log ratio"
    given = f"advantage {a[0]}" if len(set(a)) == 1 else named("advantage", *a)
    who = "it" if drift.stratum in h.leaves and len(a) == 1 else f"{drift.stratum} {level.element + 1}"
    side = f' on channel "{drift.channel}"' if drift.channel else ""
    of = f", of μ·A·r = {in_brief(*ungated)}"  # the coefficient has the right sign, and should be nearer to 0
    if what == TURNED:
        of = f" instead of μ·A·r = {in_brief(*ungated)}"
    if all(abs(c - u) <= max(exact, far) for c, u in zip(coefficients, ungated, strict=True)):
        of = ", all of μ·A·r" if what != TURNED else ", those of μ·A·r: other tokens make up for it on this batch"
    text = (
        f"{in_batch(h, drift.concrete)} with {given} and {named(kind, *drift.numbers)}, "
        f"{who}{side} has the residual {in_brief(level.residual)} and {why}: {coefficients_are(*coefficients)}{of}"
    )
    values = {
        "what": what, "stratum": drift.stratum.name, "channel": drift.channel, "element": level.element,
        "advantages": a, f"{kind.replace(' ', '_')}s": drift.numbers,
        "residual": rounded(level.residual, exact), "slope": rounded(level.slope, exact),
        "coefficients": coefficients, "ungated": ungated, **({"beside": beside} if beside else {}),
    }  # fmt: skip
    return Witness.on(drift.concrete, text, values)
