"""A gate along the real line: its pieces between ordered breakpoints give ranges, continuity and regions.

It needs conditions that are affine in the residual, and breakpoints whose order the assumptions decide. For any other
gate `pieces` returns None, and facts that rest on it are not certified.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cmp_to_key
from typing import Any

import sympy
from sympy import oo

from fibration.language.atoms import Density
from fibration.language.expressions import Expression
from fibration.language.operators import Signs
from fibration.language.polynomials import TooLarge
from fibration.language.sympy_bridge import ATOM_OF, cancelled, from_quotient, quotient, show, vanishes
from fibration.laws.signs.assumptions import Assumptions
from fibration.laws.signs.branches import Case, TooManyCases, cases
from fibration.laws.signs.neighbourhood import RHO, is_kinked


@dataclass(frozen=True)
class Piece:
    """`value` on the open interval between two breakpoints, or at one (`low == high`).

    `slope` is its derivative; what is inside `stop` adds nothing to it.
    """

    low: Any
    high: Any
    value: Any
    slope: Any

    @property
    def is_point(self) -> bool:
        return bool(self.low == self.high)

    def direction(self, assume: Assumptions) -> int | None:
        """1 for a piece that nowhere falls, -1 for one that nowhere rises, 0 for a constant; None if none is shown."""
        if self.is_point:
            return 0
        if is_kinked(self.value):
            return None
        return self._way(sympy.diff(self.value, RHO), assume)

    def passes(self, assume: Assumptions) -> int | None:
        """As `direction`, from the slope: the sign with which the piece passes a gradient on."""
        return 0 if self.is_point else None if is_kinked(self.slope) else self._way(self.slope, assume)

    def highest(self, assume: Assumptions) -> Any | None:
        """The supremum of the values; None if it is not known."""
        way = self.direction(assume)
        return None if way is None else _limit(self.value, self.high if way == 1 else self.low, assume)

    def continues(self, other: Piece) -> bool:
        """Whether both are pieces of one formula, in value and slope."""
        return vanishes(self.value - other.value) and vanishes(self.slope - other.slope)

    def _way(self, slope: Any, assume: Assumptions) -> int | None:
        above = self.low != -oo and -1 not in assume.signs(self.low)  # 0 is a breakpoint: a piece lies on one side
        signs = assume.with_signs({RHO: frozenset({1 if above else -1})}).signs(slope)
        if signs == {0}:
            return 0
        return 1 if -1 not in signs else -1 if 1 not in signs else None


IDENTITY = Piece(-oo, oo, RHO, sympy.Integer(1))


@dataclass(frozen=True)
class Line:
    """One gate for one outcome of the conditions that do not mention the residual (such as the advantage's sign)."""

    pieces: tuple[Piece, ...]
    assume: Assumptions

    def continuous(self) -> bool:
        return all(
            vanishes(left.value.subs(RHO, left.high) - right.value.subs(RHO, left.high))
            for left, right in itertools.pairwise(self.pieces)
        )

    def restorative(self) -> list[Piece]:
        """Intervals on which the gate pushes back: negative slope."""
        return [p for p in self.pieces if not p.is_point and self.assume.signs(p.slope) == {-1}]

    def passes(self) -> tuple[Any, Any] | None:
        """The largest interval around 0 on which the gate is the identity, or None."""
        same = [p.continues(IDENTITY) for p in self.pieces]
        start = next((i for i, p in enumerate(self.pieces) if p.is_point and p.low == 0), None)
        if start is None or not same[start]:
            return None
        low = high = start
        while low > 0 and same[low - 1]:
            low -= 1
        while high + 1 < len(same) and same[high + 1]:
            high += 1
        return self.pieces[low].low, self.pieces[high].high

    def passes_at(self, end: Any) -> bool:
        """Whether the gate is the identity at a breakpoint."""
        return all(vanishes(p.value - RHO) for p in self.pieces if p.is_point and p.low == end)

    def range(self, low: Any, high: Any) -> tuple[list[Any], list[Any]] | None:
        """Candidates for infimum and supremum over residuals in `[low, high]` (bounds 0, -1 or infinite)."""
        candidates: list[Any] = []
        zero = next(i for i, p in enumerate(self.pieces) if p.is_point and p.low == 0)
        for p in self.pieces[zero if low == 0 else 0 : zero + 1 if high == 0 else None]:
            if p.direction(self.assume) is None:
                return None  # its extrema may lie inside
            for end in (low if p.low == -oo else p.low, p.high):
                value = _limit(p.value, end, self.assume)
                if value is None:
                    return None
                candidates.append(value)
        unique: list[Any] = []
        for c in candidates:
            if not any(c == u or (c not in (oo, -oo) and u not in (oo, -oo) and vanishes(c - u)) for u in unique):
                unique.append(c)
        return extremes(unique, self.assume, -1), extremes(unique, self.assume, 1)


def extremes(values: list[Any], assume: Assumptions, direction: int) -> list[Any]:
    """The `values` that no other value dominates in `direction`."""
    infinite = oo * direction
    if infinite in values:
        return [infinite]
    finite = [v for v in values if v != -infinite]

    def is_dominated(i: int) -> bool:
        beside = ((j, assume.signs(w - finite[i])) for j, w in enumerate(finite) if j != i)
        return any(-direction not in signs and (0 not in signs or j < i) for j, signs in beside)

    return [v for i, v in enumerate(finite) if not is_dominated(i)] or finite[:1]


def _limit(value: Any, end: Any, assume: Assumptions) -> Any | None:
    if end not in (oo, -oo):
        found = value.subs(RHO, end)
        return None if found.has(sympy.zoo, sympy.nan) else found
    slope = sympy.diff(value, RHO)
    if slope == 0:
        return value
    signs = assume.signs(slope) if not slope.has(RHO) else frozenset()
    if len(signs) == 1:
        return oo * next(iter(signs)) * (1 if end == oo else -1)
    limit = sympy.limit(value, RHO, end) if not (value.free_symbols - {RHO}) else None
    return limit if limit is not None and limit.is_extended_real else None


def pieces(gate: Expression, assume: Assumptions) -> list[Line] | None:
    """The gate's pieces, one Line per selector; None where the conditions cannot be ordered."""
    try:
        found = cases(gate, assume)
    except TooManyCases:
        return None
    if not all(case.defined(assume, case.needs_of_slopes(has_slope)) for case in found):
        return None
    groups: dict[frozenset[tuple[Any, Signs]], list[Case]] = {}
    for case in found:
        groups.setdefault(frozenset((d, s) for d, s in case.signs if not d.has(RHO)), []).append(case)
    lines = []
    for selector, members in groups.items():
        if any(selector < other for other in groups):
            continue
        # A branch without one of the selector's conditions belongs to each of its outcomes.
        shared = [c for s, cs in groups.items() if s < selector for c in cs]
        known = {d: s for d, s in members[0].signs if (d, s) in selector}
        line = _line([*members, *shared], assume.with_signs(known))
        if line is None:
            return None
        lines.append(line)
    return [line for line in lines if line.pieces]


def has_slope(symbol: Any) -> bool:
    """Whether a gate passes a gradient on to a symbol: the residual, or a coarser density."""
    return symbol == RHO or isinstance(ATOM_OF[symbol], Density)


def _line(members: list[Case], assume: Assumptions) -> Line | None:
    roots: dict[Any, tuple[Any, int]] = {}
    for d in dict.fromkeys(d for case in members for d, _ in case.signs if d.has(RHO)):
        root = affine_root(d, assume)
        if root is None:
            return None
        roots[d] = root
    points: list[Any] = [sympy.Integer(0)]
    for root, _ in roots.values():
        if not any(vanishes(root - p) for p in points):
            points.append(root)
    ordered = _sorted(points, assume)
    if ordered is None:
        return None
    # breakpoints have the places 0, 2, 4, ... along the line, and what lies between them has the odd places
    place = {d: next(2 * i for i, p in enumerate(ordered) if vanishes(p - root)) for d, (root, _) in roots.items()}
    bounds = [-oo, *ordered, oo]
    result = []
    for here in range(-1, 2 * len(ordered)):
        found = {d: slope * ((here > place[d]) - (here < place[d])) for d, (_, slope) in roots.items()}
        case = next((c for c in members if all(found[d] in signs for d, signs in c.signs if d in found)), None)
        if case is None:
            return None
        result.append(Piece(bounds[(here + 2) // 2], bounds[(here + 3) // 2], case.sympy(), case.slope(RHO)))
    return Line(tuple(result), assume)


def affine_root(d: Any, assume: Assumptions) -> tuple[Any, int] | None:
    """Where an affine difference vanishes, and the sign of its slope."""
    slope = cancelled(sympy.diff(d, RHO))
    signs = frozenset[int]() if slope.has(RHO) else assume.signs(slope)
    if len(signs) != 1 or signs == {0}:
        return None
    try:
        root = from_quotient(quotient(-d.subs(RHO, 0)) * quotient(slope) ** -1)
    except (TooLarge, ValueError):
        return None
    return root, next(iter(signs))


def _sorted(points: list[Any], assume: Assumptions) -> list[Any] | None:
    signs = {(p, q): assume.signs(p - q) for q, p in itertools.combinations(points, 2)}
    if any(len(found) != 1 for found in signs.values()):
        return None
    order = {pair: next(iter(found)) for pair, found in signs.items()}
    return sorted(points, key=cmp_to_key(lambda p, q: order[p, q] if (p, q) in order else -order[q, p]))


def text(value: Any) -> str:
    """A bound in the written grammar."""
    return {oo: "inf", -oo: "-inf"}.get(value) or show(sympy.sympify(value))
