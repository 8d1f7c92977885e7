"""Formulas of tokens in the variables of a pair: weights, conditions, statistics over other tokens, and gated ratios.

A statistic of one formula over one stratum is one variable, however the formula is spelled. So is a sum before or after
a token. Means and totals become means over tokens, as densities do; two that differ by a factor constant on the element
are multiples of one variable. A sum over elements becomes a sum over tokens, each with its share. The mean of the
others is the mean of all without the element itself.

Statistics and sums that pass no gradient stand in `stop`: all in weights and gates, all but order in decompositions,
all but sums and order in penalties.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy

from fibration.language.atoms import (
    Count,
    Density,
    Parameter,
    Stratum,
    Summary,
    Total,
    Where,
    at,
    gated,
    in_channel,
    residual,
    token_log_ratio,
)
from fibration.language.conditions import WHOLE
from fibration.language.expressions import Apply, Expression, as_expression
from fibration.language.hierarchy import Hierarchy
from fibration.language.objectives import Objective
from fibration.language.operators import stop, where
from fibration.language.statistics import Aggregate, Ordered
from fibration.language.sympy_bridge import ATOM_OF, cancelled, from_sympy, to_sympy
from fibration.language.token_formulas import NO_KINDS, ORDER
from fibration.language.traversal import atoms, cancel, desugar, rewrite, substitute, transform
from fibration.laws.equivalent.shared_means import Gathered, Part, Variables
from fibration.laws.signs.branches import cases
from fibration.laws.signs.neighbourhood import SIDES

ONE, ZERO = as_expression(1), as_expression(0)
PerLeaf = dict[Stratum, Expression]


class Unsuited(Exception):
    """A hierarchy that cannot be written in these variables; its message says why."""


@dataclass
class TokenFormulas:
    """Formulas of tokens, in the variables of a pair."""

    variables: Variables
    _known: dict[tuple[Expression, Stratum, frozenset[str]], Expression] = field(default_factory=dict)

    def read(self, e: Expression, leaf: Stratum, through: frozenset[str] = NO_KINDS) -> Expression:
        """A formula at a token, or at an element that it lies over, with counts, log-probs and statistics replaced.

        `through`: the kinds of statistics and order that pass gradients.
        """
        key = e, leaf, through
        if key not in self._known:
            new = bool(atoms(e, Summary))
            atom = functools.partial(self._atom, leaf=leaf, through=through)
            self._known[key] = transform(rewrite(desugar(e), _by_some), atom) if new else self.variables.counted(e)
        return self._known[key]

    def value(self, e: Expression, leaf: Stratum) -> Expression:
        """A formula at a token, for use where no gradient flows: without `stop`, and with log ratio 0 on policy."""

        def unstopped(part: Expression) -> Expression:
            return part.arguments[0] if isinstance(part, Apply) and part.operator == "stop" else part

        found = rewrite(self.read(at(e, leaf), leaf), unstopped)
        return substitute(found, {token_log_ratio: ZERO}) if self.variables.on_policy else found

    def _atom(self, atom: Expression, leaf: Stratum, through: frozenset[str]) -> Expression:
        if not isinstance(atom, (Aggregate, Ordered)):
            return self.variables.counted(atom)
        flows = atom.word in through
        several = len(self.variables.pair.first.leaves) > 1
        if several and (isinstance(atom, Ordered) or atom.of is not None):
            raise Unsuited(f"{atom}, of tokens of several kinds, is compared in equal formulas alone")
        of = None if atom.of == leaf else atom.of

        def each(e: Expression, s: Stratum) -> Expression:
            here = at(e, of or s)
            return self.read(here, s, through) if flows else self.value(here, s)

        if isinstance(atom, Ordered):
            found = self._ordered(atom, leaf, of, each(atom.formula, leaf), flows)
        elif atom.kind == "some":
            holds = {s: each(where(atom.formula, 1, 0), s) for s in self._leaves(atom.over)}
            return self.gathered("total", holds, atom.over) > 0  # type: ignore[arg-type]
        elif atom.of is not None and atom.kind in ("total", "mean"):
            found = self._of_elements(atom, leaf, each(atom.formula, leaf), not flows)
        else:
            formulas = {s: each(atom.formula, s) for s in self._leaves(atom.over)}
            level = None if atom.level is None else self.value(atom.level, next(iter(formulas)))
            found = self.gathered(atom.kind, formulas, atom.over, level, of, not flows)  # type: ignore[arg-type]
        return found if flows else stop(found)

    def _of_elements(self, atom: Aggregate, leaf: Stratum, formula: Expression, by_value: bool) -> Expression:
        """A total or mean over elements as a sum over tokens, each with its share of its element."""
        assert isinstance(atom.over, Stratum) and isinstance(atom.of, Stratum)
        v = self.variables
        n, share = v.counted(Count(atom.of, atom.over)), v.counted(Count(leaf, atom.of))
        fixed, rest = self._parted(formula, leaf, atom.over)
        found = n * fixed
        if rest != ZERO:
            found = found + self.gathered("total", {leaf: rest / share}, atom.over, by_value=by_value)
        if atom.kind == "total":
            return found
        return (found - formula) / (n - 1) if atom.others else found / n

    def _parted(self, e: Expression, leaf: Stratum, over: Stratum) -> tuple[Expression, Expression]:
        """Splits a sum into the summands that are constant over an element, and the rest."""
        v = self.variables
        place = over if over not in v.single else WHOLE
        if all(v.is_constant_on(place, a) for a in atoms(e)):
            return e, ZERO
        simple, assume = self.simple(e, leaf), v.at(leaf, None)
        branches = cases(simple, assume)
        if len(branches) > 1 or not branches[0].defined(assume):
            return ZERO, e
        parts = sympy.Add.make_args(sympy.expand(to_sympy(simple)))
        if not v.partial_in(e) <= {ATOM_OF[z] for p in parts for z in p.free_symbols}:
            return ZERO, e
        fixed = [p for p in parts if all(v.is_constant_on(place, ATOM_OF[s]) for s in p.free_symbols)]
        if not fixed:
            return ZERO, e
        rest = sympy.Add(*(p for p in parts if p not in fixed))
        return from_sympy(sympy.Add(*fixed)), from_sympy(rest)

    def _ordered(self, o: Ordered, leaf: Stratum, of: Where, formula: Expression, flows: bool) -> Expression:
        """The discounted sum before or after a token, term by term, with constant factors moved out."""
        v = self.variables
        assert isinstance(o.over, Stratum)
        place = o.over if o.over not in v.single else WHOLE
        discount = from_sympy(sympy.expand(to_sympy(self.value(o.discount, leaf))))
        if discount == ZERO:
            return ZERO * formula
        side = 0 if v.on_policy else None
        function = v.function(formula, leaf, side, by_value=not flows)
        terms = [] if isinstance(function, Expression) else sympy.Add.make_args(function)
        if not terms:
            return v.variable(Gathered(o.direction, place, (Part(leaf, side, function),), discount, of))
        found = ZERO
        for term in terms:
            fixed = [f for f in sympy.Mul.make_args(term) if v.is_fixed(place, f)]
            factor = sympy.Mul(*fixed)
            if factor != 0:
                key = Gathered(o.direction, place, (Part(leaf, side, term / factor),), discount, of)
                found = found + from_sympy(factor) * v.variable(key)
        return found

    def _leaves(self, stratum: Where) -> list[Stratum]:
        assert isinstance(stratum, Stratum)
        reach = self.variables.pair.shape.leaves_over(stratum)
        return [leaf for leaf in self.variables.pair.first.leaves if leaf in reach]

    # ------------------------------------------------------------ statistics

    def gathered(
        self,
        kind: str,
        formulas: PerLeaf,
        over: Stratum,
        level: Expression | None = None,
        of: Where = None,
        by_value: bool = True,
    ) -> Expression:
        """A statistic over an element of `over`, of one formula per leaf.

        `of`: the formula belongs to elements of this stratum, each of which counts once. `by_value`: no gradient flows.
        """
        v = self.variables
        formulas = {leaf: self.simple(e, leaf) for leaf, e in formulas.items()}
        first, *others = formulas.values()
        none = ZERO * first  # 0, with no value where the formula has none
        if kind == "deviation" and len(formulas) == 1:
            formulas = {leaf: self._parted(e, leaf, over)[1] for leaf, e in formulas.items()}
            first, *others = formulas.values()
        if over in formulas:
            return none if kind == "deviation" else formulas[over]
        number = functools.reduce(operator.add, [v.counted(Count(leaf, over)) for leaf in formulas])
        place = over if over not in v.single else WHOLE
        if all(e == first for e in others) and all(v.is_constant_on(place, a) for a in atoms(first)):
            return number * first if kind == "total" else none if kind == "deviation" else first
        split = any(token_log_ratio in atoms(e) for e in formulas.values())
        sides: Sequence[int | None] = ((0,) if v.on_policy else SIDES) if split else (None,)
        there: object = frozenset(formulas) if over in v.single else over
        if kind not in ("total", "mean"):
            made = tuple(
                Part(s, side, v.function(e, s, side, by_value=True)) for s, e in formulas.items() for side in sides
            )
            return v.variable(Gathered(kind, there, made, level, of if kind == "deviation" else None))
        share = cancelled(1 / to_sympy(number))
        terms = []
        for side in sides:
            made = tuple(Part(s, side, v.function(e, s, side, by_value), share) for s, e in formulas.items())
            f, several = made[0].function, len(made) > 1
            alone = several or split or isinstance(f, Expression)  # else the mean of a sum splits into a sum of means
            for parts in [made] if alone else [(made[0]._replace(function=term),) for term in sympy.Add.make_args(f)]:
                own = parts[0].function
                fixed = not alone and all(v.is_constant_on(place, ATOM_OF[s]) for s in own.free_symbols)
                terms.append(from_sympy(own) if fixed else v.mean(there, parts))
        mean = functools.reduce(operator.add, terms)
        return number * mean if kind == "total" else mean

    def simple(self, e: Expression, leaf: Stratum, side: int | None = None) -> Expression:
        """A formula, or its only branch."""
        assume = self.variables.at(leaf, side)
        found = cases(e, assume)
        return found[0].value if len(found) == 1 and found[0].defined(assume) else e

    # ------------------------------------------------------------ weights of a token

    def weight(self, h: Hierarchy, leaf: Stratum, objective: Objective) -> Expression:
        """`μ·w` of a token; 0 if a mask drops it."""
        weight = objective.spelled_out(h.leaves, h.rows)
        counted = [k.condition for k in objective.kept if k.normaliser == "kept"]
        if counted:
            weight = self._among(weight, leaf, functools.reduce(operator.and_, counted))
        for w in objective.weighed:
            weight = weight * w
        for keep in objective.kept:
            weight = where(keep.condition, weight, 0)
        return self.value(weight, leaf)

    def _among(self, weight: Expression, leaf: Stratum, kept: Expression) -> Expression:
        """`μ` with counts of kept tokens, and of elements that have a kept token.

        A kept token is itself in the counts over its own leaf, so `μ` is 0 where such a count is 0. Counts over another
        leaf may be 0.
        """
        numbers: list[Expression] = []

        def atom(a: Expression) -> Expression:
            if not isinstance(a, (Count, Total)) or a.of == a.over:
                return a
            assert isinstance(a.of, Stratum) and isinstance(a.over, Stratum)
            each: Callable[[Expression], Expression] = lambda e: e if isinstance(a, Count) else e * a.attribute  # noqa: E731
            found = self._number(kept, a.of, a.over, each)
            if isinstance(a, Count) and leaf in self.variables.pair.shape.leaves_over(a.of):
                numbers.append(found)
            return found

        value = transform(weight, atom)
        for n in numbers:
            value = where(n > 0, value, 0)
        return value

    def _number(
        self, kept: Expression, of: Stratum, over: Stratum, each: Callable[[Expression], Expression]
    ) -> Expression:
        """The number of `of` elements with a kept token over an element of `over`, or the sum of `each` over them."""
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
            "total", {s: self.value(where(kept, share, 0), s) if s in own else ZERO for s in leaves}, over
        )


_TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


def _by_some(e: Expression) -> Expression:
    """Returns a comparison of `largest(f)` with a number as `some(f > number)`, and any other formula unchanged."""
    if isinstance(e, Apply) and e.operator in _TURNED:
        left, right = e.arguments
        for a, b, op in ((left, right, e.operator), (right, left, _TURNED[e.operator])):
            if isinstance(a, Apply) and a.operator == "neg":
                a, b, op = a.arguments[0], -b, _TURNED[op]
            is_number = all(isinstance(r, Parameter) and r.on is None for r in atoms(b))
            if isinstance(a, Aggregate) and a.kind == "largest" and is_number:
                more = a.formula > b if op in (">", "<=") else a.formula >= b
                above = Aggregate("some", more, a.over, None, a.of)
                return above if op in (">", ">=") else ~above
    return e


# ---------------------------------------------------------------- one hierarchy


class Form:
    """One hierarchy of a pair, at a token of a leaf whose log ratio lies on one side of 0."""

    def __init__(self, formulas: TokenFormulas, h: Hierarchy, leaf: Stratum, side: int) -> None:
        self.formulas, self.variables = formulas, formulas.variables
        self.h, self.leaf, self.side = h, leaf, side
        self.path = [s for s in h.order if s == leaf or s in h.coarser(leaf)]
        self.level = functools.cache(self._level)

    def mass(self, stratum: Stratum) -> Expression:
        return self.variables.counted(self.h.masses[stratum])

    def mean(self, stratum: Stratum, channel: str) -> Expression:
        """The density of a stratum per unit of the leaf measure."""
        if stratum == self.leaf:
            return self._density(self.leaf, channel, self.side)
        over = [leaf for leaf in self.h.leaves if leaf in self.h.shape.leaves_over(stratum)]
        single = stratum in self.variables.single
        place: object = frozenset(over) if single else stratum
        terms = []
        for side in (0,) if self.variables.on_policy else SIDES:
            parts = []
            for s in over:
                function = self.variables.function(self._density(s, channel, side), s, side)
                parts.append(Part(s, side, function, _quotient(self.mass(s), self.mass(stratum))))
            terms.append(self.variables.mean(place, tuple(parts)))
        return functools.reduce(operator.add, terms)

    def _density(self, leaf: Stratum, channel: str, side: int) -> Expression:
        """A token's density per unit of the leaf measure on one side of `x = 0`; the branch there if there is one."""
        own = self.h.with_mass(self.h.decomposition[channel], leaf)
        whole = self.formulas.read(own, leaf, ORDER) / self.mass(leaf)
        assume = self.variables.at(leaf, side)
        if all(case.defined(assume) for case in cases(whole, assume)):  # a factor that cancels must have a value
            whole = cancel(whole)
        return self.formulas.simple(whole, leaf, side)

    def _level(self, stratum: Stratum, channel: str) -> Expression:
        """What the gate of a stratum adds, per unit of the leaf measure."""
        m, own = self.mass(stratum), self.mean(stratum, channel)
        for u, c in self.h.shape.moebius(stratum).items():
            own = own - as_expression(c) * self.mean(u, channel)
        gate = self.formulas.read(in_channel(self.h.gate(stratum), channel), self.leaf)
        known: dict[Expression, Expression] = {residual: m * own}
        for d in atoms(gate):
            if isinstance(d, Density):
                known[d] = self.mass(d.stratum) * self.mean(d.stratum, d.channel or "")
        return substitute(gate, known) / m

    def recovery(self, added: dict[str, Expression]) -> Expression:
        """`𝒢` as a function of the sums of what the gates add, per channel."""
        back = self.formulas.read(self.h.with_mass(self.h.decomposition.recovery, self.leaf), self.leaf)
        return substitute(back, {gated(c): self.mass(self.leaf) * e for c, e in added.items()})

    @functools.cached_property
    def ratio(self) -> Expression:
        """`𝒢` of the token."""
        channels = self.h.decomposition.channels
        return self.recovery(
            {c: functools.reduce(operator.add, [self.level(s, c) for s in self.path]) for c in channels}
        )

    @functools.cached_property
    def weight(self) -> Expression:
        """`μ·w` of the token."""
        return self.formulas.weight(self.h, self.leaf, self.h.objective)


@functools.lru_cache(1024)
def _quotient(one: Expression, other: Expression) -> Any:
    """A quotient without common factors. Cached, because the same few masses recur."""
    return cancelled(sympy.together(to_sympy(one / other)))
