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
from typing import Any

import sympy
from sympy import oo

from fibration.language.atoms import Density, Reading, Stratum, residual
from fibration.language.expressions import Expression
from fibration.language.operators import POSITIVE
from fibration.language.sympy_bridge import cancelled, symbol
from fibration.language.traversal import substitute
from fibration.laws.gates.contributions import domain
from fibration.laws.gates.coordinates import intensive, lines
from fibration.laws.gates.pieces import Line
from fibration.laws.on_policy.expansion import Stack, stacks, usable
from fibration.laws.signs.assumptions import Assumptions
from fibration.laws.signs.branches import Case, TooManyCases, cases
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
    means = [symbol(ratio[s]) for s in reversed(path)]
    return all(_is_above_minus_1(case, assume, means) or _is_impossible(case, assume) for case in branches)


def _is_above_minus_1(case: Case, assume: Assumptions, means: list[Any]) -> bool:
    """Whether `1 + D` is above 0 after subtracting some values that the branch's conditions keep at or above 0."""
    whole = 1 + case.sympy()
    facts = [_per_mean(fact, assume, means) for fact in _facts_of(case) if fact.has(*means)]
    slopes = [[sympy.diff(value, q) for q in means] for value in (whole, *facts)]
    for n in range(MOST_LEVELS + 1):
        for chosen in itertools.combinations(range(len(facts)), n):
            left = (s - sum(slopes[1 + i][k] for i in chosen) for k, s in enumerate(slopes[0]))
            if any(slope.is_negative for slope in left):
                continue  # the difference falls without bound as that mean grows
            if assume.signs(whole - sum(facts[i] for i in chosen)) == POSITIVE:
                return True
    return False


def _per_mean(fact: Any, assume: Assumptions, means: list[Any]) -> Any:
    """A condition scaled so that its finest mean has the coefficient 1 or -1."""
    factor = next(sympy.diff(fact, q) for q in means if fact.has(q))
    signs = assume.signs(factor)
    return sympy.expand(fact / factor) if signs == {1} else -sympy.expand(fact / factor) if signs == {-1} else fact


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
    for case in branches:
        facts = _facts_of(case)
        if _is_impossible(case, assume):
            continue
        added = cancelled(sympy.together(case.sympy() * mass.sympy()))
        if not (_is_at_least_0(sign * added, facts, assume) and _is_at_least_0(sign * (own - added), facts, assume)):
            return False
    return True


def _facts_of(case: Case, but: Any = None) -> list[Any]:
    """The values that a branch's conditions keep at or above 0; without the condition on `but`."""
    return [d if -1 not in signs else -d for d, signs in case.signs if d != but and not {-1, 1} <= signs]


def _is_impossible(case: Case, assume: Assumptions) -> bool:
    """Whether one condition of a branch contradicts the others."""
    for d, signs in case.signs:
        others = _facts_of(case, but=d)
        if signs in ({-1}, {1}) and _is_at_least_0(-d if signs == {1} else d, others, assume):
            return True
    return False


def _is_at_least_0(value: Any, facts: list[Any], assume: Assumptions) -> bool:
    """Whether a value, less up to two of the facts (which are not below 0), is not below 0."""
    chosen = itertools.chain.from_iterable(itertools.combinations(facts, n) for n in range(3))
    return any(-1 not in assume.signs(sympy.expand(value - sum(some))) for some in chosen)
