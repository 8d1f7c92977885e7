"""Fibration gating with explicit matrices, for trees and quivers.

A fibration is a 0/1 matrix. A kernel is a matrix of its declared weights, read from dictionaries of parents. Densities
are extensive, residuals follow the Möbius recursion, and effects of crossed strata are a least-squares fit on
indicator matrices. The module does not use the normal form, its masses, the library's shapes, cancelling, lowering or
the adjoint.

Weights, masses and counts are exact fractions. Values that depend on log ratios carry their derivatives towards all of
them. Both are numpy's longest float, so their rounding is small beside that of float64.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
from support import Batch

from fibration import Hierarchy
from fibration.language.atoms import (
    BATCH,
    Attribute,
    Component,
    Count,
    Density,
    Gated,
    Parameter,
    Place,
    Reading,
    Total,
    in_channel,
    mass,
    pull,
)
from fibration.language.declared import LogProb, Policy
from fibration.language.expressions import Apply, Expression, Number
from fibration.language.objectives import Objective, Penalty
from fibration.language.statistics import Aggregate
from fibration.language.traversal import atoms, evaluate

Long = np.longdouble
Labels = list[Hashable]  # per token; None where it lies over no such element


def to_long(value: Any) -> np.longdouble:
    """A fraction or a long decimal, to the last digit of the longest float."""
    high = float(value)
    return Long(high) + Long(float(value - type(value)(high)))


# ---------------------------------------------------------------- numbers with their derivatives


@dataclass(frozen=True)
class Dual:
    """`value[k]` and `slope[k, n]`: the derivative towards each of `n` log ratios."""

    value: np.ndarray
    slope: np.ndarray

    def __getitem__(self, rows: Any) -> Dual:
        return Dual(self.value[rows], self.slope[rows])

    def times(self, factor: np.ndarray) -> Dual:
        return Dual(self.value * factor, self.slope * factor[:, None])

    def through(self, matrix: np.ndarray) -> Dual:
        """`matrix [j, k]` applied to the values."""
        return Dual(matrix @ self.value, matrix @ self.slope)

    def plus(self, other: Dual, factor: int = 1) -> Dual:
        return Dual(self.value + factor * other.value, self.slope + factor * other.slope)


def _chain(value: np.ndarray, *parts: tuple[Any, Dual]) -> Dual:
    """A value with the sum of `slope · dual` over its arguments; a slope of 0 lets nothing through."""
    total = np.zeros(parts[0][1].slope.shape, Long)
    for slope, dual in parts:
        flowing = np.broadcast_to(np.asarray(slope), value.shape)[:, None] * dual.slope
        total = total + np.where(dual.slope == 0, Long(0), flowing)
    return Dual(value, total)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {  # a function, and its slope given its value
    "neg": (lambda x: -x, lambda x, y: -1),
    "exp": (np.exp, lambda x, y: y),
    "expm1": (np.expm1, lambda x, y: y + 1),
    "log": (np.log, lambda x, y: 1 / x),
    "log1p": (np.log1p, lambda x, y: 1 / (1 + x)),
    "tanh": (np.tanh, lambda x, y: 1 - y * y),
    "sigmoid": (_sigmoid, lambda x, y: y * (1 - y)),
    "sqrt": (np.sqrt, lambda x, y: 1 / (2 * y)),
    "softplus": (lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))), lambda x, y: _sigmoid(x)),
    "atan": (np.arctan, lambda x, y: 1 / (1 + x * x)),
}
CONDITIONS: dict[str, Callable[..., Any]] = {
    "<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal,
    "and": np.logical_and, "or": np.logical_or, "not": np.logical_not,
}  # fmt: skip


def choice(condition: np.ndarray, a: Dual, b: Dual) -> Dual:
    return Dual(np.where(condition, a.value, b.value), np.where(condition[:, None], a.slope, b.slope))


def compute(e: Expression, atom: Callable[[Expression], Dual], like: Dual) -> Any:
    """An expression at every element at once; the branch that holds at a point is the one differentiated."""
    if isinstance(e, Number):
        value = np.full(like.value.shape, to_long(e.value))
        return Dual(value, np.zeros(like.slope.shape, Long))
    if not isinstance(e, Apply):
        return atom(e)
    if e.operator == "**":
        base, n = compute(e.arguments[0], atom, like), int(e.arguments[1].value)  # type: ignore[attr-defined]
        return _chain(base.value**n, (n * base.value ** (n - 1), base))
    args = [compute(a, atom, like) for a in e.arguments]
    if e.operator in CONDITIONS:
        return CONDITIONS[e.operator](*(a.value if isinstance(a, Dual) else a for a in args))
    if e.operator == "where":
        return choice(*args)
    if e.operator in FUNCTIONS:
        function, slope = FUNCTIONS[e.operator]
        value = function(args[0].value)
        return _chain(value, (slope(args[0].value, value), args[0]))
    if e.operator == "clip":
        a, low, high = args
        return choice(a.value < low.value, low, choice(high.value < a.value, high, a))
    a, *rest = args
    if e.operator == "stop":
        return Dual(a.value, np.zeros_like(a.slope))
    if e.operator in ("abs", "sign"):
        zero = Dual(np.zeros_like(a.value), np.zeros_like(a.slope))
        return choice(a.value < 0, zero.plus(a, -1), a) if e.operator == "abs" else Dual(np.sign(a.value), zero.slope)
    (b,) = rest
    if e.operator in ("minimum", "maximum"):
        return choice(b.value < a.value if e.operator == "minimum" else a.value < b.value, b, a)
    if e.operator in ("+", "-"):
        return a.plus(b, 1 if e.operator == "+" else -1)
    if e.operator == "*":
        return _chain(a.value * b.value, (b.value, a), (a.value, b))
    assert e.operator == "/"
    return _chain(a.value / b.value, (1 / b.value, a), (-a.value / b.value**2, b))


# ---------------------------------------------------------------- who lies over whom


class World:
    """The elements of every stratum, from the labels alone."""

    def __init__(self, hierarchy: Hierarchy, batch: Batch) -> None:
        self.h, self.batch, self.n = hierarchy, batch, batch.tokens
        self.targets: dict[str, list[str]] = {s.name: [] for s in hierarchy.strata}
        for f in hierarchy.fibrations:
            self.targets[f.source.name].append(f.target.name)
        sources = {t for ts in self.targets.values() for t in ts}
        self.leaves = [s for s in self.targets if s not in sources]
        self.roots = [s for s, ts in self.targets.items() if not ts]
        self.leaf_of = self._leaves()
        self.label: dict[str, Labels] = {}
        row = batch.row
        for s in {*self.targets, hierarchy.rows.name, BATCH}:
            if s in self.leaves:
                self.label[s] = [i if self.leaf_of[i] == s else None for i in range(self.n)]
            elif s == BATCH:
                self.label[s] = [BATCH] * self.n
            elif s == hierarchy.rows.name:
                self.label[s] = [int(r) for r in row]
            else:
                given = batch.token_labels[s] if s in batch.token_labels else [batch.labels[s][r] for r in row]
                over = [s in self.coarser(leaf) for leaf in self.leaf_of]
                self.label[s] = [g if o else None for g, o in zip(given, over, strict=True)]
        self.elements = {s: list(dict.fromkeys(v for v in labels if v is not None)) for s, labels in self.label.items()}
        self.number = {s: {e: i for i, e in enumerate(es)} for s, es in self.elements.items()}
        self.over: dict[str, list[list[int]]] = {s: [[] for _ in es] for s, es in self.elements.items()}
        for s, labels in self.label.items():
            for i, e in enumerate(labels):
                if e is not None:
                    self.over[s][self.number[s][e]].append(i)

    def of(self, chosen: np.ndarray) -> World:
        """The same tokens without some, and without the elements that have none of the others."""
        if chosen.all():
            return self
        places, row = np.flatnonzero(chosen), self.batch.row
        lengths = tuple(int(k) for k in np.bincount(row[places], minlength=len(self.batch.lengths)))
        per_token = {
            a.name: np.asarray(v)[places] if len(v) == self.n else np.asarray(v)[[self.number[a.on.name][i] for i in
            self.label[a.on.name] if i is not None and chosen[i]]]
            for a in self.h.attributes.values() if isinstance(v := self.batch.attributes[a.name], np.ndarray)
        }  # fmt: skip
        labels = {k: [v[p] for p in places] for k, v in self.batch.token_labels.items()}
        attributes = {**self.batch.attributes, **per_token}
        return World(self.h, replace(self.batch, lengths=lengths, x=self.batch.x[places],
                                     token_labels=labels, attributes=attributes))  # fmt: skip

    def _leaves(self) -> list[str]:
        if len(self.leaves) == 1:
            return self.leaves * self.n
        return [next(leaf for leaf in self.leaves if self.batch.token_labels[leaf][i]) for i in range(self.n)]

    def over_leaf(self, leaf: str) -> list[int]:
        """The tokens that are its elements, in order."""
        return [i for i, own in enumerate(self.leaf_of) if own == leaf]

    def coarser(self, stratum: str) -> list[str]:
        found: list[str] = []
        for t in self.targets.get(stratum, []):
            found += [s for s in [t, *self.coarser(t)] if s not in found]
        return found

    def under(self, source: str, target: str) -> list[int]:
        """The target element under every source element; the same for all tokens over it."""
        found = []
        for tokens in self.over[source]:
            below = {self.number[target][self.label[target][i]] for i in tokens}
            assert len(below) == 1, (source, target)
            found.append(below.pop())
        return found

    def pushforward(self, source: str, target: str) -> np.ndarray:
        """0/1 `[target, source]`."""
        matrix = np.zeros((len(self.elements[target]), len(self.elements[source])), Long)
        matrix[self.under(source, target), np.arange(matrix.shape[1])] = 1
        return matrix

    # ------------------------------------------------------------ what is read at an element

    @functools.cache  # noqa: B019 - a world lives as long as a test
    def count(self, of: str, over: str) -> list[int]:
        return [len({self.label[of][i] for i in tokens} - {None}) for tokens in self.over[over]]

    def attribute(self, a: Attribute) -> list[Fraction]:
        """Per element of its stratum."""
        given = self.batch.attributes[a.name]
        if isinstance(given, Mapping):
            return [Fraction(float(given[e])) for e in self.elements[a.on.name]]
        if len(given) == self.n:  # per token, or those of one leaf
            return [Fraction(float(given[tokens[0]])) for tokens in self.over[a.on.name]]
        return [Fraction(float(v)) for v in given]

    @functools.cache  # noqa: B019
    def total(self, a: Attribute, over: str) -> list[Fraction]:
        values, numbers, labels = self.attribute(a), self.number[a.on.name], self.label[a.on.name]
        return [
            sum((values[numbers[e]] for e in {labels[i] for i in tokens} - {None}), Fraction(0))
            for tokens in self.over[over]
        ]

    def parameter(self, p: Parameter, channel: str, token: int) -> Fraction:
        value = self.batch.parameters.get(p.name, p.default)
        if isinstance(value, Mapping) and not set(value) <= {"+", "-"}:
            value = value[self.label[self.home(p)][token]]
        return Fraction(float(value[channel] if isinstance(value, Mapping) else value))

    def home(self, p: Parameter) -> str:
        """The stratum whose labels its values are given by: that of `on`, or the coarsest whose gate or kernel reads it."""
        if p.on is not None:
            return p.on.name
        read = [(s.name, g.expression) for s, g in self.h.gates.items()]
        read += [(f.target.name, f.weight) for f in self.h.fibrations]
        return min((s for s, e in read if p in set(atoms(e))), key=lambda s: len(self.coarser(s)))

    def fraction(self, a: Expression, stratum: str, element: int) -> Fraction:
        """An atom that no log ratio changes, at an element."""
        token = self.over[stratum][element][0]

        def at(place: Any) -> tuple[str, int]:
            where = self._place(place, stratum)
            return where, self.number[where][self.label[where][token]]

        if isinstance(a, Count):
            over, e = at(a.over)
            if a.of == Place("leaf"):
                return Fraction(len(self.over[over][e]))
            of = self._place(a.of, stratum)
            return Fraction(1 if of == over else self.count(of, over)[e])
        if isinstance(a, Total):
            over, e = at(a.over)
            return self.total(a.attribute, over)[e]
        if isinstance(a, Attribute):
            where, e = at(a.on)
            return self.attribute(a)[e]
        if isinstance(a, Component):
            return self.parameter(a.parameter, a.channel, token)
        if isinstance(a, Parameter):
            return self.parameter(a, "", token)
        if isinstance(a, Reading) and a.name == "advantage":
            return Fraction(float(self.batch.advantages[token]))
        if a == mass:
            return self.mass[stratum][element]
        raise AssertionError(f"{a} at {stratum}")

    def _place(self, place: Any, stratum: str) -> str:
        if place is None:
            return stratum
        return self.h.rows.name if place == Place("rows") else place.name

    def exact(self, expression: Expression, stratum: str) -> list[Fraction]:
        """An expression at every element, in rationals."""
        return [
            evaluate(expression, lambda a, e=e: self.fraction(a, stratum, e))
            for e in range(len(self.elements[stratum]))
        ]

    # ------------------------------------------------------------ kernels, and the measure that they spread

    @functools.cached_property
    def weights(self) -> dict[tuple[str, str], list[Fraction]]:
        """`K(a|b)` of the element under each source element, exactly as declared."""
        return {(f.source.name, f.target.name): self.exact(f.weight, f.source.name) for f in self.h.fibrations}

    @functools.cache  # noqa: B019
    def kernel(self, source: str, target: str) -> np.ndarray:
        """`[source, target]`: the product of kernel matrices along a longest path."""
        if source == target:
            return np.eye(len(self.elements[source]), dtype=Long)
        path = max(self._paths(source, target), key=len)
        matrix = np.eye(len(self.elements[source]), dtype=Long)
        for a, b in zip(path, path[1:], strict=False):
            one = np.zeros((len(self.elements[a]), len(self.elements[b])), Long)
            one[np.arange(len(one)), self.under(a, b)] = [to_long(w) for w in self.weights[a, b]]
            matrix = matrix @ one
        return matrix

    def _paths(self, source: str, target: str) -> list[list[str]]:
        if source == target:
            return [[source]]
        return [[source, *rest] for t in self.targets[source] for rest in self._paths(t, target)]

    @functools.cached_property
    def mass(self) -> dict[str, list[Fraction]]:
        """`m` with `K(a|b) = m(a)/m(b)` on every edge, 1 on the root.

        It is free up to a factor per root element: where the decomposition's scale differs from it by nothing else,
        it is that scale. Of several roots, one element has 1, and all that hangs together with it follows.
        """
        found: dict[tuple[str, int], Fraction] = {}
        edges = [
            ((a, i), (b, j), w)
            for (a, b), ws in self.weights.items()
            for i, (j, w) in enumerate(zip(self.under(a, b), ws, strict=True))
        ]
        for root in self.roots:
            for element in range(len(self.elements[root])):
                if (root, element) in found:
                    continue
                found[root, element] = Fraction(1)
                grown = True
                while grown:
                    grown = False
                    for above, below, w in edges:
                        for one, other, value in ((above, below, w), (below, above, 1 / w)):
                            if other in found and one not in found:
                                found[one] = found[other] * value
                                grown = True
        for above, below, w in edges:
            assert found[above] == w * found[below], f"kernels disagree at {above} over {below}"
        m = {s: [found[s, e] for e in range(len(es))] for s, es in self.elements.items() if s in self.targets}
        if not self.is_scale():
            return m
        (root,) = self.roots
        of_root = [Fraction(0)] * len(self.elements[root])
        for leaf in self.leaves:
            below = range(len(m[leaf])) if leaf == root else self.under(leaf, root)
            for value, own, r in zip(self.exact(self.h.decomposition.scale, leaf), m[leaf], below, strict=True):
                assert of_root[r] in (0, value / own)
                of_root[r] = value / own
        return {
            s: [v * of_root[r] for v, r in zip(vs, range(len(vs)) if s == root else self.under(s, root), strict=True)]
            for s, vs in m.items()
        }

    def is_scale(self) -> bool:
        """Whether the scale and `m` differ by a factor of the root on every batch.

        All that is read gets random values, twice, those over the root the same: a quotient that stays is such a factor.
        """
        if len(self.roots) > 1 or mass in set(atoms(self.h.decomposition.scale)):
            return False
        generator = random.Random(0)
        for _ in range(12):
            over_root: dict[Expression, Fraction] = {}
            if len({q for _ in range(2) for q in self._quotients(generator, over_root)}) > 1:
                return False
        return True

    def _quotients(self, generator: random.Random, over_root: dict[Expression, Fraction]) -> list[Fraction]:
        """Scale by mass at every leaf, where all that is read is drawn at random, but for what is read over the root."""
        (root,) = self.roots
        others: dict[Expression, Fraction] = {}

        def draw(a: Expression, stratum: str) -> Fraction:
            over = "" if not isinstance(a, (Count, Total)) else stratum if a.over is None else a.over.name  # type: ignore[union-attr]
            if isinstance(a, Count) and a.of.name == over:  # an element lies over itself
                return Fraction(1)
            if isinstance(a, Total) and a.attribute.on.name == over:
                a, over = a.attribute, ""
            known = over_root if over == root else others
            return known.setdefault(a, Fraction(generator.randint(1, 97)))

        found = []
        weights = {(f.source.name, f.target.name): f.weight for f in self.h.fibrations}
        for leaf in self.leaves:
            path, m = self._paths(leaf, root)[0], Fraction(1)
            for a, b in zip(path, path[1:], strict=False):
                m *= evaluate(weights[a, b], functools.partial(draw, stratum=a))
            found.append(evaluate(self.h.decomposition.scale, functools.partial(draw, stratum=leaf)) / m)
        return found

    def long_mass(self, stratum: str) -> np.ndarray:
        return np.array([to_long(v) for v in self.mass[stratum]], Long)

    # ------------------------------------------------------------ crossed strata

    @property
    def crossed(self) -> list[str]:
        """The strata coarser than one that lies directly over several."""
        found = {u for s, ts in self.targets.items() if len(ts) > 1 for u in self.coarser(s)}
        return [s for s in self.targets if s in found]

    @functools.cached_property
    def effects(self) -> dict[str, np.ndarray]:
        """Per crossed stratum `[elements, tokens]`: the least-squares effects of what the tokens have per mass.

        `min Σ_i m_i (y_i - Σ_u β_u(i))²` over functions `β_u` of the elements, those of one fit chosen by
        `Σ_{i over w} m_i β_u(i) = 0` at every element `w` coarser than `u`. The fit meets the conditions at no cost, so
        they may be added to the squares.
        """
        indicators = {
            s: np.array([[own == e for e in self.elements[s]] for own in self.label[s]]) for s in self.crossed
        }
        m = [self.mass[leaf][self.number[leaf][i]] for i, leaf in enumerate(self.leaf_of)]
        columns = [(s, e) for s in self.crossed for e in range(len(self.elements[s]))]
        size = len(columns)
        with mpmath.workdps(40):
            weight = [mpmath.mpf(w.numerator) / w.denominator for w in m]
            normal, right = mpmath.zeros(size, size), mpmath.zeros(size, self.n)
            for j, (s, e) in enumerate(columns):
                for i in np.flatnonzero(indicators[s][:, e]):
                    right[j, int(i)] = weight[i]
                    for k, (t, g) in enumerate(columns):
                        if indicators[t][i, g]:
                            normal[j, k] += weight[i]
            for s in self.crossed:
                for w in (w for w in self.crossed if w in self.coarser(s)):
                    for tokens in self.over[w]:
                        line = [mpmath.mpf(0)] * size
                        for i in tokens:
                            if self.label[s][i] is not None:
                                line[columns.index((s, self.number[s][self.label[s][i]]))] += weight[i]
                        filled = [j for j in range(size) if line[j]]
                        for j in filled:
                            for k in filled:
                                normal[j, k] += line[j] * line[k]
            solved = mpmath.inverse(normal)
            inverse = np.array([[to_long(solved[j, k]) for k in range(size)] for j in range(size)], Long)
            moments = np.array([[to_long(right[j, i]) for i in range(self.n)] for j in range(size)], Long)
        every = inverse @ moments
        return {s: every[[j for j, (t, _) in enumerate(columns) if t == s]] for s in self.crossed}


# ---------------------------------------------------------------- the operator


@dataclass(frozen=True)
class Dense:
    """What the definition gives. `ratio` and its slopes are over the tokens; the others by (stratum, channel)."""

    world: World
    density: dict[tuple[str, str], Dual]
    residual: dict[tuple[str, str], Dual]
    gated: dict[tuple[str, str], Dual]
    ratio: Dual
    objective: Dual

    @property
    def coefficients(self) -> np.ndarray:
        return self.objective.slope[0]

    def intensive(self, which: dict[tuple[str, str], Dual], stratum: str, channel: str) -> np.ndarray:
        return which[stratum, channel].value / self.world.long_mass(stratum)

    def leak(self, stratum: str, onto: str, channel: str) -> np.ndarray:
        """`π_{u*} ρ_v`, the sum of a stratum's residuals over every element of a coarser one, per mass of it."""
        sums = self.world.pushforward(stratum, onto) @ self.residual[stratum, channel].value
        return sums / self.world.long_mass(onto)


def dense(
    h: Hierarchy,
    batch: Batch,
    log_prob: np.ndarray | None = None,
    old: np.ndarray | None = None,
    held: np.ndarray | None = None,
) -> Dense:
    """`𝒢`, its Jacobian, `J` and its gradient.

    `held`: the log ratios that weights, conditions and statistics read, where these are to stay what they are there.
    """
    now = np.zeros(batch.tokens) if log_prob is None else log_prob
    with np.errstate(all="ignore"):  # branches that are not taken may overflow
        return _Dense(h, batch, now, now - batch.x if old is None else old, batch.x if held is None else held).run()


class _Dense:
    def __init__(self, h: Hierarchy, batch: Batch, now: np.ndarray, old: np.ndarray, held: np.ndarray) -> None:
        self.h, self.batch, self.world = h, batch, World(h, batch)
        self.strata = list(self.world.targets)
        self.density: dict[tuple[str, str], Dual] = {}
        self.x = Dual(batch.x.astype(Long), np.eye(batch.tokens, dtype=Long))
        self.now, self.held = now, held.astype(Long)
        self.log_probs = {**batch.policies, "old": old, "current": old + held}

    def at(self, e: Expression, stratum: str, extra: Mapping[Expression, Dual]) -> Dual:
        """A formula at all elements of a stratum."""
        elements, world = range(len(self.world.elements[stratum])), self.world
        like = Dual(np.zeros(len(elements), Long), np.zeros((len(elements), world.n), Long))

        @functools.cache
        def atom(a: Expression) -> Dual:
            if a in extra:
                return extra[a]
            if isinstance(a, Density):
                return self.density[a.stratum.name, a.channel or ""][world.under(stratum, a.stratum.name)]
            if isinstance(a, LogProb):
                return Dual(self.log_probs[a.policy.name].astype(Long)[world.over_leaf(stratum)], like.slope)
            if isinstance(a, Aggregate):
                found = self.statistic(a, stratum)
                return found if a.is_condition else Dual(found, like.slope)
            return Dual(np.array([to_long(world.fraction(a, stratum, e)) for e in elements], Long), like.slope)

        return compute(e, atom, like)

    def tokens(self, formula: Expression) -> np.ndarray:
        """A formula at every token; nothing flows through it."""
        found = np.zeros(self.world.n, Long)
        for leaf in self.world.leaves:
            mine = self.world.over_leaf(leaf)
            x = Dual(self.held[mine], np.zeros((len(mine), self.world.n), Long))
            value = self.at(formula, leaf, {Reading("token_log_ratio"): x})
            found[mine] = value.value if isinstance(value, Dual) else value
        return found

    def statistic(self, a: Aggregate, stratum: str) -> np.ndarray:
        """At every element of a stratum, over all tokens of the element that it names."""
        world, over = self.world, stratum if a.over is None else str(a.over)
        each = self.tokens(a.formula)
        level = None if a.level is None else float(self.at(a.level, over, {}).value[0])
        one = {
            "total": np.sum, "mean": lambda v: v.sum() / len(v), "largest": np.max, "some": np.any,
            "quantile": lambda v: np.quantile(v, level),
        }[a.kind]  # fmt: skip
        found = np.array([one(each[tokens]) for tokens in world.over[over]])
        return found[[world.number[over][world.label[over][tokens[0]]] for tokens in world.over[stratum]]]

    def run(self) -> Dense:
        h, world = self.h, self.world
        channels = h.decomposition.channels
        tokens = {leaf: world.over_leaf(leaf) for leaf in world.leaves}
        for c in channels:
            for leaf in world.leaves:
                given = {Reading("token_log_ratio"): self.x[tokens[leaf]]}
                self.density[leaf, c] = self.at(in_channel(h.decomposition[c], c), leaf, given)
            for s in (s for s in self.strata if s not in world.leaves):
                parts = [
                    self.density[leaf, c].through(world.pushforward(leaf, s))
                    for leaf in world.leaves
                    if s in world.coarser(leaf)
                ]
                self.density[s, c] = functools.reduce(Dual.plus, parts)

        residual: dict[tuple[str, str], Dual] = {}
        gated: dict[tuple[str, str], Dual] = {}
        for c in channels:
            self.residuals(c, residual)
            for s, gate in h.gates.items():
                formula = in_channel(gate.expression, c)
                given = {Reading("residual"): residual[s.name, c], pull: self.pull(s.name, c)}
                gated[s.name, c] = self.at(formula, s.name, given)

        ratio = Dual(np.empty(world.n, Long), np.empty((world.n, world.n), Long))
        for leaf in world.leaves:
            down: dict[Expression, Dual] = {}
            for c in channels:
                parts = [gated[s, c].through(world.kernel(leaf, s)) for s in [leaf, *world.coarser(leaf)]]
                down[Gated(c)] = functools.reduce(Dual.plus, parts)
            here = self.at(h.decomposition.recovery, leaf, down)
            ratio.value[tokens[leaf]], ratio.slope[tokens[leaf]] = here.value, here.slope
        return Dense(world, self.density, residual, gated, ratio, self.objective(ratio))

    def residuals(self, c: str, found: dict[tuple[str, str], Dual]) -> None:
        """`ρ_v = σ_v - Σ_{u coarser} K_{v←u} ρ_u`; of crossed strata by least squares, where that is declared."""
        world = self.world
        if self.h.orthogonalise:
            per_mass = np.empty((world.n, 1 + world.n), Long)
            for leaf in world.leaves:
                own = self.density[leaf, c].times(1 / world.long_mass(leaf))
                per_mass[world.over_leaf(leaf)] = np.concatenate([own.value[:, None], own.slope], axis=1)
            for s in world.crossed:
                effect = (world.effects[s] @ per_mass) * world.long_mass(s)[:, None]
                found[s, c] = Dual(effect[:, 0], effect[:, 1:])
        left = [s for s in self.strata if (s, c) not in found]
        while left:
            for s in [s for s in left if all((u, c) in found for u in world.coarser(s))]:
                rho = self.density[s, c]
                for u in world.coarser(s):
                    rho = rho.plus(found[u, c].through(world.kernel(s, u)), -1)
                found[s, c] = rho
                left.remove(s)

    @functools.cached_property
    def mu(self) -> np.ndarray:
        """Per token, in the world of those that are counted; 0 where no token of a row is."""
        rows, kept = self.h.rows.name, self.kept("kept")
        world = self.world.of(kept)
        of_row = world.exact(self.h.objective.weight, rows)
        found = np.zeros(self.world.n, Long)
        found[kept] = [to_long(of_row[world.number[rows][e]]) for e in world.label[rows]]
        some = {e for e, k in zip(self.world.label[rows], kept, strict=True) if k}
        first = dict(zip(world.label[rows], found[kept], strict=True))
        return np.array([first[e] if e in some else Long(0) for e in self.world.label[rows]], Long)

    def pull(self, stratum: str, c: str) -> Dual:
        """`Σ μ·w·A·r` of what is kept over every element, the other way on the channel "-"; without a slope."""
        each = self.mu * self.batch.advantages.astype(Long) * np.exp(self.x.value)
        for formula in self.h.objective.weighed:
            each = each * self.tokens(formula)
        each = np.where(self.kept("all", "kept"), each, 0)
        found = np.array([each[tokens].sum() for tokens in self.world.over[stratum]], Long)
        return Dual(-found if c == "-" else found, np.zeros((len(found), self.world.n), Long))

    def kept(self, *normalisers: str) -> np.ndarray:
        """Which tokens are kept, by the conditions with these normalisers."""
        conditions = [k.condition for k in self.h.objective.kept if k.normaliser in normalisers]
        return np.all([np.ones(self.world.n, bool), *(self.tokens(c) > 0 for c in conditions)], axis=0)

    def objective(self, ratio: Dual) -> Dual:
        weighted = ratio.times(self.mu * self.batch.advantages.astype(Long))
        for formula in self.h.objective.weighed:
            weighted = weighted.times(self.tokens(formula))
        if self.h.objective.estimator == "score":  # the ratio is a constant, and log π is differentiated
            weighted = Dual(weighted.value * self.now.astype(Long), np.diag(weighted.value))
        kept = self.kept("all", "kept")
        weighted = Dual(np.where(kept, weighted.value, 0), np.where(kept[:, None], weighted.slope, 0))
        found = Dual(weighted.value.sum(keepdims=True), weighted.slope.sum(axis=0, keepdims=True))
        for penalty in self.h.penalties.values():
            found = found.plus(self.penalty(penalty), -1)
        return found

    def penalty(self, penalty: Penalty) -> Dual:
        """What is taken off: through `token_log_ratio`, `log_prob(current)`, sums and means of them something flows."""
        if penalty.over is not None:
            each = self.moved(penalty.formula, penalty.over.name)
            return Dual(each.value.mean(keepdims=True), each.slope.mean(axis=0, keepdims=True))
        own = self.h.objective
        objective = penalty.objective or Objective(
            own.weight, kept=tuple(c for c in own.kept if c.normaliser == "kept")
        )
        inner = _Dense(
            self.h.replace(objective=objective, penalties={}), self.batch, self.now, self.log_probs["old"], self.held
        )
        factor = inner.mu
        for formula in objective.weighed:
            factor = factor * inner.tokens(formula)
        kept = inner.kept("all", "kept")
        each = self.moved_tokens(penalty.formula).times(factor)
        return Dual(each.value[kept].sum(keepdims=True), each.slope[kept].sum(axis=0, keepdims=True))

    def moved_tokens(self, formula: Expression) -> Dual:
        """A formula at every token, with its slopes."""
        found = Dual(np.zeros(self.world.n, Long), np.zeros((self.world.n, self.world.n), Long))
        for leaf in self.world.leaves:
            mine, here = self.world.over_leaf(leaf), self.moved(formula, leaf)
            found.value[mine], found.slope[mine] = here.value, here.slope
        return found

    def moved(self, formula: Expression, stratum: str) -> Dual:
        world = self.world
        given: dict[Expression, Dual] = {}
        if stratum in world.leaves:
            mine = world.over_leaf(stratum)
            given[Reading("token_log_ratio")] = self.x[mine]
            now = Dual(self.now.astype(Long), np.eye(world.n, dtype=Long))
            given[LogProb(Policy("current"))] = now[mine]
        for a in set(atoms(formula)):
            if isinstance(a, Aggregate) and a.kind in ("total", "mean"):
                over, each = stratum if a.over is None else str(a.over), self.moved_tokens(a.formula)
                sums = np.array(
                    [[float(i in set(tokens)) for i in range(world.n)] for tokens in world.over[over]], Long
                )
                if a.kind == "mean":
                    sums /= sums.sum(axis=1, keepdims=True)
                at = [world.number[over][world.label[over][tokens[0]]] for tokens in world.over[stratum]]
                given[a] = each.through(sums)[at]
        return self.at(formula, stratum, given)
