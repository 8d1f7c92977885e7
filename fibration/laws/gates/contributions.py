"""The contribution of one level to the recovery's argument, and the slopes of its gate, over all its residuals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import sympy
from sympy import oo

from fibration.language.atoms import Density, Reading, Stratum, Summary
from fibration.language.policies import LogProb
from fibration.language.sympy_bridge import cancelled, from_sympy
from fibration.laws.gates.pieces import Line, extremes
from fibration.laws.gates.reach import domain, stays_below
from fibration.laws.signs.neighbourhood import RHO, is_kinked
from fibration.laws.subject import Subject

Lines = Mapping[tuple[Stratum, str], list[Line] | None]
Ends = tuple[list[Any], list[Any]]  # candidates for an infimum, and for a supremum


def reads_batch(value: Any) -> bool:
    """Whether the value of a gate depends on more of the batch than its residual, such as a density or an advantage."""
    return any(
        isinstance(from_sympy(s), (Density, Reading, LogProb, Summary))
        for s in sympy.sympify(value).free_symbols - {RHO}
    )


def contribution(stratum: Stratum, table: Lines, subject: Subject, known: str) -> tuple[Any, Any] | None:
    """Infimum and supremum of one level's contribution to the recovery's argument."""
    h = subject.hierarchy
    channels = h.decomposition.channels
    ranges: dict[tuple[str, str], tuple[Any, Any]] = {}
    for channel in channels:
        full = domain(h, stratum, known)
        for name, (low, high) in {"full": full, "down": (full[0], min(full[1], 0))}.items():
            bounds = _range(table[stratum, channel], low, high, subject)
            if bounds is None:
                return None
            ranges[channel, name] = bounds
    if channels == ("",):
        return ranges["", "full"]
    pairs = [("full", "full")]
    if stratum in h.leaves and stratum not in h.roots and stays_below(h, stratum):
        # a token lies in one channel: in the other its density is 0, and its residual is minus a mean, so at most 0
        pairs = [("full", "down"), ("down", "full")]
    lows = [_minus(ranges["+", a][0], ranges["-", b][1]) for a, b in pairs]
    highs = [_minus(ranges["+", a][1], ranges["-", b][0]) for a, b in pairs]
    return _span(lows, highs, subject)


def _span(lows: list[Any], highs: list[Any], subject: Subject) -> tuple[Any, Any]:
    """The least of `lows` and the largest of `highs`, without bounds that another bound certainly dominates."""
    return sympy.Min(*extremes(lows, subject.assume, -1)), sympy.Max(*extremes(highs, subject.assume, 1))


def _minus(a: Any, b: Any) -> Any:
    return a if a in (oo, -oo) else -b if b in (oo, -oo) else cancelled(a - b)


def _range(found: list[Line] | None, low: Any, high: Any, subject: Subject) -> tuple[Any, Any] | None:
    ends = _ends(found, low, high)
    return None if ends is None else _span(*ends, subject)


def _ends(found: list[Line] | None, low: Any, high: Any) -> Ends | None:
    """Candidates for the infimum and the supremum of a gate over `[low, high]`."""
    ranges = [line.range(low, high) for line in found or ()]
    if found is None or None in ranges:
        return None
    return [v for r in ranges for v in r[0]], [v for r in ranges for v in r[1]]  # type: ignore[index]


def slopes(stratum: Stratum, channel: str, table: Lines, subject: Subject, known: str) -> Ends | None:
    """Candidates for the least and the largest slope of a gate."""
    found = table[stratum, channel]
    if found is None or any(is_kinked(p.value) for line in found for p in line.pieces):
        return None
    ends = _ends([slope_of(line) for line in found], *domain(subject.hierarchy, stratum, known))
    if ends is None:
        return None
    return extremes(ends[0], subject.assume, -1), extremes(ends[1], subject.assume, 1)


def slope_of(line: Line) -> Line:
    """The slope of a gate along the real line; at a breakpoint that of the branch that holds there."""
    return Line(tuple(replace(p, value=p.slope) for p in line.pieces), line.assume)
