"""Formulas of tokens in the variables of a pair: weights, conditions, and statistics over other tokens.

A statistic of one formula over one stratum is one variable, in whatever words the formula is written. Means and totals
are means of what tokens have, as densities are; of those that differ by what is constant on the element one is a
multiple of the other. Nothing of them moves with a token's log ratio: they stand in `stop`.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy

from fibration.language.atoms import Count, Parameter, Reading, Stratum, Total, at, token_log_ratio
from fibration.language.conditions import WHOLE
from fibration.language.expressions import Apply, Expression, as_expression
from fibration.language.hierarchy import Hierarchy
from fibration.language.operators import ANY, Signs, stop, where
from fibration.language.statistics import Aggregate
from fibration.language.sympy_bridge import ATOM_OF, from_sympy, symbol, to_sympy
from fibration.language.traversal import atoms, desugar, transform
from fibration.laws.proof.branches import cases
from fibration.laws.proof.near import SIDES
from fibration.laws.proof.shared_means import Variables

ONE, NOTHING = as_expression(1), as_expression(0)
PerLeaf = dict[Stratum, Expression]


@dataclass(frozen=True)
class Ordered:
    """A variable: what is largest, or a quantile, of the tokens over an element."""

    kind: str
    place: object
    level: Expression | None
    formulas: tuple[tuple[Stratum, int | None, Any], ...]


@dataclass
class TokenFormulas:
    """What formulas read of tokens, in the variables of a pair."""

    variables: Variables
    ordered: dict[Ordered, Reading] = field(default_factory=dict)
    _known: dict[tuple[Expression, Stratum], Expression] = field(default_factory=dict)

    def read(self, e: Expression, leaf: Stratum) -> Expression:
        """A formula read at a token, or at what it lies over, with its counts, policies and statistics."""
        key = e, leaf
        if key not in self._known:
            new = any(isinstance(a, Aggregate) for a in atoms(e))
            self._known[key] = transform(_by_some(desugar(e)), self._atom) if new else self.variables.counted(e)
        return self._known[key]

    def value(self, e: Expression, leaf: Stratum) -> Expression:
        """A formula through which no gradient flows, as what counts in the strata of a token."""
        return _unstopped(self.read(at(e, leaf), leaf))

    def _atom(self, atom: Expression) -> Expression:
        if not isinstance(atom, Aggregate):
            return self.variables.counted(atom)
        assert isinstance(atom.over, Stratum)
        leaves = self._leaves(atom.over)
        if atom.kind == "some":
            return self.gathered("total", {s: self.value(where(atom.formula, 1, 0), s) for s in leaves}, atom.over) > 0
        level = None if atom.level is None else self.value(atom.level, leaves[0])
        return stop(self.gathered(atom.kind, {s: self.value(atom.formula, s) for s in leaves}, atom.over, level))

    def _leaves(self, stratum: Stratum) -> list[Stratum]:
        reach = self.variables.pair.shape.leaves_over(stratum)
        return [leaf for leaf in self.variables.pair.first.leaves if leaf in reach]

    # ------------------------------------------------------------ statistics

    def gathered(self, kind: str, formulas: PerLeaf, over: Stratum, level: Expression | None = None) -> Expression:
        """A statistic of what the tokens of each leaf have, over an element of a stratum."""
        v = self.variables
        formulas = {leaf: self._simple(e, leaf) for leaf, e in formulas.items()}
        first, *others = formulas.values()
        if over in formulas:
            return formulas[over]
        number = functools.reduce(operator.add, [v.counted(Count(leaf, over)) for leaf in formulas])
        place = over if over not in v.single else WHOLE
        if all(e == first for e in others) and all(v.is_constant_on(place, a) for a in atoms(first)):
            return number * first if kind == "total" else first
        split = any(token_log_ratio in set(atoms(e)) for e in formulas.values())
        sides: Sequence[int | None] = ((0,) if v.on_policy else SIDES) if split else (None,)
        of: object = frozenset(formulas) if over in v.single else over
        if kind not in ("total", "mean"):
            made = tuple(
                (s, side, v.function(e, s, side, by_value=True)) for s, e in formulas.items() for side in sides
            )
            return self._variable(Ordered(kind, of, level, made))
        share = sympy.cancel(1 / to_sympy(number))
        terms = []
        for side in sides:
            made = tuple((s, share, v.function(e, s, side, by_value=True)) for s, e in formulas.items())
            (_, _, f), several = made[0], len(made) > 1
            alone = several or split or isinstance(f, Expression)  # else a mean of a sum is the sum of means
            for parts in [made] if alone else [((*made[0][:2], part),) for part in sympy.Add.make_args(f)]:
                fixed = not alone and all(v.is_constant_on(place, ATOM_OF[s]) for s in parts[0][2].free_symbols)
                terms.append(from_sympy(parts[0][2]) if fixed else v.mean(of, side, parts))
        mean = functools.reduce(operator.add, terms)
        return number * mean if kind == "total" else mean

    def _simple(self, e: Expression, leaf: Stratum) -> Expression:
        """A formula, or its only branch."""
        assume = self.variables.at(leaf, None)
        found = cases(e, assume)
        return found[0].value if len(found) == 1 and found[0].defined(assume) else e

    def _variable(self, key: Ordered) -> Expression:
        v = self.variables
        if key not in self.ordered:
            made = self.ordered[key] = Reading(f"{key.kind} {len(self.ordered) + 1}")
            signs: Signs = frozenset().union(*(v.signs_of(f, leaf, side) for leaf, side, f in key.formulas))
            v.signs[symbol(made)] = ANY if {-1, 1} <= signs else signs
            v.places[made] = key.place
        return self.ordered[key]

    # ------------------------------------------------------------ weights of a token

    def weight(self, h: Hierarchy, leaf: Stratum) -> Expression:
        """`μ·w` of a token, and 0 where it is not kept."""
        objective = h.objective
        weight = objective.spelled_out(h.leaves, h.rows)
        counted = [k.condition for k in objective.kept if k.normaliser == "kept"]
        if counted:
            weight = self._among(weight, functools.reduce(operator.and_, counted))
        for w in objective.weighed:
            weight = weight * w
        for keep in objective.kept:
            weight = where(keep.condition, weight, 0)
        return self.value(weight, leaf)

    def _among(self, weight: Expression, kept: Expression) -> Expression:
        """`μ` where these tokens alone are counted, and the elements that have one of them; 0 where there is none."""
        numbers: list[Expression] = []

        def atom(a: Expression) -> Expression:
            if not isinstance(a, (Count, Total)) or a.of == a.over:
                return a
            assert isinstance(a.of, Stratum) and isinstance(a.over, Stratum)
            each: Callable[[Expression], Expression] = lambda e: e if isinstance(a, Count) else e * a.attribute  # noqa: E731
            found = self._number(kept, a.of, a.over, each)
            if isinstance(a, Count):
                numbers.append(found)
            return found

        value = transform(weight, atom)
        for n in numbers:
            value = where(n > 0, value, 0)
        return value

    def _number(
        self, kept: Expression, of: Stratum, over: Stratum, each: Callable[[Expression], Expression]
    ) -> Expression:
        """How many elements of a stratum have a kept token, or what they add up to, over another."""
        leaves = self._leaves(over)
        if of in leaves:
            return self.gathered(
                "total", {s: self.value(where(kept, each(ONE) if s == of else 0, 0), s) for s in leaves}, over
            )
        own = self._leaves(of)
        there = self.gathered("total", {s: self.value(where(kept, 1, 0), s) for s in own}, of)
        if of in self.variables.single:
            return where(there > 0, each(ONE), 0)
        share = where(there > 0, each(ONE / there), 0)
        return self.gathered(
            "total", {s: self.value(where(kept, share, 0), s) if s in own else NOTHING for s in leaves}, over
        )


_TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


def _by_some(e: Expression) -> Expression:
    """A formula in which what is largest is compared by whether some token has more."""
    if not isinstance(e, Apply):
        return e
    if e.operator in _TURNED:
        left, right = e.arguments
        for a, b, op in ((left, right, e.operator), (right, left, _TURNED[e.operator])):
            if isinstance(a, Apply) and a.operator == "neg":
                a, b, op = a.arguments[0], -b, _TURNED[op]
            if isinstance(a, Aggregate) and a.kind == "largest" and all(isinstance(r, Parameter) for r in atoms(b)):
                more = a.formula > b if op in (">", "<=") else a.formula >= b
                above = Aggregate("some", more, a.over)
                return above if op in (">", ">=") else ~above
    arguments = tuple(map(_by_some, e.arguments))
    return e if arguments == e.arguments else Apply(e.operator, arguments)


def _unstopped(e: Expression) -> Expression:
    """A formula as it is where no derivatives are taken."""
    if not isinstance(e, Apply):
        return e
    arguments = tuple(map(_unstopped, e.arguments))
    if e.operator == "stop":
        return arguments[0]
    return e if arguments == e.arguments else Apply(e.operator, arguments)
