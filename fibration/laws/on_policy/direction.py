"""What is left of the law `gradient`: on policy the advantage of a row does not lower the log-probs of the row.

Suppose that one row has an advantage `A`, and all others have 0. In units of the leaf measure `m`, let `D` be what all
gates add to a token, and `d_u = ∂D/∂σ_u` its slope in the density of a stratum `u`. If `F'` is one number over the row,
the coefficients of the row add up to

    A·Σ_j μ_j·R'_j·F'·Σ_u d_u·k_u

over its tokens `j`. `k_u` is the share of the row in the mass of the element of `u` below `j`: 1 for the row and what
lies over it, and no more for a coarser stratum than for a finer one. The sum is least where every share is 0 or 1.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import sympy

from fibration.language.atoms import Density, Stratum, in_channel
from fibration.language.cancel import cancel
from fibration.language.gates import identity_gate
from fibration.language.places import whole_batch
from fibration.language.sympy_bridge import cancelled, flowing, symbol, to_sympy, vanishes
from fibration.language.traversal import atoms
from fibration.laws.gates.coordinates import X, recovery_slopes
from fibration.laws.on_policy.at_ratio_one import in_order, only_recovery, points, reference_is_zero
from fibration.laws.on_policy.first_order_subspace import is_constant
from fibration.laws.on_policy.levels_together import Meeting, Stack, reference_values, stacks, usable
from fibration.laws.signs.branches import TooManyCases
from fibration.laws.signs.claim import Claim
from fibration.laws.signs.neighbourhood import SIDES, is_kinked, one_side
from fibration.laws.subject import Subject


def follows_advantages(subject: Subject) -> str | None:
    """The argument that on policy a row's advantage does not lower its log-probs; None if there is none."""
    h = subject.hierarchy
    has_values = all(Claim(f.weight, subject.at(f.source)).is_shown for f in h.fibrations) and usable(subject)
    if not (has_values and reference_is_zero(subject)):
        return None
    if h.objective.estimator == "score":
        return "𝒢(1) is not below 0, and on policy every coefficient is μ·𝒢·A" if _is_not_below_0(subject) else None
    if h.orthogonalise is not None:
        return None
    are_one = all(_rises(subject, channel, True) for channel in h.decomposition.channels)
    if not are_one and not all(_rises(subject, channel, False) for channel in h.decomposition.channels):
        return None
    for stack in stacks(_without_inner_gates(subject) if are_one else subject):
        meetings = stack.meetings()
        for meeting in meetings or ():
            slopes = _slopes(stack, meeting)
            if slopes is None or not _adds_nothing_below_0(stack, meeting, slopes):
                return None
            # where F' differs within a row, what the gates add must depend on a token's own density alone
            if not are_one and not all(vanishes(d) for u, d in slopes.items() if u != stack.leaf):
                return None
        if not meetings:
            return None
    return "R∘F does not fall at r = 1, nor what the gates of all levels add, whatever share of a level an element is"


def _without_inner_gates(subject: Subject) -> Subject:
    """The hierarchy without the gates within a row whose residuals do not move if all its densities move alike."""
    h, shape = subject.hierarchy, whole_batch(subject.hierarchy)
    inside = {h.rows, *shape.finer(h.rows)}
    still = [s for s in h.order if (c := h.shape.moebius(s)) and set(c) <= inside and sum(c.values()) == 1]
    still = [s for s in still if not any(atoms(in_channel(h.gate(s), c), Density) for c in h.decomposition.channels)]
    return Subject(h.replace(gates={**h.gates, **dict.fromkeys(still, identity_gate())}), subject.verdicts)


def _is_not_below_0(subject: Subject) -> bool:
    """Whether `R` has one branch, and no value below 0 at what the gates add on policy."""
    values = reference_values(subject, flat=False)
    recoveries = {leaf: only_recovery(subject, leaf) for leaf in values or ()}
    return bool(recoveries) and all(
        recovery is not None and -1 not in subject.at(leaf).signs(cancelled(flowing(recovery).subs(at)))
        for leaf, (recovery, mass) in recoveries.items()
        for at in points(values[leaf], mass)  # type: ignore[index]
    )


def _slopes(stack: Stack, meeting: Meeting) -> dict[Stratum, Any] | None:
    """`d_u` of every stratum below a leaf; None if gates read densities of the other channel."""
    slopes = {v: flowing(sympy.diff(meeting.difference, v)).subs(stack.variables) for v in stack.variables}
    own = {u: symbol(Density(u, stack.channel)) for u in stack.path}
    if not all(vanishes(slope) for v, slope in slopes.items() if v not in own.values()):
        return None
    return {u: cancelled(to_sympy(stack.h.masses[u]) * slopes[v] + int(u == stack.leaf)) for u, v in own.items()}


def _adds_nothing_below_0(stack: Stack, meeting: Meeting, slopes: dict[Stratum, Any]) -> bool:
    assume = stack.assume.with_signs(dict(meeting.conditions))
    return all(-1 not in assume.signs(cancelled(sum(slopes[u] for u in full))) for full in _full(stack))


def _full(stack: Stack) -> Iterator[list[Stratum]]:
    """Yields the strata whose shares can be 1 where all others are 0.

    The share of a row in an element of a stratum that crosses the rows may be any.
    """
    h, shape = stack.h, whole_batch(stack.h)
    inside = [s for s in stack.path if s in (h.rows, *shape.finer(h.rows))]
    above, coarse = [s for s in stack.path if s not in inside], set(shape.coarser(h.rows))
    ordered = [(v, u) for u in above for v in above if u in h.coarser(v) and {u, v} <= coarse]
    for n in range(len(above) + 1):
        for chosen in itertools.combinations(above, n):
            if all(v in chosen for v, u in ordered if u in chosen):
                yield [*inside, *chosen]


def _rises(subject: Subject, channel: str, is_one: bool) -> bool:
    """Whether `F` moves as `R` does at `r = 1`; `is_one`: and with one slope over every row, on each side of it."""
    h, ways = subject.hierarchy, recovery_slopes(subject, channel)
    for side in SIDES:
        found = []
        for leaf in h.leaves:
            near = one_side(subject.at(leaf), side, variable=X)
            try:
                branches = near.branches(cancel(h.with_mass(h.decomposition[channel], leaf) / h.masses[leaf]))
            except TooManyCases:
                return False
            for case in branches:
                if not near.is_smooth(case) or is_kinked(case.sympy()):
                    return False
                if not all(vanishes(case.slope(o)) for o in in_order(h)):
                    return False
                slope = cancelled(case.slope(X).subs({X: 0, **in_order(h)}))
                signs = subject.at(leaf).with_signs({d: s for d, s in case.signs if not d.has(X)}).signs(slope)
                if any(s * way < 0 for s in signs for way in ways):
                    return False
                found.append(slope)
        if is_one and not all(vanishes(s - found[0]) and is_constant(h, s, h.rows) for s in found):
            return False
    return True
