"""Which way a gate passes on what pulls its residual: along the real line, for a pull either way.

Where the pull is outward, away from residual 0, a slope above 0 lets it pass and one below 0 turns it round; where it
is inward, so too. The law `inward` is about where which of these happens.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import sympy
from sympy import oo

from fibration.language.atoms import Density, Stratum, advantage, gated
from fibration.language.cancel import cancel
from fibration.language.expressions import Expression
from fibration.language.operators import NOT_NEGATIVE, Signs
from fibration.language.order import Ordered
from fibration.language.statistics import Aggregate
from fibration.language.sympy_bridge import symbol, to_sympy
from fibration.language.traversal import atoms
from fibration.laws.proof import courses
from fibration.laws.proof.branches import Case, TooManyCases, cases
from fibration.laws.proof.coordinates import X, coordinate, intensive, normal_recovery
from fibration.laws.proof.feasible import feasible, normal
from fibration.laws.proof.near import RHO, is_kinked
from fibration.laws.proof.pieces import Line, Piece, pieces
from fibration.laws.proof.reach import domain
from fibration.laws.proof.signs import Assumptions
from fibration.laws.proof.subject import Subject

WAYS = (1, -1)
TURNED, LOST, OPENED = "turned", "lost", "opened"


@dataclass(frozen=True)
class Fault:
    """Where a gate breaks the law, for a pull of one sign: an inward one is turned round, or lost though no outward one
    is ever stopped, or an outward one passes beyond where it was stopped."""

    what: str
    pull: int
    spans: tuple[tuple[Any, Any], ...]  # of residuals, in units of the leaf measure


def pulled_by(subject: Subject, stratum: Stratum) -> Expression:
    """What the sign of the pull on a stratum is that of, but for the way a density moves the ratio."""
    found = [a for a in atoms(subject.hierarchy.pull(stratum)) if isinstance(a, Aggregate)]
    return found[0] if found else advantage


def way_up(subject: Subject, channel: str) -> int | None:
    """1 if ratios rise with the density on a channel, -1 if they fall; None if that is not known."""
    h = subject.hierarchy
    found: Signs = frozenset()
    for leaf in h.leaves:
        back, own = normal_recovery(h, leaf), cancel(h.with_mass(h.decomposition[channel], leaf) / h.masses[leaf])
        signs = _slope_signs(back, symbol(gated(channel)), subject.at(leaf))
        if signs not in ({1}, {-1}):  # R∘F is the identity, so that both move the same way
            signs = _slope_signs(own, X, subject.at(leaf)) - {0}
        found |= signs
    return next(iter(found)) if found in ({1}, {-1}) else None


def _slope_signs(formula: Expression, variable: Any, assume: Assumptions) -> Signs:
    try:
        branches = cases(formula, assume)
    except TooManyCases:
        return frozenset(WAYS)
    found: Signs = frozenset()
    for case in branches:
        value = case.sympy()
        if is_kinked(value):
            return frozenset(WAYS)
        found |= assume.with_signs(dict(case.signs)).signs(sympy.diff(value, variable))
    return found


def faults(subject: Subject, stratum: Stratum, channel: str, up: int | None) -> list[Fault] | None:
    """How a gate breaks the law on a channel; None where it is not decided."""
    h = subject.hierarchy
    known = coordinate(h, subject)
    least, _ = domain(h, stratum, known)
    signs = {1 + RHO: frozenset({1})} if least == -1 and len(h.order) == 1 else {}
    assume = subject.at(stratum).with_signs(signs)
    gate = intensive(h, stratum, channel)
    base = symbol(pulled_by(subject, stratum))
    reads = {symbol(a) for a in atoms(gate)}
    knows = base in reads or any(isinstance(a, (Aggregate, Ordered)) for a in atoms(gate))
    if base in reads and up is None:
        return None
    held = {p: assume.with_signs({base: frozenset({p * (up or 1)})}) if base in reads else assume for p in WAYS}
    sides = [side for side in WAYS if side == 1 or least != 0]
    moves = any(isinstance(a, Density) for a in atoms(gate))
    along = {} if moves else {p: pieces(gate, held[p]) for p in WAYS}
    own = _own_density(subject, stratum, channel) if moves and channel in subject.never_negative else None
    found: list[Fault] = []
    for side in sides:
        lines = {p: cut for p, cut in along.items() if cut is not None}
        on_side = _by_pieces(lines, side, base) if len(lines) == len(WAYS) else None
        if on_side is None:
            on_side = _by_branches(gate, held, side, knows, own)
        if on_side is None:
            return None
        found += on_side
    return found


# ---------------------------------------------------------------- in the order of the residual


def _by_pieces(lines: dict[int, list[Line]], side: int, base: Any) -> list[Fault] | None:
    """On one side of 0. None where a piece both rises and falls."""
    inward, outward = [[_outwards(line, side) for line in lines[p]] for p in (-side, side)]
    if any(d is None for line in (*inward, *outward) for _, d in line):
        return None
    found = [Fault(TURNED, -side, ((p.low, p.high),)) for line in inward for p, d in line if d == -1]
    for stretches in outward:
        stops = next((k for k, (_, d) in enumerate(stretches) if d != 1), len(stretches))
        opened = next(((p.low, p.high) for p, d in stretches[stops:] if d == 1), None)
        if opened is not None:
            closed = stretches[stops][0]
            found.append(Fault(OPENED, side, ((closed.low, closed.high), opened)))
    back, out = (zip(lines[w], ws, strict=True) for w, ws in ((-side, inward), (side, outward)))
    for (line, ps), (other, qs) in itertools.product(back, out):
        lost = next((p for p, d in ps if d == 0), None)
        if lost is not None and qs and qs[-1][1] == 1 and _meet(line.assume, other.assume, base):
            found.append(Fault(LOST, -side, ((lost.low, lost.high),)))
    return found


def _outwards(line: Line, side: int) -> list[tuple[Piece, int | None]]:
    """The stretches on one side of 0, from there on, with their directions; those that no residual reaches left out."""
    zero = next(i for i, p in enumerate(line.pieces) if p.is_point and p.low == 0)
    chosen = line.pieces[zero + 1 :] if side == 1 else line.pieces[:zero][::-1]
    reached = [p for p in chosen if not p.is_point and not _is_beyond(p, line.assume)]
    return [(p, d) for p in reached for d in _directions_of(p, line.assume, side)]


def _directions_of(p: Piece, assume: Assumptions, side: int) -> list[int | None]:
    """The directions of a piece, in order from 0 outwards; of a bent one, all those of its formula on that side."""
    found = _direction(p, assume)
    if found is not None or is_kinked(p.value):
        return [found]
    slopes = courses.course(sympy.diff(p.value, RHO), RHO, side, assume)
    return [None] if slopes is None else [s for s in slopes if s] or [0]


def _direction(p: Piece, assume: Assumptions) -> int | None:
    """As `Piece.direction`; of a bent piece with two ends, by its slopes there."""
    found = p.direction(assume)
    if found is not None or is_kinked(p.value) or oo in (p.high, -p.low):
        return found
    slope = sympy.diff(p.value, RHO)
    side = assume.with_signs({RHO: frozenset({1 if -1 not in assume.signs(p.low) else -1})})
    if len(side.signs(sympy.diff(slope, RHO)) - {0}) > 1:
        return None
    ends = assume.signs(slope.subs(RHO, p.low)) | assume.signs(slope.subs(RHO, p.high))
    return 1 if -1 not in ends else -1 if 1 not in ends else None


def _is_beyond(p: Piece, assume: Assumptions) -> bool:
    """Whether a piece lies below all deviations of ratios."""
    return 1 + RHO in assume.extra and p.high != oo and assume.signs(1 + p.high) <= {-1, 0}


def _meet(one: Assumptions, other: Assumptions, base: Any) -> bool:
    """Whether what decides the branches of two gates can be so of one element, but for its pull."""
    shared = (one.extra.keys() & other.extra.keys()) - {base}
    return all(one.extra[e] & other.extra[e] for e in shared)


# ---------------------------------------------------------------- branch by branch


def _own_density(subject: Subject, stratum: Stratum, channel: str) -> Any:
    """The density of the element itself, in units of the leaf measure: the residual and what it was taken against."""
    h = subject.hierarchy
    base = h.shape.moebius(stratum).items()
    return RHO + sum(c * symbol(Density(u, channel)) / to_sympy(h.masses[u]) for u, c in base)


def _by_branches(
    gate: Expression, held: dict[int, Assumptions], side: int, knows: bool, own: Any
) -> list[Fault] | None:
    """On one side of 0, where pieces have no order: whether no slope is below 0, and what is lost is lost either way.

    `own` is not below 0, where it is given.
    """
    inward, outward = (_directions(gate, held[p].with_signs({RHO: frozenset({side})}), own) for p in (-side, side))
    if inward is None or not inward <= {0, 1}:
        return None
    if not knows or inward == {1}:
        return [] if not knows or outward is not None else None
    return [] if outward is not None and 1 not in outward else None


def _directions(gate: Expression, assume: Assumptions, own: Any) -> set[int] | None:
    """Of all branches: 1 for a rise, 0 for none, -1 for a fall; None where one is not known."""
    try:
        branches = cases(gate, assume)
    except TooManyCases:
        return None
    found: set[int] = set()
    for case in branches:
        value = case.sympy()
        if is_kinked(value) or not case.defined(assume):
            return None
        signs = courses.signs(sympy.diff(value, RHO), assume.with_signs(dict(case.signs)))
        if -1 in signs and not _can_hold(case, assume, own):
            continue
        if not signs <= {0, 1} and not signs <= {-1, 0}:
            return None
        found.add(max(signs) if signs <= {0, 1} else min(signs))
    return found


def _can_hold(case: Case, assume: Assumptions, own: Any) -> bool:
    conditions: dict[Any, Signs] = {RHO: assume.extra[RHO]}
    for difference, signs in (*case.signs, *([] if own is None else [(own, NOT_NEGATIVE)])):
        value, allowed = normal(difference, signs, assume)
        conditions[value] = conditions.get(value, allowed) & allowed
    return feasible(conditions, assume)
