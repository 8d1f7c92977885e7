"""The coordinate in which gates act, and gates in the units of the normal form."""

from __future__ import annotations

from typing import Any

import sympy

from fibration.language.atoms import Gated, Stratum, gated, in_channel, residual, token_log_ratio
from fibration.language.expressions import Expression
from fibration.language.hierarchy import Hierarchy, gates
from fibration.language.operators import Signs
from fibration.language.statistics import Ordered
from fibration.language.sympy_bridge import symbol, to_sympy, vanishes
from fibration.language.traversal import atoms, cancel, substitute
from fibration.laws.gates.pieces import Line, pieces
from fibration.laws.signs.branches import TooManyCases, cases
from fibration.laws.signs.neighbourhood import RHO, is_kinked
from fibration.laws.subject import Subject


def intensive(h: Hierarchy, stratum: Stratum, channel: str) -> Expression:
    """A gate in the units of the normal form, `g(m·s)/m`."""
    m = h.masses[stratum]
    return cancel(substitute(in_channel(h.gate(stratum), channel), {residual: m * residual}) / m)


def lines(h: Hierarchy, subject: Subject) -> dict[tuple[Stratum, str], list[Line] | None]:
    """Every gate's pieces, in intensive units."""
    extra = {}
    if len(h.order) == 1 and coordinate(h, subject) == "deviation":
        extra = {1 + RHO: frozenset({1})}
    return {(s, c): pieces(intensive(h, s, c), subject.at(s).with_signs(extra)) for s, c, _ in gates(h)}


def coordinate(h: Hierarchy, subject: Subject) -> str:
    """The coordinate of the gates in the normal form.

    "log" for log ratios, "deviation" for `r - 1`; "split" and "split deviation" if these are split by sign. Values and
    slopes are those: with `stop` they are two functions. `""` for another decomposition, or one whose scale is not the
    leaf measure of the kernels: facts that follow from the range of log ratios, or from slopes, are not certified then.
    """
    found = {_coordinate(h, leaf, subject) for leaf in h.leaves}
    return found.pop() if len(found) == 1 else ""


def _coordinate(h: Hierarchy, leaf: Stratum, subject: Subject) -> str:
    m = h.masses[leaf]
    channels = h.decomposition.channels
    back = [symbol(gated(c)) for c in channels]
    recovery = to_sympy(normal_recovery(h, leaf))
    densities = [cancel(h.with_mass(h.decomposition[channel], leaf) / m) for channel in channels]
    known = [subject.at(leaf).with_signs({X: frozenset({s})}) for s in (-1, 0, 1)]
    try:
        seen = [[cases(density, side) for side in known] for density in densities]
        at_once = cases(cancel(densities[0] - densities[-1]), known[1])
    except TooManyCases:
        return ""
    others = [symbol(o) for density in densities for o in atoms(density, Ordered)]

    def are(*expected: tuple[Any, Any]) -> bool:
        """Whether densities are these below and above `x = 0`, with their slopes; at 0 they are 0, with one of both."""
        for (below, at_0, above), ends in zip(seen, expected, strict=True):
            beside = [(case, e) for found, e in zip((below, above), ends, strict=True) for case in found]
            slopes = [sympy.diff(e, X).subs(X, 0) for e in ends]
            if not (
                all(vanishes(c.sympy() - e) and vanishes(c.slope(X) - sympy.diff(e, X)) for c, e in beside)
                and all(vanishes(c.sympy().subs(X, 0)) for c in at_0)
                and all(any(vanishes(c.slope(X).subs(X, 0) - s) for s in slopes) for c in at_0)
                and all(vanishes(c.slope(o)) for c in (*below, *at_0, *above) for o in others)
            ):
                return False
        return True

    zero, is_split = sympy.Integer(0), len(channels) == 2
    if is_split and any(not vanishes(c.slope(X).subs(X, 0) - 1) for c in at_once):
        return ""  # at 0 a token has both channels, or none
    argument = back[0] - back[1] if is_split else back[0]
    for name, inverse, own in (("log", sympy.log(recovery), X), ("deviation", recovery - 1, sympy.exp(X) - 1)):
        expected = ((zero, own), (-own, zero)) if is_split else ((own, own),)
        if vanishes(inverse - argument) and are(*expected):
            return {"log": "split", "deviation": "split deviation"}[name] if is_split else name
    return ""


def is_logarithmic(h: Hierarchy) -> bool:
    """Whether the recovery is an exponential on every leaf, so that gates act on log ratios."""
    return all(isinstance(to_sympy(normal_recovery(h, leaf)), sympy.exp) for leaf in h.leaves)


def normal_recovery(h: Hierarchy, leaf: Stratum) -> Expression:
    """`R` on a leaf, in the units of the normal form."""
    m = h.masses[leaf]
    recovery = h.with_mass(h.decomposition.recovery, leaf)
    return cancel(substitute(recovery, {Gated(c): m * Gated(c) for c in h.decomposition.channels}))


X = symbol(token_log_ratio)
BOTH = frozenset({1, -1})


def recovery_slopes(subject: Subject, channel: str) -> Signs:
    """The signs that slopes of the ratio in what the gates of a channel pass may have.

    They are those of the recovery R alone. `R(F(r)) = r` says nothing of R beyond the values of F, and gates go there.
    """
    h, variable, found = subject.hierarchy, symbol(gated(channel)), frozenset[int]()
    for leaf in h.leaves:
        try:
            branches = cases(normal_recovery(h, leaf), assume := subject.at(leaf))
        except TooManyCases:
            return BOTH
        for case in branches:
            if is_kinked(case.sympy()) or not case.defined(assume, case.needs_of_slopes(lambda s: s == variable)):
                return BOTH
            found |= assume.with_signs(dict(case.signs)).signs(case.slope(variable))
    return found


def composed(h: Hierarchy, leaf: Stratum) -> Expression:
    """`R(F(r))` of one token, as an expression in its log ratio."""
    split = h.decomposition
    return h.with_mass(substitute(split.recovery, {gated(c): e for c, e in split.densities}), leaf)
