"""Whether a gate keeps the law `inward` on one side of 0, whatever it reads besides its residual.

The proof puts no breakpoints in order. One branch breaks the law alone if it turns an inward pull round. Two branches
break it together if one stops a pull, and the other lets a pull pass further out, or lets a pull of the other sign pass
anywhere. So the law holds if the conditions of no two such branches hold together.

Everything else that a gate reads is equal at both places, except for three things: statistics of the current policy may
differ; statistics of advantages may differ where the pulls have opposite signs; densities change along a `Path`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import sympy

from fibration.language.atoms import Density, Stratum, advantage, token_log_ratio
from fibration.language.declared import LogProb
from fibration.language.expressions import Expression
from fibration.language.hierarchy import Hierarchy
from fibration.language.operators import NOT_NEGATIVE, POSITIVE, Signs
from fibration.language.statistics import atoms_within
from fibration.language.sympy_bridge import symbol, to_sympy
from fibration.language.traversal import atoms
from fibration.laws.gates.contributions import is_effect
from fibration.laws.gates.pieces import affine_root, has_slope
from fibration.laws.signs import smooth_signs
from fibration.laws.signs.assumptions import Assumptions
from fibration.laws.signs.branches import Case, TooManyCases, cases
from fibration.laws.signs.feasible import feasible, normal
from fibration.laws.signs.neighbourhood import RHO, is_kinked

TURNED, LOST, OPENED = "turned", "lost", "opened"  # how a gate breaks the law
MOST_PAIRS = 2000
STOPS, PASSES = frozenset({-1, 0}), POSITIVE
STEP, SHARE = sympy.Dummy("step", real=True), sympy.Dummy("share", real=True)
Conditions = tuple[tuple[Any, Signs], ...]


@dataclass(frozen=True)
class Branch:
    """The slope of a gate under some conditions, and the signs that the slope can have there."""

    conditions: Conditions
    slope: Any
    signs: Signs

    def where(self, signs: Signs) -> Conditions:
        """The conditions under which the slope has one of these signs."""
        return self.conditions if self.signs <= signs else (*self.conditions, (self.slope, self.signs & signs))


@dataclass(frozen=True)
class Path:
    """The value of each symbol at a place further out, and the signs of the symbols that these values add.

    `end`: the residual at which the line ends, infinite or a number; None if it is not known.
    """

    moved: Mapping[Any, Any]
    signs: Mapping[Any, Signs] = field(default_factory=dict)
    end: Any = None


@dataclass(frozen=True)
class Lines:
    """The lines on which a gate is followed outwards. It must keep the law along all `rays` and one of the `paths`."""

    paths: tuple[Path, ...]
    rays: tuple[Path, ...]
    certain: Conditions  # that hold at every place
    inside: Conditions  # that hold where the line goes on


def lines_out(
    h: Hierarchy, stratum: Stratum, channel: str, gate: Expression, side: int, assume: Assumptions, own: Any, end: Any
) -> Lines:
    """The lines of one side. `own`: the density of the element, which is not below 0, or None."""
    known = tuple((e, signs) for e, signs in assume.extra.items() if not e.is_Symbol)
    certain, inside = known, known
    if own is not None:
        certain, inside = (*known, (own, NOT_NEGATIVE)), (*known, (own, POSITIVE))
    paths = [Path({RHO: RHO + side * STEP}, {STEP: POSITIVE}, end)]
    read = [symbol(a) for a in atoms(gate, Density)]
    if not read:
        return Lines(tuple(paths), (), certain, inside)
    ray = Path({s: s / SHARE for s in (RHO, *read)}, {SHARE: POSITIVE})
    bounded = side == -1 and any(e.has(*read) for e, _ in known)  # densities do not fall without end
    own_paths = _own_path(h, stratum, channel, side, assume, None if bounded else end)
    return Lines((*paths, *own_paths), (ray,), certain, inside)


def _own_path(h: Hierarchy, stratum: Stratum, channel: str, side: int, assume: Assumptions, end: Any) -> Iterator[Path]:
    """Yields the path on which the density of the element changes by `STEP`, and with it those that contain it."""
    if is_effect(h, stratum):
        return
    mass = {s: to_sympy(h.masses[s]) for s in (stratum, *h.coarser(stratum))}
    rise = 1 - sum(c * mass[stratum] / mass[u] for u, c in h.shape.moebius(stratum).items())
    if -1 not in assume.signs(rise):  # an element that fills the elements it lies over has the residual 0
        rates = {RHO: rise / mass[stratum], **{symbol(Density(u, channel)): 1 for u in h.coarser(stratum)}}
        moved = {s: s + side * rate * STEP for s, rate in rates.items()}
        yield Path(moved, {STEP: POSITIVE, rise: POSITIVE}, end)


def keeps(gate: Expression, held: Mapping[int, Assumptions], side: int, base: Any, lines: Lines, but: str = "") -> bool:
    """Whether a gate keeps the law on one side of 0, for pulls of either sign. `base`: the symbol of the pull.

    `but`: a fault that the gate may have; if it is `TURNED`, a pull that is turned round counts as stopped.
    """
    known = {p: assume.with_signs({RHO: frozenset({side})}) for p, assume in held.items()}
    inward = branches(gate, known[-side], side, lines.certain)
    opposed = branches(gate, known[side], side, lines.certain)
    outward = opposed if lines.inside == lines.certain else branches(gate, known[side], side, lines.inside)
    if inward is None or opposed is None or outward is None:
        return False
    if but != TURNED and any(_turns(b, known[-side]) for b in inward):
        return False
    read = set(atoms(gate))
    moving = {symbol(a) for a in read if moves_along(a)}
    turned = {symbol(a) for a in read if is_of_advantages(a)} | {base}
    pairs = [(b, c) for b, c in itertools.product(outward, outward) if b.signs & STOPS and c.signs & PASSES]
    pairs = [] if but == OPENED else pairs
    asks = but != LOST and bool(turned & set(map(symbol, read)))
    stopped = [b for b in inward if b.signs & STOPS] if asks else []
    passing = [c for c in outward if c.signs & PASSES]
    if len(pairs) + len(stopped) * len(passing) > MOST_PAIRS:
        return False

    def stays(path: Path) -> bool:
        """Whether an outward pull that is stopped stays stopped further out on a path."""
        places = Places(known[side], known[side], moving, path)
        return all(_closes(b, c, side, known[side], {*places.moved} - {RHO}) or places.exclude(b, c) for b, c in pairs)

    def is_met(b: Branch, path: Path) -> bool:
        """Whether, if an inward pull is stopped, an outward one is too: at that place, or at the end of the path."""
        here = Places(known[-side], known[side], turned, Path({}))
        there = Places(known[-side], known[side], turned | moving, path)
        is_stopped_here = all(here.exclude(b, c) for c in opposed if c.signs & PASSES)
        return is_stopped_here or all(there.exclude_at_end(b, c) for c in passing)

    return all(map(stays, lines.rays)) and any(
        stays(path) and all(is_met(b, path) for b in stopped) for path in lines.paths
    )


def moves_along(atom: Expression) -> bool:
    """Whether an atom may change with the residual, other than as a density does."""
    return any(a == token_log_ratio or (isinstance(a, LogProb) and not a.policy.is_frozen) for a in atoms_within(atom))


def is_of_advantages(atom: Expression) -> bool:
    return advantage in atoms_within(atom)


# ---------------------------------------------------------------- one branch


def branches(gate: Expression, assume: Assumptions, side: int, certain: Conditions) -> list[Branch] | None:
    """The branches that can hold on one side; None if one has no value, or no slope that is known."""
    try:
        found = cases(gate, assume)
    except TooManyCases:
        return None
    made = []
    for case in found:
        inside = assume.with_signs(dict(case.signs))
        slope = _without_kinks(case.slope(RHO), inside)
        if is_kinked(_without_kinks(case.sympy(), inside)) or is_kinked(slope):
            return None
        if not case.defined(assume, case.needs_of_slopes(has_slope)):
            return None
        made.append(Branch((*case.signs, *certain), slope, _slope_signs(case, slope, assume, side)))
    return made


def _without_kinks(value: Any, assume: Assumptions) -> Any:
    """A formula without `Abs` and `sign` of values of one sign; sympy makes them of roots of squares."""
    for e in sorted(value.atoms(sympy.Abs, sympy.sign), key=sympy.count_ops):
        if (sign := assume.signs(e.args[0])) in ({1}, {-1}):
            size = e.args[0] if isinstance(e, sympy.Abs) else sympy.Integer(1)
            value = value.xreplace({e: next(iter(sign)) * size})
    return value


def _turns(b: Branch, assume: Assumptions) -> bool:
    """Whether the slope of a branch may be below 0."""
    return -1 in b.signs and _can_hold(b.where(frozenset({-1})), assume)


def _can_hold(conditions: Conditions, assume: Assumptions) -> bool:
    """Whether conditions show no contradiction, as they stand and together with their normal forms."""
    return feasible(_joined(w for d, signs in conditions for w in _both_ways(d, signs, assume)), assume)


def _joined(conditions: Iterable[tuple[Any, Signs]]) -> dict[Any, Signs]:
    found: dict[Any, Signs] = {}
    for d, signs in conditions:
        found[d] = found.get(d, signs) & signs
    return found


def _both_ways(difference: Any, signs: Signs, assume: Assumptions) -> Conditions:
    """A condition without factors of known sign, and as it stands: other conditions may share terms with each form."""
    return tuple(dict.fromkeys((normal(difference, signs, assume), (sympy.expand(difference), signs))))


def _slope_signs(case: Case, slope: Any, assume: Assumptions, side: int) -> Signs:
    """The signs of a slope. If it rises or falls throughout, its values at the ends of the branch narrow them."""
    inside = assume.with_signs(dict(case.signs))
    signs = smooth_signs.signs(slope, inside)
    if len(signs) == 1 or not slope.has(RHO):
        return signs
    bends = assume.signs(sympy.diff(slope, RHO))
    ends = [(0, 1, {side}), *((*root, allowed) for d, allowed in case.signs if (root := affine_root(d, assume)))]
    for place, rises, allowed in ends:
        beyond = {rises * s for s in allowed}  # on which side of the place the branch lies
        one_way = [s for s in (1, -1) if -s not in bends], [s for s in (1, -1) if -s not in beyond]
        if all(one_way) and assume.signs(place) <= {side, 0}:
            value, up = assume.signs(slope.subs(RHO, place)), one_way[0][0] * one_way[1][0]
            if -up not in value:  # the slope lies beyond this value
                signs &= value | {up}
    return signs


# ---------------------------------------------------------------- two branches


class Places:
    """Two places on a path. At the second, the symbols in `free` and those that the path moves have other values."""

    def __init__(self, first: Assumptions, second: Assumptions, free: Iterable[Any], path: Path) -> None:
        copies = {s: sympy.Dummy(str(s), real=True) for s in free}
        self.path = path
        self.moved = {**copies, **path.moved}
        self.known = first.with_signs({**{c: second.signs(s) for s, c in copies.items()}, **path.signs})
        self._written: dict[tuple[Any, Signs, bool], Conditions] = {}

    def _at(self, conditions: Conditions, second: bool) -> Iterator[tuple[Any, Signs]]:
        for d, signs in conditions:
            key = d, signs, second
            if key not in self._written:
                self._written[key] = _both_ways(d.xreplace(self.moved) if second else d, signs, self.known)
            yield from self._written[key]

    def exclude(self, one: Branch, other: Branch) -> bool:
        """Whether it is impossible that `one` stops a pull at the first place and `other` passes it at the second."""
        passes = other.where(PASSES)
        found = (*self._at(one.where(STOPS), False), *self._at(passes, True), *self._risen(passes))
        return not self._feasible(_joined(found))

    def exclude_at_end(self, one: Branch, other: Branch) -> bool:
        """As `exclude`, with the second place arbitrarily near the end of the path."""
        if self.path.end is None:
            return False
        found = [*self._at(one.where(STOPS), False)]
        if not self.path.end.is_infinite:  # a condition that holds near the end holds at it, or is 0 there
            end = {**self.moved, RHO: self.path.end}
            near = [(d.xreplace(end), signs | {0}) for d, signs in other.where(PASSES)]
            near = [(d, signs) for d, signs in near if not d.has(sympy.zoo, sympy.nan, sympy.oo)]
            found += [way for d, signs in near for way in _both_ways(d, signs, self.known)]
            return not self._feasible(_joined(found))
        for d, signs in self._at(other.where(PASSES), True):
            if not d.has(STEP):
                found.append((d, signs))
            elif d.is_polynomial(STEP):
                leads = self.known.signs(sympy.Poly(d, STEP).LC())
                if 0 not in leads and not leads & signs:
                    return True
        return not self._feasible(_joined(found))

    def _risen(self, conditions: Conditions) -> Iterator[tuple[Any, Signs]]:
        """Yields the change of each condition between the places, with its signs, if it rises or falls throughout."""
        step, others = self.moved.get(RHO, RHO) - RHO, {*self.moved} - {RHO}
        bent = [d for d, _ in conditions if d.has(RHO) and not d.free_symbols & others]
        for d in bent if step.has(STEP) else ():
            if smooth_signs.is_smooth(d, self.known, RHO):  # it jumps nowhere between the two places
                ways = {s * t for s in self.known.signs(sympy.diff(d, RHO)) for t in self.known.signs(step)}
                yield sympy.expand(d.xreplace(self.moved) - d), frozenset(ways)

    def _feasible(self, conditions: dict[Any, Signs]) -> bool:
        if not all(conditions.values()):
            return False
        terms = {t for d in conditions for t in sympy.expand(d).as_coefficients_dict()}
        for t in terms:
            power = t.as_powers_dict().get(SHARE, 0)
            if power:  # `SHARE` is between 0 and 1, so a product with it is smaller
                whole, less = t / SHARE**power, 1 if power > 0 else -1
                conditions[whole - t] = frozenset(less * s for s in self.known.signs(whole))
            elif t.is_Pow and not t.exp.is_Integer:  # a root of more than 1 is more than 1
                conditions[t - 1] = self.known.signs(t - 1)
        return feasible(conditions, self.known)


def _closes(one: Branch, other: Branch, side: int, assume: Assumptions, moved: set[Any]) -> bool:
    """Whether two branches have one slope that, once it is not above 0, stays so further out."""
    if one.slope != other.slope or one.slope.free_symbols & moved:
        return False
    if not one.slope.has(RHO):
        return True
    course = smooth_signs.course(one.slope, RHO, side, assume)
    if course is None:
        return False
    stops = next((k for k, s in enumerate(course) if s != 1), len(course))
    return 1 not in course[stops:]
