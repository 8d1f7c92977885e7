"""Random batches of a hierarchy, with values around all constants that its formulas mention."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import Any

from fibration import Hierarchy
from fibration.language.atoms import BATCH, Attribute, Parameter, Reading, Stratum
from fibration.language.expressions import Apply, Expression, Number
from fibration.language.statistics import Aggregate, Ordered, within
from fibration.language.strata import Assumption, Balanced
from fibration.language.traversal import atoms
from fuzz.world import Batch, World

ADVANTAGE, REWARD = Reading("advantage"), Reading("reward")
MOST_TOKENS = 48  # of one row, unless a formula compares a count with more
NEAR = Fraction(1, 2**200)  # smaller than constants are large


def formulas(h: Hierarchy) -> list[Expression]:
    """All formulas of a hierarchy, with those that statistics and order are of."""
    return [inner for e in h._expressions() for inner in within(e)]


def constants(expressions: Iterable[Expression]) -> list[Fraction]:
    """Every number in some formulas, and the bounds of what they read."""
    found: dict[Fraction, None] = {}

    def walk(e: Expression) -> None:
        if isinstance(e, Number):
            found[Fraction(e.value)] = None
        if isinstance(e, Apply):
            for a in e.arguments:
                walk(a)
        if isinstance(e, (Parameter, Attribute)):
            found.update({Fraction(str(b)): None for b in (e.lower, e.upper) if b is not None})

    for e in expressions:
        walk(e)
    return list(found)


class Batches:
    """Draws batches of one hierarchy.

    `together`: None, or `exact` (all policies coincide) or `near` (each is off by something tiny of its own).
    """

    def __init__(self, h: Hierarchy, rng: random.Random, most: int = MOST_TOKENS) -> None:
        self.h, self.rng, self.most = h, rng, most
        self.formulas = formulas(h)
        self.hints = constants(self.formulas)
        self.rows = h.rows
        self.read_at = self._advantage_read_at()
        self.by_token = any(
            REWARD in set(atoms(a.formula)) and a.of is None
            for e in self.formulas
            for a in atoms(e)
            if isinstance(a, Ordered)
            or (isinstance(a, Aggregate) and a.kind == "total" and not self._is_coarse(a.over))
        )

    def __call__(self, together: str | None = None, tries: int = 10**6) -> Batch:
        for _ in range(tries):
            made = self._drawn(together)
            if all(self._meets(made, a) for a in self.h.assume):
                return made
        raise ValueError(f"no batch of {tries} is as {self.h.name} assumes")

    def several(self, n: int, together: str | None = None) -> Iterator[Batch]:
        return (self(together) for _ in range(n))

    # ------------------------------------------------------------ who lies over whom

    def _is_coarse(self, s: Any) -> bool:
        """Whether a stratum lies below the rows."""
        return isinstance(s, Stratum) and (
            s.name == BATCH or s in self.h.groups or (self.rows in self.h.strata and s in self.h.coarser(self.rows))
        )

    def _lengths(self) -> list[int]:
        rng = self.rng
        said = [int(c) + d for c in self.hints if 1 < c <= self.most for d in (-1, 0, 1)]
        rows = rng.choice([1, 1, 2, 2, 3, 4])
        return [
            max(1, rng.choice(said)) if said and rng.random() < 0.15 else rng.choice([1, 1, 2, 3]) for _ in range(rows)
        ]

    def _drawn(self, together: str | None) -> Batch:
        rng, h = self.rng, self.h
        lengths = self._lengths()
        row = [r for r, n in enumerate(lengths) for _ in range(n)]
        n = len(row)
        # whole rows of one kind are what leaves other branches empty
        favourite = [rng.choice(h.leaves) for _ in lengths]
        leaf = [favourite[r] if rng.random() < 0.6 else rng.choice(h.leaves) for r in row]
        labels: dict[str, list[Any]] = {self.rows.name: list(row)}
        for s in (*(s for s in h.order if s not in h.leaves), *h.groups):
            if s.name in labels or s.name == BATCH:
                continue
            if self._is_coarse(s):
                labels[s.name] = self._of_rows(s, row, labels)
            else:
                labels[s.name] = self._inside(s, row, labels)
        for s in labels:
            own = next((t for t in h.strata if t.name == s), None)
            if own is not None and own != self.rows and not self._is_coarse(own):
                labels[s] = [e if own in h.coarser(leaf[i]) else None for i, e in enumerate(labels[s])]
        b = Batch(leaf, labels, [], [], {})
        self._log_probs(b, n, together)
        b.advantages = self._advantages(b)
        b.attributes = {a.name: self._attribute(a, b) for a in h.attributes.values()}
        b.parameters = {p.name: self._parameter(p, b) for p in h.parameters.values()}
        b.by_token = self.by_token
        b.rewards = {k: self._number() for k in (range(n) if b.by_token else dict.fromkeys(row))}
        return b

    def _of_rows(self, s: Stratum, row: list[int], labels: dict[str, list[Any]]) -> list[Any]:
        """Labels of what rows lie over: of rows, or of a coarser stratum that lies over it, one for each."""
        h = self.h
        # `order` has the coarsest first: what this one lies over is labelled, and its own label carries that along
        under = [u.name for u in h.coarser(s) if u.name in labels] if s in h.strata else []
        found: dict[Any, Any] = {}
        for r in dict.fromkeys(row):
            i = row.index(r)
            found[r] = (*(labels[u][i] for u in under), self.rng.choice([0, 0, 1]))
        return [found[r] for r in row]

    def _inside(self, s: Stratum, row: list[int], labels: dict[str, list[Any]]) -> list[Any]:
        """Labels of what lies over rows, turns say, in order; or of what crosses them."""
        h, rng = self.h, self.rng
        under = [u.name for u in h.coarser(s) if u.name in labels]
        within_rows = self.rows in h.coarser(s) or (self.rows not in h.strata and rng.random() < 0.5)
        found: list[Any] = []
        part = 0
        for i, r in enumerate(row):
            if within_rows:
                part = 0 if i == 0 or row[i - 1] != r else part + rng.choice([0, 0, 1])
                found.append((r, *(labels[u][i] for u in under), part))
            else:
                found.append((*(labels[u][i] for u in under), rng.choice([0, 1])))
        return found

    def _meets(self, b: Batch, a: Assumption) -> bool:
        if isinstance(a, Balanced):
            return all(self._is_balanced(World(self.h, b, exact=True), a, root.name) for root in self.h.roots)
        own = set(self.h.shape.leaves_over(a.stratum))
        there = {e for e, leaf in zip(b.labels[a.over.name], b.leaf, strict=True) if leaf in own}
        return {e for e in b.labels[a.over.name] if e is not None} <= there

    @staticmethod
    def _is_balanced(world: World, a: Balanced, root: str) -> bool:
        """`m(a∩b)·m(c) = m(a)·m(b)` over each element `c` of a root."""
        masses: Counter[tuple[Any, ...]] = Counter()
        for i in range(world.n):
            leaf, e = world.place(i)
            c, p, q = (world.below(leaf, e, s) for s in (root, a.first.name, a.second.name))
            for cell in ((c, p, q), (c, p, None), (c, None, q), (c, None, None)):
                masses[cell] += world.kernel(leaf, e, root)
        cells = {(c, p, q) for c, p, _ in list(masses) for d, _, q in list(masses) if c == d}
        return all(
            masses[c, p, q] * masses[c, None, None] == masses[c, p, None] * masses[c, None, q] for c, p, q in cells
        )

    # ------------------------------------------------------------ numbers

    def _number(self) -> Fraction:
        rng = self.rng
        if self.hints and rng.random() < 0.3:
            c = rng.choice(self.hints) * rng.choice([1, 1, 1, -1])
            if abs(c) < 10**6:
                return c + rng.choice([0, 0, Fraction(1, 64), Fraction(-1, 64), 1, -1])
        return Fraction(rng.randint(-64, 64), 32) if rng.random() < 0.8 else Fraction(rng.choice([0, 0, 1, -1, 5, -5]))

    def _log_prob(self) -> Fraction:
        rng = self.rng
        if rng.random() < 0.1:
            return Fraction(0)
        far = [c for c in (-abs(c) for c in self.hints) if -3000 < c < 0]
        if far and rng.random() < 0.2:
            return rng.choice(far) + rng.choice([0, Fraction(-1, 64), Fraction(1, 64) if min(far) < -1 else 0])
        return Fraction(-rng.randint(1, 128), 32)

    def _log_probs(self, b: Batch, n: int, together: str | None) -> None:
        rng = self.rng
        old = [min(self._log_prob(), Fraction(0)) for _ in range(n)]
        off = Fraction(0)
        if together == "near":
            off = NEAR
            old = [min(v, -4 * NEAR) for v in old]
        if together is None:
            b.x = [self._log_ratio(v) for v in old]
        else:
            b.x = [rng.choice([-1, 0, 1]) * off for _ in old]
        b.policies = {"old": old}
        for p in self.h.policies:
            if p in ("old", "current"):
                continue
            if together is None:
                near = [min(v + self._number(), Fraction(0)) for v in old]
                b.policies[p] = [
                    rng.choice([v, u, min(self._log_prob(), Fraction(0))]) for v, u in zip(old, near, strict=True)
                ]
            else:
                side = rng.choice([None, -1, 1])
                b.policies[p] = [v + (rng.choice([-1, 0, 1]) if side is None else side) * off for v in old]

    def _log_ratio(self, old: Fraction) -> Fraction:
        x = self.rng.choice([Fraction(0), self._number(), self._number(), Fraction(self.rng.randint(-32, 32), 64)])
        return min(x, -old)

    def _advantage_read_at(self) -> list[Stratum]:
        """The strata at whose elements an advantage is read, beside tokens."""
        h = self.h
        found = [s for s, g in h.gates.items() if s not in h.leaves and ADVANTAGE in set(atoms(h.gate(s)))]
        for e in self.formulas:
            found += [a.of for a in atoms(e) if isinstance(a, Aggregate) and isinstance(a.of, Stratum)
                      and ADVANTAGE in set(atoms(a.formula))]  # fmt: skip
        found += [p.over for p in h.penalties.values() if p.over is not None and ADVANTAGE in set(atoms(p.formula))]
        return found

    def _advantages(self, b: Batch) -> list[Fraction]:
        rng, n = self.rng, b.size
        each = [rng.choice([Fraction(1), Fraction(-1), Fraction(0), self._number()]) for _ in range(n)]
        groups = [b.labels[s.name] for s in self.read_at if s.name in b.labels]
        groups += [b.labels[self.rows.name]] if rng.random() < 0.6 or any(s == self.rows for s in self.read_at) else []
        of, before = list(range(n)), list[int]()  # of each token, the first one whose advantage it has
        while of != before:  # one on each element, whatever these share
            before = list(of)
            for labels in groups:
                least: dict[Any, int] = {}
                for i, e in enumerate(labels):
                    least[e] = min(of[i], least.get(e, n))
                of = [of[i] if e is None else least[e] for i, e in enumerate(labels)]
        return [each[i] for i in of]

    def _attribute(self, a: Attribute, b: Batch) -> dict[Any, Fraction]:
        labels = range(b.size) if a.on in self.h.leaves else [0] if a.on.name == BATCH else b.labels[a.on.name]
        return {e: self._in_range(a) for e in dict.fromkeys(labels) if e is not None}

    def _in_range(self, a: Attribute) -> Fraction:
        value = self._number() * self.rng.choice([1, 1, 100])
        if a.positive:
            value = abs(value) or Fraction(1, 32)
        return a.nearest(value)

    def _parameter(self, p: Parameter, b: Batch) -> Any:
        def one() -> Fraction:
            low = None if p.lower is None else Fraction(str(p.lower))
            high = None if p.upper is None else Fraction(str(p.upper))
            t = self.rng.choice(
                [Fraction(1, 2), Fraction(1, 64), Fraction(63, 64), Fraction(self.rng.randint(1, 31), 32)]
            )
            if low is not None and high is not None:
                return low + (high - low) * t
            size = self.rng.choice([t, 4 * t, 100 * t])
            return low + size if low is not None else high - size if high is not None else self._number()

        def channels() -> Any:
            return {"+": one(), "-": one()} if p.per_channel and len(self.h.decomposition.channels) > 1 else one()

        if p.on is None:
            return channels()
        labels = [0] if p.on.name == BATCH else b.labels.get(p.on.name, range(b.size))
        return {e: channels() for e in dict.fromkeys(labels) if e is not None}
