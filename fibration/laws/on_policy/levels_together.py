"""The gates of all levels together near on-policy: `D = Σ h_v` on each leaf, as a function of the densities.

One gate may compensate another. Near `r = 1` every residual and density is small, so each gate is one of the branches
that can hold there. The residual of every level is written as `σ_v - Σ_u c_u·(m_v/m_u)·σ_u` in the densities `σ`, which
are independent of each other. First-order agreement holds if the sum of the branches is the leaf's own density,
whatever branches meet.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import sympy

from fibration.language.atoms import Density, Reading, Stratum, in_channel, residual, token_log_ratio
from fibration.language.cancel import cancel
from fibration.language.expressions import Expression, as_expression
from fibration.language.hierarchy import gates
from fibration.language.operators import NOT_NEGATIVE, Signs
from fibration.language.statistics import Aggregate
from fibration.language.sympy_bridge import cancelled, flowing, show, symbol, to_sympy, vanishes
from fibration.language.traversal import atoms, substitute
from fibration.laws.signs.branches import Case, Conditions, TooManyCases, cases, merged
from fibration.laws.signs.claim import divided, inside
from fibration.laws.signs.neighbourhood import Neighbourhood, is_kinked
from fibration.laws.subject import Subject

MOST_MEETINGS = 512  # of one branch per level


@dataclass(frozen=True)
class Meeting:
    """One branch per level, and their sum less the leaf's own density (in units of the leaf measure).

    `difference` keeps its stopped parts. `conditions`: those that do not tend to 0 with the densities, namely on the
    advantage, on parameters, on counts.
    """

    conditions: tuple[tuple[Any, Signs], ...]
    difference: Any


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

    # ------------------------------------------------------------ near on-policy

    def meetings(self) -> list[Meeting] | None:
        """All combinations of branches near `r = 1`; None if a branch may lack a value or slope, or if too many."""
        near = Neighbourhood(self.assume, self.variables, at_0=False)
        try:
            per_level = [self._branches(self.level(s), near) for s in self.path]
            goal = self._branches(self.goal, near)
        except TooManyCases:
            return None
        if any(level is None for level in (*per_level, goal)):
            return None
        meetings: list[tuple[Conditions, Any]] = [({}, sympy.Integer(0))]
        for level, sign in (*((level, 1) for level in per_level), (goal, -1)):
            assert level is not None
            meetings = [
                (both, value + sign * case.held())
                for conditions, value in meetings
                for case in level
                if (both := merged(conditions, dict(case.signs))) is not None
            ]
            if len(meetings) > MOST_MEETINGS:
                return None
        return [
            Meeting(tuple((d, s) for d, s in conditions.items() if not d.has(*self.variables)), value)
            for conditions, value in meetings
        ]

    def _branches(self, expression: Expression, near: Neighbourhood) -> list[Case] | None:
        """The branches that can hold; None if one may have no value or no slope."""
        found = near.branches(expression)
        return found if all(near.is_smooth(case) and not is_kinked(case.sympy()) for case in found) else None

    def at_reference(self, meeting: Meeting) -> Any:
        """What the gates add up to where every density is 0."""
        return flowing(meeting.difference).subs(self.variables)

    @cached_property
    def still(self) -> dict[Any, int]:
        """Sums and means of log ratios that gates read: they are 0 at `r = 1`."""
        read = (a for s in self.path for a in atoms(self.level(s), Aggregate) if a.kind in ("mean", "total"))
        inner = (a for a in read if not atoms(a.formula, Aggregate))
        return {symbol(a): 0 for a in inner if vanishes(to_sympy(a.formula).subs(symbol(token_log_ratio), 0))}

    def is_flat(self, meeting: Meeting) -> bool:
        """Whether the difference has slope 0 where every density is 0."""
        gradient = (flowing(sympy.diff(meeting.difference, v)).subs(self.variables) for v in self.variables)
        return all(vanishes(g) for g in gradient)

    def is_still(self, meeting: Meeting) -> bool:
        """Whether the difference does not change to first order; a stopped part may change without a slope."""
        return self.is_flat(replace(meeting, difference=flowing(meeting.difference)))

    # ------------------------------------------------------------ what a reader is shown

    def shown(self) -> str:
        """The branch of each gate near on-policy, in the gate's own residual; '' unless each has one."""
        parts, near = [], Neighbourhood(self.assume, self.variables, at_0=False)
        for s in self.path:
            branches = self._branches(self.level(s), near) if not self.effects else None
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


def agrees(subject: Subject) -> str | None:
    """Whether near 1 the gates add up to every leaf's density: `exact`, `soft` to first order, None if unknown."""
    kind = "exact"
    for stack in stacks(subject):
        meetings = stack.meetings()
        if not meetings:
            return None
        for meeting in meetings:
            if vanishes(meeting.difference):
                continue
            if not (vanishes(stack.at_reference(meeting)) and stack.is_flat(meeting) and stack.is_still(meeting)):
                return None
            kind = "soft"
    return kind


def argument(subject: Subject, kind: str) -> str:
    """The argument for the result of `agrees`, in a line."""
    h = subject.hierarchy
    leaf = " and ".join(s.name for s in h.leaves)
    each = "the" if len(h.leaves) == 1 else "each"
    shown = Stack(subject, h.leaves[0], h.decomposition.channels[0]).shown() if len(h.leaves) == 1 else ""
    if "+" in h.decomposition.channels:
        shown = shown.replace(', "+")', ")").replace("[+]", "")  # the other channel differs in nothing else
    what = f"near on-policy the gates are {shown}, which" if shown else "near on-policy the gates of all levels"
    word = "add up to" if kind == "exact" else "add up, to first order, to"
    return f"{what} {word} {each} {leaf}'s own density"


def reference_values(subject: Subject, flat: bool, still: bool = False) -> dict[Stratum, dict[str, list[Any]]] | None:
    """What the gates add where every density is 0, per leaf and channel: one value for each outcome of conditions.

    `flat`: the gates must have the slope of the leaf's own density, and one value on every side. `still`: they must
    also change as that density does. None if a requirement fails or is not decided.
    """
    found: dict[Stratum, dict[str, list[Any]]] = {}
    for stack in stacks(subject):
        meetings = stack.meetings()
        if not meetings or (flat and not all(stack.is_flat(m) for m in meetings)):
            return None
        if still and not all(stack.is_still(m) for m in meetings):
            return None
        # a statistic moves with the log ratios, so that nothing is said of slopes beside its value at r = 1
        values = [stack.at_reference(m).subs({} if flat else stack.still) for m in meetings]
        for (a, v), (b, w) in itertools.combinations(zip(meetings, values, strict=True), 2):
            if flat and merged(dict(a.conditions), dict(b.conditions)) is not None and not vanishes(v - w):
                return None
        found.setdefault(stack.leaf, {})[stack.channel] = list(dict.fromkeys(values))
    return found


def usable(subject: Subject) -> bool:
    """Whether the kernels have one leaf measure (a tree, or coherent), and all statistics of gates have values."""
    h = subject.hierarchy
    if not (h.shape.is_tree or subject.first_failure("coherent") is None):
        return False
    return all(claim.is_shown for _, _, gate in gates(h) for claim in inside(h, gate))
