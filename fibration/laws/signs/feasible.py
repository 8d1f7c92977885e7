"""Whether conditions can hold together: linear inequalities between monomials, by elimination (Fourier and Motzkin).

Monomials count as independent variables of known signs. So conditions that are found impossible are impossible, while
conditions that are found possible may still contradict each other. Counts are whole numbers: an inequality between
products of counts is tightened to whole numbers, and those of one count are solved.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import sympy

from fibration.language.atoms import Attribute, Component, Count, Parameter
from fibration.language.operators import POSITIVE, Signs
from fibration.language.sympy_bridge import ATOM_OF, NO_VALUES, cancelled
from fibration.laws.signs.assumptions import Assumptions
from fibration.laws.signs.one_variable import Coefficients, allowed
from fibration.laws.signs.populations import counted
from fibration.laws.signs.ranges import Range, of_declared, of_number

MOST = 150  # inequalities before an elimination; with more, nothing is decided
MOST_DEGREE = 12  # of polynomials in one count
FAR = sympy.Integer(2) ** 10**4
Row = tuple[dict[Any, Any], Any, bool]  # Σ coefficient·variable + constant, above 0 (True) or at least 0


def normal(difference: Any, signs: Signs, assume: Assumptions) -> tuple[Any, Signs]:
    """The same condition without factors and denominators of known sign; on an exponent, not its exponential."""
    top, bottom = sympy.fraction(sympy.together(difference.xreplace(NO_VALUES)))
    if top == 0:
        return sympy.Integer(0), signs
    number, factors = sympy.factor_list(top) if top.is_polynomial() and not top.is_Add else (1, [(top, 1)])
    value, turned = sympy.Integer(1), 1 if number > 0 else -1
    for factor, power in (*factors, (bottom, -1)):
        known = assume.signs(factor)
        if len(known) == 1 and 0 not in known:
            turned *= next(iter(known)) if power % 2 else 1
        else:
            value *= factor**power
    value = sympy.expand(sympy.powsimp(value), power_exp=False)
    logarithm = _without_exponential(value, assume)
    if logarithm is not None:
        value, direction = logarithm
        turned *= direction
    if value.could_extract_minus_sign():
        value, turned = -value, -turned
    return value, signs if turned > 0 else frozenset(-s for s in signs)


def _without_exponential(value: Any, assume: Assumptions) -> tuple[Any, int] | None:
    """`a·exp(u) - b` has the sign of `a·(u - log(b/a))`, where `b/a` is positive; so has `a·exp(u) - b·exp(v)`."""
    found = value.atoms(sympy.exp)
    if len(found) == 2:
        value = min((_over(value, e) for e in found), key=lambda v: (len(v.atoms(sympy.exp)), str(v)))
        found = value.atoms(sympy.exp)
    if len(found) != 1:
        return None
    (e,) = found
    a = value.coeff(e)
    b = sympy.expand(a * e - value, power_exp=False)
    if a == 0 or b.has(e) or a.has(e):
        return None
    sign = assume.signs(a)
    if len(sign) != 1 or 0 in sign or assume.signs(cancelled(b / a)) != POSITIVE:
        return None
    return sympy.expand(e.args[0] - sympy.log(cancelled(b / a))), next(iter(sign))


def _over(value: Any, positive: Any) -> Any:
    return sympy.expand(sympy.powsimp(sympy.expand(value / positive, power_exp=False)), power_exp=False)


def feasible(conditions: Mapping[Any, Signs], assume: Assumptions) -> bool:
    """False if no values have these signs; True if no contradiction was found."""
    rows: list[Row] = []
    for d, signs in conditions.items():
        if not signs:
            return False
        terms = dict(sympy.expand(d).as_coefficients_dict())
        constant = terms.pop(sympy.Integer(1), sympy.Integer(0))
        rows += _rows(terms, constant, signs)
    variables = list(dict.fromkeys(v for terms, _, _ in rows for v in terms))
    for v in variables:
        rows += _known(v, assume)
    rows += _between_counts(variables, assume)
    return _has_whole_numbers(conditions, assume) and not _contradict(rows)


def _between_counts(variables: Iterable[Any], assume: Assumptions) -> Iterator[Row]:
    """That one count is at most another, as tokens over a trajectory are at most those over its group."""
    one, zero, pairs = sympy.Integer(1), sympy.Integer(0), {v: p for v in variables if (p := _pair(v))}
    for a, small in pairs.items():
        for b, large in pairs.items():
            if a != b and assume.populations.at_most(small, large):
                yield {b: one, a: -one}, zero, False


def _pair(variable: Any) -> Any:
    return counted(variable) if isinstance(ATOM_OF.get(variable), Count) else None


def _has_whole_numbers(conditions: Mapping[Any, Signs], assume: Assumptions) -> bool:
    """Whether every count can be a whole number at which the polynomials in it alone have their signs."""
    known: dict[Any, list[tuple[Coefficients, Signs]]] = {}
    for d, signs in conditions.items():
        if len(d.free_symbols) == 1 and isinstance(ATOM_OF.get(n := next(iter(d.free_symbols))), Count):
            p = sympy.Poly(d, n) if d.is_polynomial(n) else None
            if p is not None and 0 < p.degree() <= MOST_DEGREE and all(c.is_Rational for c in p.all_coeffs()):
                whole = tuple(int(c) for c in reversed(p.clear_denoms()[1].all_coeffs()))
                known.setdefault(n, []).append((whole, signs))
    return all(allowed(int(assume.signs(n) == POSITIVE), found) for n, found in known.items())


def _rows(terms: dict[Any, Any], constant: Any, signs: Signs) -> Iterator[Row]:
    if -1 not in signs:
        yield terms, constant, 0 not in signs
    if 1 not in signs:
        yield {v: -c for v, c in terms.items()}, -constant, 0 not in signs


def _known(variable: Any, assume: Assumptions) -> Iterator[Row]:
    one = sympy.Integer(1)
    yield from _rows({variable: one}, sympy.Integer(0), assume.signs(variable))
    # such as log(2); numbers that are larger, or nearer 0, have too many digits
    within = of_number(variable) if variable.is_number and 1 / FAR < abs(sympy.N(variable)) < FAR else Range()
    if isinstance(atom := ATOM_OF.get(variable), (Attribute, Parameter, Component)):
        within = of_declared(atom)  # a bound of 0 alone is in the signs above
    below = within.open and not within.closed
    for end, sign, strict in ((within.lower, 1, within.open), (within.upper, -1, below)):
        if end is not None:
            yield {variable: sign * one}, -sign * sympy.Rational(end[0].constant, end[1]), strict


def _contradict(rows: Iterable[Row]) -> bool:
    """Whether the inequalities have no solution in real variables."""
    left = [_whole(row) for row in rows]
    while True:
        if any(not terms and (c < 0 or (strict and c == 0)) for terms, c, strict in left):
            return True
        left = [row for row in left if row[0]]
        if not left or len(left) > MOST:
            return False
        variables = {v for terms, _, _ in left for v in terms}
        chosen = min(variables, key=lambda v: (_pairs(v, left), _name(v)))
        ups, downs = ([r for r in left if r[0].get(chosen, 0) * s > 0] for s in (1, -1))
        left = [r for r in left if chosen not in r[0]] + [_whole(_joined(u, d, chosen)) for u in ups for d in downs]


def _whole(row: Row) -> Row:
    """The same inequality, as sharp as whole numbers allow, if all its variables are products of counts."""
    terms, constant, strict = row
    if not terms or not constant.is_Rational or not all(c.is_Rational and _is_whole(v) for v, c in terms.items()):
        return row
    unit = functools.reduce(sympy.gcd, terms.values(), sympy.Integer(0))  # above 0
    end = constant / unit
    return {v: c / unit for v, c in terms.items()}, sympy.ceiling(end) - 1 if strict else sympy.floor(end), False


@lru_cache(maxsize=4096)
def _is_whole(variable: Any) -> bool:
    """Whether a monomial is a product of counts."""
    powers = variable.as_powers_dict()
    return all(isinstance(ATOM_OF.get(v), Count) and p.is_Integer and p > 0 for v, p in powers.items())


@lru_cache(maxsize=4096)
def _name(variable: Any) -> str:
    return str(variable)


def _pairs(variable: Any, rows: list[Row]) -> int:
    ups, downs = (sum(1 for r in rows if r[0].get(variable, 0) * s > 0) for s in (1, -1))
    return ups * downs - ups - downs


def _joined(up: Row, down: Row, variable: Any) -> Row:
    (a, p, s), (b, q, t) = up, down
    f, g = 1 / a[variable], -1 / b[variable]
    terms = {v: f * a.get(v, 0) + g * b.get(v, 0) for v in {**a, **b} if v != variable}
    return {v: c for v, c in terms.items() if c != 0}, f * p + g * q, s or t
