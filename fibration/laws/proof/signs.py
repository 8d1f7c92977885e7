"""Expressions as sympy sees them, and what can be said about the sign of one.

sympy is used for polynomial arithmetic alone: `together`, `cancel`, `Poly`, `diff` of branch-free expressions. It never
sees a `where`, a `min` or a `sign`; cases are split before (`branches.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import sympy
from sympy import Dummy

from fibration.language.assumptions import Assumption, Populated
from fibration.language.atoms import Attribute, Component, Count, Parameter, Stratum, Total
from fibration.language.expressions import Expression
from fibration.language.operators import ANY, OPERATORS, Operator, Signs
from fibration.language.strata import Shape
from fibration.language.sympy_bridge import ATOM_OF, OPERATOR_OF, symbol
from fibration.laws.proof.populations import Populations


class Assumptions:
    """Strict bounds of parameters, positivity of counts and attributes, and the order of counts in a hierarchy.

    `at` is the stratum at whose elements expressions are read, if that is known: over what lies below an image token
    there is an image token.
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
        self._start()

    def _start(self) -> None:
        self.branches: dict[Expression, Any] = {}  # of the expressions split under these assumptions (`branches.py`)
        self._known: dict[Any, Signs] = {}
        self._counted = [(pair, signs) for s, signs in self.extra.items() if (pair := _pair(s))]
        self._family: dict[Any, Assumptions] = {}

    def with_signs(self, extra: dict[Any, Signs]) -> Assumptions:
        """These assumptions, and the signs of some expressions besides."""
        if not extra:
            return self
        merged = {**self.extra, **extra}
        key = frozenset(merged.items())
        if key not in self._family:
            made = object.__new__(Assumptions)
            made.populations, made.at, made.extra = self.populations, self.at, merged
            made._start()
            made._family = self._family
            self._family[key] = made
        return self._family[key]

    def present(self, of: Any, over: Any) -> bool:
        """Whether at least one `of` element lies over the `over` element."""
        if self.populations.always(of, over, self.at):
            return True
        if any(signs == {1} and self.populations.implies(p, (of, over)) for p, signs in self._counted):
            return True
        some_absent = any(signs == {0} for _, signs in self._counted)
        return some_absent and self.populations.together([of], over, self._without(over))

    def _without(self, over: Any) -> list[Any]:
        """The strata of which nothing lies over the `over` element."""
        implies = self.populations.implies
        return [of for (of, below), signs in self._counted if signs == {0} and implies((of, over), (of, below))]

    def absent(self, of: Any, over: Any) -> bool:
        """Whether no `of` element lies over the `over` element."""
        return any(signs == {0} and self.populations.implies((of, over), p) for p, signs in self._counted)

    def signs(self, value: Any) -> Signs:
        """The signs that an expression can take; never too few, sometimes too many."""
        value = sympy.sympify(value)
        if value not in self._known:
            self._known[value] = self._signs(value)
        return self._known[value]

    def _signs(self, value: Any) -> Signs:
        zeros = {s: 0 for s, signs in self.extra.items() if s.is_Symbol and signs == {0}}
        pairs = {s: p for s in value.free_symbols if (p := _pair(s))}
        zeros |= {s: 0 for s, p in pairs.items() if self.absent(*p)}
        value = sympy.together(value.subs(zeros))
        for choice in self._one_present({p for s, p in pairs.items() if s not in zeros and not self.present(*p)}):
            # not all branches of a tree are empty: what holds whichever one is not
            return frozenset().union(*(self.with_signs({n: frozenset({1})}).signs(value) for n in choice))
        if value.is_number:
            sign = sympy.sign(value) if value.is_real else None
            return frozenset({int(sign)}) if sign is not None and sign.is_Integer else ANY
        for known, signs in self.extra.items():
            if known.free_symbols != value.free_symbols:
                continue
            ratio = sympy.cancel(value / known) if value.is_rational_function() else None
            if ratio is not None and ratio.is_number and ratio != 0:
                return frozenset(s if ratio > 0 else -s for s in signs)
            slack = sympy.expand(value - known)
            if slack.is_Rational and slack != 0 and signs <= {0, int(sympy.sign(slack))}:
                return frozenset({int(sympy.sign(slack))})
        top, bottom = sympy.fraction(value)
        numerator, denominator = self._polynomial(top), self._polynomial(bottom)
        if 0 in denominator:
            return ANY
        return frozenset(a * b for a in numerator for b in denominator)

    def _one_present(self, pairs: set[tuple[Any, Any]]) -> Iterator[list[Any]]:
        """Counts of which at least one is not 0, though none of them is known to be."""
        for over in sorted({over for _, over in pairs}, key=str):
            of = sorted((o for o, v in pairs if v == over), key=str)
            if self.populations.together(of, over, self._without(over)):
                yield [symbol(Count(o, over)) for o in of]

    def _polynomial(self, value: Any) -> Signs:
        """All coefficients of one sign, in variables that are never negative, decide."""
        replaced, positive, nonnegative = self._shift(value)
        replaced = sympy.expand(sympy.together(replaced).as_numer_denom()[0])
        if replaced.is_number:
            sign = sympy.sign(replaced)
            return frozenset({int(sign)}) if sign.is_Integer else ANY
        known = positive | nonnegative
        symbols = sorted(replaced.free_symbols, key=str)
        if not replaced.is_polynomial(*symbols):
            return ANY
        possible: set[int] = set()
        strict = False  # whether some term is never 0
        for monomial, coefficient in sympy.Poly(replaced, *symbols).terms():
            if any(s not in known and p % 2 for s, p in zip(symbols, monomial, strict=True)):
                return ANY
            possible.add(1 if coefficient > 0 else -1)
            strict |= all(p == 0 or s in positive for s, p in zip(symbols, monomial, strict=True))
        return ANY if len(possible) > 1 else frozenset(possible if strict else possible | {0})

    def _shift(self, value: Any) -> tuple[Any, set[Any], set[Any]]:
        """Rewrite atoms through variables that are positive (or not negative) and nothing else."""
        positive: set[Any] = set()
        nonnegative: set[Any] = set()

        def fresh(strict: bool) -> Any:
            made = Dummy("t", positive=True)
            (positive if strict else nonnegative).add(made)
            return made

        roots = {p for p in value.atoms(sympy.Pow) if not p.exp.is_Integer and not isinstance(p, sympy.exp)}
        for function in sorted(value.atoms(sympy.Function) | roots, key=lambda f: -sympy.count_ops(f)):
            signs = self._function_signs(function)
            row = _row(function)
            if row is not None and row.bound is not None:
                either = {-1, 1} <= signs
                t = fresh(either or 0 not in signs)
                part = (t - 1) / (t + 1) if either else t / (t + 2) * (1 if 1 in signs else -1)
                value = value.subs(function, row.bound * part)
            elif len(signs) == 1 and 0 not in signs:
                value = value.subs(function, next(iter(signs)) * fresh(True))
            elif signs == {0, 1}:
                value = value.subs(function, fresh(False))
            else:
                value = value.subs(function, Dummy("u", real=True))
        counts = sorted((s for s in value.free_symbols if isinstance(ATOM_OF.get(s), Count)), key=self._rank)
        replacement: dict[Any, Any] = {}
        for i, s in enumerate(counts):  # smaller counts first, so that each is the largest below it plus a slack
            least = 1 if self.present(*_pair(s)) else 0  # type: ignore[misc]
            below = [t for t in counts[:i] if self._at_most(t, s) and least <= self.present(*_pair(t))]  # type: ignore[misc]
            replacement[s] = (replacement[below[-1]] if below else least) + fresh(False)
        for s in value.free_symbols:
            atom = ATOM_OF.get(s)
            if s in replacement or s in positive or s in nonnegative:
                continue
            if s in self.extra and self.extra[s] != ANY:
                signs = self.extra[s]
                if signs == {0}:
                    replacement[s] = 0
                elif -1 not in signs or 1 not in signs:
                    replacement[s] = fresh(0 not in signs) * (1 if 1 in signs else -1)
            elif isinstance(atom, Attribute):
                if atom.positive:
                    replacement[s] = fresh(True)
            elif isinstance(atom, Total):
                if atom.attribute.positive:
                    replacement[s] = fresh(self.present(atom.of, atom.over))
            elif isinstance(atom, (Parameter, Component)):
                p = atom.parameter if isinstance(atom, Component) else atom
                lower, upper = (
                    None if b is None or math.isinf(b) else sympy.Rational(str(b)) for b in (p.lower, p.upper)
                )
                if lower is not None and upper is not None:
                    t = fresh(True)
                    replacement[s] = (lower + upper * t) / (1 + t)
                elif lower is not None:
                    replacement[s] = lower + fresh(True)
                elif upper is not None:
                    replacement[s] = upper - fresh(True)
        return value.subs(replacement, simultaneous=True), positive, nonnegative

    def _function_signs(self, function: Any) -> Signs:
        argument = function.args[0]
        if function.is_Pow and not isinstance(function, sympy.exp):
            base = self.signs(argument)
            return base if base == {1} or (-1 not in base and function.exp.is_positive) else ANY
        row = _row(function)
        return ANY if row is None else row.signs(self.signs, argument)

    def _rank(self, s: Any) -> tuple[int, int]:
        atom, depth = ATOM_OF[s], self.populations.depth
        assert isinstance(atom, Count)
        return (-depth.get(atom.over, 0), depth.get(atom.of, 0))  # type: ignore[arg-type]

    def _at_most(self, small: Any, large: Any) -> bool:
        a, b = _pair(small), _pair(large)
        return a is not None and b is not None and self.populations.at_most(a, b)


def _row(function: Any) -> Operator | None:
    """What the language knows of one of sympy's functions."""
    name = OPERATOR_OF.get(function.func)
    return None if name is None else OPERATORS[name]


def _pair(s: Any) -> tuple[Any, Any] | None:
    """Of a count or the total of a positive attribute: what lies over what, so that it is not 0."""
    atom = ATOM_OF.get(s)
    if isinstance(atom, Count) or (isinstance(atom, Total) and atom.attribute.positive):
        return atom.of, atom.over
    return None
