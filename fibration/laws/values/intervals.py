"""Values between certain bounds, for formulas with exponentials, logarithms or roots.

Fifty digits prove nothing where digits cancel: `1 - tanh(x)` is 0 to fifty digits at `x = 100`, and a division by it is
no counterexample. Here every rounded value has bounds on its error.

A `Series` is a formula near a point: its first terms in an arbitrarily small step, between bounds. Quotients at a few
steps cannot tell a slope of `1 + 1e-9` from a slope that tends to 1, and miss a dead zone narrower than the steps. The
first term that is not 0 decides each comparison, as it does for all small enough steps.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from fibration.language.atoms import advantage
from fibration.language.exact import NoValue, TooLarge, bounded
from fibration.language.expressions import Expression
from fibration.language.operators import Primitive, Signs
from fibration.language.traversal import atoms, fold
from fibration.laws.values.probes import crossings, turning

ERROR = Fraction(1, 10**45)  # relative error: at fifty digits, more than rounding an argument and a value loses
LARGEST_EXPONENT = 10_000  # exponentials of larger numbers have too many digits
SIGNS = {
    mays: frozenset(s for s, may in zip((-1, 0, 1), mays, strict=True) if may)
    for mays in itertools.product((False, True), repeat=3)
}


class Unsure(Exception):
    """The bounds of the values do not decide the result."""


@dataclass(frozen=True)
class Interval:
    """A number that lies between two bounds."""

    low: Fraction
    high: Fraction

    def __add__(self, other: Interval | Fraction) -> Interval:
        o = interval(other)
        low = self.low + o.low
        return Interval(low, low if self.is_exact and o.is_exact else self.high + o.high)

    __radd__ = __add__

    def __neg__(self) -> Interval:
        return interval(-self.low) if self.is_exact else Interval(-self.high, -self.low)

    def __sub__(self, other: Interval | Fraction) -> Interval:
        return self + -interval(other)

    def __mul__(self, other: Interval | Fraction) -> Interval:
        o = interval(other)
        if self.is_exact and o.is_exact:
            return interval(self.low * o.low)
        corners = [a * b for a in (self.low, self.high) for b in (o.low, o.high)]
        return Interval(min(corners), max(corners))

    __rmul__ = __mul__

    def __truediv__(self, divisor: Interval | Fraction) -> Interval:
        d = interval(divisor)
        if 0 in d.signs:
            raise NoValue("a division by 0") if d.low == d.high else Unsure
        return self * (interval(1 / d.low) if d.is_exact else Interval(1 / d.high, 1 / d.low))

    @property
    def is_exact(self) -> bool:
        return self.low is self.high

    @property
    def middle(self) -> Fraction:
        return (self.low + self.high) / 2

    @property
    def signs(self) -> Signs:
        low, high = self.low.numerator, self.high.numerator  # comparing fractions takes several times as long
        return SIGNS[low < 0, low <= 0 <= high, high > 0]

    def is_below(self, other: Interval) -> bool:
        """Whether it is certainly less, or certainly not; raises `Unsure` otherwise."""
        if self.high < other.low or self.low >= other.high:
            return self.high < other.low
        raise Unsure


def interval(value: Interval | Fraction) -> Interval:
    return value if isinstance(value, Interval) else Interval(value, value)


class BoundedDomain:
    """Numbers with certain signs, as a domain of `fold`. Raises `NoValue` outside a domain, `Unsure` at its edge."""

    def constant(self, value: Fraction) -> Any:
        raise NotImplementedError

    def increasing(self, row: Primitive, x: Any) -> Any:
        """The value of an operator that rounds. All of these operators have one argument, and increase."""
        raise NotImplementedError

    def apply(self, row: Primitive, arguments: list[Any]) -> Any:
        for needed, allowed in row.needs:
            signs = fold(needed, self, lambda a: arguments[a.position]).signs
            if not signs & allowed:
                raise NoValue(row.ir)
            if not signs <= allowed:
                raise Unsure
        return self.increasing(row, *arguments) if row.rounded else EXACTLY[row.ir](*arguments)


class _IntervalDomain(BoundedDomain):
    def constant(self, value: Fraction) -> Interval:
        return interval(value)

    def apply(self, row: Primitive, arguments: list[Any]) -> Any:
        found = super().apply(row, arguments)
        if isinstance(found, Interval) and not row.rounded:
            bounded(found.low), bounded(found.high)
        return found

    def increasing(self, row: Primitive, x: Interval) -> Interval:
        if row.is_exponential and max(abs(x.low), abs(x.high)) > LARGEST_EXPONENT:
            raise Unsure
        try:
            if x.low == x.high and row.rational_at(x.low):
                return interval(row.exact(x.low))
            low, high = row.exact(x.low - abs(x.low) * ERROR), row.exact(x.high + abs(x.high) * ERROR)
        except (NoValue, TooLarge):  # at the edge of its domain, or with too many digits
            raise Unsure from None
        return Interval(low - abs(low) * ERROR, high + abs(high) * ERROR)


INTERVALS = _IntervalDomain()


def enclose(expression: Expression, values: Callable[[Expression], Interval | Fraction]) -> Any:
    """As `traversal.evaluate`, between bounds. Raises `NoValue` if it certainly has none, `Unsure` or `TooLarge`."""

    def value(atom: Expression) -> Any:
        found = values(atom)
        return found if atom.is_condition else interval(found)

    return fold(expression, INTERVALS, value)


def of_its_sign(expression: Expression, values: Callable[[Expression], Interval | Fraction]) -> Fraction | None:
    """A number with the sign of an expression; 0 if the expression may be 0; None if it may have no value."""
    try:
        found = enclose(expression, values)
    except (NoValue, TooLarge, Unsure):
        return None
    return Fraction(0) if 0 in found.signs else found.low if found.low > 0 else found.high  # type: ignore[no-any-return]


EXACTLY: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "neg": lambda a: -a,
    "stop": lambda a: a,
    "lt": lambda a, b: a.is_below(b),
    "le": lambda a, b: not b.is_below(a),
    "and": lambda a, b: a and b,
    "or": lambda a, b: a or b,
    "not": lambda a: not a,
}


def branching(gate: Expression, here: Mapping[Expression, Fraction]) -> set[Fraction]:
    """The advantages at which a gate changes branch, with the values in `here` and 0 for all other atoms."""

    def at(e: Expression) -> Callable[[Fraction], Fraction | None]:
        return lambda a: of_its_sign(e, lambda atom: a if atom == advantage else here.get(atom, Fraction(0)))

    return {c for e in turning([gate]) if advantage in atoms(e) for c in crossings(at(e))}


# ---------------------------------------------------------------- near a point

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
