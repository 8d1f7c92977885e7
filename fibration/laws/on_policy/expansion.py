"""`𝒢 = R∘D∘F` at ratio 1, to first order: what the laws of gates on policy read.

`F` and `R` act on one token, and are followed on each side of `r = 1`. In between, `D = Σ h_v` adds the gates of all
levels on each leaf, as a function of the densities. One gate may compensate another. Near `r = 1` every residual and
density is small, so each gate is one of the branches that can hold there. The residual of every level is written as
`σ_v - Σ_u c_u·(m_v/m_u)·σ_u` in the densities `σ`, which are independent of each other. First-order agreement holds if
the sum of the branches is the leaf's own density, whatever branches meet.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import sympy

from fibration.language.atoms import Density, Reading, Stratum, gated, in_channel, residual, token_log_ratio
from fibration.language.expressions import Expression, as_expression
from fibration.language.hierarchy import Hierarchy, gates
from fibration.language.operators import NOT_NEGATIVE
from fibration.language.statistics import Ordered, atoms_within
from fibration.language.sympy_bridge import Stopped, cancelled, flowing, show, symbol, to_sympy, vanishes
from fibration.language.traversal import atoms, cancel, substitute
from fibration.laws.gates.coordinates import X, composed
from fibration.laws.signs.branches import Case, Conditions, TooManyCases, cases, merged
from fibration.laws.signs.claim import Claim, divided, inside
from fibration.laws.signs.neighbourhood import SIDES, Neighbourhood, one_side
from fibration.laws.subject import Subject

MOST_MEETINGS = 512  # of one branch per level

# ---------------------------------------------------------------- one token


@dataclass(frozen=True)
class End:
    """A branch of a token's formula at `r = 1`, or in the limit from a side: its value and derivatives.

    The derivatives are those towards the log ratio, and towards sums before or after the token, which are 0 at `r = 1`
    too. `slopes` are those that flow, `rises` those without any `stop`.
    """

    case: Case
    value: Any
    slopes: tuple[Any, ...]
    rises: tuple[Any, ...]

    def is_ratio(self, held: bool = False) -> bool:
        """Whether value and derivatives are those of `r`. `held`: sums in order may add a stopped value."""
        others = self.slopes[1:] if held else (*self.slopes[1:], *self.rises[1:])
        return all(map(vanishes, (self.value - 1, self.slopes[0] - 1, self.rises[0] - 1, *others)))


def ends(subject: Subject, leaf: Stratum, formula: Expression, side: int) -> list[End] | None:
    """The branches of a token's formula on a side of `r = 1`; None if one has no value or slope, or if too many."""
    found = one_side(subject.at(leaf), side, variable=X).smooth_branches(formula)
    if found is None:
        return None
    there = {X: 0, **{symbol(o): 0 for o in _order(subject.hierarchy) if token_log_ratio in atoms_within(o.formula)}}

    def at_1(value: Any) -> Any:
        return cancelled(value.subs(there))

    return [
        End(
            case,
            at_1(case.sympy()),
            tuple(at_1(case.slope(v)) for v in there),
            tuple(at_1(sympy.diff(case.sympy(), v)) for v in there),
        )
        for case in found
    ]


def reads_order(h: Hierarchy) -> bool:
    """Whether `F` reads sums before or after the token."""
    return any(True for _ in _order(h))


def _order(h: Hierarchy) -> Iterator[Ordered]:
    return (a for _, e in h.decomposition.densities for a in atoms(e, Ordered))


def wrong_starts(subject: Subject, held: bool = False) -> Iterator[tuple[Stratum, int]]:
    """Yields the leaves and sides on which `R(F(r))` is not `r` to first order.

    If the law of recovery is proved and nothing is stopped, only the branch at `r = 1` itself is examined.
    """
    wholes = {leaf: composed(subject.hierarchy, leaf) for leaf in subject.hierarchy.leaves}
    stopped = any(to_sympy(whole).has(Stopped) for whole in wholes.values())
    sides = (0,) if subject.proved("recovery") and not stopped else SIDES
    for (leaf, whole), side in itertools.product(wholes.items(), sides):
        found = ends(subject, leaf, whole, side)
        if found is None or not all(end.is_ratio(held) for end in found):
            yield leaf, side


def recovers(subject: Subject) -> bool:
    """Whether `R(F(r)) = r` to first order beside `r = 1`, whatever the branch at `r = 1` is."""
    return subject.proved("recovery") or not any(side for _, side in wrong_starts(subject))


def reference_is_zero(subject: Subject) -> bool:
    """Whether `F` is 0 at `r = 1` and tends to 0 towards it, from both sides, on every leaf."""
    h = subject.hierarchy
    found = (
        ends(subject, leaf, h.with_mass(e, leaf), side)
        for leaf, (_, e), side in itertools.product(h.leaves, h.decomposition.densities, SIDES)
    )
    return all(each is not None and all(vanishes(end.value) for end in each) for each in found)


def back(subject: Subject, leaf: Stratum, at: Mapping[Any, Any]) -> list[Any] | None:
    """`R` at gated densities, its slopes towards them, and its slopes without any `stop`.

    None unless all branches that can hold near these densities have the same. Gates reach densities that no `F(r)` is.
    """
    h = subject.hierarchy
    near = Neighbourhood(subject.at(leaf), at, at_0=False)
    known = [
        [e.subs(at) for e in (c.sympy(), *(c.slope(g) for g in at), *(sympy.diff(c.sympy(), g) for g in at))]
        for c in near.smooth_branches(h.with_mass(h.decomposition.recovery, leaf)) or ()
    ]
    return known[0] if known and all(_equal(other, known[0]) for other in known) else None


def _equal(values: Sequence[Any], others: Sequence[Any]) -> bool:
    return all(vanishes(a - b) for a, b in zip(values, others, strict=True))


def back_at_0(subject: Subject, leaf: Stratum) -> list[Any] | None:
    return back(subject, leaf, {symbol(gated(c)): 0 for c in subject.hierarchy.decomposition.channels})


def is_smooth(subject: Subject) -> bool:
    """Whether `R` has one value and one slope at 0, also for gated densities that no `F(r)` equals."""
    return all(back_at_0(subject, leaf) is not None for leaf in subject.hierarchy.leaves)


# ---------------------------------------------------------------- the gates of all levels


@dataclass(frozen=True)
class Meeting:
    """One branch per level, and their sum less the leaf's own density (in units of the leaf measure).

    `difference` keeps its stopped parts. `conditions`: those that do not tend to 0 with the densities, namely on the
    advantage, on parameters, on counts. `variables` are 0 at `r = 1`.
    """

    conditions: Conditions
    difference: Any
    variables: Mapping[Any, int]

    @cached_property
    def value(self) -> Any:
        """What the gates add up to where every density is 0."""
        return flowing(self.difference).subs(self.variables)

    @cached_property
    def slopes(self) -> dict[Any, Any]:
        """The derivatives of the difference where every density is 0."""
        return {v: flowing(sympy.diff(self.difference, v)).subs(self.variables) for v in self.variables}

    @property
    def is_flat(self) -> bool:
        return all(map(vanishes, self.slopes.values()))

    @property
    def is_still(self) -> bool:
        """Whether the difference is flat and does not change to first order; a stopped part changes without a slope."""
        value = flowing(self.difference)
        return self.is_flat and all(vanishes(sympy.diff(value, v).subs(self.variables)) for v in self.variables)


class Stack:
    """The gates of all levels over one leaf, on one channel, written in the densities of all strata."""

    def __init__(self, subject: Subject, leaf: Stratum, channel: str) -> None:
        self.h, self.leaf, self.channel = subject.hierarchy, leaf, channel
        h = self.h
        self.path = [s for s in h.order if s == leaf or s in h.coarser(leaf)]
        known = [Density(s, c) for s in h.order for c in h.decomposition.channels]
        # effects of a projection are no combination of the densities, so they get variables of their own
        self.effects = {s: Reading(f"effect on {s}{channel}") for s in self.path} if h.orthogonalise is not None else {}
        self.variables = {symbol(a): 0 for a in (*known, *self.effects.values())}
        lifted = {symbol(d): NOT_NEGATIVE for d in known if d.channel in subject.never_negative}
        self.assume = subject.at(leaf).with_signs(lifted)
        self.near = Neighbourhood(self.assume, self.variables, at_0=False)

    def level(self, stratum: Stratum) -> Expression:
        """What the gate of a stratum adds, per unit of the leaf measure, in the densities."""
        m = self.h.masses[stratum]
        own: Expression = Density(stratum, self.channel)
        if self.effects:
            own = m * self.effects[stratum]
        else:
            own = functools.reduce(operator.sub, self._coarser(stratum), own)
        # not cancelled: ρ·ρ/ρ has no value at 0
        return substitute(divided(in_channel(self.h.gate(stratum), self.channel)), {residual: own}) / m

    def _coarser(self, stratum: Stratum) -> Iterator[Expression]:
        """Yields the terms that the residual of a stratum subtracts from its density, one per coarser stratum."""
        for u, c in self.h.shape.moebius(stratum).items():
            yield as_expression(c) * cancel(self.h.masses[stratum] / self.h.masses[u]) * Density(u, self.channel)

    @cached_property
    def goal(self) -> Expression:
        """The leaf's own density, per unit of the leaf measure."""
        if self.effects:
            return functools.reduce(operator.add, self.effects.values())
        return Density(self.leaf, self.channel) / self.h.masses[self.leaf]

    @property
    def added(self) -> Expression:
        """`D`, per unit of the leaf measure."""
        return functools.reduce(operator.add, map(self.level, self.path))

    def meetings(self) -> list[Meeting] | None:
        """All combinations of branches near `r = 1`; None if a branch may lack a value or slope, or if too many."""
        found: list[tuple[Conditions, Any]] = [({}, sympy.Integer(0))]
        for formula, sign in (*((self.level(s), 1) for s in self.path), (self.goal, -1)):
            level = self.near.smooth_branches(formula)
            if level is None:
                return None
            found = [
                (both, value + sign * case.held())
                for conditions, value in found
                for case in level
                if (both := merged(conditions, dict(case.signs))) is not None
            ]
            if len(found) > MOST_MEETINGS:
                return None
        return [
            Meeting({d: s for d, s in conditions.items() if not d.has(*self.variables)}, value, self.variables)
            for conditions, value in found
        ]

    def shown(self) -> str:
        """The branch of each gate near on-policy, in the gate's own residual; '' unless each has one."""
        parts = []
        for s in self.path:
            branches = self.near.smooth_branches(self.level(s)) if not self.effects else None
            if branches is None or len(branches) != 1:
                return ""
            try:
                [density] = cases(sum(self._coarser(s), residual), self.assume)
                [mass] = cases(self.h.masses[s], self.assume)
            except (ValueError, TooManyCases):
                return ""
            value = branches[0].sympy().subs(symbol(Density(s, self.channel)), density.sympy()) * mass.sympy()
            parts.append(f"{show(cancelled(value))} on {s}")
        return " and ".join(parts)


def stacks(subject: Subject) -> Iterator[Stack]:
    for leaf, channel in itertools.product(subject.hierarchy.leaves, subject.hierarchy.decomposition.channels):
        yield Stack(subject, leaf, channel)


def usable(subject: Subject) -> bool:
    """Whether the kernels have one leaf measure (a tree, or coherent), and all statistics of gates have values."""
    h = subject.hierarchy
    if not (h.shape.is_tree or subject.first_failure("coherent") is None):
        return False
    return all(claim.is_shown for _, _, gate in gates(h) for claim in inside(h, gate))


def has_sums(subject: Subject) -> bool:
    """Whether the gates of all levels can be added up in the densities of all strata, which are 0 at `r = 1`."""
    weights = (Claim(f.weight, subject.at(f.source)) for f in subject.hierarchy.fibrations)
    return reference_is_zero(subject) and all(w.is_shown for w in weights) and usable(subject)


def together(subject: Subject) -> list[tuple[Stack, list[Meeting]]] | None:
    """The meetings of the gates of all levels, per leaf and channel; None if they are not known everywhere."""
    found = [(stack, stack.meetings() or []) for stack in stacks(subject)] if has_sums(subject) else []
    return found if found and all(meetings for _, meetings in found) else None


def is_one(subject: Subject) -> bool:
    """Whether `𝒢` is 1 at `r = 1`, and in the limit from every side."""
    found = together(subject) if recovers(subject) else None
    return bool(found) and all(r and vanishes(r[0] - 1) for _, r in reached(subject, found))


def has_slope_one(subject: Subject, still: bool = False) -> bool:
    """Whether `d𝒢/dr = 1` at `r = 1`, on every side of it, whatever `𝒢(1)` is.

    `still`: the value of `𝒢` must also change by as much; with a `stop` it need not.
    """
    found = together(subject) if recovers(subject) else None
    for _, meetings in found or ():
        if not all(m.is_still if still else m.is_flat for m in meetings):
            return False
        for m, n in itertools.combinations(meetings, 2):
            if merged(m.conditions, n.conditions) is not None and not vanishes(m.value - n.value):
                return False
    alike = ((r, back_at_0(subject, leaf)) for leaf, r in reached(subject, found))
    return bool(found) and all(r and zero and _equal(r[1:], zero[1:]) for r, zero in alike)


def reached(
    subject: Subject, found: list[tuple[Stack, list[Meeting]]] | None
) -> Iterator[tuple[Stratum, list[Any] | None]]:
    """Yields `back` at the gated densities on policy of every leaf, one choice of meeting per channel."""
    h = subject.hierarchy
    for leaf in h.leaves if found else ():
        values = [dict.fromkeys(m.value for m in meetings) for stack, meetings in found or () if stack.leaf == leaf]
        try:
            masses = cases(h.masses[leaf], subject.at(leaf))
        except TooManyCases:
            yield leaf, None
            continue
        for mass, *chosen in itertools.product(masses, *values):
            at = {symbol(gated(c)): mass.sympy() * v for c, v in zip(h.decomposition.channels, chosen, strict=True)}
            yield leaf, back(subject, leaf, at)
