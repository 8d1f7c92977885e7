"""Signs of polynomials whose terms differ in sign, from whole numbers, squares and roots. For `Assumptions`."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import sympy

from fibration.language.operators import ANY, NOT_NEGATIVE, POSITIVE, ZERO, Signs
from fibration.language.polynomials import Polynomial, constant
from fibration.language.sympy_bridge import atom_expression, from_polynomial
from fibration.laws.signs.one_variable import Stretch, sign, signs_above_0, signs_at
from fibration.laws.signs.ranges import Range

MOST_DEGREE, MOST_TERMS = 12, 24
NOT_POSITIVE: Signs = frozenset({-1, 0})
ALL: list[Stretch] = [(0, None)]


@dataclass(frozen=True)
class Known:
    """The ranges of atoms and the signs of parts of a polynomial, as `Assumptions` finds them."""

    range_of: Callable[[int], Range]
    signs_of: Callable[[Polynomial], Signs]
    signs: Callable[[Any], Signs]  # of a sympy expression

    def sharper(self, p: Polynomial) -> Signs:
        """The signs of a polynomial of few terms; ANY where nothing is found."""
        if len(p.terms) > MOST_TERMS:
            return ANY
        roots = [a for a in sorted(p.atoms) if _is_root(atom_expression(a)) and p.powers(a).keys() == {0, 1}]
        if roots:
            return _common(self._beside_a_root(p.powers(a)[0], p.powers(a)[1], atom_expression(a)) for a in roots)
        if any(self._is_odd(p, a) for a in p.atoms):
            return ANY
        if len(p.atoms) == 1:
            return self._along(p, *p.atoms)
        return _common(self._square(p.powers(a)) for a in sorted(p.atoms))

    def _is_odd(self, p: Polynomial, atom: int) -> bool:
        """Whether a polynomial is sure to change its sign along an atom that may be any number."""
        r = self.range_of(atom)
        return r.signs == ANY and not r.is_bounded and max(p.powers(atom)) % 2 == 1

    def _along(self, p: Polynomial, atom: int) -> Signs:
        """The signs of a polynomial in one atom, from the signs of the atom."""
        if not is_whole(p, atom) or max(p.powers(atom)) > MOST_DEGREE:
            return ANY
        ahead = coefficients(p, atom)
        back = tuple(-c if k % 2 else c for k, c in enumerate(ahead))
        sides = {1: signs_above_0(ahead), 0: frozenset({sign(ahead[0])}), -1: signs_above_0(back)}
        return frozenset().union(*(sides[s] for s in self.range_of(atom).signs))

    def _square(self, powers: dict[Any, Polynomial]) -> Signs:
        """`a·x² + b·x + c` has the sign of `a` where `4ac - b²` is above 0; it may be 0 where `4ac - b²` may be."""
        a, b, c = (powers.get(k, constant(0)) for k in (2, 1, 0))
        lead = self.signs_of(a)
        if powers.keys() - {0, 1, 2} or lead not in (POSITIVE, frozenset({-1})):
            return ANY
        room = self.signs_of(constant(4) * a * c + -(b * b))
        return lead if room == POSITIVE else lead | ZERO if room <= NOT_NEGATIVE else ANY

    def _beside_a_root(self, rest: Polynomial, factor: Polynomial, root: Any) -> Signs:
        """The signs of `rest + factor·√u`: if the terms have opposite signs, their squares are compared."""
        pull, own = self.signs_of(factor), self.signs_of(rest)
        if pull not in (POSITIVE, frozenset({-1})):
            return ANY
        side = 1 if pull == POSITIVE else -1
        more = self.signs(sympy.expand(from_polynomial(factor) ** 2 * root.base - from_polynomial(rest) ** 2))
        if more == POSITIVE:
            return pull
        against = NOT_POSITIVE if side == 1 else NOT_NEGATIVE
        return frozenset(side * s for s in more) if own <= against else ANY


def _common(found: Iterable[Signs]) -> Signs:
    """The signs that all of `found` allow; ANY if no sign is left."""
    return functools.reduce(operator.and_, found, ANY) or ANY


def is_whole(p: Polynomial, atom: int) -> bool:
    """Whether an atom has whole exponents."""
    return all(isinstance(power, int) for monomial in p.terms for a, power in monomial if a == atom)


def _is_root(e: Any) -> bool:
    return bool(e.is_Pow and e.exp == sympy.Rational(1, 2))


def of_one(coefficients: Sequence[Polynomial], whole: bool, is_open: bool, is_closed: bool) -> Signs:
    """The signs of a polynomial in `t`, for `t` above 0, at 0 unless `is_open`, and at infinity if `is_closed`.

    `whole`: at whole numbers from 0 on. ANY where its coefficients are not all numbers.
    """
    if any(c.atoms for c in coefficients) or len(coefficients) > MOST_DEGREE + 1:
        return ANY
    numbers = [c.constant for c in coefficients]
    ends = {sign(numbers[-1])} if is_closed else set()
    ends |= set() if is_open else {sign(numbers[0])}
    while numbers and not numbers[-1]:
        numbers.pop()
    if not numbers:
        return ZERO
    return signs_at(tuple(numbers), ALL) if whole else signs_above_0(tuple(numbers)) | ends


def coefficients(p: Polynomial, atom: int) -> tuple[int, ...]:
    """The coefficients of a polynomial in one atom, the constant first."""
    powers = p.powers(atom)
    return tuple(powers[k].constant if k in powers else 0 for k in range(int(max(powers)) + 1))
