"""The operator of section 7 in plain Python, on small random batches of any shape: chains, trees and quivers.

Residuals by the recursion `ρ_v = σ_v - Σ_{u > v} K_{v←u} ρ_u` and `G = Σ_v K_{leaf←v} g_v(ρ_v)`, with kernels multiplied
along a path: no leaf measure, no Möbius coefficients, no code of the laws, of lowering or of a backend. Formulas are
evaluated in rationals (`fibration.language.traversal.evaluate`).
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any

from fibration import Hierarchy, Parameter, advantage, exp, gated, residual, token_log_ratio
from fibration.language.assumptions import Balanced
from fibration.language.atoms import BATCH, Attribute, Component, Count, Density, Stratum, Total, in_channel
from fibration.language.expressions import Expression
from fibration.language.traversal import atoms, evaluate

F = Fraction


@dataclass
class Plain:
    """Who lies over whom: `below[source, target]` for every fibration, and the values of parameters and attributes."""

    h: Hierarchy
    sizes: Mapping[Stratum, int]
    below: Mapping[tuple[Stratum, Stratum], Sequence[int]]
    values: Mapping[Expression, Any] = field(default_factory=dict)

    known: dict[Any, Any] = field(default_factory=dict)

    @cached_property
    def tokens(self) -> list[tuple[Stratum, int]]:
        return [(leaf, i) for leaf in self.h.leaves for i in range(self.sizes[leaf])]

    def down(self, stratum: Stratum, element: int, target: Stratum) -> int | None:
        """The target element below; None where there is no path."""
        key = stratum, element, target
        if key not in self.known:
            ends = (
                self.down(f.target, self.below[stratum, f.target][element], target)
                for f in self.h.fibrations
                if f.source == stratum
            )
            self.known[key] = element if stratum == target else next((e for e in ends if e is not None), None)
        return self.known[key]

    def over(self, source: Stratum, target: Stratum, element: int) -> list[int]:
        key = source, target, element, "over"
        if key not in self.known:
            self.known[key] = [a for a in range(self.sizes[source]) if self.down(source, a, target) == element]
        return self.known[key]

    def coarser(self, stratum: Stratum) -> list[Stratum]:
        return [u for u in self.h.strata if u != stratum and self.is_over(stratum, u)]

    def is_over(self, stratum: Stratum, target: Stratum) -> bool:
        return stratum == target or any(
            self.is_over(f.target, target) for f in self.h.fibrations if f.source == stratum
        )

    def value(self, e: Expression, stratum: Stratum, element: int, bound: Mapping[Expression, Any] = {}) -> Any:
        def atom(a: Expression) -> Any:
            if a in bound:
                return bound[a]
            if isinstance(a, Count):
                return F(len(self.over(a.of, a.over, self.down(stratum, element, a.over))))
            if isinstance(a, Total):
                inside = self.over(a.attribute.on, a.over, self.down(stratum, element, a.over))
                return sum((self.values[a.attribute][i] for i in inside), F(0))
            if isinstance(a, Attribute):
                return self.values[a][self.down(stratum, element, a.on)]
            return self.values[a]

        return evaluate(e, atom)

    def weight(self, stratum: Stratum, element: int, target: Stratum) -> Fraction:
        """`K_{stratum←target}` at an element: the product along a path."""
        if stratum == target:
            return F(1)
        key = stratum, element, target, "weight"
        if key not in self.known:
            f = next(f for f in self.h.fibrations if f.source == stratum and self.is_over(f.target, target))
            own = self.value(f.weight, stratum, element)
            self.known[key] = own * self.weight(f.target, self.below[stratum, f.target][element], target)
        return self.known[key]

    def ratios(self, xs: Sequence[Fraction], advantages: Sequence[Fraction] | None = None) -> list[Fraction]:
        """`𝒢(r)` of every token, leaf after leaf."""
        h, tokens = self.h, self.tokens
        given = advantages or [F(1)] * len(tokens)
        order = sorted(h.strata, key=lambda s: len(self.coarser(s)))
        up: dict[tuple[Stratum, str], list[Fraction]] = {}
        gated_: dict[tuple[Stratum, str], list[Fraction]] = {}
        inside = {
            (s, e): [k for k, (leaf, i) in enumerate(tokens) if self.down(leaf, i, s) == e]
            for s in h.strata
            for e in range(self.sizes[s])
        }
        for c in h.decomposition.channels:
            own = [
                self.value(h.with_mass(h.decomposition[c], leaf), leaf, i, {token_log_ratio: x})
                for (leaf, i), x in zip(tokens, xs, strict=True)
            ]
            for s in h.strata:
                up[s, c] = [sum((own[k] for k in inside[s, e]), F(0)) for e in range(self.sizes[s])]
        for c in h.decomposition.channels:
            rho: dict[Stratum, list[Fraction]] = {}
            for s in order:
                gate = in_channel(h.gate(s), c)
                read = [a for a in atoms(gate) if isinstance(a, Density)]
                rho[s], gated_[s, c] = [], []
                for e in range(self.sizes[s]):
                    value = up[s, c][e]
                    for u in self.coarser(s):
                        value -= self.weight(s, e, u) * rho[u][self.down(s, e, u)]
                    bound: dict[Expression, Any] = {residual: value}
                    bound |= {a: up[a.stratum, a.channel][self.down(s, e, a.stratum)] for a in read}
                    bound[advantage] = given[inside[s, e][0]] if inside[s, e] else F(1)
                    rho[s].append(value)
                    gated_[s, c].append(self.value(gate, s, e, bound))
        found = []
        for leaf, i in tokens:
            bound = {}
            for c in h.decomposition.channels:
                bound[gated(c)] = sum(
                    (
                        self.weight(leaf, i, s) * gated_[s, c][self.down(leaf, i, s)]
                        for s in (leaf, *self.coarser(leaf))
                    ),
                    F(0),
                )
            found.append(self.value(h.with_mass(h.decomposition.recovery, leaf), leaf, i, bound))
        return found


def truth(x: Fraction) -> Fraction:
    """`exp(x)` to fifty digits."""
    return evaluate(exp(token_log_ratio), {token_log_ratio: x})


def batches(h: Hierarchy, seed: int = 0, count: int = 12, most: int = 5) -> Iterator[Plain]:
    """Random small batches: every element has a token over it, empty branches of trees occur, parallel paths commute."""
    rng, made = random.Random(seed), 0
    order = list(h.order)
    while made < count:
        sizes: dict[Stratum, int] = {}
        below: dict[tuple[Stratum, Stratum], list[int]] = {}
        ok = True
        for s in order:
            edges = [f for f in h.fibrations if f.source == s]
            one = s.name == BATCH
            sizes[s] = 1 if one else rng.randint(1, 2) if not edges else rng.randint(1, most if s in h.leaves else 3)
            for f in edges:
                below[s, f.target] = [rng.randrange(sizes[f.target]) for _ in range(sizes[s])]
        plain = Plain(h, sizes, below, _settings(h, sizes, rng))
        for s in order:
            for u in plain.coarser(s):
                for e in range(sizes[s]):
                    ok &= len(set(_ends(plain, s, e, u))) == 1
        tokens = plain.tokens
        ok &= all(any(plain.down(leaf, i, s) == e for leaf, i in tokens) for s in h.strata for e in range(sizes[s]))
        if ok and all(is_balanced(plain, a) for a in h.assume if isinstance(a, Balanced)):
            made += 1
            yield plain


def is_balanced(plain: Plain, a: Balanced) -> bool:
    """`m(a∩b)·m(c) = m(a)·m(b)` over each element of their one common coarsening, which is a root here."""
    [root] = plain.h.roots
    cells: dict[tuple[int, int, int], Fraction] = {}
    for leaf, i in plain.tokens:
        cell = plain.down(leaf, i, root), plain.down(leaf, i, a.first), plain.down(leaf, i, a.second)
        cells[cell] = cells.get(cell, F(0)) + plain.weight(leaf, i, root)

    def part(c: int, first: int | None = None, second: int | None = None) -> Fraction:
        inside = (m for (z, p, q), m in cells.items() if z == c and first in (None, p) and second in (None, q))
        return sum(inside, F(0))

    return all(
        part(c, p, q) * part(c) == part(c, p) * part(c, second=q) for c, p, _ in cells for d, _, q in cells if c == d
    )


def _ends(plain: Plain, s: Stratum, e: int, u: Stratum) -> Iterator[int]:
    if s == u:
        yield e
    for f in plain.h.fibrations:
        if f.source == s:
            yield from _ends(plain, f.target, plain.below[s, f.target][e], u)


def _settings(h: Hierarchy, sizes: Mapping[Stratum, int], rng: random.Random) -> dict[Expression, Any]:
    found: dict[Expression, Any] = {}
    for p in h.parameters.values():
        for c in ("", "+", "-"):
            atom = Component(p, c) if p.per_channel else p
            found[atom] = _inside(p, rng)
    for a in h.attributes.values():
        found[a] = [F(rng.randint(1, 9), rng.randint(1, 3)) for _ in range(sizes[a.on])]
    return found


def _inside(p: Parameter, rng: random.Random) -> Fraction:
    t = F(rng.randint(1, 12), 13)
    if p.lower is not None and p.upper is not None:
        return F(str(p.lower)) + (F(str(p.upper)) - F(str(p.lower))) * t
    return (
        F(str(p.lower)) + 2 * t
        if p.lower is not None
        else F(str(p.upper)) - 2 * t
        if p.upper is not None
        else 4 * t - 2
    )
