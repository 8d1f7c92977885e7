"""Formulas near a point: their first terms in an arbitrarily small step, between bounds.

Quotients at a few steps cannot tell a slope of `1 + 1e-9` from a slope that tends to 1, and miss a dead zone narrower
than the steps. Here the first term that is not 0 decides each comparison, as it does for all small enough steps.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from fibration.language.exact import NoValue
from fibration.language.expressions import Expression
from fibration.language.operators import Primitive
from fibration.language.traversal import fold
from fibration.laws.values.intervals import INTERVALS, BoundedDomain, Interval, Unsure, interval

ORDER = 4  # terms that are kept
ZERO = interval(Fraction(0))


@dataclass(frozen=True)
class Series:
    """Terms by the power of the step. Further terms are 0, or unknown if there is a `rest`."""

    terms: tuple[Interval, ...]
    rest: bool = False

    @classmethod
    def of(cls, *terms: Interval | Fraction, rest: bool = False) -> Series:
        return cls(tuple(interval(t) for t in terms[:ORDER]), rest or len(terms) > ORDER)

    def term(self, k: int) -> Interval:
        if k < len(self.terms):
            return self.terms[k]
        if self.rest:
            raise Unsure
        return ZERO

    @property
    def known(self) -> int | None:
        """How many terms are known; None for all of them."""
        return len(self.terms) if self.rest else None

    def _with(self, other: Series, term: Callable[[int], Interval], most: int) -> Series:
        known = [k for k in (self.known, other.known) if k is not None]
        return Series.of(*(term(k) for k in range(min([most, *known]))), rest=bool(known))

    def __add__(self, other: Series) -> Series:
        return self._with(other, lambda k: self.term(k) + other.term(k), max(len(self.terms), len(other.terms)))

    def __neg__(self) -> Series:
        return Series(tuple(-t for t in self.terms), self.rest)

    def __sub__(self, other: Series) -> Series:
        return self + -other

    def __mul__(self, other: Series) -> Series:
        def term(k: int) -> Interval:
            return sum((self.term(i) * other.term(k - i) for i in range(k + 1)), ZERO)

        return self._with(other, term, len(self.terms) + len(other.terms))

    def __truediv__(self, divisor: Series) -> Series:
        low = divisor.order
        if low is None:
            raise NoValue("a division by 0")
        if any(self.term(k) != ZERO for k in range(low)):
            raise Unsure  # the quotient may have no bound
        lead, found = divisor.term(low), list[Interval]()
        for k in range(ORDER):
            try:
                taken = sum((found[i] * divisor.term(low + k - i) for i in range(k)), ZERO)
                found.append((self.term(low + k) - taken) / lead)
            except Unsure:
                break
        exactly = self.known is None and divisor.known is None and len(divisor.terms) == low + 1
        return Series(tuple(found), rest=not exactly or len(self.terms) > ORDER)

    @property
    def order(self) -> int | None:
        """The power of the first term that is not 0; None if all are 0."""
        for k in itertools.count():
            if self.known is None and k >= len(self.terms):
                return None
            if self.term(k) != ZERO:
                return k
        return None

    @property
    def signs(self) -> frozenset[int]:
        """The sign for all small enough steps."""
        found = ZERO.signs if self.order is None else self.term(self.order).signs
        if len(found) > 1:
            raise Unsure
        return found

    def is_below(self, other: Series) -> bool:
        return (self - other).signs == {-1}


class _SeriesDomain(BoundedDomain):
    def constant(self, value: Fraction) -> Series:
        return Series.of(value)

    def increasing(self, row: Primitive, x: Series) -> Series:
        """To first order. Raises `Unsure` if the operator has a value at the point but no slope."""
        start = x.term(0)
        try:
            value = INTERVALS.apply(row, [start])
            read = [start, value]
            slope = fold(row.derivatives[0], INTERVALS, lambda a: read[a.position])
        except NoValue:
            raise Unsure from None
        constant = x.known is None and len(x.terms) <= 1
        return Series.of(value) if constant else Series.of(value, slope * x.term(1), rest=True)


_SERIES = _SeriesDomain()


def evaluate_series(expression: Expression, values: Callable[[Expression], Series]) -> Any:
    """As `traversal.evaluate`, for all small enough steps. Raises `NoValue` if it has no value there, or `Unsure`."""
    return fold(expression, _SERIES, values)
