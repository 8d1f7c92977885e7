"""Formulas near on-policy, where residuals and densities are small: which branches can hold, with which slopes.

The germ of a gate, from both sides of 0, decides first-order agreement gate by gate; `on_policy/expansion.py` adds
gates up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import sympy

from fibration.errors import SpecError
from fibration.language.atoms import Density, residual
from fibration.language.expressions import Expression
from fibration.language.operators import ANY, ZERO, Signs
from fibration.language.sympy_bridge import show, symbol, vanishes
from fibration.language.traversal import atoms
from fibration.laws.signs.assumptions import Assumptions
from fibration.laws.signs.branches import Case, Needs, TooManyCases, cases

RHO = symbol(residual)
SIDES = (-1, 0, 1)


@dataclass(frozen=True)
class Neighbourhood:
    """The surroundings of on-policy: the symbols in `moving` tend to 0; with `at_0` they are 0.

    With a `side`, one symbol moves, towards 0 from that side: signs are those along its line, in the limit where the
    symbols in `held` are 0. Without a `side`, all symbols move in any way.
    """

    assume: Assumptions
    moving: Mapping[Any, int]
    at_0: bool
    held: Mapping[Any, int] = field(default_factory=dict)
    side: int | None = None

    def branches(self, expression: Expression) -> list[Case]:
        """The branches that can hold near on-policy."""
        inside = self.assume
        if self.side is not None:
            inside = inside.with_signs({v: frozenset({self.side}) for v in self.moving})
        return [c for c in cases(expression, inside) if self._can_hold(c)]

    def smooth_branches(self, expression: Expression) -> list[Case] | None:
        """The branches that can hold; None if one may have no value or no slope, or if there are too many."""
        try:
            found = self.branches(expression)
        except TooManyCases:
            return None
        return found if all(self.is_smooth(case) and not is_kinked(case.sympy()) for case in found) else None

    def _can_hold(self, case: Case) -> bool:
        """Whether no condition contradicts what is known, or the conditions on symbols that do not move."""
        fixed = self._fixed(case)
        return all(self.signs(d, fixed if d.has(*self.moving) else None) & signs for d, signs in case.signs)

    def _fixed(self, case: Case) -> Assumptions:
        return self.assume.with_signs({d: signs for d, signs in case.signs if not d.has(*self.moving)})

    def is_smooth(self, case: Case) -> bool:
        """Whether a branch has a value and a slope: no division by 0, no logarithm or root outside its domain.

        A root of 0 has a value and no slope. sympy takes `sqrt(x)*sqrt(x)` for `x`, but its derivative at 0 is `0·inf`.
        """
        return self._has(case, case.needs_of_slopes(lambda s: s in self.moving or s in self.held))

    def is_defined(self, case: Case) -> bool:
        """Whether a branch has a value, which tends to its value at the point itself."""
        return self._has(case, case.needs)

    def _has(self, case: Case, needs: Needs) -> bool:
        fixed = self._fixed(case)
        return all(self.signs(n.value, fixed) <= n.signs for n in needs)

    def signs(self, difference: Any, assume: Assumptions | None = None) -> Signs:
        """The signs of a difference near on-policy: those of its first term that does not vanish."""
        assume = assume or self.assume
        if not difference.has(*self.moving, *self.held):
            return assume.signs(difference)
        term = difference
        for order in range(3):
            at_zero = term.subs(self.moving)
            value = at_zero.subs(self.held)
            if value.has(sympy.nan, sympy.zoo, sympy.oo):
                return ANY
            signs = assume.signs(value)
            if signs != ZERO:
                return signs if 0 not in signs or (self.at_0 and value == at_zero) else ANY
            if at_zero.has(*self.held):
                return ANY  # it vanishes only at the reference densities
            if self.at_0:
                return signs
            if self.side is None:
                return assume.signs(difference)
            if is_kinked(term):
                return ANY
            (variable,) = self.moving
            term = sympy.diff(term, variable) * self.side / (order + 1)
        return ZERO if vanishes(difference) else ANY


def one_side(
    assume: Assumptions, side: int, held: Mapping[Any, int] | None = None, variable: Any = RHO
) -> Neighbourhood:
    """The neighbourhood of 0 on one side of one variable; with `side` 0, the point 0."""
    return Neighbourhood(assume, {variable: 0}, side == 0, held or {}, side)


def is_kinked(value: Any) -> bool:
    """Whether a value has an `|x|` or a sign: sympy takes `sqrt(x*x)` for `|x|`, with derivative 0 at 0."""
    return bool(value.has(sympy.Abs, sympy.sign))


# ---------------------------------------------------------------- one gate


Conditions = tuple[tuple[Any, Signs], ...]


@dataclass(frozen=True)
class Germ:
    """A gate near 0: whether every branch has value 0, has slope 1, is the identity.

    `slopes` are the derivatives of all branches on both sides, each with the conditions under which it holds however
    small residual and densities are. None if a branch has no slope.
    """

    value_ok: bool
    slope_ok: bool
    passes: bool
    slopes: tuple[tuple[Conditions, Any], ...] | None = None


def germ(gate: Expression, assume: Assumptions, held: Mapping[Any, int]) -> Germ:
    """The germ of a gate at 0 and on both sides. Symbols in `held` tend to 0 independently of the residual."""
    reference, *around = _neighbourhoods(gate, assume, held)
    try:
        # whatever the densities, so that a branch beside 0 does not depend on them to first order either
        value_ok = all(reference.is_smooth(c) and vanishes(c.sympy().subs(RHO, 0)) for c in reference.branches(gate))
        passes = True
        slopes: list[tuple[Conditions, Any]] = []
        for near in around:
            for case in near.branches(gate):
                value = case.sympy()
                value_ok &= near.is_smooth(case) and vanishes(value.subs(RHO, 0))
                slope = None
                if not is_kinked(value):
                    slope, rise = (e.subs(RHO, 0).subs(near.held) for e in (case.slope(RHO), sympy.diff(value, RHO)))
                    if not vanishes(slope - rise):
                        slope = None  # a stopped part rises, but adds no slope
                slopes.append((tuple((d, s) for d, s in case.signs if not d.has(RHO, *near.held)), slope))
                passes &= vanishes(case.held() - RHO)
    except TooManyCases:
        return Germ(False, False, False)
    known = all(s is not None for _, s in slopes)
    slope_ok = known and all(vanishes(s - 1) for _, s in slopes)
    return Germ(value_ok, slope_ok, passes and value_ok, tuple(dict.fromkeys(slopes)) if known else None)


def _neighbourhoods(
    gate: Expression, assume: Assumptions, held: Mapping[Any, int] | None = None
) -> list[Neighbourhood]:
    """Residual 0 for any densities; then residuals on either side of 0, and 0, for densities near 0.

    Symbols in `held` are small in all of them: ratios between policies are 1 only where the policies coincide.
    """
    on_policy = {symbol(a): 0 for a in atoms(gate, Density)} | dict(held or {})
    return [one_side(assume, 0, held), *(one_side(assume, side, on_policy) for side in SIDES)]


WORDS = {
    frozenset({-1}): "below 0", frozenset({1}): "above 0", frozenset({0}): "0", frozenset({-1, 1}): "not 0",
    frozenset({-1, 0}): "at most 0", frozenset({0, 1}): "at least 0",
}  # fmt: skip


def open_question(gate: Expression, assume: Assumptions) -> str:
    """The first comparison that leaves open whether a branch that is not the identity holds near 0; '' if none does."""
    try:
        for near in _neighbourhoods(gate, assume):
            for case in near.branches(gate):
                if vanishes(case.sympy() - RHO) and near.is_smooth(case):
                    continue
                for d, signs in (*case.signs, *(n[:2] for n in case.needs)):
                    if not near.signs(d) <= signs:
                        return f"{show(d)} is {WORDS[signs]}"
    except (TooManyCases, SpecError):  # some results of sympy have no written form
        pass
    return ""
