"""Fibrations with their kernels (objects 1 and 2 of def:fgh), and what follows from them: which strata lie over which.

To add a kernel, write one function here and decorate it. Coarser strata are further down: every element of a stratum
lies over one element of each coarser stratum. The results of `Shape` depend on the declared fibrations only, so they
hold for every batch. Whether parallel paths agree depends on the data (`runtime/index/assumed.py`).

`masses` is the leaf measure `m` that the kernels spread: `K(a|b) = m(a)/m(b)`, the normal form of reflecting kernels.
In units of `m`, a pushforward is a weighted mean over the fibre, a reflecting kernel is a broadcast, and a residual is
the difference of two means. On a tree that is a martingale difference.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

from fibration.errors import SpecError, an, declare
from fibration.language.atoms import (
    SOURCE,
    TARGET,
    Component,
    Count,
    Parameter,
    Stratum,
    Total,
    at,
    count,
    mass,
    read_at,
    resolve_places,
)
from fibration.language.declared import Declared
from fibration.language.expressions import Expression, as_number
from fibration.language.gates import Decomposition
from fibration.language.grammar import Written, constructor
from fibration.language.traversal import ONE, atoms, cancel, factored, multiplied, transform


class MarkovKernel(Written):
    """The weight `K(a|b)` of an element `a` in the coarser element `b`, as a formula read at `a`."""

    weight: Expression

    def __init__(self, weight: object, **data: Any) -> None:
        value = as_number(weight, "a kernel weight", "where({}, 1, 0)")
        super().__init__(weight=value, **{"written": f"MarkovKernel({value})", **data})  # type: ignore[call-arg]


@constructor(MarkovKernel, examples=("uniform()",))
def uniform(share: Expression | None = None) -> MarkovKernel:
    """Gives every element of a fibre the same weight, `1 / count(source, over=target)`.

    `share`: if several strata lie directly over the target, the part of this kernel. All shares sum to 1.
    """
    return MarkovKernel((1 if share is None else share) / count(SOURCE, over=TARGET))


@constructor(MarkovKernel, examples=("proportional(measure)",))
def proportional(measure: Expression, share: Expression | None = None) -> MarkovKernel:
    """Gives weights proportional to a measure, `m(a)/m(b)`: a count, or the total of an attribute.

    `share`: as in `uniform`.
    """
    weight = at(measure, SOURCE) / at(measure, TARGET)
    return MarkovKernel(weight if share is None else share * weight)


class Fibration(Declared):
    """A map that sends every element of `source` to the element of `target` that it belongs to, with a kernel."""

    source: Stratum
    target: Stratum
    kernel: MarkovKernel

    def __init__(self, source: Stratum, target: Stratum, kernel: MarkovKernel | None = None) -> None:
        ends = {"source": (source, Stratum), "target": (target, Stratum), "kernel": (kernel, MarkovKernel)}
        for end, (value, kind) in ends.items():
            if not isinstance(value, kind):
                remedy = "write uniform(), proportional(m) or MarkovKernel(weight)"
                if kind is Stratum:
                    remedy = declare("strata", value, end)
                elif value is None:
                    raise SpecError(
                        f"the fibration {source} → {target} has no kernel", required="a MarkovKernel", remedy=remedy
                    )
                raise SpecError(f"a fibration's {end} is {value!r}", required=an(kind.__name__), remedy=remedy)
        super().__init__(source=source, target=target, kernel=kernel)  # type: ignore[call-arg]

    @property
    def name(self) -> str:
        return f"{self.source.name} → {self.target.name}"

    @cached_property
    def weight(self) -> Expression:
        """`K(a|b)` read at a source element. Every count and total names its stratum."""
        return resolve_places(at(self.kernel.weight, SOURCE), lambda p: self.source if p == SOURCE else self.target)

    def __repr__(self) -> str:
        return f"Fibration({self.source!r}, {self.target!r}, kernel={self.kernel!r})"


class Balanced(Declared):
    """The assumption that strata cross in proportional frequencies: `m(a∩b)·m(c) = m(a)·m(b)` over each common `c`."""

    first: Stratum
    second: Stratum

    def __repr__(self) -> str:
        return f"balanced({self.first!r}, {self.second!r})"


class Populated(Declared):
    """The assumption that every element of `over` has an element of `stratum`: no branch of a tree is empty."""

    stratum: Stratum
    over: Stratum

    def __repr__(self) -> str:
        return f"populated({self.stratum!r}, over={self.over!r})"


Assumption = Balanced | Populated


def balanced(first: Stratum, second: Stratum) -> Balanced:
    """Returns the assumption that two strata cross in proportional frequencies, as with equal counts in all cells.

    Residuals of finer strata are then orthogonal to both strata (theory of crossed designs). `op.index` raises
    HierarchyIndexError for a batch that breaks the assumption, and names the worst cell.
    """
    _check("balanced", first, second)
    return Balanced(first=first, second=second)


def populated(stratum: Stratum, *, over: Stratum) -> Populated:
    """Returns the assumption that every element of `over` has at least one element of `stratum`.

    `op.index` raises HierarchyIndexError for a batch that breaks it.
    """
    _check("populated", stratum, over)
    return Populated(stratum=stratum, over=over)


def _check(what: str, *strata: object) -> None:
    for s in strata:
        if not isinstance(s, Stratum):
            raise SpecError(
                f"{what} takes strata, not {s!r}", required="a Stratum", remedy=declare("strata", s, "domain")
            )
    if strata[0] == strata[1]:
        raise SpecError(
            f"{what} takes two different strata",
            required="two different strata",
            found=f"{strata[0]!r} twice",
            remedy="balanced(domain, modality), or populated(image_token, over=trajectory)",
        )


# ---------------------------------------------------------------- chains, trees and quivers


class NotOver(LookupError):
    """Raised if one stratum does not lie over another, so its elements lie over no element of the other."""


@dataclass(frozen=True)
class Shape:
    """Strata and fibrations as a graph. Only `coarser`, `finer` and `is_acyclic` accept cycles."""

    strata: tuple[Stratum, ...]
    fibrations: tuple[Fibration, ...]

    def below(self, stratum: Stratum) -> tuple[Fibration, ...]:
        """The fibrations whose source is `stratum`."""
        return self._below.get(stratum, ())

    def above(self, stratum: Stratum) -> tuple[Fibration, ...]:
        """The fibrations whose target is `stratum`."""
        return self._above.get(stratum, ())

    @cached_property
    def _below(self) -> dict[Stratum, tuple[Fibration, ...]]:
        return {s: tuple(f for f in self.fibrations if f.source == s) for s in self.strata}

    @cached_property
    def _above(self) -> dict[Stratum, tuple[Fibration, ...]]:
        return {s: tuple(f for f in self.fibrations if f.target == s) for s in self.strata}

    def coarser(self, stratum: Stratum) -> tuple[Stratum, ...]:
        """Every stratum that `stratum` lies over, nearest first. Terminates on cycles too."""
        return self._coarser.get(stratum, ())

    def finer(self, stratum: Stratum) -> tuple[Stratum, ...]:
        """Every stratum that lies over `stratum`, nearest first."""
        return self._finer.get(stratum, ())

    @cached_property
    def _coarser(self) -> dict[Stratum, tuple[Stratum, ...]]:
        return {t: self._closure(t, lambda s: (f.target for f in self.below(s))) for t in self.strata}

    @cached_property
    def _finer(self) -> dict[Stratum, tuple[Stratum, ...]]:
        return {t: self._closure(t, lambda s: (f.source for f in self.above(s))) for t in self.strata}

    def _closure(self, stratum: Stratum, step: Callable[[Stratum], Iterable[Stratum]]) -> tuple[Stratum, ...]:
        found: dict[Stratum, None] = {}
        frontier = [stratum]
        while frontier:
            for s in step(frontier.pop(0)):
                if s not in found:
                    found[s] = None
                    frontier.append(s)
        return tuple(found)

    def way(self, stratum: Stratum, target: Stratum) -> tuple[tuple[Stratum, Stratum], ...]:
        """Returns the (source, target) of each fibration along one path to a coarser stratum. Raises `NotOver`."""
        key = stratum, target
        if key not in self._ways:
            if stratum != target and target not in self.coarser(stratum):
                raise NotOver(f"{stratum} does not lie over {target}")
            found = []
            while stratum != target:
                f = next(f for f in self.below(stratum) if target in (f.target, *self.coarser(f.target)))
                found.append((f.source, f.target))
                stratum = f.target
            self._ways[key] = tuple(found)
        return self._ways[key]

    @cached_property
    def _ways(self) -> dict[tuple[Stratum, Stratum], tuple[tuple[Stratum, Stratum], ...]]:
        return {}

    @cached_property
    def order(self) -> tuple[Stratum, ...]:
        """Every stratum, each after the strata that it lies over: roots first; in a chain, from root to leaf."""
        found: list[Stratum] = []
        while rest := [s for s in self.strata if s not in found]:
            found.append(next(s for s in rest if all(f.target in found for f in self.below(s))))
        return tuple(found)

    def layers(self) -> list[list[Stratum]]:
        """Returns the layers of strata, coarsest first; with a cycle, one stratum per layer."""
        if not self.is_acyclic:
            return [[s] for s in self.strata]
        found: list[Stratum] = []
        rows = [list(self.roots)]
        while rows[-1]:
            rows.append([])
            for s in rows[-2]:
                found.append(s)
                finer = dict.fromkeys(f.source for f in self.above(s))
                rows[-1] += [u for u in finer if all(f.target in found for f in self.below(u))]
        return rows[:-1]

    @cached_property
    def leaves(self) -> tuple[Stratum, ...]:
        return tuple(s for s in self.strata if not self.above(s))

    @cached_property
    def roots(self) -> tuple[Stratum, ...]:
        return tuple(s for s in self.strata if not self.below(s))

    def leaves_over(self, stratum: Stratum) -> frozenset[Stratum]:
        """The leaves whose elements lie over `stratum`; `stratum` itself if it is a leaf."""
        return self._leaves_over[stratum]

    @cached_property
    def _leaves_over(self) -> dict[Stratum, frozenset[Stratum]]:
        return {s: frozenset(u for u in (s, *self.finer(s)) if not self.above(u)) for s in self.strata}

    @property
    def is_acyclic(self) -> bool:
        return all(s not in self.coarser(s) for s in self.strata)

    @property
    def is_tree(self) -> bool:
        """Whether every stratum lies directly over at most one other."""
        return all(len(self.below(s)) <= 1 for s in self.strata)

    @property
    def is_chain(self) -> bool:
        return self.is_tree and all(len(self.above(s)) <= 1 for s in self.strata)

    # ------------------------------------------------------------ paths

    def path(self, source: Stratum, target: Stratum) -> tuple[Fibration, ...]:
        """Returns the shortest path of fibrations from `source` down to `target`, which `source` lies over."""
        found: dict[Stratum, tuple[Fibration, ...]] = {source: ()}
        frontier = [source]
        while target not in found:
            here = frontier.pop(0)
            for f in self.below(here):
                if f.target not in found:
                    found[f.target] = (*found[here], f)
                    frontier.append(f.target)
        return found[target]

    def parallel(self) -> Iterator[tuple[tuple[Fibration, ...], tuple[Fibration, ...]]]:
        """Yields pairs of paths that part at a stratum and meet again at another. Both must compose to the same map."""
        for s in self.strata:
            for f, g in itertools.combinations(self.below(s), 2):
                for meet in self.meets(f.target, g.target, inclusive=True):
                    one, two = self.path(f.target, meet), self.path(g.target, meet)
                    yield (f, *one), (g, *two)

    # ------------------------------------------------------------ quivers

    def meets(self, a: Stratum, b: Stratum, inclusive: bool = False) -> tuple[Stratum, ...]:
        """Returns the finest strata that both lie over. With `inclusive`, `a` and `b` themselves may be among them."""
        up = {s: (s, *self.coarser(s)) if inclusive else self.coarser(s) for s in (a, b)}
        common = [s for s in up[a] if s in up[b]]
        return tuple(s for s in common if not any(s in self.coarser(o) for o in common))

    def moebius(self, stratum: Stratum) -> dict[Stratum, int]:
        """Returns whole numbers `c` with `Σ_{u coarser} ρ_u = Σ_u c_u·s_u`, where `s_u` sums `ρ` over `u` and coarser.

        On a tree the parent has 1. Over two crossed strata and their one root, the numbers are 1, 1 and -1. Zeros are
        left out.
        """
        if stratum not in self._moebius:
            up = self.coarser(stratum)
            found: dict[Stratum, int] = {}
            for s in reversed([s for s in self.order if s in up]):  # finest first
                found[s] = 1 - sum(c for u, c in found.items() if s in self.coarser(u))
            self._moebius[stratum] = {s: found[s] for s in up if found[s]}
        return dict(self._moebius[stratum])

    @cached_property
    def _moebius(self) -> dict[Stratum, dict[Stratum, int]]:
        return {}

    def crossings(self) -> tuple[Stratum, ...]:
        """The strata that lie directly over several strata; roots first."""
        return tuple(s for s in self.order if len(self.below(s)) > 1)

    def under_crossings(self) -> tuple[Stratum, ...]:
        """The strata that are coarser than a crossing; roots first."""
        found = {u for s in self.crossings() for u in self.coarser(s)}
        return tuple(s for s in self.order if s in found)

    def crossed(self) -> tuple[Stratum, ...]:
        """The strata under crossings that are not comparable to another stratum under a crossing."""
        found = self.under_crossings()
        return tuple(a for a in found if any(not self.comparable(a, b) for b in found))

    def comparable(self, a: Stratum, b: Stratum) -> bool:
        """Whether `a` and `b` are one stratum, or one lies over the other."""
        return a == b or a in self.coarser(b) or b in self.coarser(a)

    def covers(self, target: Stratum) -> tuple[tuple[Fibration, ...], ...]:
        """Returns the covers of `target`: sets of fibrations into it whose sources share no leaf and miss none over it.

        The kernels of one cover are reflecting together. On a tree the only cover holds all children. Strata that cross
        each other over `target` form one cover each.
        """
        order = {f: i for i, f in enumerate(self.above(target))}
        over = {f: self.leaves_over(f.source) for f in order}

        def complete(chosen: tuple[Fibration, ...], missing: frozenset[Stratum]) -> Iterator[tuple[Fibration, ...]]:
            if not missing:
                yield tuple(sorted(chosen, key=order.__getitem__))
                return
            leaf = next(s for s in self.leaves if s in missing)  # some fibration has to cover this leaf
            for f, leaves in over.items():
                if leaf in leaves and leaves <= missing:
                    yield from complete((*chosen, f), missing - leaves)

        found = complete((), self.leaves_over(target) if order else frozenset())
        return tuple(sorted((c for c in found if c), key=lambda c: (len(c), [order[f] for f in c])))

    def uncovered(self) -> tuple[Fibration, ...]:
        """The fibrations in no cover of their target: leaves over their source also reach it along another path."""
        covered = {f for s in self.strata for cover in self.covers(s) for f in cover}
        return tuple(f for f in self.fibrations if f not in covered)

    def covered_ways(self, leaf: Stratum, target: Stratum) -> Iterator[tuple[Fibration, ...]]:
        """Yields the paths from a leaf down to a stratum that take a fibration of a cover at each step."""
        for cover in self.covers(target):
            last = next(f for f in cover if leaf in self.leaves_over(f.source))
            for way in [()] if last.source == leaf else self.covered_ways(leaf, last.source):
                yield (*way, last)


def masses(shape: Shape, decomposition: Decomposition) -> dict[Stratum, Expression]:
    """Returns `m` of every stratum, read at its elements. If paths disagree, it follows the first (law `coherent`).

    `m` is free up to a factor per root. With one root, `m(leaf)` is the decomposition's scale if a factor can make it
    so, and the scale disappears from the normal form. Otherwise `m(root) = 1`. With several roots, see `gauge`.
    """
    roots = shape.roots
    found: dict[Stratum, Expression] = {}
    for stratum in shape.order:
        below = shape.below(stratum)
        if below:
            found[stratum] = cancel(found[below[0].target] * transform(below[0].weight, own))
        else:
            found[stratum] = ONE if len(roots) == 1 else gauge(shape, stratum)
    scale = decomposition.scale
    if len(roots) == 1 and mass not in atoms(scale):
        factors = {cancel(scale / found[leaf]) for leaf in shape.leaves}
        factor = factors.pop()
        over_root = all(isinstance(a, (Count, Total)) and a.over == roots[0] for a in atoms(factor))
        if not factors and over_root:
            return {s: cancel(factor * m) for s, m in found.items()}
    return found


def own(atom: Expression) -> Expression:
    """Simplifies a count or total over its own stratum: `proportional(count(token))` on tokens is `uniform()`."""
    if isinstance(atom, Count) and atom.of == atom.over:
        return ONE
    if isinstance(atom, Total) and atom.over == atom.attribute.on:
        return atom.attribute
    return atom


def gauge(shape: Shape, root: Stratum) -> Expression:
    """Returns `m` of one of several roots: the divisor of a kernel over it, so that uniform kernels share a measure."""
    above = shape.above(root)
    if not above:
        return ONE
    _, outside = factors_over(above[0].weight, above[0].source.name)
    return cancel(1 / outside)


def factors_over(weight: Expression, stratum: str) -> tuple[Expression, Expression]:
    """Splits a product into the part that varies over `stratum` and the part that is constant on its fibres."""
    coefficient, factors = factored(weight)

    def varies(atom: Expression) -> bool:
        place = read_at(atom)
        return not isinstance(atom, (Parameter, Component)) if place is None else place.name == stratum

    inside = {e: p for e, p in factors.items() if any(map(varies, atoms(e)))}
    outside = {e: p for e, p in factors.items() if e not in inside}
    return multiplied(Fraction(1), inside), multiplied(coefficient, outside)
