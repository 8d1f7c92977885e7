"""The operator on one concrete hierarchy, from its definition and in exact rationals (eq:fgh_gating).

Gates may make up for one another, so a fault of one gate refutes nothing: the operator as a whole must be seen to fail.
Nothing here uses sympy.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any

from fibration.language.atoms import (
    Density,
    Stratum,
    Summary,
    advantage,
    gated,
    in_channel,
    residual,
)
from fibration.language.exact import NoValue
from fibration.language.expressions import Expression
from fibration.language.hierarchy import Hierarchy
from fibration.language.policies import LogProb
from fibration.language.traversal import atoms
from fibration.laws.batches.concrete import Concrete
from fibration.laws.batches.tokens import Tokens, places_of
from fibration.laws.values.duals import Real, differentiate, quotient, value_of

MANY_TOKENS = 40
Values = dict[Stratum, list[Real | None]]  # None where no token lies over the element


@dataclass(frozen=True)
class DirectOperator:
    """`𝒢` by sums over all tokens. Residuals are those of the Möbius recursion, not of a projection.

    `strict` raises `TooClose` where a comparison rests on the last of fifty digits.
    """

    h: Hierarchy
    concrete: Concrete
    strict: bool = False

    @cached_property
    def tokens(self) -> tuple[tuple[Stratum, int], ...]:
        """Every token: its leaf, and which element of it."""
        return places_of(self.h, self.concrete)

    def over(self, stratum: Stratum, element: int) -> list[int]:
        """Which tokens lie over an element."""
        below, reach = self.concrete.below, self.h.shape.leaves_over(stratum)
        return [k for k, (leaf, i) in enumerate(self.tokens) if leaf in reach and below(leaf, i, stratum) == element]

    @cached_property
    def fibres(self) -> dict[Stratum, list[list[int]]]:
        return {s: [self.over(s, e) for e in range(self.concrete.size[s])] for s in self.h.order}

    @cached_property
    def factors(self) -> dict[Stratum, dict[Stratum, int]]:
        return {s: self.h.shape.moebius(s) for s in self.h.order}

    @cached_property
    def base(self) -> dict[Stratum, list[dict[Stratum, int]]]:
        """For every element, itself and the coarser elements that it lies over."""
        c, found = self.concrete, {}
        for s in self.h.order:
            down = (s, *self.h.coarser(s))
            found[s] = [{u: c.below(s, e, u) for u in down} for e in range(c.size[s])]
        return found

    @cached_property
    def mass(self) -> dict[Stratum, list[Fraction | None]]:
        """`m` of every element; None where no token lies over it."""
        return {
            s: [self.concrete.value(self.h.masses[s], s, e) if inside else None for e, inside in enumerate(fibres)]
            for s, fibres in self.fibres.items()
        }

    @cached_property
    def densities(self) -> dict[tuple[str, Stratum], Expression]:
        """`F` of every channel, as every leaf reads it."""
        return {
            (c, leaf): self.h.with_mass(e, leaf) for c, e in self.h.decomposition.densities for leaf in self.h.leaves
        }

    @cached_property
    def recoveries(self) -> dict[Stratum, Expression]:
        """`R`, as every leaf reads it."""
        return {leaf: self.h.with_mass(self.h.decomposition.recovery, leaf) for leaf in self.h.leaves}

    def means(self, values: Sequence[Real]) -> Values:
        """`s_v = E_m[· | v]` of one number per token."""
        number = self.concrete.stands_for
        weights = [number(leaf, i) * (self.mass[leaf][i] or Fraction(0)) for leaf, i in self.tokens]
        found: Values = {}
        for stratum, fibres in self.fibres.items():
            found[stratum] = []
            for element, inside in enumerate(fibres):
                total: Real = sum((weights[k] * values[k] for k in inside), Fraction(0))
                own = self.mass[stratum][element]
                found[stratum].append(None if own is None else quotient(total, number(stratum, element) * own))
        return found

    def residual(self, means: Values, stratum: Stratum, element: int) -> Real:
        """`s_v - Σ_u c_u·s_u` over the coarser strata `u`."""
        value = means[stratum][element]
        assert value is not None
        for u, c in self.factors[stratum].items():
            value -= Fraction(c) * (means[u][self.base[stratum][element][u]] or Fraction(0))
        return value

    def at_tokens(
        self,
        log_ratios: Sequence[Real],
        advantages: Sequence[Fraction],
        log_probs: Mapping[str, Sequence[Real]] | None = None,
    ) -> Tokens:
        """The values that formulas read at the tokens of this batch."""
        return Tokens(self.concrete, self.tokens, log_ratios, advantages, self.read, log_probs or {})

    def ratios(
        self,
        log_ratios: Sequence[Real],
        advantages: Sequence[Fraction],
        log_probs: Mapping[str, Sequence[Real]] | None = None,
    ) -> list[Real]:
        """`𝒢(r)` of every token, with slopes if log ratios have slopes. Raises `NoValue` if something has no value.

        `log_probs` are those of frozen policies, if gates read them (`Tokens`).
        """
        h, at_tokens = self.h, self.at_tokens(log_ratios, advantages, log_probs)
        split = h.decomposition
        means = self.densities_of(log_ratios, advantages, log_probs)
        levels = {(s, ch): self._gated(s, ch, means, at_tokens) for s in h.order for ch in split.channels}
        found = []
        for (leaf, i), a in zip(self.tokens, advantages, strict=True):
            bound: dict[Expression, Real] = {advantage: a}
            for channel in split.channels:
                total: Real = sum(
                    (levels[s, channel][e] or Fraction(0) for s, e in self.base[leaf][i].items()), Fraction(0)
                )
                bound[gated(channel)] = (self.mass[leaf][i] or Fraction(0)) * total
            found.append(self.value(self.recoveries[leaf], leaf, i, bound))
        return found

    def densities_of(
        self,
        log_ratios: Sequence[Real],
        advantages: Sequence[Fraction],
        log_probs: Mapping[str, Sequence[Real]] | None = None,
    ) -> dict[str, Values]:
        """The density of every element on every channel, in units of the leaf measure."""
        found: dict[str, Values] = {}
        moving = replace(self.at_tokens(log_ratios, advantages, log_probs), flows=True)
        for channel in self.h.decomposition.channels:
            own = []
            for k, (leaf, i) in enumerate(self.tokens):
                density = self.read(self.densities[channel, leaf], functools.partial(moving.atom, k=k))
                own.append(quotient(density, self.mass[leaf][i] or Fraction(0)))
            found[channel] = self.means(own)
        return found

    def attempt(self, log_ratios: Sequence[Fraction], a: Fraction) -> list[Fraction] | None:
        """`𝒢(r)` where all advantages are `a`; None where something has no value."""
        try:
            return [value_of(g) for g in self.ratios(log_ratios, [a] * len(log_ratios))]
        except NoValue:
            return None

    def value(self, expression: Expression, stratum: Stratum, element: int, bound: Mapping[Expression, Real]) -> Real:
        """As `Concrete.value`, where `bound` may have slopes."""
        atom = self.concrete.atom
        return self.read(expression, lambda a: bound[a] if a in bound else atom(a, stratum, element))  # type: ignore[no-any-return]

    def read(self, expression: Expression, atom: Callable[[Expression], Real]) -> Any:
        """An expression, where atoms have these values."""
        return differentiate(expression, atom, self.strict)

    def _gated(self, stratum: Stratum, channel: str, means: dict[str, Values], at_tokens: Tokens) -> list[Real | None]:
        """`h_v = g(m·ρ)/m` at every element."""
        gate = in_channel(self.h.gate(stratum), channel)
        found: list[Real | None] = []
        for element, m in enumerate(self.mass[stratum]):
            if m is None:
                found.append(None)
                continue
            bound = self.read_by(gate, stratum, element, means, at_tokens)
            bound[residual] = m * self.residual(means[channel], stratum, element)
            found.append(quotient(self.value(gate, stratum, element, bound), m))
        return found

    def read_by(
        self, gate: Expression, stratum: Stratum, element: int, means: Mapping[str, Values], at_tokens: Tokens
    ) -> dict[Expression, Real]:
        """What a gate reads of a batch at an element, besides its residual."""
        first = self.fibres[stratum][element][0]
        bound: dict[Expression, Real] = {advantage: at_tokens.advantages[first]}
        for d in atoms(gate):
            if isinstance(d, Summary):
                bound[d] = at_tokens.value_at(d, stratum, element)
            elif isinstance(d, LogProb):
                bound[d] = at_tokens.atom(d, first)
            elif isinstance(d, Density):
                e = self.base[stratum][element][d.stratum]
                value = means[d.channel or ""][d.stratum][e] or Fraction(0)
                bound[d] = (self.mass[d.stratum][e] or Fraction(0)) * value
        return bound


def has_residual(h: Hierarchy, concrete: Concrete, stratum: Stratum, element: int) -> bool:
    """Whether some log ratios give an element a residual that is not 0, if all tokens weigh the same."""
    if h.shape.is_tree:
        below = h.shape.below(stratum)
        if not below:
            return True
        base = below[0].target
        parent = concrete.below(stratum, element, base)
        return sum(len(concrete.over(f.source, base, parent)) for f in h.shape.above(base)) > 1
    dense = DirectOperator(h, concrete)
    if len(dense.tokens) > MANY_TOKENS:
        return False
    inside = {u: dense.over(u, concrete.below(stratum, element, u)) for u in h.coarser(stratum)}
    own = dense.over(stratum, element)
    factors = h.shape.moebius(stratum)
    return any(
        sum(Fraction(c, len(inside[u])) for u, c in factors.items() if k in inside[u]) != Fraction(1, len(own))
        for k in own
    )


def formulas(h: Hierarchy) -> list[Expression]:
    """All formulas that the operator evaluates."""
    found = [f.weight for f in h.fibrations]
    found += [in_channel(h.gate(s), c) for s in h.order for c in h.decomposition.channels]
    for leaf in h.leaves:
        found += [h.with_mass(e, leaf) for _, e in h.decomposition.densities]
        found.append(h.with_mass(h.decomposition.recovery, leaf))
    return [*found, *h.masses.values()]
