"""Effects of crossed strata by weighted least squares, which `orthogonalise="projection"` gates instead of residuals.

Let `S` be all strata coarser than a stratum that lies over several. The log ratio (or a channel's value) is fitted by
a sum of functions of the elements of `S`, in the leaf measure `m`. The parts are unique because `P_w ρ_u = 0` for all
`w` coarser than `u`. The normal equations depend on the data through the means `s_u` alone:

    Σ_w P_u ρ_w = s_u    and    P_w ρ_u = 0,    where    (P_u ρ_w)(b) = Σ_c m(b∩c)/m(b)·ρ_w(c)

So `ρ_u = Σ_w B[u, w]·s_w`, with matrices that depend on the batch's labels alone. In a balanced crossing the `ρ_u` are
the residuals of the Möbius recursion.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import combinations_with_replacement
from typing import NoReturn

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from fibration.errors import HierarchyIndexError, SpecError
from fibration.language.atoms import BATCH, Stratum
from fibration.runtime.index.assumed import Measure
from fibration.runtime.index.index import Index
from fibration.runtime.sums import Codes, Vector

Matrix = NDArray[np.float64]
MAX_ELEMENTS = 2048  # of all strata of S: time grows with the cube, memory with the square
SINGULAR = 1e-10  # relative: below it, two effects count as one
MAX_NAMED = 6  # labels in a message
READER = 'orthogonalise="projection"'


class Projection:
    """The matrices of one batch.

    Raises HierarchyIndexError if effects cannot be separated. Raises SpecError if leaves lie over only some of the
    strata, or if a kernel reads a parameter.
    """

    def __init__(self, index: Index) -> None:
        self.index, self.shape = index, index.hierarchy.shape
        self.here = f"index of '{index.hierarchy.name}'"
        self.strata = tuple(s.name for s in self.shape.under_crossings())
        self._same_leaves()
        bounds = np.concatenate([[0], np.cumsum([index.size[s] for s in self.strata])])
        self.slices = {s: slice(int(bounds[k]), int(bounds[k + 1])) for k, s in enumerate(self.strata)}
        self.size = int(bounds[-1])
        if self.size > MAX_ELEMENTS:
            raise HierarchyIndexError(
                f"{self.here}: {READER} solves for {self.size} elements at once",
                required=f"at most {MAX_ELEMENTS} elements in the strata below crossed ones",
                found=", ".join(f"{index.size[s]} {s}" for s in self.strata),
                remedy="declare balanced(...), or a chain through the cells, or give up orthogonality by name",
            )
        self.measure = Measure(index, READER)
        self.root_mass = np.sqrt(self._masses())
        joint = self._joint()
        parts = [joint]  # then, for every u and every coarser w: the w means of u are 0
        for u, w in self._coarser():
            rows = np.zeros((index.size[w], self.size))
            rows[:, self.slices[u]] = joint[self.slices[w], self.slices[u]]
            parts.append(rows)
        self._solve(np.concatenate(parts))

    def _coarser(self) -> list[tuple[str, str]]:
        return [(u, w.name) for u in self.strata for w in self.shape.coarser(Stratum(u))]

    def _same_leaves(self) -> None:
        """Refuse tokens over `w` that are not over `u`: `P_w ρ_u = 0` then has no solution."""
        for u, w in self._coarser():
            here, below = (self.shape.leaves_over(Stratum(s)) for s in (u, w))
            if here != below:
                other = next(leaf for leaf in self.shape.leaves if leaf in below - here)
                raise SpecError(
                    f"hierarchy '{self.index.hierarchy.name}': {READER} with {u}, over which no {other} lies",
                    required=f"the same leaves over {u} as over {w}, so that the effects of {u} can have mean 0 there",
                    remedy=f"let {other} lie over {u} too, with an element of its own, or leave {READER} out",
                )

    def _masses(self) -> Vector:
        m = np.concatenate([self.measure.of(s) for s in self.strata])
        for s in self.strata:
            if not (m[self.slices[s]] > 0).all():
                i = int(np.argmin(m[self.slices[s]]))
                raise HierarchyIndexError(
                    f"{self.here}: {self.index.describe_element(s, i)} has the mass 0",
                    required="a positive mass, because means over it divide by it",
                )
        return m

    def _joint(self) -> Matrix:
        """`m(b∩c)/√(m(b)·m(c))` for all pairs of elements. The unknowns are `√m·ρ`, which keeps the system scaled."""
        index, joint = self.index, np.zeros((self.size, self.size))
        for u, w in combinations_with_replacement(self.strata, 2):
            both = np.zeros(index.size[u] * index.size[w])
            for over in self._over_both(u, w):
                cells = self.measure.under(over, u) * index.size[w] + self.measure.under(over, w)
                both += index.added(over, cells, self.measure.of(over), len(both)).values()
            block = both.reshape(index.size[u], index.size[w])
            joint[self.slices[u], self.slices[w]] = block
            joint[self.slices[w], self.slices[u]] = block.T
        return joint / np.outer(self.root_mass, self.root_mass)  # type: ignore[no-any-return]

    def _over_both(self, u: str, w: str) -> tuple[str, ...]:
        """Strata whose masses add up to the masses of two strata's cells: one that lies over both, otherwise the
        leaves.
        """
        index = self.index
        shared = tuple(x for x in index.leaves_over(u) if x in index.leaves_over(w))
        for v in self.shape.order:  # coarsest first: the fewest elements
            down = {s.name for s in (v, *self.shape.coarser(v))}
            if u in down and w in down and set(index.leaves_over(v.name)) == set(shared):
                return (v.name,)
        return shared

    def _solve(self, system: Matrix) -> None:
        q, r = np.linalg.qr(system)
        try:
            inverse = np.linalg.inv(r)
        except np.linalg.LinAlgError:  # exactly singular
            inverse = np.full_like(r, np.inf)
        # this is at least the ratio of the extreme singular values, and at most that ratio times the size
        if not np.linalg.norm(r) * np.linalg.norm(inverse) < 1 / SINGULAR:
            _, values, vectors = np.linalg.svd(r)
            if not values[-1] > SINGULAR * values[0]:
                self._refuse(vectors[-1])
        self._inverse, self._means = inverse, q[: self.size]

    @cached_property
    def matrix(self) -> Matrix:
        """float64 [elements of S, elements of S]."""
        return (self._inverse @ self._means.T) * self.root_mass / self.root_mass[:, None]  # type: ignore[no-any-return]

    def block(self, into: str, of: str) -> Matrix:
        """`B[into, of]`: float64 [size of into, size of of]."""
        return np.ascontiguousarray(self.matrix[self.slices[into], self.slices[of]])

    # ------------------------------------------------------------ effects that cannot be separated

    def _refuse(self, null: Vector) -> NoReturn:
        """Raise the error that names the effects. `null`: unknowns that change no mean, so that any solution may add
        them.
        """
        size = {s: float(np.linalg.norm(null[self.slices[s]])) for s in self.strata}
        largest = max(size, key=lambda s: size[s])
        apart = [s for s in self.strata if not self._ordered(largest, s)]
        other = max(apart, key=lambda s: size[s], default=largest)
        first, second = sorted((largest, other), key=self.strata.index)
        effects = np.abs(null / self.root_mass)
        here = effects[self.slices[first]]
        meets = [s.name for s in self.shape.meets(Stratum(first), Stratum(second))]
        parts = self._parts(first, np.flatnonzero(here > 1e-6 * here.max()), second, meets) if first != second else []
        remedy = f"or leave {first} or {second} out" if first != second else ""
        if not meets and first != second:
            found = f"{first} and {second} lie over no common stratum: a constant may belong to either"
            remedy = f"declare their common coarsening as a stratum, for example {BATCH}, {remedy}"
        elif parts:
            one, two = (self._words(s, part) for s, part in zip((first, second), parts[0], strict=True))
            alone = len(parts[0][0]) == len(parts[0][1]) == 1
            found = f"{one} and {two} " + ("always occur together" if alone else "occur only with each other")
            remedy = (
                f"declare their common coarsening as a stratum (one element for each set of {first} and {second} "
                f"labels that occur together), {remedy}"
            )
        else:
            named = {s: np.flatnonzero(effects[self.slices[s]] >= effects.max() / 2) for s in self.strata}
            found = " and ".join(self._words(s, list(n)) for s, n in named.items() if len(n)) + " cannot be separated"
            remedy = f"declare a common coarsening of them as a stratum, {remedy}"
        raise HierarchyIndexError(
            f"{self.here}: effects of crossed strata cannot be separated, which {READER} requires",
            required=f"one least-squares fit in {', '.join(self.strata)}",
            found=found,
            remedy=remedy,
        )

    def _ordered(self, a: str, b: str) -> bool:
        return a == b or Stratum(a) in self.shape.coarser(Stratum(b)) or Stratum(b) in self.shape.coarser(Stratum(a))

    def _parts(self, first: str, elements: Codes, second: str, meets: list[str]) -> list[tuple[list[int], list[int]]]:
        """Sets of elements of two strata that occur only with each other, smallest first; those that contain
        `elements`.

        A set of all elements over the same meets is left out: its effects are separated.
        """
        cells = nx.Graph()
        size = self.index.size[second]
        for leaf in (x for x in self.index.leaves_over(first) if x in self.index.leaves_over(second)):
            keys = self.index.occurring(self.measure.under(leaf, first) * size + self.measure.under(leaf, second))
            cells.add_edges_from(((first, int(a)), (second, int(b))) for a, b in zip(*divmod(keys, size), strict=True))
        over = np.stack([np.zeros(self.index.size[first], np.int64), *(self.measure.under(first, s) for s in meets)])
        found = []
        for joined in nx.connected_components(cells):
            mine, others = (sorted(i for s, i in joined if s == stratum) for stratum in (first, second))
            beside = int((over == over[:, mine[:1]]).all(axis=0).sum())
            if len(mine) < beside and set(mine) & set(elements.tolist()):
                found.append((mine, others))
        return sorted(found, key=lambda part: (len(part[0]) + len(part[1]), part))

    def _words(self, stratum: str, elements: Sequence[int]) -> str:
        """`domain 'math', 'code'`."""
        if stratum not in self.index.labels:
            return stratum
        labels = [repr(self.index.labels[stratum][i]) for i in elements[:MAX_NAMED]]
        return f"{stratum} {', '.join([*labels, *(['...'] if len(elements) > MAX_NAMED else [])])}"
