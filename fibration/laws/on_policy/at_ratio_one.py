"""The operator at `r = 1`, to first order: `R∘F`, and the gates of all levels together."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import sympy

from fibration.language.atoms import Stratum, gated, token_log_ratio
from fibration.language.expressions import Expression
from fibration.language.hierarchy import Hierarchy
from fibration.language.order import Ordered
from fibration.language.statistics import atoms_within
from fibration.language.sympy_bridge import Stopped, cancelled, flowing, symbol, to_sympy, vanishes
from fibration.language.traversal import atoms
from fibration.laws.gates.coordinates import X, composed
from fibration.laws.on_policy import levels_together
from fibration.laws.signs.branches import TooManyCases, cases
from fibration.laws.signs.claim import Claim
from fibration.laws.signs.neighbourhood import SIDES, Neighbourhood, is_kinked, one_side
from fibration.laws.subject import Subject

# ---------------------------------------------------------------- recovery


@dataclass(frozen=True)
class Start:
    """`R(F(r))` and its derivative towards the log ratio, at `r = 1` or in the limit from a side; None if not found.

    `rise`: the derivative without any `stop`. `others`: the slopes towards sums before or after a token, which are 0 at
    `r = 1` too; first the slopes that flow, then those without any `stop`.
    """

    leaf: Stratum
    side: int
    value: Any = None
    slope: Any = None
    rise: Any = None
    others: tuple[Any, ...] = ()

    @property
    def is_true(self) -> bool:
        return self.flows_alone and all(vanishes(v) for v in self.others)

    @property
    def flows_alone(self) -> bool:
        """Whether value and gradient are right, with sums before or after a token that add a stopped value."""
        flowing = self.others[: len(self.others) // 2]
        return self.value == 1 and self.slope == 1 and self.rise == 1 and all(vanishes(v) for v in flowing)


def starts(subject: Subject) -> Iterator[Start]:
    """Yields a start for every leaf and every branch that can hold at `r = 1` or beside it.

    If the law of recovery is proved and nothing is stopped, only the branch at `r = 1` itself is examined.
    """
    h, order = subject.hierarchy, in_order(subject.hierarchy)
    stopped = any(to_sympy(composed(h, leaf)).has(Stopped) for leaf in h.leaves)
    for leaf, side in itertools.product(h.leaves, (0,) if subject.proved("recovery") and not stopped else SIDES):
        near = one_side(subject.at(leaf), side, variable=X)
        try:
            found = near.branches(composed(h, leaf))
        except TooManyCases:
            yield Start(leaf, side)
            continue
        for case in found:
            value = case.sympy()
            if near.is_smooth(case) and not is_kinked(value):
                terms = value, case.slope(X), sympy.diff(value, X)
                there = {X: 0, **order}
                others = [case.slope(s).subs(there) for s in order] + [sympy.diff(value, s).subs(there) for s in order]
                first, slope, rise = (cancelled(v.subs(there)) for v in terms)
                yield Start(leaf, side, first, slope, rise, tuple(others))
            else:
                yield Start(leaf, side)


def in_order(h: Hierarchy) -> dict[Any, int]:
    """The sums of log ratios before or after a token that `F` reads, each with its value 0 at `r = 1`."""
    return {symbol(o): 0 for o in _order(h) if token_log_ratio in atoms_within(o.formula)}


def reads_order(h: Hierarchy) -> bool:
    """Whether `F` reads sums before or after the token."""
    return any(True for _ in _order(h))


def _order(h: Hierarchy) -> Iterator[Ordered]:
    return (a for _, e in h.decomposition.densities for a in atoms(e, Ordered))


def recovers(subject: Subject) -> bool:
    """Whether `R(F(r)) = r` to first order beside `r = 1`, whatever the branch at `r = 1` is."""
    return subject.proved("recovery") or all(s.is_true for s in starts(subject) if s.side)


def is_smooth(subject: Subject) -> bool:
    """Whether `R` has one value and one slope at 0, also for gated densities that no `F(r)` equals."""
    h = subject.hierarchy
    zero: dict[Any, Any] = {symbol(gated(c)): 0 for c in h.decomposition.channels}
    for leaf in h.leaves:
        near = Neighbourhood(subject.at(leaf), zero, at_0=False)
        try:
            found = near.branches(h.with_mass(h.decomposition.recovery, leaf))
        except TooManyCases:
            return False
        if not all(near.is_smooth(case) and not is_kinked(case.sympy()) for case in found):
            return False
        ends = [
            [e.subs(zero) for e in (c.sympy(), *(c.slope(g) for g in zero), *(sympy.diff(c.sympy(), g) for g in zero))]
            for c in found
        ]
        if not all(vanishes(a - b) for end in ends for a, b in zip(end, ends[0], strict=True)):
            return False
    return True


# ---------------------------------------------------------------- gates


def reference_is_zero(subject: Subject) -> bool:
    """Whether `F` is 0 at `r = 1` and tends to 0 towards it, from both sides, on every leaf."""
    h = subject.hierarchy
    try:
        return all(
            near.is_smooth(case) and vanishes(case.sympy().subs({X: 0, **in_order(h)}))
            for leaf in h.leaves
            for _, e in h.decomposition.densities
            for near in (one_side(subject.at(leaf), side, variable=X) for side in SIDES)
            for case in near.branches(h.with_mass(e, leaf))
        )
    except TooManyCases:
        return False


def can_add(subject: Subject) -> bool:
    """Whether the gates of all levels can be added up in the densities of all strata."""
    return (
        recovers(subject)
        and reference_is_zero(subject)
        and all(Claim(f.weight, subject.at(f.source)).is_shown for f in subject.hierarchy.fibrations)
        and levels_together.usable(subject)
    )


def is_one(subject: Subject) -> bool:
    """Whether `𝒢` is 1 at `r = 1`, and in the limit from every side."""
    found = levels_together.reference_values(subject, flat=False) if can_add(subject) else None
    return found is not None and all(_recovers_one(subject, leaf, values) for leaf, values in found.items())


def has_slope_one(subject: Subject, still: bool = False) -> bool:
    """Whether `d𝒢/dr = 1` at `r = 1`, on every side of it, whatever `𝒢(1)` is.

    `still`: the value of `𝒢` must also change by as much; with a `stop` it need not.
    """
    found = levels_together.reference_values(subject, flat=True, still=still) if can_add(subject) else None
    return found is not None and all(_recovers_alike(subject, leaf, values) for leaf, values in found.items())


def _recovers_one(subject: Subject, leaf: Stratum, values: dict[str, list[Any]]) -> bool:
    if all(vanishes(v) for options in values.values() for v in options):
        return is_smooth(subject)  # R(F(1)) = 1
    recovery, mass = only_recovery(subject, leaf)
    return recovery is not None and all(vanishes(flowing(recovery).subs(p) - 1) for p in points(values, mass))


def _recovers_alike(subject: Subject, leaf: Stratum, values: dict[str, list[Any]]) -> bool:
    """Whether `R'` is the same at these gated densities as at 0."""
    h = subject.hierarchy
    recovery, mass = only_recovery(subject, leaf)
    if recovery is None:
        return False
    zero: dict[Any, Any] = {symbol(gated(c)): 0 for c in h.decomposition.channels}
    for g in zero:
        for slope in (flowing(sympy.diff(recovery, g)), sympy.diff(flowing(recovery), g)):
            others = slope.free_symbols & zero.keys()
            for at in points({c: v for c, v in values.items() if symbol(gated(c)) in others}, mass):
                if not vanishes(slope.subs(at) - slope.subs(zero)):
                    return False
    return True


def points(values: dict[str, list[Any]], mass: Any) -> Iterator[dict[Any, Any]]:
    """Gated densities, one choice of value per channel."""
    for chosen in itertools.product(*values.values()):
        yield {symbol(gated(channel)): mass * v for channel, v in zip(values, chosen, strict=True)}


def only_recovery(subject: Subject, leaf: Stratum) -> tuple[Any, Any]:
    """`R` with its stopped parts, and `m`, on a leaf; None for both unless each has one branch."""
    h = subject.hierarchy
    expressions: list[Expression] = [h.with_mass(h.decomposition.recovery, leaf), h.masses[leaf]]
    try:
        [[recovery], [mass]] = [cases(e, subject.at(leaf)) for e in expressions]
    except (ValueError, TooManyCases):
        return None, None
    return (None, None) if is_kinked(recovery.sympy()) else (recovery.held(), mass.sympy())
