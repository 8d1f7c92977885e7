"""A gate near 0, from both sides: its germ decides first-order agreement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sympy

from fibration.errors import SpecError
from fibration.language.atoms import Density, residual
from fibration.language.expressions import Expression
from fibration.language.sympy_bridge import show, symbol, vanishes
from fibration.language.traversal import atoms
from fibration.laws.proof.branches import Case, TooManyCases, cases
from fibration.laws.proof.signs import ANY, Assumptions, Signs

RHO = symbol(residual)
SIDES = (-1, 0, 1)


@dataclass(frozen=True)
class Germ:
    """What a gate is near 0: whether every branch has value 0, slope 1, is the identity.

    `slopes` are the derivatives of all branches on both sides, None where one has none.
    """

    value_ok: bool
    slope_ok: bool
    passes: bool
    slopes: tuple[Any, ...] | None = None


UNKNOWN = Germ(False, False, False)


def germ(gate: Expression, assume: Assumptions) -> Germ:
    """Examine a gate at 0 and on both sides."""
    on_policy = {symbol(a): 0 for a in atoms(gate) if isinstance(a, Density)}
    try:
        value_ok = all(
            defined_near(c, 0, assume, {}) and vanishes(c.sympy().subs(RHO, 0)) for c in near_zero(gate, 0, assume, {})
        )
        passes = True
        slopes: list[Any] = []
        for side in SIDES:
            for case in near_zero(gate, side, assume, on_policy):
                value = case.sympy()
                # whatever the densities, so that a branch beside 0 does not depend on them to first order either
                value_ok &= defined_near(case, side, assume, on_policy) and vanishes(value.subs(RHO, 0))
                slopes.append(None if is_kinked(value) else sympy.diff(value, RHO).subs(RHO, 0).subs(on_policy))
                passes &= vanishes(value - RHO)
    except TooManyCases:
        return UNKNOWN
    slope_ok = all(s is not None and vanishes(s - 1) for s in slopes)
    return Germ(value_ok, slope_ok, passes and value_ok, None if None in slopes else tuple(dict.fromkeys(slopes)))


WORDS = {
    frozenset({-1}): "below 0", frozenset({1}): "above 0", frozenset({0}): "0", frozenset({-1, 1}): "not 0",
    frozenset({-1, 0}): "at most 0", frozenset({0, 1}): "at least 0",
}  # fmt: skip


def open_question(gate: Expression, assume: Assumptions) -> str:
    """The first comparison that leaves open whether a branch that is not the identity holds near 0; '' if none does."""
    on_policy = {symbol(a): 0 for a in atoms(gate) if isinstance(a, Density)}
    try:
        for side, reference in ((0, {}), *((side, on_policy) for side in SIDES)):
            for case in near_zero(gate, side, assume, reference):
                value = case.sympy()
                if vanishes(value - RHO) and defined_near(case, side, assume, reference):
                    continue
                for d, signs in (*case.signs, *case.needs):
                    if not _germ_signs(d, side, assume, reference) <= signs:
                        return f"{show(d)} is {WORDS[signs]}"
    except (TooManyCases, SpecError):  # some results of sympy have no written form
        pass
    return ""


def is_kinked(value: Any) -> bool:
    """sympy reads `sqrt(x*x)` as `|x|`, whose derivative at 0 it takes to be 0."""
    return bool(value.has(sympy.Abs, sympy.sign))


def near_zero(
    gate: Expression, side: int, assume: Assumptions, on_policy: dict[Any, int], variable: Any = RHO
) -> list[Case]:
    """The branches that can hold at 0 (`side` 0), or arbitrarily close to it on one side."""
    at_zero = assume.with_signs({variable: frozenset({side})})
    return [
        c
        for c in cases(gate, at_zero)
        if all(_germ_signs(d, side, assume, on_policy, variable) & signs for d, signs in c.signs)
    ]


def defined_near(case: Case, side: int, assume: Assumptions, on_policy: dict[Any, int], variable: Any = RHO) -> bool:
    """Whether a branch has a value and a slope there: no division by 0, no logarithm or root of what it may not have.

    A root of 0 has a value and no slope: to sympy `sqrt(x)*sqrt(x)` is `x`, and its derivative at 0 is `0·inf`.
    """
    fixed = assume.with_signs({d: signs for d, signs in case.signs if not d.has(variable)})
    for e, allowed in case.needs:
        sloped = allowed - {0} if e.has(variable, *on_policy) else allowed
        if not _germ_signs(e, side, fixed, on_policy, variable) <= sloped:
            return False
    return True


def _germ_signs(
    difference: Any, side: int, assume: Assumptions, on_policy: dict[Any, int], variable: Any = RHO
) -> Signs:
    """Signs of a difference as the residual tends to 0 from one side: those of its first term that does not vanish."""
    if not difference.has(variable, *on_policy):
        return assume.signs(difference)
    term = difference
    for order in range(3):
        at_zero = term.subs(variable, 0)
        value = at_zero.subs(on_policy)
        if value.has(sympy.nan, sympy.zoo, sympy.oo):
            return ANY
        signs = assume.signs(value)
        if signs != {0}:
            return signs if 0 not in signs or (side == 0 and value == at_zero) else ANY
        if at_zero.has(*on_policy) if on_policy else False:
            return ANY  # it vanishes only at the reference densities
        if side == 0:
            return signs
        if is_kinked(term):
            return ANY
        term = sympy.diff(term, variable) * side / (order + 1)
    return frozenset({0}) if vanishes(difference) else ANY
