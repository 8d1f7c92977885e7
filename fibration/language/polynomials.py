"""Sparse polynomials with whole coefficients, and quotients of them that stay factored. The proofs use them.

An atom is a whole number that stands for an expression without structure here (`sympy_bridge.py`). A product stays
factored until it is added to another term, and then only the factors that the terms do not share are multiplied out.
So short expressions stay cheap, and whether a quotient is 0 for all values is decided.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cached_property

MOST_TERMS = 4000
MOST_POWERS = 200  # of an atom that `shifted` rewrites

Exponent = int | Fraction  # a fraction for exponential functions only
Monomial = tuple[tuple[int, Exponent], ...]  # atoms in their order, each with its exponent
ONE: Monomial = ()


class TooLarge(Exception):
    """Raised if a polynomial has too many terms or powers. The question then has no answer."""


class Polynomial:
    """A sum of monomials with coefficients that are not 0."""

    def __init__(self, terms: dict[Monomial, int]) -> None:
        self.terms = terms

    @cached_property
    def _hash(self) -> int:
        return hash(frozenset(self.terms.items()))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Polynomial) and self.terms == other.terms

    def __bool__(self) -> bool:
        return bool(self.terms)

    def __repr__(self) -> str:
        return f"Polynomial({self.terms})"

    def __add__(self, other: Polynomial) -> Polynomial:
        large, small = (self, other) if len(self.terms) >= len(other.terms) else (other, self)
        terms = dict(large.terms)
        for monomial, c in small.terms.items():
            _add(terms, monomial, c)
        return Polynomial(terms)

    def __mul__(self, other: Polynomial) -> Polynomial:
        terms: dict[Monomial, int] = {}
        for a, c in self.terms.items():
            for b, d in other.terms.items():
                _add(terms, times(a, b), c * d)
            if len(terms) > MOST_TERMS:
                raise TooLarge
        return Polynomial(terms)

    def __neg__(self) -> Polynomial:
        return Polynomial({m: -c for m, c in self.terms.items()})

    @cached_property
    def atoms(self) -> frozenset[int]:
        return frozenset(atom for monomial in self.terms for atom, _ in monomial)

    @property
    def constant(self) -> int:
        return self.terms.get(ONE, 0)

    def powers(self, atom: int) -> dict[Exponent, Polynomial]:
        """Returns the coefficient of every power of an atom."""
        found: dict[Exponent, dict[Monomial, int]] = {}
        for monomial, c in self.terms.items():
            power = next((p for a, p in monomial if a == atom), 0)
            found.setdefault(power, {})[tuple(x for x in monomial if x[0] != atom) if power else monomial] = c
        return {power: Polynomial(terms) for power, terms in found.items()}

    def without(self, atoms: Iterable[int]) -> Polynomial:
        """Returns the polynomial with some atoms set to 0."""
        gone = set(atoms)
        return Polynomial({m: c for m, c in self.terms.items() if not any(a in gone for a, _ in m)})

    def at(self, values: Mapping[int, Fraction]) -> Fraction:
        found = Fraction(0)
        for monomial, c in self.terms.items():
            found += c * math.prod(_raised(values[a], p) for a, p in monomial)
        return found


def constant(number: int) -> Polynomial:
    return Polynomial({ONE: number} if number else {})


def variable(atom: int) -> Polynomial:
    return Polynomial({((atom, 1),): 1})


def _raised(value: Fraction, exponent: Exponent) -> Fraction:
    if exponent != int(exponent):
        raise ValueError(f"a power of {exponent} is no fraction")
    return value ** int(exponent)


def times(a: Monomial, b: Monomial) -> Monomial:
    if not a or not b:
        return a or b
    powers = dict(a)
    for atom, p in b:
        powers[atom] = powers.get(atom, 0) + p
    return tuple(sorted(powers.items()))


def _add(terms: dict[Monomial, int], monomial: Monomial, c: int) -> None:
    total = terms.get(monomial, 0) + c
    if total:
        terms[monomial] = total
    else:
        terms.pop(monomial, None)


def excesses(p: Polynomial, q: Polynomial) -> Iterator[tuple[int, Polynomial]]:
    """Yields whole numbers `k` and polynomials `rest` such that a positive multiple of `p` is `k·q + rest`.

    `rest` has at most half as many terms as `p`, or one.
    """
    most = max(1, len(p.terms) // 2)
    if abs(len(p.terms) - len(q.terms)) > most:
        return
    shared = [m for m in q.terms if m in p.terms]
    if len(p.terms) + len(q.terms) - 2 * len(shared) > most:
        return
    for k in dict.fromkeys(Fraction(p.terms[m], q.terms[m]) for m in shared if m != ONE):
        rest = constant(k.denominator) * p + constant(-k.numerator) * q
        if len(rest.terms) <= most:
            yield k.numerator, rest


# ---------------------------------------------------------------- an atom within bounds

Bound = tuple[Polynomial, int]  # the polynomial divided by the whole number, which is above 0


def shifted(p: Polynomial, atom: int, lower: Bound | None, upper: Bound | None) -> list[Polynomial]:
    """Returns the coefficients of the powers of `t` in a positive multiple of `p`, with the atom written in `t`.

    The atom is `lower + t`, `upper - t`, or `(lower + upper·t)/(1 + t)`. As `t` goes from 0 to infinity, the atom goes
    from one bound to the other. The atom's exponents in `p` are whole. Raises `TooLarge` for too many powers.
    """
    scale = math.lcm(*(n for _, n in filter(None, (lower, upper))))
    ends = [top * constant(scale // n) for top, n in filter(None, (lower, upper))]
    if lower and upper:
        line, unit = ends, [constant(scale), constant(scale)]
    else:
        line, unit = [ends[0], constant(1 if lower else -1)], [constant(scale)]
    powers = p.powers(atom)
    degree = int(max(powers))
    if degree > MOST_POWERS:
        raise TooLarge
    result, homogeneous = [powers[degree]], [constant(1)]
    for power in range(degree - 1, -1, -1):  # Horner
        homogeneous = _convolve(homogeneous, unit)
        result = _convolve(result, line)
        if power in powers:
            more = _convolve([powers[power]], homogeneous)
            result = [a + b for a, b in itertools.zip_longest(result, more, fillvalue=constant(0))]
    return result


def _convolve(a: Sequence[Polynomial], b: Sequence[Polynomial]) -> list[Polynomial]:
    found = [constant(0)] * (len(a) + len(b) - 1)
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            if x and y:
                found[i + j] += x * y
    return found


# ---------------------------------------------------------------- quotients

Factor = int | Polynomial  # an atom; or several terms without a common factor, with a positive leading coefficient


class Quotient:
    """A number times powers of factors. It is 0 for all values of its atoms if and only if the number is 0."""

    __slots__ = ("factors", "number")

    def __init__(self, number: Fraction, factors: dict[Factor, Exponent]) -> None:
        self.number, self.factors = number, factors if number else {}

    def __repr__(self) -> str:
        return f"Quotient({self.number}, {self.factors})"

    def __bool__(self) -> bool:
        return bool(self.number)

    def __mul__(self, other: Quotient) -> Quotient:
        factors = dict(self.factors)
        for f, p in other.factors.items():
            power = factors.get(f, 0) + p
            if power:
                factors[f] = power
            else:
                del factors[f]
        return Quotient(self.number * other.number, factors)

    def __pow__(self, exponent: int) -> Quotient:
        if not exponent:
            return Quotient(Fraction(1), {})
        return Quotient(self.number**exponent, {f: p * exponent for f, p in self.factors.items()})

    def __add__(self, other: Quotient) -> Quotient:
        return total((self, other))

    def __neg__(self) -> Quotient:
        return Quotient(-self.number, self.factors)

    def __sub__(self, other: Quotient) -> Quotient:
        return self + -other

    @property
    def atoms(self) -> frozenset[int]:
        own = (frozenset({f}) if isinstance(f, int) else f.atoms for f in self.factors)
        return frozenset[int]().union(*own)

    def at(self, values: Mapping[int, Fraction]) -> Fraction:
        found = self.number
        for f, p in self.factors.items():
            found *= _raised(values[f] if isinstance(f, int) else f.at(values), p)
        return found


def number(value: Fraction | int) -> Quotient:
    return Quotient(Fraction(value), {})


def power(atom: int, exponent: Exponent = 1) -> Quotient:
    return Quotient(Fraction(1), {atom: exponent} if exponent else {})


def as_quotient(p: Polynomial) -> Quotient:
    """Returns a polynomial as a quotient, with the common factor of its terms taken out."""
    if not p:
        return number(0)
    shared = math.gcd(*p.terms.values())
    first, *others = p.terms
    common: dict[Factor, Exponent] = dict(first)
    for monomial in others:
        if not common:
            break
        own = dict(monomial)
        common = {a: min(e, own[a]) for a, e in common.items() if isinstance(a, int) and a in own}
    if len(p.terms) == 1:
        return Quotient(Fraction(p.terms[first]), dict(common))
    if p.terms[max(p.terms)] < 0:
        shared = -shared
    if common or shared != 1:
        divided = (tuple((a, q) for a, e in m if (q := e - common.get(a, 0))) for m in p.terms)
        p = Polynomial({m: c // shared for m, c in zip(divided, p.terms.values(), strict=True)})
    return Quotient(Fraction(shared), {**common, p: 1})


def product(factors: Iterable[Quotient]) -> Quotient:
    return functools.reduce(operator.mul, factors, number(1))


def total(terms: Iterable[Quotient]) -> Quotient:
    """Returns the sum. Factors that all terms share stay factors, and the rest is multiplied out."""
    added = [t for t in terms if t]
    if len(added) < 2:
        return added[0] if added else number(0)
    shared: dict[Factor, Exponent] = {}
    for f in dict.fromkeys(f for t in added for f in t.factors):  # a deterministic order
        if least := min(t.factors.get(f, 0) for t in added):
            shared[f] = least
    scale = math.lcm(*(t.number.denominator for t in added))
    terms_of_sum: dict[Monomial, int] = {}
    for t in added:
        rest = {f: p for f in (*t.factors, *shared) if (p := t.factors.get(f, 0) - shared.get(f, 0))}
        for monomial, c in _expanded(int(t.number * scale), rest).terms.items():
            _add(terms_of_sum, monomial, c)
        if len(terms_of_sum) > MOST_TERMS:
            raise TooLarge
    return Quotient(Fraction(1, scale), shared) * as_quotient(Polynomial(terms_of_sum))


def _expanded(c: int, factors: Mapping[Factor, Exponent]) -> Polynomial:
    """Returns a product without denominators, multiplied out."""
    monomial = tuple(sorted((f, p) for f, p in factors.items() if isinstance(f, int)))
    found = Polynomial({monomial: c})
    for f, p in factors.items():
        if isinstance(f, Polynomial):
            for _ in range(int(p)):
                found = found * f
    return found
