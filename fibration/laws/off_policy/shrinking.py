"""Positivity over several levels of ratio deviations: the gates together only shrink each token's deviation.

`𝒢 = 1 + D`, or `1 + D_+ - D_-`, stays between 1 and `r` if `D` lies between 0 and the token's own density, whatever
the densities are. Each branch of the sum is examined under its own conditions.
"""

from __future__ import annotations

import itertools
from typing import Any

import sympy

from fibration.language.atoms import Density
from fibration.language.sympy_bridge import cancelled, symbol
from fibration.laws.on_policy.levels_together import Stack, stacks, usable
from fibration.laws.signs.assumptions import Assumptions
from fibration.laws.signs.branches import Case, TooManyCases, cases
from fibration.laws.subject import Subject


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
        facts = facts_of(case)
        if is_impossible(case, assume):
            continue
        added = cancelled(sympy.together(case.sympy() * mass.sympy()))
        if not (_is_at_least_0(sign * added, facts, assume) and _is_at_least_0(sign * (own - added), facts, assume)):
            return False
    return True


def facts_of(case: Case, but: Any = None) -> list[Any]:
    """The values that a branch's conditions keep at or above 0; without the condition on `but`."""
    return [d if -1 not in signs else -d for d, signs in case.signs if d != but and not {-1, 1} <= signs]


def is_impossible(case: Case, assume: Assumptions) -> bool:
    """Whether one condition of a branch contradicts the others."""
    for d, signs in case.signs:
        others = facts_of(case, but=d)
        if signs in ({-1}, {1}) and _is_at_least_0(-d if signs == {1} else d, others, assume):
            return True
    return False


def _is_at_least_0(value: Any, facts: list[Any], assume: Assumptions) -> bool:
    """Whether a value, less up to two of the facts (which are not below 0), is not below 0."""
    chosen = itertools.chain.from_iterable(itertools.combinations(facts, n) for n in range(3))
    return any(-1 not in assume.signs(sympy.expand(value - sum(some))) for some in chosen)
