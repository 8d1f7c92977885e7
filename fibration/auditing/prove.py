"""Equality of two formulas for all numbers: one case after another of their conditions.

In each case both have to have one normal form. Numbers that meet a bound exactly are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from fibration.auditing import formula as f
from fibration.auditing.formula import Atom, Untraced, free, is_number, single

CASES = 1500  # of two formulas; beyond them nothing is decided
ROUNDED = Fraction(1, 10**13)  # relative
ALL = (-math.inf, math.inf)
DECIDED = 400  # cases of one formula that is written as cases
CLOSE, NEAR = 1e-12, 1e-10  # of numbers that a formula is compared with
Range = tuple[float, float]
Factor = tuple[Any, float]  # a formula and a number: the sign of their difference


@dataclass(frozen=True)
class Case:
    """Between which numbers formulas without a constant lie."""

    bounds: dict[Any, Range]

    def is_below(self, key: Any, t: float) -> bool | None:
        """Whether a formula is below a number; None if either may be."""
        low, high = self.range(key)
        close = 1e-12 * max(1.0, abs(t))
        return True if high <= t + close else False if low >= t - close else None

    def range(self, key: Any) -> Range:
        """Between which numbers a formula lies, as far as that follows."""
        found = [self.bounds.get(key, ALL), self._of_terms(key)]
        for k, (low, high) in self.bounds.items():  # key = α·k + β·l
            alpha = key.terms.get(f.first_term(k))
            if alpha is None or k is key or is_number(rest := f.sub(key, f.mul(alpha, k))):
                continue
            beta = Fraction(rest.terms[f.first_term(rest)])
            if (other := self.bounds.get(f.mul(rest, 1 / beta))) is not None:
                found.append(_plus(_times(alpha, (low, high)), _times(beta, other)))
        return max(low for low, _ in found), min(high for _, high in found)

    def _of_terms(self, key: Any) -> Range:
        total = (0.0, 0.0)
        for (m, e), c in key.terms.items():
            at = (0.0, math.inf) if all(is_positive(a) for a, _ in m) else ALL
            if not m and e in self.bounds:
                at = tuple(math.exp(min(v, 700.0)) if v < math.inf else v for v in self.bounds[e])  # type: ignore[assignment]
            total = _plus(total, _times(c, at if len(key.terms) > 1 or e is not None else ALL))
        return total

    def split(self, key: Any, t: float) -> list[Case]:
        """The cases below and above a number, those of them that may be."""
        low, high = self.bounds.get(key, ALL)
        both = Case({**self.bounds, key: (low, t)}), Case({**self.bounds, key: (t, high)})
        return [case for case in both if all(low < high for low, high in map(case.range, case.bounds))]

    def answer(self, a: Atom) -> bool | None:
        """Whether a condition holds; None if that is open, and for other atoms."""
        if a.op not in ("lt", "le", "eq") or chooses(a.args[0]):
            return None
        if a.op == "eq":
            return False
        flipped, each = factors(a.args[0])
        below = [self.is_below(key, t) for key, t in each]
        return None if None in below else (sum(map(bool, below)) + flipped) % 2 == 1

    def open_factor(self, a: Atom) -> Factor:
        return next((key, t) for key, t in factors(a.args[0])[1] if self.is_below(key, t) is None)


def _plus(a: Range, b: Range) -> Range:
    return a[0] + b[0], a[1] + b[1]


def _times(c: Any, a: Range) -> Range:
    low, high = float(c) * a[0], float(c) * a[1]
    return (low, high) if c > 0 else (high, low)


def is_positive(a: Atom) -> bool:
    """Whether a root, or a sum of roots and exponentials, which is above 0."""
    terms = a.args[0].terms.items() if a.op == "of" else ()
    return a.op == "sqrt" or (bool(terms) and all(c > 0 and all(is_positive(x) for x, _ in m) for (m, _), c in terms))


def chooses(x: Any) -> bool:
    return any(isinstance(y, Atom) and y.op == "choose" for y in f.parts(x))


def factors(p: Any) -> tuple[bool, list[Factor]]:
    """Formulas without constants and numbers: the sign of `p` is the product of the signs of their differences.

    The first item says whether it is the other one.
    """
    found: list[Factor] = []
    powers = [dict(m) for m, _ in p.terms]
    for a in powers[0]:
        each = [m.get(a, 0) for m in powers]
        shared = min(each) if min(each) > 0 else max(each) if max(each) < 0 else 0
        p = f.mul(p, single(a, -shared)) if shared else p
        found += [(single(a), 0.0)] * (shared % 2 and not is_positive(a))
    if is_number(p):
        return p < 0, found
    by_exponential: dict[Any, Any] = {}
    for (m, e), c in p.terms.items():
        by_exponential.setdefault(e, {})[m, None] = c
    parts_ = [f.from_terms(t) for t in by_exponential.values()]
    if len(parts_) > 1 and not is_number(one := parts_[0]):  # one polynomial times a sum of exponentials
        lead = f.first_term(one)
        ratios = [Fraction(x.terms.get(lead, 0)) / one.terms[lead] for x in parts_ if not is_number(x)]
        if len(ratios) == len(parts_) and all(x is f.mul(k, one) for x, k in zip(parts_, ratios, strict=True)):
            turned, more = factors(one)
            p = f.from_terms({((), e): k for e, k in zip(by_exponential, ratios, strict=True)})
            flipped, rest = factors(p)
            return turned ^ flipped, [*found, *more, *rest]
    flipped = False
    if len(p.terms) == 2 and all(not m for m, _ in p.terms):
        ((_, e), c), ((_, g), d) = sorted(p.terms.items(), key=lambda x: x[0][1] is None)
        if e is not None and c * d < 0:  # c·eˣ + d·eʸ has the sign of x − y − log(−d/c)
            flipped = c < 0
            p = f.add(e, f.neg(0 if g is None else g), Fraction(-math.log(-d / c)))
    constant = p.terms.get(((), None), 0)
    rest = f.sub(p, constant)
    lead = Fraction(rest.terms[f.first_term(rest)])
    return flipped ^ (lead < 0), [*found, (f.mul(rest, 1 / lead), float(-constant / lead))]


def equal(a: Any, b: Any) -> bool:
    """Whether two formulas are equal for all numbers that meet no bound exactly; False if it stays open."""
    left = [CASES]

    def holds(one: Any, two: Any, case: Case) -> bool:
        one, two = f.replaced([one, two], case.answer)
        if same(one, two):
            return True
        left[0] -= 1
        inner = next(filter(_is_bare, f.parts(one, two)), None)
        if inner is None or left[0] < 0:
            return False
        return all(holds(one, two, c) for c in case.split(*case.open_factor(inner)))

    return holds(a, b, Case({}))


def same(x: Any, y: Any) -> bool:
    """Whether one normal form, but for the rounding of its factors, which functions compute in float64."""
    a, b = f.terms_of(x), f.terms_of(y)
    return x is y or (a.keys() == b.keys() and all(abs(c - b[k]) <= ROUNDED * abs(c) for k, c in a.items()))


def decided(x: Any, case: Case, order: Callable[[Any], Any], left: list[int] | None = None) -> Any:
    """A formula as cases, none within another's formula. `order`: of the formulas that are compared with numbers.

    Raises Untraced beyond `DECIDED` cases.
    """
    left = [DECIDED] if left is None else left
    (x,) = f.replaced([x], case.answer)
    if not (open_ := [a for a in f.parts(x) if _is_bare(a)]):
        return x
    left[0] -= 1
    if left[0] < 0:
        raise Untraced(f"more than {DECIDED} cases")
    key, t = min(map(case.open_factor, open_), key=lambda k: (order(k[0]), k[1]))
    cases = case.split(key, t)
    found = [decided(x, c, order, left) for c in cases]
    if len(found) == 1:
        return found[0]

    def at(a: Atom) -> bool | None:  # where the formula is the number
        if not _is_bare(a, "eq") or all(k is not key or abs(v - t) > CLOSE for k, v in factors(a.args[0])[1]):
            return case.answer(a)
        return a.op != "lt"

    def near(y: Any, low: float, high: float) -> Any:
        return decided(y, Case({**case.bounds, key: (t + low, t + high)}), order, left)

    below, above = found
    there = near(f.replaced([x], at)[0], -NEAR, NEAR)
    sides = near(below, -NEAR, 0), near(above, 0, NEAR)
    is_below, is_above = (same(there, y) or same(*_where_equal([there, y], key, t)) for y in sides)
    if is_above and same(decided(above, cases[0], order, left), below):
        return above
    if is_below and same(decided(below, cases[1], order, left), above):
        return below
    if is_below and is_above:  # the branch that moves, as where a clip ends
        is_below = len(f.parts(below)) >= len(f.parts(above))
    if is_below or is_above:
        return f.choose(f.less(key, f.number(t), "le" if is_below else "lt"), below, above)
    return f.choose(f.less(key, f.number(t)), below, f.choose(f.less(key, f.number(t), "le"), there, above))


def _where_equal(formulas: list[Any], key: Any, t: float) -> list[Any]:
    """Formulas where another one is a number, if that says what one variable is."""
    alone = (m[0][0] for (m, e), c in key.terms.items() if e is None and c == 1 and len(m) == 1 and m[0][1] == 1)
    v = next((a for a in alone if a.op == "var" and a not in free(f.sub(key, single(a)))), None)
    return formulas if v is None else f.substituted(formulas, {v: f.sub(f.number(t), f.sub(key, single(v)))})


def _is_bare(x: Any, *more: str) -> bool:
    """Whether a condition that holds no other."""
    return isinstance(x, Atom) and x.op in ("lt", "le", *more) and not chooses(x.args[0])
