"""One hierarchy of a pair at a token, in the variables of the pair: its levels, its gated ratio, its weight."""

from __future__ import annotations

import functools
import operator
from typing import Any

import sympy

from fibration.language.atoms import Density, Stratum, gated, in_channel, residual
from fibration.language.cancel import cancel
from fibration.language.expressions import Expression, as_expression
from fibration.language.hierarchy import Hierarchy
from fibration.language.stops import ORDER
from fibration.language.sympy_bridge import cancelled, to_sympy
from fibration.language.traversal import atoms, substitute
from fibration.laws.equivalent.token_formulas import TokenFormulas
from fibration.laws.signs.branches import cases
from fibration.laws.signs.neighbourhood import SIDES


class Form:
    """One hierarchy of a pair, at a token of a leaf whose log ratio lies on one side of 0."""

    def __init__(self, formulas: TokenFormulas, h: Hierarchy, leaf: Stratum, side: int) -> None:
        self.formulas, self.variables = formulas, formulas.variables
        self.h, self.leaf, self.side = h, leaf, side
        self.path = [s for s in h.order if s == leaf or s in h.coarser(leaf)]
        self._levels: dict[tuple[Stratum, str], Expression] = {}

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
        return _quotient(self.mass(leaf), self.mass(stratum))

    def _function(self, leaf: Stratum, channel: str, side: int) -> Any:
        return self.variables.function(self._density(leaf, channel, side), leaf, side)

    def _density(self, leaf: Stratum, channel: str, side: int) -> Expression:
        """A token's density per unit of the leaf measure on one side of `x = 0`; the branch there if there is one."""
        own = self.h.with_mass(self.h.decomposition[channel], leaf)
        whole = self.formulas.read(own, leaf, ORDER) / self.mass(leaf)
        assume = self.variables.at(leaf, side)
        if all(case.defined(assume) for case in cases(whole, assume)):  # a factor that cancels must have a value
            whole = cancel(whole)
        found = cases(whole, assume)
        return found[0].value if len(found) == 1 and found[0].defined(assume) else whole

    def level(self, stratum: Stratum, channel: str) -> Expression:
        """What the gate of a stratum adds, per unit of the leaf measure."""
        if (stratum, channel) not in self._levels:
            self._levels[stratum, channel] = self._level(stratum, channel)
        return self._levels[stratum, channel]

    def _level(self, stratum: Stratum, channel: str) -> Expression:
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
