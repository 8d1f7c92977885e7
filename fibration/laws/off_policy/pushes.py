"""In which direction a gate passes on the pull on its residual: along the real line, for pulls of either sign.

An outward pull leads away from residual 0, an inward pull towards it. A slope above 0 lets either pass, a slope below 0
turns it round. The law `inward` is about where each of these may happen.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import sympy
from sympy import oo

from fibration.language.atoms import Density, Stratum
from fibration.language.expressions import Expression
from fibration.language.operators import POSITIVE
from fibration.language.sympy_bridge import OLD_LOG_PROB, symbol, to_sympy
from fibration.language.traversal import atoms
from fibration.laws.gates.contributions import domain
from fibration.laws.gates.coordinates import X, composed, coordinate, intensive, recovery_slopes
from fibration.laws.gates.pieces import Line, Piece, pieces
from fibration.laws.off_policy.further_out import LOST, OPENED, TURNED, Lines, is_of_advantages, keeps, lines_out
from fibration.laws.signs import smooth_signs
from fibration.laws.signs.assumptions import Assumptions
from fibration.laws.signs.branches import TooManyCases, cases
from fibration.laws.signs.neighbourhood import RHO, is_kinked
from fibration.laws.subject import Subject

WAYS = (1, -1)


@dataclass(frozen=True)
class Fault:
    """Where a gate breaks the law, for a pull of one sign: an inward pull is turned round, or lost although no outward
    pull is ever stopped, or an outward pull passes beyond where it was stopped."""

    what: str
    pull: int
    spans: tuple[tuple[Any, Any], ...]  # of residuals, in units of the leaf measure


def _have_slopes(subject: Subject) -> bool:
    """Whether no root in `R(F(r))` that moves with `r` is ever 0: every pull passes through the slopes of both."""
    h = subject.hierarchy

    def is_ratio(symbol: Any) -> bool:
        return bool(symbol == X)

    try:
        return all(
            case.defined(subject.at(leaf), tuple(n.of_slopes(is_ratio) for n in case.needs if X in n.moved_by))
            for leaf in h.leaves
            for case in cases(composed(h, leaf), subject.at(leaf))
        )
    except TooManyCases:
        return False


@dataclass(frozen=True)
class Pushed:
    """A gate on one channel, with its assumptions for a pull of either sign."""

    subject: Subject
    stratum: Stratum
    channel: str

    @cached_property
    def gate(self) -> Expression:
        return intensive(self.subject.hierarchy, self.stratum, self.channel)

    @cached_property
    def reads_densities(self) -> bool:
        return bool(atoms(self.gate, Density))

    @cached_property
    def ratios(self) -> list[Any]:
        """The sums of weighted ratios that are above 0: each density of deviations that the gate reads, plus its mass.

        The density is `Σ m·(r - 1)` over the tokens of its element, and the mass `Σ m`, so that their sum is `Σ m·r`.
        Every ratio is above 0, no weight `m` is below 0, and the mass shows that one is above 0.
        """
        subject, h = self.subject, self.subject.hierarchy
        if not (self.reads_densities and h.shape.is_tree and coordinate(h, subject) == "deviation"):
            return []
        if not (subject.proved("markov") and subject.proved("reflecting")):  # a gate reads densities below its stratum
            return []
        read = ((symbol(a), to_sympy(h.masses[a.stratum])) for a in atoms(self.gate) if isinstance(a, Density))
        return [s + mass for s, mass in read if subject.at(self.stratum).signs(mass) == POSITIVE]

    @cached_property
    def base(self) -> Any:
        return symbol(self.subject.hierarchy.pulled_by(self.stratum))

    @cached_property
    def least(self) -> Any:
        """The lower bound of all residuals."""
        return domain(self.subject.hierarchy, self.stratum, coordinate(self.subject.hierarchy, self.subject))[0]

    @cached_property
    def sides(self) -> list[int]:
        return [side for side in WAYS if side == 1 or self.least != 0]

    @cached_property
    def held(self) -> dict[int, Assumptions] | None:
        """The assumptions for a pull of either sign; None if the gate reads the pull and its direction is unknown."""
        is_alone = self.least == -1 and len(self.subject.hierarchy.order) == 1
        ratios = dict.fromkeys(self.ratios, POSITIVE)
        assume = self.subject.at(self.stratum).with_signs({1 + RHO: POSITIVE} if is_alone else ratios)
        base = self.base
        if base not in map(symbol, atoms(self.gate)):
            return dict.fromkeys(WAYS, assume)
        if (ways := recovery_slopes(self.subject, self.channel)) not in ({1}, {-1}):
            return None
        (up,) = ways  # whether ratios rise or fall with the density
        return {p: assume.with_signs({base: frozenset({p * up})}) for p in WAYS}

    def is_kept(self, but: str = "") -> bool:
        """Whether the law is proved on both sides of 0; `but`: all of it except this fault."""
        if self.held is None or not _have_slopes(self.subject):
            return False
        own = None
        if self.channel in self.subject.never_negative and self.reads_densities:
            own = _own_density(self.subject, self.stratum, self.channel)
        h, assume = self.subject.hierarchy, self.held[1]

        def lines(side: int) -> Lines:
            return lines_out(h, self.stratum, self.channel, self.gate, side, assume, own, self._end(side, own))

        return all(keeps(self.gate, self.held, side, self.base, lines(side), but) for side in self.sides)

    def _end(self, side: int, own: Any) -> Any:
        """Where residuals end on a side; None if that depends on other numbers, or is unknown."""
        known = coordinate(self.subject.hierarchy, self.subject)
        if not known or (known, self.channel) == ("split deviation", "-"):
            return None
        if side == -1 and self.least == -1:
            return sympy.Integer(-1) if len(self.subject.hierarchy.order) == 1 else None
        reads_probability = symbol(OLD_LOG_PROB) in map(symbol, atoms(self.gate))
        return None if (own is not None and side == -1) or (reads_probability and side == 1) else side * oo

    def faults(self, but: str = "") -> list[Fault]:
        """Where the law seems broken, by the gate's pieces in the order of the residual; without the fault `but`."""
        if self.held is None or self.reads_densities:
            return []
        lines = {p: cut for p, assume in self.held.items() if (cut := pieces(self.gate, assume)) is not None}
        sides = self.sides if len(lines) == len(WAYS) else []
        turned = {symbol(a) for a in atoms(self.gate) if is_of_advantages(a)} | {self.base}
        stops = (-1, 0) if but == TURNED else (0,)
        return [f for side in sides for f in _by_pieces(lines, side, turned, stops) if f.what != but]


# ---------------------------------------------------------------- in the order of the residual


def _by_pieces(lines: dict[int, list[Line]], side: int, turned: set[Any], stops: tuple[int, ...]) -> list[Fault]:
    """The faults on one side of 0; none if a piece both rises and falls. A direction in `stops` loses a pull."""
    inward, outward = [[_outwards(line, side) for line in lines[p]] for p in (-side, side)]
    if any(d is None for line in (*inward, *outward) for _, d in line):
        return []
    found = [Fault(TURNED, -side, ((p.low, p.high),)) for line in inward for p, d in line if d == -1]
    for stretches in outward:
        end = next((k for k, (_, d) in enumerate(stretches) if d != 1), len(stretches))
        opened = next(((p.low, p.high) for p, d in stretches[end:] if d == 1), None)
        if opened is not None:
            closed = stretches[end][0]
            found.append(Fault(OPENED, side, ((closed.low, closed.high), opened)))
    back, out = (zip(lines[w], ws, strict=True) for w, ws in ((-side, inward), (side, outward)))
    for (line, ps), (other, qs) in itertools.product(back, out):
        lost = next((p for p, d in ps if d in stops), None)
        if lost is not None and qs and qs[-1][1] == 1 and _meet(line.assume, other.assume, turned):
            found.append(Fault(LOST, -side, ((lost.low, lost.high),)))
    return found


def _outwards(line: Line, side: int) -> list[tuple[Piece, int | None]]:
    """The stretches on one side of 0 that residuals reach, from 0 outwards, with their directions."""
    zero = next(i for i, p in enumerate(line.pieces) if p.is_point and p.low == 0)
    chosen = line.pieces[zero + 1 :] if side == 1 else line.pieces[:zero][::-1]
    reached = [p for p in chosen if not p.is_point and not _is_beyond(p, line.assume)]
    return [(p, d) for p in reached for d in _directions_of(p, line.assume, side)]


def _directions_of(p: Piece, assume: Assumptions, side: int) -> list[int | None]:
    """The directions of a piece, from 0 outwards; for a bent piece, all those of its formula on that side."""
    found = _direction(p, assume)
    if found is not None or is_kinked(p.slope):
        return [found]
    slopes = smooth_signs.course(p.slope, RHO, side, assume)
    return [None] if slopes is None else [s for s in slopes if s] or [0]


def _direction(p: Piece, assume: Assumptions) -> int | None:
    """As `Piece.passes`; for a bent piece with two ends, by its slopes at the ends."""
    found, slope = p.passes(assume), p.slope
    if found is not None or is_kinked(slope) or oo in (p.high, -p.low):
        return found
    side = assume.with_signs({RHO: frozenset({1 if -1 not in assume.signs(p.low) else -1})})
    if len(side.signs(sympy.diff(slope, RHO)) - {0}) > 1:
        return None
    ends = assume.signs(slope.subs(RHO, p.low)) | assume.signs(slope.subs(RHO, p.high))
    return 1 if -1 not in ends else -1 if 1 not in ends else None


def _is_beyond(p: Piece, assume: Assumptions) -> bool:
    """Whether a piece lies below all deviations of ratios, which are above -1."""
    return 1 + RHO in assume.extra and p.high != oo and assume.signs(1 + p.high) <= {-1, 0}


def _meet(one: Assumptions, other: Assumptions, turned: set[Any]) -> bool:
    """Whether the conditions of two lines can hold on one element, apart from those that change with the pull."""
    shared = (e for e in one.extra.keys() & other.extra.keys() if not e.free_symbols & turned)
    return all(one.extra[e] & other.extra[e] for e in shared)


def _own_density(subject: Subject, stratum: Stratum, channel: str) -> Any:
    """The density of the element itself, in units of the leaf measure: its residual plus what that subtracts."""
    h = subject.hierarchy
    base = h.shape.moebius(stratum).items()
    return RHO + sum(c * symbol(Density(u, channel)) / to_sympy(h.masses[u]) for u, c in base)
