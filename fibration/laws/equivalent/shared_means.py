"""Writes two hierarchies in the same variables: a token's log ratio, and means over the elements that it lies over.

In units of the leaf measure, the density of a coarser stratum is a mean of functions of the tokens' log ratios, weighed
by `m(token)/m(element)`. A mean that both hierarchies take is one variable, whatever the names of their levels and the
split of their densities. Different means are independent variables. So what holds for all values of the variables holds
on every batch, derivatives included.

A mean of `f(x)` has three parts, over tokens with `x < 0`, `x = 0` and `x > 0`. On each part `f` is the branch that
holds there. So `|x|` split by its sign and `x` itself are sums of the same variables.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import sympy

from fibration.language.atoms import (
    Attribute,
    Component,
    Count,
    Parameter,
    Reading,
    Stratum,
    Total,
    Where,
    advantage,
    of_one_value,
    read_at,
    reward,
    token_log_ratio,
)
from fibration.language.conditions import WHOLE, Equal, One, reads_tokens
from fibration.language.declared import CURRENT, OLD, LogProb, Policy
from fibration.language.expressions import Expression, as_expression
from fibration.language.operators import ANY, POSITIVE, Signs, stop
from fibration.language.pairs import Pair
from fibration.language.sympy_bridge import ATOM_OF, cancelled, from_sympy, symbol, to_sympy
from fibration.language.token_formulas import ORDER
from fibration.language.traversal import atoms, transform
from fibration.laws.equivalent.branchwise import may_move, normal_form, outcomes, same
from fibration.laws.gates.coordinates import X
from fibration.laws.signs.assumptions import Assumptions
from fibration.laws.signs.branches import Case, Conditions, cases, merged
from fibration.laws.signs.feasible import feasible, normal

NOT_POSITIVE: Signs = frozenset({-1, 0})


class Part(NamedTuple):
    """What a variable gathers from the tokens of one leaf on one side of `x = 0` (None: whatever their log ratios)."""

    leaf: Stratum
    side: int | None
    function: Any
    weight: Any = 1  # of a token in a mean


@dataclass(frozen=True)
class Gathered:
    """One variable: a mean, the largest, a quantile or the deviation over an element; a sum before or after a token.

    The parts of a mean have one side. `level`: of a quantile its level, of a sum in order its discount.
    """

    kind: str
    place: object  # a stratum; or, if it has one element, the set of its leaves
    parts: tuple[Part, ...]
    level: Expression | None = None
    of: Where = None

    def __str__(self) -> str:
        """The mean in words, whichever side of `x = 0` its tokens are on."""
        over = self.place if isinstance(self.place, Stratum) else "the batch"
        found = dict.fromkeys(
            f"{_in_words(p.function)} over {over}, each {p.leaf} weighed by {_in_words(p.weight)}" for p in self.parts
        )
        return " and ".join(found)


@dataclass
class Variables:
    """The variables of a pair, and its counts as the conditions equate them."""

    pair: Pair
    names: dict[Gathered, Reading] = field(default_factory=dict)
    signs: dict[Any, Signs] = field(default_factory=dict)
    places: dict[Reading, object] = field(default_factory=dict)  # of the variables
    partial: set[Expression] = field(default_factory=set)  # the variables that have no value on some batches
    _at: dict[Any, Assumptions] = field(default_factory=dict)
    _conditions_at: dict[Any, list[Conditions]] = field(default_factory=dict)
    _functions: dict[Any, list[Expression]] = field(default_factory=dict)

    @property
    def on_policy(self) -> bool:
        return self.pair.is_on_policy

    @functools.cached_property
    def single(self) -> frozenset[Stratum]:
        """The strata with one element: the batch, those in `one(...)`, and coarser strata with the same leaves."""
        shape = self.pair.shape
        alone = {c.stratum for c in self.pair.conditions if isinstance(c, One)}
        wide = {u for s in alone for u in shape.coarser(s) if shape.leaves_over(u) == shape.leaves_over(s)}
        return frozenset({WHOLE, *alone, *wide} & set(shape.strata))

    def counted(self, e: Expression) -> Expression:
        """A formula with its counts and log-probs as the conditions equate them."""
        return transform(e, self._counted)

    def _counted(self, a: Expression) -> Expression:
        if isinstance(a, LogProb):
            return self._log_prob(a.policy)
        varies = isinstance(a, (Parameter, Component)) and read_at(a) not in self.single
        return self._count(a if varies else of_one_value(a))

    def _log_prob(self, policy: Policy) -> Expression:
        """The log-prob of a policy, written with the old policy's where possible.

        The current log-prob moves with the log ratio, even where that is 0. A frozen log-prob has no derivative.
        """
        group = next((g for g in self.pair.same_policies if policy.name in g), frozenset({policy.name}))
        old = LogProb(Policy(OLD))
        if not policy.is_frozen:
            return old + token_log_ratio
        if OLD in group:
            return old
        if CURRENT in group:
            return old + stop(token_log_ratio)
        return LogProb(Policy(min(group)))

    def _count(self, atom: Expression) -> Expression:
        if not isinstance(atom, (Count, Total)) or not isinstance(atom.over, Stratum):
            return atom
        shape = self.pair.shape
        of = atom.of if isinstance(atom, Count) else None
        if isinstance(of, Stratum) and of in self.single and shape.leaves_over(of) == set(shape.leaves):
            return as_expression(1)
        over = WHOLE if atom.over in self.single and atom.of != atom.over else atom.over
        for c in self.pair.conditions:
            if isinstance(c, Equal) and isinstance(c.value, type(atom)) and c.value != advantage:
                base = c.value.over
                within = c.on == WHOLE or c.on in (atom.over, *shape.coarser(atom.over))
                if (
                    isinstance(base, Stratum)
                    and _what(c.value) == _what(atom)
                    and atom.over in shape.coarser(base)
                    and within
                ):
                    return self._count(Count(base, atom.over)) * self._made(c.value, base)
        return self._made(atom, over)

    def _made(self, atom: Count | Total, over: Stratum) -> Expression:
        over = WHOLE if over in self.single and atom.of != over else over
        return Count(atom.of, over) if isinstance(atom, Count) else Total(atom.attribute, over)

    def at(self, leaf: Stratum, side: int | None) -> Assumptions:
        """The assumptions at a token of a leaf whose log ratio lies on `side` of 0; None: anywhere."""
        key = leaf, side, len(self.signs)
        if key not in self._at:
            plain = Assumptions(self.pair.shape, self.pair.assume, leaf)
            own = {} if side is None else {X: frozenset({side})}
            self._at[key] = plain.with_signs({**own, **dict.fromkeys(self._log_probs, NOT_POSITIVE), **self.signs})
        return self._at[key]

    @functools.cached_property
    def _log_probs(self) -> list[Any]:
        return [symbol(LogProb(p)) for p in (Policy(OLD), *self.pair.policies)]

    def conditions_at(self, leaf: Stratum, side: int | None) -> list[Conditions]:
        """The conditions that every token meets, one entry per case."""
        key, assume = (leaf, side, len(self.signs)), self.at(leaf, side)
        if key not in self._conditions_at:
            found: list[Conditions] = [{}]
            if any(map(reads_tokens, self.pair.conditions)):  # no log-prob is above 0, the current one too
                now = symbol(LogProb(Policy(OLD))) + (0 if self.on_policy else X)
                found = [dict([normal(now, NOT_POSITIVE, assume)])]
            for c in self.pair.conditions:
                if isinstance(c, Expression):
                    holds = [normal_form(case, assume) for case in outcomes(self.counted(c), assume)]
                    both = [merged(a, b) for a in found for b in holds if b is not None]
                    found = [b for b in both if b is not None and feasible(b, assume)]
            self._conditions_at[key] = found
        return self._conditions_at[key]

    def same(self, one: Expression, other: Expression, leaf: Stratum, side: int | None, by_value: bool = False) -> bool:
        """Whether two formulas are the same function there, with the same derivatives unless `by_value`."""
        if one != other and self.partial_in(one) != self.partial_in(other):
            return False
        return same(one, other, self.at(leaf, side), self.conditions_at(leaf, side), by_value)

    def function(self, e: Expression, leaf: Stratum, side: int | None, by_value: bool = False) -> Any:
        """One object for all formulas that are the same there: a sympy value if there is one branch, else a formula."""
        assume = self.at(leaf, side)
        found = cases(e, assume)
        if len(found) == 1 and self._is_defined(found[0], assume, by_value):
            made = sympy.expand(cancelled(to_sympy(found[0].value)))
            if self.partial_in(e) <= {ATOM_OF[z] for z in made.free_symbols}:  # a factor that cancels must have a value
                return made
        known = self._functions.setdefault((leaf, side, by_value), [])
        for other in known:
            if self.same(e, other, leaf, side, by_value):
                return other
        known.append(e)
        return e

    @staticmethod
    def _is_defined(case: Case, assume: Assumptions, by_value: bool) -> bool:
        return case.defined(assume, None if by_value else case.needs_of_slopes(may_move))

    def variable(self, key: Gathered) -> Expression:
        """The variable of a key; partial if a function has no value, or no slope, at some tokens."""
        if key not in self.names:
            made = self.names[key] = Reading(f"{key.kind} {len(self.names) + 1}")
            self.signs[symbol(made)] = self._signs_of(key)
            if key.kind not in ORDER or key.of is not None:
                self.places[made] = key.of if key.kind in ORDER else key.place
            if any(map(self._is_partial, key.parts)):
                self.partial.add(made)
        return self.names[key]

    def _is_partial(self, part: Part) -> bool:
        if not isinstance(part.function, Expression):
            return any(ATOM_OF[s] in self.partial for s in part.function.free_symbols)
        assume = self.at(part.leaf, part.side)
        is_defined = all(self._is_defined(c, assume, False) for c in cases(part.function, assume))
        return bool(self.partial_in(part.function)) or not is_defined

    def partial_in(self, *formulas: Expression) -> frozenset[Expression]:
        """The partial variables that formulas read. Formulas that are the same read the same ones."""
        return frozenset(a for e in formulas for a in atoms(e) if a in self.partial)

    def is_constant_on(self, stratum: Stratum, atom: Expression) -> bool:
        """Whether an atom has one value for all tokens over an element of a stratum."""
        below = (stratum, *self.pair.shape.coarser(stratum))
        if isinstance(atom, (Count, Total)):
            said = (c for c in self.pair.conditions if isinstance(c, Equal) and self.counted(c.value) == atom)
            return atom.over in below or atom.over == WHOLE or any(c.on in (*below, WHOLE) for c in said)
        if isinstance(atom, Attribute):
            return atom.on in below
        if isinstance(atom, (Parameter, Component)):
            own = atom.parameter if isinstance(atom, Component) else atom
            return own.on is None or own.on in below
        if atom == advantage:
            equal = (c for c in self.pair.conditions if isinstance(c, Equal) and c.value == advantage)
            return any(c.on in (*below, WHOLE) for c in equal)
        if atom == reward:
            return self.pair.has_rewards_of_rows and self.pair.first.rows in below
        if not isinstance(atom, Reading) or atom not in self.places:
            return False
        place = self.places[atom]
        return isinstance(place, frozenset) or place in below

    def mean(self, place: object, parts: tuple[Part, ...]) -> Expression:
        """The mean of these functions, as a multiple of its variable."""
        filled = [p.function for p in parts if isinstance(p.function, Expression) or p.function != 0]
        if not filled:
            return as_expression(0)
        factor = sympy.Integer(1)
        if not any(isinstance(f, Expression) for f in filled):
            factor = self._factor(place, filled)
            parts = tuple(p._replace(function=sympy.expand(p.function / factor)) for p in parts)
        return from_sympy(factor) * self.variable(Gathered("mean", place, parts))

    def _factor(self, place: object, functions: list[Any]) -> Any:
        """The factor that is constant over the place and moves out of the mean; if functions differ in it, a number."""
        stratum = place if isinstance(place, Stratum) else WHOLE
        found = {sympy.Mul(*(a for a in sympy.Mul.make_args(f) if self.is_fixed(stratum, a))) for f in functions}
        if len(found) == 1:
            return found.pop()
        number = functions[0].as_coeff_Mul()[0]
        return number if number.is_Rational else sympy.Integer(1)

    def is_fixed(self, stratum: Stratum, factor: Any) -> bool:
        return all(s != X and self.is_constant_on(stratum, ATOM_OF[s]) for s in factor.free_symbols)

    def _signs_of(self, key: Gathered) -> Signs:
        """The signs of a variable: of its functions, or 0. Weights of a mean are never negative.

        A mean is not 0 if its functions have one sign, its weights are above 0 and it is over all tokens of its
        element: an element has a token. Tokens on one side of `x = 0`, of one leaf, or before the first may be none.
        """
        side = key.parts[0].side
        plain = (not isinstance(f, Expression) and f.subs(X, 0) == 0 for _, _, f, _ in key.parts)
        if key.kind == "deviation" or (key.kind == "mean" and side == 0 and all(plain)):
            return frozenset({0, 1} if key.kind == "deviation" else {0})
        found = frozenset[int]().union(*map(self._signs_of_part, key.parts))
        if key.kind != "mean":
            found |= {0} if key.kind in ORDER else frozenset()
            return ANY if {-1, 1} <= found else found
        reach = self.pair.shape.leaves_over(key.place) if isinstance(key.place, Stratum) else key.place
        weights = {p.leaf: self.at(p.leaf, None).signs(p.weight) for p in key.parts}
        is_of_all = reach == set(weights) and all(signs == POSITIVE for signs in weights.values())
        if side is None and len(found) == 1 and is_of_all:
            return found
        return ANY if side == 0 else found | {0}

    def _signs_of_part(self, part: Part) -> Signs:
        """The signs of a function at the tokens of a leaf."""
        function, side = part.function, part.side
        assume = self.at(part.leaf, side)
        if isinstance(function, Expression):
            return frozenset().union(
                *(assume.with_signs(dict(c.signs)).signs(c.sympy()) for c in cases(function, assume))
            )
        t = sympy.Dummy("t", positive=True)  # exp(x) - 1 has the sign of x
        known = assume.with_signs({t: frozenset({1})})
        if side is not None:
            function = function.subs(sympy.exp(X), 1 / (1 + t) if side < 0 else 1 + t if side > 0 else 1)
        return known.signs(function)


def _in_words(formula: Any) -> str:
    return str(formula if isinstance(formula, Expression) else from_sympy(formula))


def _what(atom: Count | Total) -> object:
    return atom.of if isinstance(atom, Count) else atom.attribute
