"""Positivity of ratio deviations over several levels: `1 + Σ h_v > 0` on every leaf.

There are three arguments. `𝒢 = 1 + D`, or `1 + D_+ - D_-`, stays between 1 and `r` if `D` lies between 0 and the
token's own density. The most that all levels can subtract is less than 1. Or the deviations of a token and of its means
are examined together, branch by branch: every mean of ratios is above 0, so a token clipped far below its trajectory
cannot belong to a trajectory that is low itself.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Sequence
from typing import Any

import sympy
from sympy import oo

from fibration.language.atoms import Density, Reading, Stratum, residual
from fibration.language.expressions import Expression
from fibration.language.operators import POSITIVE, Signs
from fibration.language.sympy_bridge import cancelled, symbol
from fibration.language.traversal import substitute
from fibration.laws.gates.contributions import domain
from fibration.laws.gates.coordinates import intensive, lines
from fibration.laws.gates.pieces import Line
from fibration.laws.on_policy.expansion import Stack, stacks, usable
from fibration.laws.signs.assumptions import NEGATIVE, NOT_POSITIVE, Assumptions
from fibration.laws.signs.branches import Case, TooManyCases, cases, merged
from fibration.laws.signs.feasible import feasible
from fibration.laws.subject import Subject

MOST_LEVELS = 3  # whose branches are examined together
MOST_LOWEST = 64  # sums of one lowest value per level


def stay_above_minus_1(subject: Subject) -> str | None:
    """The argument that the gates of all levels add up to more than -1 on every leaf; None if there is none."""
    h = subject.hierarchy
    if h.orthogonalise is not None or not (usable(subject) and subject.proved("recovery")):
        return None
    if h.fibrations and not (subject.proved("markov") and subject.proved("reflecting")):
        return None  # means of ratios are above 0 if weights are not negative and sum to 1
    paths = {leaf: [s for s in h.order if s == leaf or s in h.coarser(leaf)] for leaf in h.leaves}
    table = lines(h, subject)
    lowest = {s: _lowest(subject, s, table[s, ""]) for s in h.order}
    if all(_sum_above_minus_1(subject, leaf, [lowest[s] for s in path]) for leaf, path in paths.items()):
        return "what the gates of all levels take away at most is less than 1: 𝒢(r) ≥ 1 - Σ bounds > 0"
    if all(_branches_above_minus_1(subject, leaf, path) for leaf, path in paths.items()):
        return "1 + Σ g(ρ) > 0 on every branch of the gates, since every mean of ratios is above 0"
    return None


def _lowest(subject: Subject, stratum: Stratum, outcomes: list[Line] | None) -> list[Any]:
    """Candidates for the infimum of a gate, in intensive units; -oo if it is not known."""
    ends = [line.range(*domain(subject.hierarchy, stratum, "deviation")) for line in outcomes or ()]
    return list(dict.fromkeys(low for end in ends for low in (end[0] if end else [-oo]))) or [-oo]


def _sum_above_minus_1(subject: Subject, leaf: Stratum, levels: list[list[Any]]) -> bool:
    sums = [1 + sum(chosen) for chosen in itertools.islice(itertools.product(*levels), MOST_LOWEST + 1)]
    if len(sums) > MOST_LOWEST or -oo in sums:
        return False
    return all(subject.at(leaf).signs(least) == POSITIVE for least in sums)


def _branches_above_minus_1(subject: Subject, leaf: Stratum, path: list[Stratum]) -> bool:
    h = subject.hierarchy
    if len(path) > MOST_LEVELS:
        return False
    ratio = {s: Reading(f"the mean of r on {s}") for s in h.order}
    assume = subject.at(leaf).with_signs({symbol(q): POSITIVE for q in ratio.values()})
    densities: dict[Expression, Expression] = {
        Density(s, channel): h.masses[s] * (q - 1) for s, q in ratio.items() for channel in (None, "")
    }

    def level(s: Stratum) -> Expression:
        own = functools.reduce(operator.sub, (c * (ratio[u] - 1) for u, c in h.shape.moebius(s).items()), ratio[s] - 1)
        return substitute(substitute(intensive(h, s, ""), densities), {residual: own})

    try:
        branches = cases(functools.reduce(operator.add, map(level, path)), assume)
    except TooManyCases:
        return False
    means = [symbol(q) for q in ratio.values()]
    return all(_excludes(case, 1 + case.sympy(), NOT_POSITIVE, assume, means) for case in branches)


# ---------------------------------------------------------------- between 0 and the own density


def shrinks(subject: Subject, known: str) -> bool:
    """Whether the gates over every leaf add up to something between 0 and the leaf's own density."""
    if known not in ("deviation", "split deviation") or not usable(subject) or not subject.proved("recovery"):
        return False
    if subject.hierarchy.orthogonalise is not None:
        return False  # effects of a projection have no sign that could be used
    signs = (1,) if known == "split deviation" else (1, -1)
    return all(_between(stack, sign) for stack in stacks(subject) for sign in signs)


def _between(stack: Stack, sign: int) -> bool:
    own = symbol(Density(stack.leaf, stack.channel))
    assume = stack.assume.with_signs({own: frozenset({0, sign})})
    try:
        [mass] = cases(stack.h.masses[stack.leaf], assume)
        branches = cases(stack.added, assume)
    except (ValueError, TooManyCases):
        return False
    if assume.signs(mass.sympy()) != {1}:
        return False
    added = [(case, cancelled(sympy.together(case.sympy() * mass.sympy()))) for case in branches]
    return all(_excludes(case, sign * e, NEGATIVE, assume) for case, d in added for e in (d, own - d))


def _excludes(case: Case, value: Any, signs: Signs, assume: Assumptions, means: Sequence[Any] = ()) -> bool:
    """Whether a value has none of some signs where the conditions of a branch hold; so it is if they never do.

    Each condition stands there twice, once divided by the factor of one of the `means`: `T·q` and `q` are two unknowns
    for what decides.
    """
    conditions = dict(case.signs)
    if not assume.with_signs(conditions).signs(value) & signs:
        return True
    both = merged(conditions, {sympy.expand(value): signs})
    for formula, known in (*conditions.items(), (value, signs)):
        factor = next((sympy.diff(formula, q) for q in means if formula.has(q)), sympy.S.One)
        of = assume.signs(factor)
        if both is not None and of in (POSITIVE, NEGATIVE):
            turned = known if of == POSITIVE else frozenset(-s for s in known)
            both = merged(both, {sympy.expand(formula / factor): turned})
    return both is None or not feasible(both, assume)
