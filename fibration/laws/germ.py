"""A gate near 0, from both sides: its germ decides first-order agreement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sympy

from fibration.expressions import Expression, atoms
from fibration.laws.algebra import ANY, Assumptions, Signs, symbol, vanishes
from fibration.laws.cases import Case, cases
from fibration.symbols import Density, residual

RHO = symbol(residual)
SIDES = (-1, 0, 1)


@dataclass(frozen=True)
class Germ:
    """What a gate is near 0: exactly the identity on a neighbourhood, and which branches fail value or slope."""

    value_ok: bool
    slope_ok: bool
    passes: bool


def germ(gate: Expression, assume: Assumptions) -> Germ:
    """Examine a gate at 0 and on both sides."""
    on_policy = {symbol(a): 0 for a in atoms(gate) if isinstance(a, Density)}
    slope_ok = passes = True
    value_ok = all(vanishes(c.sympy().subs(RHO, 0)) for c in near_zero(gate, 0, assume, {}))
    for side in SIDES:
        for case in near_zero(gate, side, assume, on_policy):
            value = case.sympy()
            value_ok &= vanishes(value.subs(RHO, 0).subs(on_policy))
            slope_ok &= vanishes(sympy.diff(value, RHO).subs(RHO, 0).subs(on_policy) - 1)
            passes &= vanishes(value - RHO)
    return Germ(value_ok, slope_ok, passes)


def near_zero(gate: Expression, side: int, assume: Assumptions, on_policy: dict[Any, int]) -> list[Case]:
    """The branches that can hold at 0 (`side` 0), or arbitrarily close to it on one side."""
    at_zero = assume.with_signs({RHO: frozenset({side})})
    return [
        c for c in cases(gate, at_zero) if all(_germ_signs(d, side, assume, on_policy) & signs for d, signs in c.signs)
    ]


def _germ_signs(difference: Any, side: int, assume: Assumptions, on_policy: dict[Any, int]) -> Signs:
    """Signs of a difference as the residual tends to 0 from one side: those of its first term that does not vanish."""
    term = difference
    for order in range(3):
        at_zero = term.subs(RHO, 0)
        value = at_zero.subs(on_policy)
        if value.has(sympy.nan, sympy.zoo, sympy.oo):
            return ANY
        signs = assume.signs(value)
        if signs != {0}:
            return signs if 0 not in signs else ANY
        if at_zero.has(*on_policy) if on_policy else False:
            return ANY  # it vanishes only at the reference densities
        if side == 0:
            return signs
        term = sympy.diff(term, RHO) * side / (order + 1)
    return frozenset({0}) if vanishes(difference) else ANY
