"""The residuals that reach a gate, and over them its slopes and what its level adds to the recovery's argument."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import sympy
from sympy import oo

from fibration.language.atoms import Density, Reading, Stratum, Summary, advantage
from fibration.language.declared import LogProb
from fibration.language.hierarchy import Hierarchy
from fibration.language.operators import ANY, NOT_ZERO, ZERO, Signs, where
from fibration.language.sympy_bridge import cancelled, from_sympy, symbol, to_sympy
from fibration.laws.gates.pieces import Line, extremes
from fibration.laws.signs.assumptions import Assumptions
from fibration.laws.signs.neighbourhood import RHO, is_kinked
from fibration.laws.subject import Subject

Lines = Mapping[tuple[Stratum, str], list[Line] | None]
Ends = tuple[list[Any], list[Any]]  # candidates for an infimum, and for a supremum
INFINITE = symbol(Reading("inf"))  # in a choice, where the language has no number


def is_effect(h: Hierarchy, stratum: Stratum) -> bool:
    """Whether a residual comes from a least-squares fit, and not from a fixed combination of means."""
    if h.orthogonalise is None:
        return False
    fitted = h.shape.crossed()
    return stratum in fitted or any(u in fitted for u in h.shape.moebius(stratum))


def domain(h: Hierarchy, stratum: Stratum, coordinate: str) -> tuple[Any, Any]:
    """The residuals that can reach a gate, in intensive units, as far as they are bounded by 0 or -1."""
    if stratum not in h.roots or is_effect(h, stratum) or coordinate not in ("split", "deviation"):
        return -oo, oo
    return (0, oo) if coordinate == "split" else (-1, oo)  # a root sees means of max(±x, 0), or of r - 1


def stays_below(h: Hierarchy, stratum: Stratum) -> bool:
    """Whether an element whose own density is 0 has a residual that is not above 0, when no density is below 0."""
    return not is_effect(h, stratum) and all(c > 0 for c in h.shape.moebius(stratum).values())


def reach(h: Hierarchy, stratum: Stratum, known: str, low: Any, high: Any, assume: Assumptions) -> list[Any] | None:
    """How large `|x|` may be so that this gate's residual stays in `[low, high]`, whatever the sizes.

    The residual is `s_v - Σ c_u·s_u`, and each mean may be at either end of its range.
    """
    below = oo if low == -oo else -low
    if below == high == oo:
        return [oo, oo]
    if is_effect(h, stratum):
        return None
    factors = h.shape.moebius(stratum).values()
    added = 1 + sum(-c for c in factors if c < 0)  # how often means count with a plus, and how often with a minus
    taken = sum(c for c in factors if c > 0)
    if known == "deviation":
        if not taken:
            room = frozenset({0}) if below == oo else assume.signs(1 + low)
            down = oo if room <= {-1, 0} else -sympy.log(1 + low) if room == {1} else None
            return None if down is None else [oo if high == oo else sympy.log(1 + high), down]
        if added != taken:
            return None
        # at opposite ends of [exp(-R) - 1, exp(R) - 1]: 2 sinh(R) apart
        ends = (v if v == oo else v / added for v in (below, high))
        return [v if v == oo else sympy.log(v / 2 + sympy.sqrt(1 + v**2 / 4)) for v in ends]
    if known == "split":  # means of max(±x, 0) lie in [0, R]
        up = [high if high == oo else high / added]
        return [below if below == oo else below / taken, *up] if taken else up
    return [v if v == oo else v / (added + taken) for v in (below, high)]  # means lie in [-R, R]


def reads_batch(value: Any) -> bool:
    """Whether the value of a gate depends on more of the batch than its residual, such as a density or an advantage."""
    return any(
        isinstance(from_sympy(s), (Density, Reading, LogProb, Summary))
        for s in sympy.sympify(value).free_symbols - {RHO}
    )


def held(table: Lines, side: int) -> Lines:
    """The lines of each gate that can hold for advantages of this sign."""
    own = symbol(advantage)
    return {k: [n for n in found or () if side in n.assume.extra.get(own, {side})] for k, found in table.items()}


def contribution(stratum: Stratum, table: Lines, subject: Subject, known: str) -> tuple[Any, Any] | None:
    """Infimum and supremum of one level's contribution to the recovery's argument."""
    h = subject.hierarchy
    channels = h.decomposition.channels
    ranges: dict[tuple[str, str], tuple[Any, Any]] = {}
    for channel in channels:
        full = domain(h, stratum, known)
        for name, (low, high) in {"full": full, "down": (full[0], min(full[1], 0))}.items():
            bounds = _range(table[stratum, channel], low, high, subject, stratum)
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


def _range(found: list[Line] | None, low: Any, high: Any, subject: Subject, on: Stratum) -> tuple[Any, Any] | None:
    """The infimum and the supremum of a gate over `[low, high]`, by counts and parameters."""
    ends = [line.range(low, high) for line in found or ()]
    if found is None or None in ends:
        return None
    lows, highs = ([(line, r[k]) for line, r in zip(found, ends, strict=True) if r] for k in (0, 1))
    assume = subject.at(on)
    return _span(by_sizes(lows, assume, -1), by_sizes(highs, assume, 1), subject)


def by_sizes(found: Sequence[tuple[Line, list[Any]]], assume: Assumptions, direction: int) -> list[Any]:
    """The least values of a gate's lines (the largest: `direction` 1), whatever their other conditions are.

    A condition on counts and parameters, as `maximum(1/T, epsilon)` has in a bound, chooses between lines. The result
    then is a formula that chooses too: each value is valid only where its line's conditions hold.
    """
    known = [_conditions(line, assume) for line, _ in found]
    if not (read := Counter(d for conditions in known for d in conditions)):
        return extremes([v for _, values in found for v in values], assume, direction)
    [(d, _)] = read.most_common(1)
    classes: dict[tuple[int, ...], Signs] = {}  # the lines that may hold, by the sign of `d`
    for sign in sorted(assume.signs(d), reverse=True):
        holding = tuple(k for k, conditions in enumerate(known) if sign in conditions.get(d, ANY))
        classes[holding] = classes.get(holding, frozenset()) | {sign}
    chosen: list[tuple[Signs, Any]] = []
    for holding, signs in classes.items():
        values = by_sizes([found[k] for k in holding], assume.with_signs({d: signs}), direction)
        chosen.append((signs, (sympy.Max if direction == 1 else sympy.Min)(*values)))
    if direction * oo in [v for _, v in chosen]:
        return [direction * oo]
    (signs, value), *others = chosen
    for more, other in others:
        value = value if value == other else _where(d, signs, value, other, assume)
        signs |= more
    return [value]


def _conditions(line: Line, assume: Assumptions) -> dict[Any, Signs]:
    """The conditions of a line on counts and parameters alone, as far as they are not assumed."""
    more = ((d, s) for d, s in line.assume.extra.items() if not assume.extra.get(d, ANY) <= s)
    return {d: s for d, s in more if not d.has(RHO) and not reads_batch(d)}


def _where(d: Any, signs: Signs, value: Any, other: Any, assume: Assumptions) -> Any:
    """A value where an expression has some signs, and another value elsewhere: the larger or the smaller, if it is."""
    if not {value, other} & {oo, -oo} and signs not in (ZERO, NOT_ZERO):
        where_it_holds, elsewhere = (
            assume.with_signs({d: held}).signs(value - other) for held in (signs, assume.signs(d) - signs)
        )
        if -1 not in where_it_holds and 1 not in elsewhere:
            return sympy.Max(value, other)
        if 1 not in where_it_holds and -1 not in elsewhere:
            return sympy.Min(value, other)
    e = from_sympy(d)
    holds = {(1,): e > 0, (0, 1): e >= 0, (-1,): e < 0, (-1, 0): e <= 0, (0,): (e >= 0) & (e <= 0)}
    condition = holds.get(tuple(sorted(signs)), (e > 0) | (e < 0))
    value, other = (INFINITE if v in (oo, -oo) else v for v in (value, other))
    return to_sympy(where(condition, from_sympy(value), from_sympy(other)))


def slopes(stratum: Stratum, channel: str, table: Lines, subject: Subject, known: str) -> Ends | None:
    """Candidates for the least and the largest slope of a gate."""
    found = table[stratum, channel]
    if found is None or any(is_kinked(p.value) for line in found for p in line.pieces):
        return None
    ends = [slope_of(line).range(*domain(subject.hierarchy, stratum, known)) for line in found]
    if None in ends:
        return None
    lows, highs = ([v for end in ends if end for v in end[k]] for k in (0, 1))
    return extremes(lows, subject.assume, -1), extremes(highs, subject.assume, 1)


def slope_of(line: Line) -> Line:
    """The slope of a gate along the real line; at a breakpoint that of the branch that holds there."""
    return Line(tuple(replace(p, value=p.slope) for p in line.pieces), line.assume)
