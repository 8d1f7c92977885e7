"""The shape of a hierarchy: which strata lie over which, in a chain, a tree or a quiver.

Coarser strata are further down: every element of a stratum lies over one element of each coarser stratum. The results
depend on the declared fibrations only, so they hold for every batch. Whether parallel paths agree depends on the data
(`runtime/index/assumed.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from fibration.language.atoms import Stratum
from fibration.language.kernels import Fibration


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
