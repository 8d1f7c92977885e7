"""The coordinate in which gates act, and gates in the units of the normal form."""

from __future__ import annotations

from typing import Any

import sympy

from fibration.language.atoms import Gated, Stratum, gated, in_channel, residual, token_log_ratio
from fibration.language.cancel import cancel
from fibration.language.expressions import Expression
from fibration.language.hierarchy import Hierarchy, gates
from fibration.language.sympy_bridge import cancelled, symbol, to_sympy, vanishes
from fibration.language.traversal import substitute
from fibration.laws.gates.pieces import Line, pieces
from fibration.laws.signs.branches import TooManyCases, cases
from fibration.laws.signs.neighbourhood import RHO
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

    "log" for log ratios, "deviation" for `r - 1`; "split" and "split deviation" if these are split by sign. `""` for
    another decomposition, or one whose scale is not the leaf measure of the kernels: facts that follow from the range
    of log ratios are then not certified.
    """
    found = {_coordinate(h, leaf, subject) for leaf in h.leaves}
    return found.pop() if len(found) == 1 else ""


def _coordinate(h: Hierarchy, leaf: Stratum, subject: Subject) -> str:
    m = h.masses[leaf]
    channels = h.decomposition.channels
    back = [symbol(gated(c)) for c in channels]
    recovery = to_sympy(normal_recovery(h, leaf))
    log_argument = recovery.args[0] if isinstance(recovery, sympy.exp) else None
    sides = [subject.at(leaf).with_signs({X: frozenset({s})}) for s in (-1, 1)]
    try:
        seen = [
            [case.sympy() for case in cases(cancel(h.with_mass(h.decomposition[channel], leaf) / m), side)]
            for channel in channels
            for side in sides
        ]
    except TooManyCases:
        return ""

    def are(*expected: Any) -> bool:
        return all(all(vanishes(v - e) for v in values) for values, e in zip(seen, expected, strict=True))

    deviation = sympy.exp(X) - 1
    if len(channels) == 2:
        if log_argument is not None and vanishes(log_argument - back[0] + back[1]):
            return "split" if are(0, X, -X, 0) else ""
        apart = vanishes(recovery - 1 - back[0] + back[1]) and are(0, deviation, -deviation, 0)
        return "split deviation" if apart else ""
    if log_argument is not None and vanishes(log_argument - back[0]) and are(X, X):
        return "log"
    return "deviation" if vanishes(recovery - 1 - back[0]) and are(deviation, deviation) else ""


def is_logarithmic(h: Hierarchy) -> bool:
    """Whether the recovery is an exponential on every leaf, so that gates act on log ratios."""
    return all(isinstance(to_sympy(normal_recovery(h, leaf)), sympy.exp) for leaf in h.leaves)


def normal_recovery(h: Hierarchy, leaf: Stratum) -> Expression:
    """`R` on a leaf, in the units of the normal form."""
    m = h.masses[leaf]
    recovery = h.with_mass(h.decomposition.recovery, leaf)
    return cancel(substitute(recovery, {Gated(c): m * Gated(c) for c in h.decomposition.channels}))


X = symbol(token_log_ratio)


def composed(h: Hierarchy, leaf: Stratum) -> Expression:
    """`R(F(r))` of one token, as an expression in its log ratio."""
    split = h.decomposition
    return h.with_mass(substitute(split.recovery, {gated(c): e for c, e in split.densities}), leaf)


def log_of(ratio: Any) -> Any:
    """`log` of a branch-free ratio, with `exp(a)/exp(b)` and `1 + (exp(x) - 1)` taken apart."""
    ratio = ratio.replace(sympy.exp, lambda a: sympy.exp(cancelled(sympy.together(a))))
    ratio = sympy.powsimp(sympy.expand(sympy.together(ratio)))
    return ratio.args[0] if isinstance(ratio, sympy.exp) else sympy.log(ratio)
