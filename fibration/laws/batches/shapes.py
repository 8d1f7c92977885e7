"""Small concrete shapes: which elements lie over which, in a chain, a tree or a quiver. No values, no weights.

An element is determined by the elements that it lies over and by its place among the elements over the same ones.
Paths that part and meet again agree. Every element has a token over it. A branch of a tree may be empty.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import networkx as nx

from fibration.language.atoms import BATCH, Stratum
from fibration.language.strata import Assumption, Populated, Shape

Maps = Mapping[tuple[Stratum, Stratum], tuple[int, ...]]
Below = dict[Stratum, int]  # the element of every coarser stratum below one element


def edges(shape: Shape) -> list[tuple[Stratum, Stratum]]:
    """Source and target of every fibration, sources in the order of the strata from the roots."""
    return [(s, f.target) for s in shape.order for f in shape.below(s)]


def small(shape: Shape, leaves: int, assume: Sequence[Assumption] = ()) -> Iterator[Maps]:
    """Every shape with this many leaf elements, up to names of elements. A single root has one element."""
    if shape.is_chain:
        for parents in chains(len(shape.order), leaves):
            yield dict(zip(edges(shape), parents, strict=True))
        return
    populated = [a for a in assume if isinstance(a, Populated)]
    for found in _Small(shape, leaves).grow(0, {}, leaves):
        maps = {(s, t): tuple(b[t] for b in found[s]) for s, t in edges(shape)}
        filled = all({b[a.over] for b in found[a.stratum]} == set(range(len(found[a.over]))) for a in populated)
        if filled and (len(shape.roots) == 1 or _is_connected(shape, found)):
            yield maps


def chains(strata: int, leaves: int) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Every chain with this many strata and leaves: per stratum but the root, the parent of each element."""
    if strata == 1:
        if leaves == 1:
            yield ()
        return
    if strata == 2:
        yield ((0,) * leaves,)
        return
    for below in range(1, leaves + 1):
        for lower in chains(strata - 1, below):
            for cuts in itertools.combinations(range(1, leaves), below - 1):
                bounds = [0, *cuts, leaves]
                yield (*lower, tuple(i for i in range(below) for _ in range(bounds[i + 1] - bounds[i])))


class _Small:
    """Lists shapes: fills the strata one after the other, roots first."""

    def __init__(self, shape: Shape, leaves: int) -> None:
        self.shape, self.leaves, self.order = shape, leaves, shape.order
        self.last_leaf = [s for s in self.order if not shape.above(s)][-1]
        # by stratum: the targets that its elements must hit completely, and the targets that it hits first
        self.must: dict[Stratum, list[Stratum]] = {s: [] for s in self.order}
        self.first: dict[Stratum, list[Stratum]] = {s: [] for s in self.order}
        for t in self.order:
            sources = [s for s in self.order if any(f.target == t for f in shape.below(s))]
            if sources:
                self.first[sources[0]].append(t)
                self.must[sources[-1]].append(t)
            for s in sources[:-1]:
                if shape.leaves_over(s) == shape.leaves_over(t):
                    self.must[s].append(t)

    def grow(self, i: int, found: dict[Stratum, list[Below]], room: int) -> Iterator[dict[Stratum, list[Below]]]:
        """All ways to fill the strata from the i-th on, with `room` leaf elements left."""
        if i == len(self.order):
            yield found
            return
        s = self.order[i]
        targets = [f.target for f in self.shape.below(s)]
        is_leaf = not self.shape.above(s)
        choices = self._choices(s, targets, found)
        for n in self._sizes(s, room, targets):
            for chosen in choices(n):
                yield from self.grow(i + 1, {**found, s: chosen}, room - n if is_leaf else room)

    def _sizes(self, s: Stratum, room: int, targets: list[Stratum]) -> Sequence[int]:
        if not targets:
            alone = len(self.shape.roots) == 1 or s.name == BATCH
            return (1,) if alone else range(1, self.leaves + 1)
        if s == self.last_leaf:
            return (room,)
        whole = self.shape.leaves_over(s) == frozenset(self.shape.leaves)
        most = self.leaves if self.shape.above(s) else room
        return range(1 if whole else 0, most + 1)

    def _choices(
        self, s: Stratum, targets: list[Stratum], found: dict[Stratum, list[Below]]
    ) -> Callable[[int], Iterator[list[Below]]]:
        """For a number of elements, all choices of what each lies over: nondecreasing, all required targets hit."""
        if not targets:
            return lambda n: iter([[{}] * n])
        legal = list(_legal(targets, found))
        # elements of one kind are interchangeable until something lies over them: hit them in order
        before = {t: _before(found[t]) for t in self.first[s]}
        watched = list(dict.fromkeys((*self.must[s], *before)))  # by index, since strata are slow to look up
        hits = [tuple(b[t] for t in watched) for b in legal]
        after = [
            [(j, e) for j, t in enumerate(watched) if t in before and (e := before[t][b[t]]) is not None] for b in legal
        ]
        must = [(j, len(found[t])) for j, t in enumerate(watched) if t in self.must[s]]

        def extend(start: int, left: int, hit: list[frozenset[int]]) -> Iterator[list[Below]]:
            if any(n - len(hit[j]) > left for j, n in must):
                return
            if not left:
                yield []
                return
            for k in range(start, len(legal)):
                if any(e not in hit[j] for j, e in after[k]):
                    continue
                more = [h | {e} for h, e in zip(hit, hits[k], strict=True)]
                for rest in extend(k, left - 1, more):
                    yield [legal[k], *rest]

        already = [self._hit_before(s, t, found) for t in watched]
        return lambda n: extend(0, n, already)

    def _hit_before(self, s: Stratum, t: Stratum, found: dict[Stratum, list[Below]]) -> frozenset[int]:
        """The elements of `t` that another branch than `s` has hit, if `s` need not hit them all by itself."""
        if t not in self.must[s] or self.shape.leaves_over(s) == self.shape.leaves_over(t):
            return frozenset()
        others = (f.source for f in self.shape.above(t) if f.source != s and f.source in found)
        return frozenset(b[t] for o in others for b in found[o])


def _legal(targets: list[Stratum], found: dict[Stratum, list[Below]]) -> Iterator[Below]:
    """Choices of one element of each target such that all paths agree."""
    for chosen in itertools.product(*(range(len(found[t])) for t in targets)):
        merged: Below = {}
        for t, e in zip(targets, chosen, strict=True):
            if any(merged.setdefault(u, b) != b for u, b in ((t, e), *found[t][e].items())):
                break
        else:
            yield merged


def _before(elements: list[Below]) -> list[int | None]:
    """For every element, the one of the same kind before it."""
    return [i - 1 if i and elements[i - 1] == elements[i] else None for i in range(len(elements))]


def _is_connected(shape: Shape, found: dict[Stratum, list[Below]]) -> bool:
    """Whether a shape is connected. If not, it is two smaller shapes."""
    g = nx.Graph()
    g.add_nodes_from((s, i) for s in shape.order for i in range(len(found[s])))
    g.add_edges_from(((s, i), end) for s in shape.order for i, below in enumerate(found[s]) for end in below.items())
    return bool(nx.is_connected(g))


# ---------------------------------------------------------------- larger ones


class Candidate(NamedTuple):
    """A shape that is not built yet, with its numbers of elements and of leaf elements."""

    elements: int
    leaves: int
    make: Callable[[], Maps]


def regular(shape: Shape, fans: list[int], above: int, at_most: int) -> list[Candidate]:
    """Shapes of more than `above`, at most `at_most` elements, equally many over each, and in each crossing cell."""
    free = shape.order[1:] if len(shape.roots) == 1 else shape.order
    found = []
    for chosen in _fans(fans, len(free)):
        fan = {s: 1 for s in shape.roots} | dict(zip(free, chosen, strict=True))
        if any(s.name == BATCH and fan[s] > 1 for s in shape.roots):
            continue
        candidate = regular_one(shape, fan)
        if above < candidate.elements <= at_most:
            found.append((candidate.elements, chosen, candidate))
    return [candidate for *_, candidate in sorted(found, key=lambda f: f[:2])]


def regular_one(shape: Shape, fan: Mapping[Stratum, int]) -> Candidate:
    """The regular shape with `fan[s]` elements of every stratum `s` over each."""
    size = {s: math.prod(fan[u] for u in (s, *shape.coarser(s))) for s in shape.order}
    return Candidate(sum(size.values()), sum(size[leaf] for leaf in shape.leaves), lambda: regular_maps(shape, fan))


SIBLINGS = (2, 3, 4)
MANY = (3, 4, 5, 6, 8, 12, 20, 50, 100)


def uneven(shape: Shape, fans: list[int], above: int, at_most: int) -> Iterator[Candidate]:
    """Shapes with a few siblings, of which some have many elements over them and the others few."""
    sizes = sorted({*MANY, *(n for n in fans if n > 2)})
    for s in shape.order:
        inner = [f.target for f in shape.below(s) if f.target not in shape.roots]
        for t, siblings, few, many in itertools.product(inner, SIBLINGS, (1, 2), sizes):
            for large in {1, siblings - 1}:
                if siblings * few + large * (many - few) > at_most:
                    continue
                found = _grown(shape, s, {t: siblings}, lambda k, n=large, a=many, b=few: a if k < n else b)  # type: ignore[misc]
                maps = {(u, v): tuple(b[v] for b in found[u]) for u, v in edges(shape)}
                elements, leaves = sum(map(len, found.values())), sum(len(found[leaf]) for leaf in shape.leaves)
                if above < elements <= at_most:
                    yield Candidate(elements, leaves, lambda maps=maps: maps)  # type: ignore[misc]


def _grown(
    shape: Shape, uneven: Stratum, fan: Mapping[Stratum, int], over: Callable[[int], int]
) -> dict[Stratum, list[Below]]:
    """Elements by stratum: `fan[s]` over each, else one; of the `uneven` stratum `over(k)` over the k-th place."""
    found: dict[Stratum, list[Below]] = {}
    for s in shape.order:
        targets = [f.target for f in shape.below(s)]
        cells = _legal(targets, found) if targets else iter([{}])
        found[s] = [c for k, c in enumerate(cells) for _ in range(over(k) if s == uneven else fan.get(s, 1))]
    return found


def regular_maps(shape: Shape, fan: Mapping[Stratum, int]) -> Maps:
    """The maps of a regular shape: an element for every choice of a place in its stratum and in each coarser one."""
    place = {s: i for i, s in enumerate(shape.order)}
    known = {s: sorted((s, *shape.coarser(s)), key=lambda u: place[u]) for s in shape.order}
    maps = {}
    for s, t in edges(shape):
        kept = [known[s].index(u) for u in known[t]]
        widths = [fan[u] for u in known[t]]
        row = []
        for chosen in itertools.product(*(range(fan[u]) for u in known[s])):
            element = 0
            for k, width in zip(kept, widths, strict=True):
                element = element * width + chosen[k]
            row.append(element)
        maps[s, t] = tuple(row)
    return maps


def _fans(fans: list[int], strata: int) -> Iterator[tuple[int, ...]]:
    """Numbers of elements over each, by stratum. With more than two strata, at most one number is large."""
    few = [f for f in fans if f <= 3]
    if strata <= 2:
        yield from itertools.product(fans, repeat=strata)
        return
    yield from itertools.product(few[:2] if strata > 7 else few, repeat=strata)
    for place in range(strata):
        for large in (f for f in fans if f > 3):
            for others in itertools.product(few[:2], repeat=strata - 1):
                yield (*others[:place], large, *others[place:])
