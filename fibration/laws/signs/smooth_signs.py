"""Signs of smooth formulas in one variable and its unit, such as the slopes of soft gates.

The signs of the derivative tell where a function rises and falls above 0. The derivative loses its factors of known
sign: derivatives of `(1 + x²)·(1 + log(1 + x²)) - 2x²`, or of `exp(x) - 1 - x`, soon have one sign. Where a function
falls and then rises, its least value is at the turn. The turn is bracketed, and the value there enclosed.
"""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import sympy

from fibration.errors import SpecError
from fibration.language.atoms import Reading
from fibration.language.exact import NoValue, TooLarge
from fibration.language.expressions import Expression
from fibration.language.operators import ANY, POSITIVE, ZERO, Signs
from fibration.language.polynomials import TooLarge as TooManyTerms
from fibration.language.sympy_bridge import from_quotient, from_sympy, quotient, symbol
from fibration.laws.signs.assumptions import Assumptions
from fibration.laws.values.intervals import Interval, Unsure, enclose, of_its_sign

Course = tuple[int, ...]  # the signs of a function in order, with a 0 for each root

T = sympy.Symbol("t", positive=True)
READ = Reading("how far from 0")
DEEPEST = 4  # derivatives
MOST_SYMBOLS = 4
FAR = 12  # powers of 2 among which a turn is looked for
HALVINGS = 40


def signs(value: Any, assume: Assumptions) -> Signs:
    """As `Assumptions.signs`, and for a smooth formula of one variable also the signs of its course."""
    found = assume.signs(value)
    if len(found) == 1 or not value.has(sympy.exp, sympy.log, sympy.tanh, sympy.atan):
        return found
    for variable, own, f in _of_one(value, assume):
        courses = {s: assume.signs(f.subs(variable, 0)) if s == 0 else _along(f, variable, s, assume) for s in own}
        more = frozenset[int]().union(*(ANY if c is None else c for c in courses.values()))
        if more != ANY:
            return found & more or more
    return found


def course(value: Any, variable: Any, side: int, assume: Assumptions) -> Course | None:
    """The signs of a formula in order, as a variable goes from 0 to one side; None if they are not known."""
    found = (_along(f, v, side, assume) for v, _, f in _of_one(value, assume) if v == variable)
    return next(found, None)


def _along(f: Any, variable: Any, side: int, assume: Assumptions) -> Course | None:
    return _course(f.xreplace({variable: side * T}), assume.anywhere.with_signs({T: POSITIVE}), DEEPEST)


def _of_one(value: Any, assume: Assumptions) -> Any:
    """Yield a variable, its signs and the formula in it alone.

    The other symbols go if the variable is in units of a positive quantity, or is the difference of two symbols.
    """
    symbols = sorted(value.free_symbols, key=str)
    if len(symbols) > MOST_SYMBOLS:
        return
    sums = {e for e in value.atoms(sympy.Add) if assume.signs(e) == POSITIVE}
    for variable in symbols:
        units = [u for u in (*symbols, *sorted(sums, key=str)) if not u.has(variable) and assume.signs(u) == POSITIVE]
        f = value
        for unit, power in itertools.product(units, (1, -1)):
            f = _fewer(f, variable, variable * unit**power)
        if f.free_symbols == {variable}:
            yield variable, assume.signs(variable), f
    for one, other in itertools.permutations(symbols, 2):
        f = _fewer(value, one, one + other)
        if f.free_symbols == {one}:
            yield one, assume.signs(one - other), f


def _fewer(f: Any, variable: Any, by: Any) -> Any:
    """The formula with a variable replaced, if that leaves fewer symbols; else the formula."""
    try:
        found = from_quotient(quotient(f.xreplace({variable: by})))
    except (TooManyTerms, ValueError):
        return f
    return found if found.free_symbols < f.free_symbols else f


def _course(f: Any, inside: Assumptions, deep: int) -> Course | None:
    """The signs of a function of `T`, in order; None if they are not known."""
    known = inside.signs(f)
    if len(known) == 1:
        return tuple(known)
    side, rest = inside.decisive(f)
    if not is_smooth(rest, inside):
        return None
    if rest.is_polynomial(T) and (p := sympy.Poly(rest, T)).domain in (sympy.ZZ, sympy.QQ):
        return tuple(side * s for s in _of_polynomial(p))
    if not deep or (slopes := _course(sympy.diff(rest, T), inside, deep - 1)) is None:
        return None
    found = _by_slopes(rest, [s for s, _ in itertools.groupby(s for s in slopes if s)], inside)
    return found and tuple(side * s for s in found)


def is_smooth(f: Any, inside: Assumptions, variable: Any = T) -> bool:
    """Whether `f` has a value and all derivatives at every value of a variable, while other symbols are fixed."""
    for e in (e for e in sympy.preorder_traversal(f) if variable is T or e.has(variable)):
        if e.is_Pow and not (e.exp.is_Integer and e.exp > 0):
            fine = e.exp.is_Rational and inside.signs(e.base) in (POSITIVE, frozenset({-1} if e.exp.is_Integer else ()))
        elif isinstance(e, sympy.log):
            fine = inside.signs(e.args[0]) == POSITIVE
        else:
            fine = e.is_Rational or e.is_NumberSymbol or e == variable or isinstance(e, SMOOTH)
        if not fine:
            return False
    return True


SMOOTH = (sympy.Add, sympy.Mul, sympy.Pow, sympy.exp, sympy.tanh, sympy.atan)


def _of_polynomial(p: Any) -> Course:
    """The course of a polynomial with rational coefficients. Its sign changes at roots of odd multiplicity."""
    found = [int(sympy.sign(p.LC()))]
    for _, same in itertools.groupby(root for root in reversed(p.real_roots()) if root > 0):
        found += [0, found[-1] * (-1) ** len(list(same))]
    return tuple(reversed(found))


def _by_slopes(f: Any, directions: list[int], inside: Assumptions) -> Course | None:
    """The course of a function, from the directions in which it goes in order."""
    start = f.subs(T, 0)
    if not (start.is_real and start.is_finite):
        return None
    first = inside.signs(start)
    if len(first) > 1 or len(directions) not in (1, 2):
        return None
    [began], side = first, directions[0]  # `side·f` rises at first
    if len(directions) == 1:
        return (side,) if began * side >= 0 else (-side, 0, side) if _is_above_0(side * f) else None
    return (-side,) if began * side < 0 and _turn(side * f) == -1 else None


def _is_above_0(f: Any) -> bool:
    """Whether an increasing function is shown to be above 0 somewhere."""
    if (value := _written(f)) is None:
        return False
    for k in range(FAR):
        place = Fraction(2**k)
        if (seen := of_its_sign(value, lambda _: place)) is not None and seen > 0:  # noqa: B023
            return True
    return False


def _turn(f: Any) -> int | None:
    """The sign of the greatest value of a function that rises and then falls; None if it is not certain."""
    value, slope = _written(f), _written(sympy.diff(f, T))
    if value is None or slope is None:
        return None

    def rises(place: Fraction) -> bool | None:
        found = of_its_sign(slope, lambda _: place)
        return None if not found else found > 0

    low = next((p for k in range(FAR) if rises(p := Fraction(1, 2**k))), None)
    high = next((p for k in range(FAR) if rises(p := Fraction(2**k)) is False), None)
    if low is None or high is None:
        return None
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if (up := rises(middle)) is None:
            break
        low, high = (middle, high) if up else (low, middle)
    return _certain(value, Interval(low, high))


def _written(f: Any) -> Expression | None:
    try:
        return from_sympy(f.xreplace({T: symbol(READ)}))
    except SpecError:  # some results of sympy have no written form
        return None


def _certain(value: Expression, place: Interval) -> int | None:
    try:
        found: Signs = enclose(value, lambda _: place).signs
    except (NoValue, TooLarge, Unsure):
        return None
    return next(iter(found)) if len(found) == 1 and found != ZERO else None
