"""The signs that an expression can have under what is known of its atoms. Laws take all signs from here.

An expression is a product of powers of factors (`polynomials.py`), and its sign is the product of their signs. A
polynomial has the sign that all its terms share. If they share none, atoms are written through their bounds, one at a
time, until they do. `branches.py` splits cases before: sympy never gets a `where`, a `min` or a `sign`.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any

import sympy

from fibration.language.atoms import Attribute, Component, Count, Parameter, Stratum, Summary, Total
from fibration.language.declared import LogProb
from fibration.language.expressions import Expression
from fibration.language.operators import ANY, NOT_NEGATIVE, NOT_ZERO, OPERATORS, POSITIVE, ZERO, Signs
from fibration.language.polynomials import (
    Factor,
    Monomial,
    Polynomial,
    Quotient,
    TooLarge,
    as_quotient,
    excesses,
    shifted,
    variable,
)  # fmt: skip
from fibration.language.statistics import Aggregate, Ordered
from fibration.language.strata import Assumption, Populated, Shape
from fibration.language.sympy_bridge import (
    ATOM_OF,
    BOUNDS,
    OPERATOR_OF,
    atom_expression,
    atom_number,
    from_quotient,
    quotient,
    symbol,
    to_sympy,
)  # fmt: skip
from fibration.laws.signs import polynomial_signs, ranges
from fibration.laws.signs.one_variable import Stretch, allowed, signs_at
from fibration.laws.signs.polynomial_signs import coefficients, is_whole
from fibration.laws.signs.populations import HAVE_A_VALUE_OF_NONE, Pair, Populations, Presence, counted, formulas
from fibration.laws.signs.ranges import Range, added, multiplied, raised, turned, union

MOST_STEPS = 2000  # how often an atom is written through its bounds, for one sign
NEGATIVE: Signs = frozenset({-1})
NOT_POSITIVE: Signs = frozenset({-1, 0})


class Assumptions:
    """What is known of atoms: strict bounds of parameters, positivity of counts and attributes, the order of counts.

    `at` is the stratum at whose elements expressions are read, if that is known. It tells which counts are positive: at
    an image token, every element that the token lies over has at least one image token.
    """

    def __init__(
        self,
        shape: Shape,
        assume: Iterable[Assumption] = (),
        at: Stratum | None = None,
        extra: dict[Any, Signs] | None = None,
    ) -> None:
        self.populations = Populations(shape, (a for a in assume if isinstance(a, Populated)))
        self.at = at
        self.extra = extra or {}
        self._family: dict[Any, Assumptions] = {}
        self._elsewhere: dict[Stratum, Assumptions] = {}
        self.anywhere = self  # these assumptions without the signs of expressions
        self._start()

    def _start(self, wider: Assumptions | None = None) -> None:
        """Set up the caches. `wider`: the assumptions to which signs were added, whose results still hold."""
        self.branches: dict[Expression, Any] = {}  # by expression, what `branches.py` split under these assumptions
        numbers = tuple((pair, signs) for s, signs in self.extra.items() if (pair := counted(s)))
        self.presence = Presence(self.populations, self.at, numbers)
        self._wider = wider
        self._forget()
        self._facts: dict[Factor, Signs] = dict(wider._facts) if wider else {}
        self._products: list[tuple[Quotient, Signs]] = list(wider._products) if wider else []
        self._learn(wider.extra if wider else {})

    def _forget(self) -> None:
        self._known: dict[Any, Signs] = {}
        self._factors: dict[Polynomial, Signs] = {}
        self._ranges: dict[int, Range] = {}
        self._decided: dict[Polynomial, Signs] = {}

    def with_signs(self, extra: dict[Any, Signs]) -> Assumptions:
        """These assumptions with the signs of some more expressions."""
        if not extra:
            return self
        merged = {**self.extra, **extra}
        key = frozenset(merged.items())
        if key not in self._family:
            made = object.__new__(Assumptions)
            made.populations, made.at, made.extra = self.populations, self.at, merged
            made._family, made._elsewhere, made.anywhere = self._family, self._elsewhere, self.anywhere
            made._start(self if all(extra.get(s, signs) <= signs for s, signs in self.extra.items()) else None)
            self._family[key] = made
        return self._family[key]

    def elsewhere(self, stratum: Stratum) -> Assumptions:
        """What is known at the elements of another stratum. Signs that were added here do not hold there."""
        if stratum not in self._elsewhere:
            self._elsewhere[stratum] = Assumptions(self.populations.shape, self.populations.populated, stratum)
        return self._elsewhere[stratum]

    # ------------------------------------------------------------ known signs of expressions

    def _learn(self, known: dict[Any, Signs]) -> None:
        """Derive the signs of factors from the signs of expressions that are not in `known`."""
        added = [(value, signs) for value, signs in self.extra.items() if known.get(value) != signs]
        for value, signs in sorted(added, key=lambda item: len(item[0].args)):
            try:
                q = quotient(value)
            except (TooLarge, ValueError):
                continue
            self._products.append((q, signs))
            sign, rest = self._split(q)
            # nothing follows for a denominator: it may be 0, and then the expression has no value
            if len(rest.factors) == 1 and (power := next(iter(rest.factors.values()))) > 0:
                [f] = rest.factors
                signs = turned(signs, sign)
                if not power % 2:
                    signs = ZERO if signs == ZERO else ANY if 0 in signs else NOT_ZERO
                self._facts[f] = self._facts.get(f, ANY) & signs or signs
                self._forget()  # what was worked out without this fact

    def _split(self, q: Quotient) -> tuple[int, Quotient]:
        """The product of the known signs of factors, and the other factors."""
        sign, rest = 1 if q.number > 0 else -1, {}
        for f, p in q.factors.items():
            own = raised(self._factor(f), p)
            if own == NEGATIVE:
                sign = -sign
            elif own != POSITIVE:
                rest[f] = p
        return sign, Quotient(Fraction(1), rest)

    def decisive(self, value: Any) -> tuple[int, Any]:
        """1 or -1, and a value without the factors of known sign. Their product has the sign of `value`."""
        try:
            q = quotient(value)
        except (TooLarge, ValueError):
            return 1, value
        sign, rest = self._split(q) if q else (1, q)
        return sign, from_quotient(rest)

    def _beside(self, q: Quotient) -> Signs:
        """The signs of a multiple of a known expression, or of a known expression plus a number."""
        found = ANY
        for known, signs in self._products:
            if known.factors == q.factors:
                found &= turned(signs, q.number / known.number)
            elif known.atoms == q.atoms:
                try:
                    difference = q - known
                except TooLarge:
                    continue
                if not difference.factors:
                    found &= added([signs, turned(POSITIVE, difference.number)])
        return found

    def _range(self, atom: int) -> Range:
        if atom not in self._ranges:
            wider, e = self._wider, atom_expression(atom)
            of_count = isinstance(ATOM_OF.get(e), Count)  # facts about polynomials in a count may narrow its range
            same = wider is not None and e.is_Symbol and not of_count and wider.presence == self.presence
            found = wider._range(atom) if wider is not None and same else self._plain_range(e)
            own = self._by_facts(variable(atom), self._facts.get(atom, ANY), by_numbers=True)
            self._ranges[atom] = ranges.narrowed(found, own)
        return self._ranges[atom]

    def _plain_range(self, e: Any) -> Range:
        """The range of an atom from its declaration and the shape of the hierarchy, without facts."""
        atom = ATOM_OF.get(e)
        if isinstance(atom, (Count, Total)):
            of_positive = isinstance(atom, Count) or atom.attribute.positive
            if self.presence.absent(atom.of, atom.over):
                return Range(ZERO)
            if isinstance(atom, Count):
                numbers = self._numbers(atom_number(e))
                return ranges.of_count(numbers[0][0], numbers[-1][1])
            signs = (POSITIVE if self.presence.present(atom.of, atom.over) else NOT_NEGATIVE) if of_positive else ANY
            return ranges.of_total(atom.attribute, signs, atom_number(symbol(Count(atom.of, atom.over))))
        if isinstance(atom, (Attribute, Parameter, Component)):
            return ranges.of_declared(atom)
        if isinstance(atom, LogProb):
            return Range(NOT_POSITIVE)
        if isinstance(atom, Aggregate):
            return Range(self._of_statistic(atom))
        if isinstance(atom, Ordered):  # a sum: 0 where nothing comes before
            return Range(self._of_formula(atom) | ZERO)
        if e.is_Symbol:
            return Range()
        if e.is_number:
            return ranges.of_number(e)
        if isinstance(e, sympy.Piecewise):
            return Range(union(self.signs(branch) for branch, _ in e.args))
        if isinstance(e, (sympy.Min, sympy.Max)):
            chosen = min if isinstance(e, sympy.Min) else max
            return Range(frozenset(chosen(of) for of in itertools.product(*map(self.signs, e.args))))
        argument = e.args[0]
        if e.is_Pow:
            base = self.signs(argument)
            return Range(base if base <= NOT_NEGATIVE else ANY)
        if isinstance(e, sympy.exp):
            return ranges.of_exponential(self.signs(argument))
        row = OPERATORS.get(OPERATOR_OF.get(e.func, ""))
        if row is None:
            return Range()
        signs = row.signs(self.signs, argument)
        return ranges.of_bounded(BOUNDS[e.func], signs) if e.func in BOUNDS else Range(signs)

    def _of_statistic(self, atom: Aggregate) -> Signs:
        """The signs between the values of the formula. Without elements a total is 0 and a condition is false."""
        of_none = atom.kind in HAVE_A_VALUE_OF_NONE and self.presence.may_be_of_none(atom)
        if of_none and self.presence.absent(atom.of, atom.over):
            return ZERO
        if atom.is_condition or atom.kind == "deviation":
            return NOT_NEGATIVE
        found = self._of_formula(atom)
        return found | ZERO if of_none or found >= NOT_ZERO else found

    def _of_formula(self, atom: Summary) -> Signs:
        """The signs that the formula takes at the elements at which it is read."""
        read = formulas(atom, self.populations.shape)
        return union(self.elsewhere(place).signs(to_sympy(formula)) for place, formula in read)

    # ------------------------------------------------------------ signs

    def signs(self, value: Any) -> Signs:
        """All signs that an expression can take, and sometimes more."""
        value = sympy.sympify(value)
        if value not in self._known:
            self._known[value] = self._signs(value)
        return self._known[value]

    def _signs(self, value: Any) -> Signs:
        if zeros := {s: sympy.Integer(0) for s in value.free_symbols if self._is_0(s)}:
            value = value.xreplace(zeros)
        try:
            q = quotient(value)
        except ValueError:
            return ANY
        except TooLarge:
            return self._by_parts(value)
        if q.factors and all(atom_expression(a).is_number for a in q.atoms):
            sign = sympy.sign(value) if value.is_real else None  # sympy may find that it is 0
            return frozenset({int(sign)}) if sign is not None and sign.is_Integer else ANY
        found = self._of(q, self._factor)
        if len(found) > 1 and (together := self._together(q)) != ANY:
            found = found & together or together
        if len(found) > 1 and (beside := self._beside(q)) != ANY:
            found = found & beside or beside
        return found

    def _together(self, q: Quotient) -> Signs:
        """The signs of a product whose factors of unknown sign in the same atoms are multiplied out."""
        unsure: dict[frozenset[int], list[Polynomial]] = {}
        for f, p in q.factors.items():
            if isinstance(f, Polynomial) and p == 1 and len(self._factor(f)) > 1:
                unsure.setdefault(f.atoms, []).append(f)
        groups = [group for group in unsure.values() if len(group) > 1]
        rest = Quotient(q.number, {f: p for f, p in q.factors.items() if not any(f in group for group in groups)})
        try:
            products = [functools.reduce(operator.mul, group) for group in groups]
        except TooLarge:
            return ANY
        found = self._of(rest, self._factor)
        return functools.reduce(multiplied, map(self._factor, products), found) if products else ANY

    def _is_0(self, s: Any) -> bool:
        pair = counted(s)
        return self.presence.absent(*pair) if pair else self.extra.get(s) == ZERO

    def _by_parts(self, value: Any) -> Signs:
        """The signs of a product or a sum that is too large to be written as one quotient."""
        if value.is_Mul:
            return functools.reduce(multiplied, (self.signs(a) for a in value.args))
        if value.is_Add:
            return added([self.signs(a) for a in value.args])
        return ANY

    def _of(self, q: Quotient, factor: Callable[[Factor], Signs]) -> Signs:
        """The signs of a product of powers."""
        found = turned(POSITIVE, q.number)
        for f, p in q.factors.items():
            found = multiplied(found, raised(factor(f), p))
        return found

    def _factor(self, f: Factor) -> Signs:
        """The signs of an atom or a polynomial, whichever branches are empty."""
        if isinstance(f, int):
            found = self._range(f).signs
            return found if len(found) == 1 else self._by_facts(variable(f), found)
        if self._wider and len(found := self._wider._factors.get(f, ANY)) == 1:
            return found
        if f not in self._factors:
            self._steps = 0
            found = self._polynomial(f)
            if len(found) > 1 and (choice := next(self.presence.one_present(f), None)):
                # not all branches of a tree are empty: the union of the signs for each branch that may be filled
                filled = (self.with_signs({symbol(Count(*pair)): POSITIVE}) for pair in choice)
                found &= union(assume._factor(f) for assume in filled)
            if len(found) > 1 and (more := self._sharper(f)) != ANY:
                found = found & more or more
            self._factors[f] = found
        return self._factors[f]

    def _sharper(self, p: Polynomial) -> Signs:
        known = polynomial_signs.Known(self._range, lambda part: self._of(as_quotient(part), self._factor), self.signs)
        try:
            return known.sharper(p)
        except TooLarge:
            return ANY

    def _polynomial(self, f: Factor) -> Signs:
        """The signs of an atom or a polynomial, by its terms, bounds and known facts."""
        if isinstance(f, int):
            return self._range(f).signs
        if self._wider and len(found := self._wider._decided.get(f, ANY)) == 1:
            return found
        if f not in self._decided:
            try:
                found = self._terms(f) or self._at_counts(f) or self._shifted(f)
            except TooLarge:
                return ANY
            self._decided[f] = self._by_facts(f, found)
        return self._decided[f]

    def _by_facts(self, p: Polynomial, found: Signs, by_numbers: bool = False) -> Signs:
        """The signs `found`, or fewer if it is a multiple of a polynomial of known sign plus terms of one sign.

        `by_numbers`: plus a number alone, so that the range of one atom does not rest on that of another.
        """
        for known, signs in self._facts.items():
            if isinstance(known, Polynomial) and signs != ANY:
                for k, rest in excesses(p, known):
                    if not (by_numbers and rest.atoms):
                        more = added([turned(signs, k), *(self._plainly(m, c) for m, c in rest.terms.items())])
                        found = found & more or more
        return found

    def _plainly(self, monomial: Monomial, number: int) -> Signs:
        """The signs of a term of symbols and exponentials. Other atoms count as ANY: their signs may rest on facts."""
        found = turned(POSITIVE, number)
        for a, p in monomial:
            if not isinstance(e := atom_expression(a), sympy.exp):
                found = multiplied(found, raised(self._range(a).signs, p) if e.is_Symbol else ANY)
        return found

    def _terms(self, p: Polynomial) -> Signs | None:
        """The sign that all terms share; None if they share none."""
        parts = [turned(self._monomial(m), c) for m, c in p.terms.items()]
        if union(parts) >= NOT_ZERO:
            return None
        found = added(parts)
        return found - ZERO if len(found) > 1 and self._not_all_0(p) else found

    def _monomial(self, monomial: Monomial) -> Signs:
        found = POSITIVE
        for a, p in monomial:
            signs = self._range(a).signs
            if signs != POSITIVE:
                found = multiplied(found, raised(signs, p))
        return found

    def _not_all_0(self, p: Polynomial) -> bool:
        """Whether the terms are never all 0, whichever branches are empty."""

        def stays(monomial: Monomial, there: Pair) -> bool:
            pairs = ((a, counted(atom_expression(a))) for a, _ in monomial)
            implies = self.populations.implies
            return all(0 not in self._range(a).signs or (pair and implies(there, pair)) for a, pair in pairs)

        return any(
            all(any(stays(m, there) for m in p.terms) for there in choice) for choice in self.presence.one_present(p)
        )

    def _at_counts(self, p: Polynomial) -> Signs | None:
        """The signs of a polynomial in one count; None for any other."""
        atom = next(iter(p.atoms))
        if len(p.atoms) > 1 or not isinstance(ATOM_OF.get(atom_expression(atom)), Count):
            return None
        is_low = max(p.powers(atom)) <= polynomial_signs.MOST_DEGREE
        return signs_at(coefficients(p, atom), self._numbers(atom)) if is_low else ANY

    def _numbers(self, count: int) -> list[Stretch]:
        """The whole numbers that a count may be, by what is known of polynomials in it alone."""
        least = int(self.presence.present(*counted(atom_expression(count))))  # type: ignore[misc]
        known = [
            (coefficients(f, count), signs)
            for f, signs in self._facts.items()
            if isinstance(f, Polynomial) and f.atoms == {count} and max(f.powers(count)) <= polynomial_signs.MOST_DEGREE
        ]
        return allowed(least, known) or [(least, None)]

    def _shifted(self, p: Polynomial) -> Signs:
        """The signs of a polynomial after one atom is written through its bounds."""
        bounds = self._next_bounds(p)
        if bounds is None:
            return ANY
        self._steps += 1
        if self._steps > MOST_STEPS:
            raise TooLarge
        atom, within = bounds
        parts: list[Signs] = []
        written = shifted(p, atom, within.lower, within.upper)
        for coefficient in written:
            parts.append(self._of(as_quotient(coefficient), self._polynomial))
            if union(parts) >= NOT_ZERO:
                whole = within.upper is None and isinstance(ATOM_OF.get(atom_expression(atom)), Count)
                return polynomial_signs.of_one(written, whole, within.open, within.closed)
        ends = ([] if within.open else [parts[0]]) + ([parts[-1]] if within.closed else [])
        return added(parts) | (ZERO if any(0 in end for end in ends) else frozenset())

    def _next_bounds(self, p: Polynomial) -> tuple[int, Range] | None:
        """The next atom to write through its bounds, and the bounds. A larger count comes before a smaller one."""
        for a in p.atoms:  # totals come before the counts that bound them
            if isinstance(ATOM_OF.get(atom_expression(a)), Total) and (own := self._range(a)).is_bounded:
                return a, own
        counts = sorted((a for a in p.atoms if isinstance(ATOM_OF.get(atom_expression(a)), Count)), key=self._rank)
        for i, a in reversed(list(enumerate(counts))):
            own = self._range(a)
            below = [b for b in counts[:i] if self._at_most(b, a) and self._range(b).is_bounded >= own.is_bounded]
            if below:
                return a, Range(lower=(variable(below[-1]), 1))
            if own.is_bounded:
                return a, own
        bounded = [(a, r) for a in p.atoms if (r := self._range(a)).is_bounded and is_whole(p, a)]
        # irrational numbers last: bounds of other atoms may contain them
        if not bounded:
            return None
        return min(bounded, key=lambda found: (atom_expression(found[0]).is_number, found[0]))

    def _rank(self, atom: int) -> tuple[int, int]:
        of, over = counted(atom_expression(atom))  # type: ignore[misc]
        depth = self.populations.depth
        return -depth.get(over, 0), depth.get(of, 0)

    def _at_most(self, small: int, large: int) -> bool:
        a, b = counted(atom_expression(small)), counted(atom_expression(large))
        return a is not None and b is not None and self.populations.at_most(a, b)
