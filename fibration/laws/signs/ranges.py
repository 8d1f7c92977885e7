"""What is known of one atom: its signs, and the bounds that it may be written through. And the arithmetic of signs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from fibration.language.atoms import Attribute, Component, Parameter
from fibration.language.operators import ANY, NOT_NEGATIVE, NOT_ZERO, POSITIVE, ZERO, Signs
from fibration.language.polynomials import Bound, Exponent, Polynomial, constant, variable
from fibration.language.sympy_bridge import atom_number

DIGITS = 30  # of an irrational number


@dataclass(frozen=True)
class Range:
    """The signs of an atom, and its bounds if they say more: it is `lower + t`, `upper - t`, or between both bounds.

    `t` is not negative; if the range is `open`, `t` is positive. A `closed` range contains its other end too.
    """

    signs: Signs = ANY
    lower: Bound | None = None
    upper: Bound | None = None
    open: bool = False
    closed: bool = False

    @property
    def is_bounded(self) -> bool:
        return self.lower is not None or self.upper is not None


def bound(value: Fraction | int) -> Bound:
    value = Fraction(value)
    return constant(value.numerator), value.denominator


def between(lower: Fraction | None, upper: Fraction | None, open: bool = True) -> Range:
    """The range between two numbers; a single bound of 0 becomes a sign."""
    signs = ANY
    if lower is not None and lower >= 0:
        signs = POSITIVE if lower > 0 or open else NOT_NEGATIVE
    if upper is not None and upper <= 0:
        signs = frozenset({-1}) if upper < 0 or open else frozenset({-1, 0})
    if (lower, upper) in ((0, None), (None, 0)):
        return Range(signs)
    return Range(signs, None if lower is None else bound(lower), None if upper is None else bound(upper), open)


def of_count(least: int, most: int | None) -> Range:
    """Whole numbers from `least` to `most`; None is no end."""
    if most is None:
        return between(Fraction(least), None, open=False)
    return Range(ZERO) if most == 0 else replace(between(Fraction(least), Fraction(most), open=False), closed=True)


def of_declared(atom: Attribute | Parameter | Component) -> Range:
    """An attribute between its bounds or at them, and above 0 if it is positive; a parameter strictly between them."""
    if isinstance(atom, Attribute):
        low, high = atom.ends
        above_0 = atom.positive and atom.lower is None
        return replace(between(low, high, open=above_0), closed=low is not None and high is not None)
    p = atom.parameter if isinstance(atom, Component) else atom
    # a float counts as the decimal that it prints as
    lower, upper = (None if b is None or math.isinf(b) else Fraction(str(b)) for b in (p.lower, p.upper))
    return between(lower, upper)


def of_total(attribute: Attribute, signs: Signs, count: int) -> Range:
    """The sum of an attribute over several elements: between its bounds times their number, the atom `count`."""
    if attribute.ends == (0, None):
        return Range(signs)
    low, high = (
        None if b is None else (variable(count) * constant(b.numerator), b.denominator) for b in attribute.ends
    )
    above_0 = attribute.positive and attribute.lower is None and signs == POSITIVE
    return Range(signs, low, high, above_0, closed=low is not None and high is not None)


def of_number(value: Any) -> Range:
    """An irrational number, between two fractions that are close to it."""
    if not value.is_real:
        return Range()
    digits = value.evalf(DIGITS + 5)
    if not digits.is_Float or digits == 0:
        return Range()
    near, width = Fraction(str(digits)), Fraction(str(abs(digits))) / 10**DIGITS
    return between(near - width, near + width)


def of_bounded(bound_of_size: Any, signs: Signs) -> Range:
    """The range of a function whose size stays below a number, such as tanh, with these signs."""
    below: Bound
    if bound_of_size.is_Rational:
        below = constant(int(bound_of_size.p)), int(bound_of_size.q)
    else:
        c, rest = bound_of_size.as_coeff_Mul()
        below = variable(atom_number(rest)) * constant(int(c.p)), int(c.q)
    return narrowed(Range(ANY, (-below[0], below[1]), below, True), signs)


def of_exponential(signs_of_argument: Signs) -> Range:
    """`exp(x)` is above 1 exactly where `x` is above 0."""
    if signs_of_argument <= NOT_NEGATIVE:
        return Range(POSITIVE, bound(1), None, 0 not in signs_of_argument)
    if 1 not in signs_of_argument:
        # from 1, which it may reach, to 0, which it does not
        return Range(POSITIVE, bound(1), bound(0), 0 not in signs_of_argument)
    return Range(POSITIVE)


def narrowed(r: Range, signs: Signs) -> Range:
    """The range where the atom has one of `signs`. A range that contains 0, or ends at it, begins at 0 then."""
    signs = r.signs & signs or signs
    if not r.is_bounded or signs == r.signs or 0 not in r.signs or signs == NOT_ZERO:
        return replace(r, signs=signs)
    if r.signs == ANY:
        upwards = signs <= NOT_NEGATIVE
        end = r.upper if upwards else r.lower
        # the upper of two bounds is the range's other end; any other bound is where it began
        closed = r.closed if upwards and r.lower is not None else not r.open
        return Range(signs) if end is None else Range(signs, _ZERO, end, 0 not in signs, closed)
    if _is_0(r.lower) or (r.lower is None and _is_0(r.upper)):
        return replace(r, signs=signs, open=r.open or 0 not in signs)
    if _is_0(r.upper):
        return Range(signs, _ZERO, r.lower, 0 not in signs, not r.open)
    return replace(r, signs=signs)


def _is_0(end: Bound | None) -> bool:
    return end is not None and not end[0].terms


_ZERO: Bound = Polynomial({}), 1


# ---------------------------------------------------------------- signs of sums, products and powers


def union(parts: Iterable[Signs]) -> Signs:
    return frozenset().union(*parts)


def turned(signs: Signs, by: Fraction | int) -> Signs:
    """The signs of `by` times a value with these signs."""
    return signs if by > 0 else frozenset(-s for s in signs) if by < 0 else ZERO


def multiplied(a: Signs, b: Signs) -> Signs:
    return frozenset(s * t for s in a for t in b)


def raised(signs: Signs, power: Exponent) -> Signs:
    if power < 0 and 0 in signs:
        return ANY
    return signs if power % 2 else frozenset(s * s for s in signs)


def added(parts: Sequence[Signs]) -> Signs:
    """The signs of a sum. It is not 0 if no two terms have opposite signs and one term is never 0."""
    possible = union(parts)
    if possible >= NOT_ZERO:
        return ANY
    return possible - ZERO if any(0 not in s for s in parts) else possible | ZERO
