"""Two hierarchies in the same variables: the token's own log ratio, and means over what it lies over.

In units of the leaf measure every density of a coarser stratum is a mean of functions of the tokens' log ratios,
weighed by `m(token)/m(element)`. Where both hierarchies take the same mean it is one variable, whatever their levels
are called and however their densities are split; means of different kinds are variables that know nothing of each
other. What holds for all values of the variables holds on every batch, and so do derivatives.

A mean of `f(x)` is taken in three parts, over tokens with `x < 0`, `x = 0` and `x > 0`, on each of which `f` is the
branch that holds there. So `|x|` split by its sign and `x` itself are sums of the same variables.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import sympy

from fibration.language.atoms import (
    BATCH,
    Attribute,
    Component,
    Count,
    Density,
    Parameter,
    Reading,
    Stratum,
    Total,
    advantage,
    gated,
    in_channel,
    residual,
    token_log_ratio,
)
from fibration.language.cancel import cancel
from fibration.language.conditions import WHOLE, Equal, One, OnPolicy
from fibration.language.expressions import Expression, as_expression
from fibration.language.hierarchy import Hierarchy
from fibration.language.operators import ANY, Signs, where
from fibration.language.pairs import Pair
from fibration.language.sympy_bridge import ATOM_OF, from_sympy, symbol, to_sympy
from fibration.language.traversal import atoms, substitute, transform
from fibration.laws.proof.branches import Case, TooManyCases, cases
from fibration.laws.proof.coordinates import X
from fibration.laws.proof.near import SIDES
from fibration.laws.proof.signs import Assumptions


class Unsuited(Exception):
    """A hierarchy that cannot be written in these variables; its message says why."""


@dataclass(frozen=True)
class Mean:
    """One variable: a mean over the elements of `place`, of the tokens on one side of `x = 0`."""

    place: object  # a stratum, or the leaves of which there is one element
    side: int
    parts: tuple[tuple[Stratum, Any, Any], ...]  # per leaf: the weight of a token, the function of its log ratio


@dataclass
class Variables:
    """The variables of a pair, and its counts where the conditions make them equal."""

    pair: Pair
    names: dict[Mean, Reading] = field(default_factory=dict)
    signs: dict[Any, Signs] = field(default_factory=dict)
    _at: dict[Any, Assumptions] = field(default_factory=dict)

    @functools.cached_property
    def on_policy(self) -> bool:
        return any(isinstance(c, OnPolicy) for c in self.pair.conditions)

    @functools.cached_property
    def single(self) -> frozenset[Stratum]:
        """The strata with one element: those that are said to be, the batch, and what is coarser and as wide."""
        shape = self.pair.shape
        asked = {c.stratum for c in self.pair.conditions if isinstance(c, One)}
        wide = {u for s in asked for u in shape.coarser(s) if shape.leaves_over(u) == shape.leaves_over(s)}
        return frozenset({WHOLE, *asked, *wide} & set(shape.strata))

    def counted(self, e: Expression) -> Expression:
        """A formula with its counts as the conditions have them."""
        return transform(e, self._count)

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

    def at(self, leaf: Stratum, side: int) -> Assumptions:
        """What is known where a token of a leaf has a log ratio on this side."""
        key = leaf, side, len(self.signs)
        if key not in self._at:
            plain = Assumptions(self.pair.shape, self.pair.assume, leaf)
            self._at[key] = plain.with_signs({X: frozenset({side}), **self.signs})
        return self._at[key]

    def mean(self, place: object, side: int, parts: tuple[tuple[Stratum, Any, Any], ...]) -> Expression:
        """A mean of these functions, as a multiple of the variable that it is."""
        filled = [f for _, _, f in parts if f != 0]
        if not filled:
            return as_expression(0)
        factor = self._factor(place, filled)
        key = Mean(place, side, tuple((leaf, weight, sympy.expand(f / factor)) for leaf, weight, f in parts))
        if key not in self.names:
            self.names[key] = Reading(f"mean {len(self.names) + 1}")
            self.signs[symbol(self.names[key])] = self._signs_of(key)
        return from_sympy(factor) * self.names[key]

    def _factor(self, place: object, functions: list[Any]) -> Any:
        """What is constant over the place and can be taken out of the mean; at least the number."""
        found = {f.as_independent(X, as_Add=False)[0] for f in functions}
        stratum = place if isinstance(place, Stratum) else WHOLE
        factor = found.pop()
        if not found and all(is_constant_on(self.pair, stratum, {}, ATOM_OF[s]) for s in factor.free_symbols):
            return factor
        number = functions[0].as_coeff_Mul()[0]
        return number if number.is_Rational else sympy.Integer(1)

    def _signs_of(self, mean: Mean) -> Signs:
        """Weights are never negative: the mean has the sign of its function."""
        if mean.side == 0:
            return frozenset({0}) if all(f.subs(X, 0) == 0 for _, _, f in mean.parts) else ANY
        t = sympy.Dummy("t", positive=True)  # exp(x) - 1 has the sign of x
        found: set[int] = {0}
        for leaf, _, f in mean.parts:
            plain = Assumptions(self.pair.shape, self.pair.assume, leaf)
            known = plain.with_signs({X: frozenset({mean.side}), t: frozenset({1})})
            value = f.subs(sympy.exp(X), 1 + t) if mean.side > 0 else f.subs(sympy.exp(X), 1 / (1 + t))
            found |= known.signs(value)
        return frozenset(found)


def _what(atom: Count | Total) -> object:
    return atom.of if isinstance(atom, Count) else atom.attribute


class Form:
    """One hierarchy of a pair, at a token of a leaf whose log ratio lies on one side of 0."""

    def __init__(self, variables: Variables, h: Hierarchy, leaf: Stratum, side: int) -> None:
        self.variables, self.h, self.leaf, self.side = variables, h, leaf, side
        self.path = [s for s in h.order if s == leaf or s in h.coarser(leaf)]

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
            parts = tuple((leaf, self._weight(leaf, stratum), self._function(leaf, channel, side)) for leaf in over)
            terms.append(self.variables.mean(place, side, parts))
        return functools.reduce(operator.add, terms)

    def _weight(self, leaf: Stratum, stratum: Stratum) -> Any:
        return sympy.cancel(sympy.together(to_sympy(self.mass(leaf) / self.mass(stratum))))

    def _function(self, leaf: Stratum, channel: str, side: int) -> Any:
        return sympy.expand(sympy.cancel(to_sympy(self._density(leaf, channel, side))))

    def _density(self, leaf: Stratum, channel: str, side: int) -> Expression:
        """What a token has per unit of the leaf measure, by the branch that holds on one side of `x = 0`."""
        own = self.h.with_mass(self.h.decomposition[channel], leaf)
        plain = Assumptions(self.variables.pair.shape, self.variables.pair.assume, leaf)
        assume = plain.with_signs({X: frozenset({side})})
        try:
            found = cases(cancel(self.variables.counted(own) / self.mass(leaf)), assume)
        except TooManyCases:
            found = []
        if len(found) != 1 or not found[0].defined(assume):
            raise Unsuited(f"the density of '{self.h.name}' has no one formula on each side of r = 1")
        return found[0].value

    def level(self, stratum: Stratum, channel: str) -> Expression:
        """What a gate adds, per unit of the leaf measure."""
        m, own = self.mass(stratum), self.mean(stratum, channel)
        for u, c in self.h.shape.moebius(stratum).items():
            own = own - as_expression(c) * self.mean(u, channel)
        gate = self.variables.counted(in_channel(self.h.gate(stratum), channel))
        known: dict[Expression, Expression] = {residual: m * own}
        for d in atoms(gate):
            if isinstance(d, Density):
                known[d] = self.mass(d.stratum) * self.mean(d.stratum, d.channel or "")
        return substitute(gate, known) / m

    def recovery(self, added: dict[str, Expression]) -> Expression:
        """`𝒢` of what the gates add, channel by channel."""
        back = self.variables.counted(self.h.with_mass(self.h.decomposition.recovery, self.leaf))
        return substitute(back, {gated(c): self.mass(self.leaf) * e for c, e in added.items()})

    @property
    def ratio(self) -> Expression:
        """`𝒢` of the token."""
        channels = self.h.decomposition.channels
        return self.recovery(
            {c: functools.reduce(operator.add, [self.level(s, c) for s in self.path]) for c in channels}
        )

    @property
    def weight(self) -> Expression:
        """`μ` of the token."""
        return self.variables.counted(self.h.objective.spelled_out(self.h.leaves, self.h.rows))


def is_constant_on(pair: Pair, stratum: Stratum, means: dict[Reading, Mean], e: Expression) -> bool:
    """Whether a formula has one value for all tokens over an element of a stratum."""
    below = (stratum, *pair.shape.coarser(stratum))
    return all(_is_constant(pair, below, means, a) for a in atoms(e))


def _is_constant(pair: Pair, below: tuple[Stratum, ...], means: dict[Reading, Mean], a: Expression) -> bool:
    if isinstance(a, (Count, Total)):
        return a.over in below or a.over == Stratum(BATCH)
    if isinstance(a, Attribute):
        return a.on in below
    if isinstance(a, (Parameter, Component)):
        return True
    if a == advantage:
        return any(isinstance(c, Equal) and c.value == advantage and c.on in (*below, WHOLE) for c in pair.conditions)
    if a == token_log_ratio or not isinstance(a, Reading) or a not in means:
        return False
    place = means[a].place
    return isinstance(place, frozenset) or place in below


def outcomes(condition: Expression, assume: Assumptions) -> Iterator[Case]:
    """The cases in which a condition holds."""
    yield from (c for c in cases(where(condition, 1, 0), assume) if c.value == as_expression(1))
