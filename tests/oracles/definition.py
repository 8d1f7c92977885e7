"""Fibration gating by its definition (eq:fgh_gating), on a small batch of any shape, in rationals.

- Up: `σ_u = π_{u*} σ`.
- Residuals: `ρ_v = σ_v - Σ_{u > v} K_{v←u} ρ_u`, on a chain `σ_k - K σ_{k-1}`.
- Down: `G = Σ_v K_{leaf←v} g_v(ρ_v)`, with kernels multiplied along a path.

Formulas have a value and the slope along one direction of log ratios. The module uses no leaf measure, no Möbius
numbers, and no code of the laws, of lowering or of a backend. Irrational values have fifty digits.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any

import mpmath
import numpy as np

from fibration import Hierarchy, Parameter
from fibration.language.atoms import (
    BATCH,
    Attribute,
    Component,
    Count,
    Density,
    Gated,
    Place,
    Reading,
    Stratum,
    Total,
    in_channel,
)
from fibration.language.expressions import Apply, Expression, Number
from fibration.language.statistics import Aggregate
from fibration.language.strata import Balanced

F = Fraction
ZERO = F(0)
WHOLE = Stratum(BATCH)
NO_VALUE = (ZeroDivisionError, ValueError)  # a division by 0, a logarithm or root outside its domain
X, RESIDUAL, ADVANTAGE = Reading("token_log_ratio"), Reading("residual"), Reading("advantage")

# ---------------------------------------------------------------- formulas


@dataclass(frozen=True)
class Dual:
    """A value and its slope along one direction."""

    value: Fraction
    slope: Fraction = ZERO

    def __add__(self, o: Dual) -> Dual:
        return Dual(self.value + o.value, self.slope + o.slope)

    def __sub__(self, o: Dual) -> Dual:
        return Dual(self.value - o.value, self.slope - o.slope)

    def __mul__(self, o: Dual) -> Dual:
        return Dual(self.value * o.value, self.slope * o.value + self.value * o.slope)

    def __truediv__(self, o: Dual) -> Dual:
        return Dual(self.value / o.value, (self.slope * o.value - self.value * o.slope) / o.value**2)

    def __neg__(self) -> Dual:
        return Dual(-self.value, -self.slope)


def real(name: str, x: Fraction) -> Fraction:
    """A function of `mpmath` to fifty digits."""
    with mpmath.workdps(50):
        y = getattr(mpmath, name)(mpmath.mpf(x.numerator) / x.denominator)
        if isinstance(y, mpmath.mpc) or not mpmath.isfinite(y) or abs(y._mpf_[2]) > 2**31:
            raise ValueError(f"{name}({float(x)})")
        sign, mantissa, exponent, _ = y._mpf_
        return (-1) ** sign * int(mantissa) * F(2) ** exponent


def root(x: Fraction) -> Fraction:
    """Exact for squares."""
    exact = F(math.isqrt(max(x.numerator, 0)), math.isqrt(x.denominator))
    return exact if exact * exact == x else real("sqrt", x)


FUNCTIONS: dict[str, tuple[Callable[[Fraction], Fraction], Callable[[Fraction, Fraction], Fraction]]] = {
    "exp": (lambda x: real("exp", x), lambda x, y: y),
    "expm1": (lambda x: real("expm1", x), lambda x, y: y + 1),
    "log": (lambda x: real("log", x), lambda x, y: 1 / x),
    "log1p": (lambda x: real("log", 1 + x), lambda x, y: 1 / (1 + x)),
    "tanh": (lambda x: real("tanh", x), lambda x, y: 1 - y * y),
    "sigmoid": (lambda x: 1 / (1 + real("exp", -x)), lambda x, y: y * (1 - y)),
    "sqrt": (root, lambda x, y: 1 / (2 * y)),
    "softplus": (lambda x: real("log", 1 + real("exp", x)), lambda x, y: 1 / (1 + real("exp", -x))),
    "atan": (lambda x: real("atan", x), lambda x, y: 1 / (1 + x * x)),
}


def transcendental(*expressions: Expression) -> bool:
    """Whether values are only correct to fifty digits."""
    return any(isinstance(e, Apply) and (e.operator in FUNCTIONS or transcendental(*e.arguments)) for e in expressions)


class Formulas:
    """Values and slopes of expressions; of a choice, those of the branch that holds at the point.

    `margin` is how close any comparison came to a tie; `gap` leaves out the signs of `abs` and `sign`, which are often
    taken of exact zeros and rarely matter there.
    """

    def __init__(self) -> None:
        self.margin = self.gap = float("inf")

    def less(self, a: Dual, b: Dual, of_sign: bool = False) -> bool:
        distance = abs(float(a.value - b.value))
        self.margin = min(self.margin, distance)
        self.gap = self.gap if of_sign else min(self.gap, distance)
        return a.value < b.value

    def __call__(self, e: Expression, atom: Callable[[Expression], Dual]) -> Any:
        if isinstance(e, Number):
            return Dual(e.value)
        if not isinstance(e, Apply):
            return atom(e)
        if e.operator == "where":
            condition, a, b = e.arguments
            return self(a if self(condition, atom) else b, atom)
        return self.apply(e.operator, *(self(a, atom) for a in e.arguments))

    def apply(self, op: str, a: Any, b: Any = None, c: Any = None) -> Any:
        if op in FUNCTIONS:
            function, slope = FUNCTIONS[op]
            value = function(a.value)
            return Dual(value, a.slope and slope(a.value, value) * a.slope)
        match op:
            case "+":
                return a + b
            case "-":
                return a - b
            case "*":
                return a * b
            case "/":
                return a / b
            case "neg":
                return -a
            case "stop":
                return Dual(a.value)
            case "**":
                n = int(b.value)
                return Dual(a.value**n, a.slope and n * a.value ** (n - 1) * a.slope)
            case "<":
                return self.less(a, b)
            case "<=":
                return not self.less(b, a)
            case ">":
                return self.less(b, a)
            case ">=":
                return not self.less(a, b)
            case "and":
                return a and b
            case "or":
                return a or b
            case "not":
                return not a
            case "abs":
                return -a if self.less(a, Dual(F(0)), True) else a
            case "sign":
                self.less(a, Dual(F(0)), True)
                return Dual(F((a.value > 0) - (a.value < 0)))
            case "minimum":
                return b if self.less(b, a) else a
            case "maximum":
                return b if self.less(a, b) else a
            case "clip":
                return b if self.less(a, b) else c if self.less(c, a) else a
        raise AssertionError(op)


def evaluate(e: Expression, at: Mapping[Expression, Fraction]) -> Fraction:
    return Formulas()(e, lambda a: Dual(at[a])).value


def slope(e: Expression, variable: Expression, at: Mapping[Expression, Fraction]) -> Fraction:
    """The declared derivative with respect to one atom."""
    return Formulas()(e, lambda a: Dual(at[a], F(a == variable))).slope


def truth(log_ratio: Fraction) -> Fraction:
    """`exp` to fifty digits."""
    return real("exp", log_ratio)


# ---------------------------------------------------------------- a batch, and the operator on it


@dataclass(frozen=True)
class Result:
    """What the definition gives: `density`, `residual` and `gated` by (stratum, channel), `ratio` token by token."""

    density: dict[tuple[Stratum, str], list[Dual]]
    residual: dict[tuple[Stratum, str], list[Dual]]
    gated: dict[tuple[Stratum, str], list[Dual]]
    ratio: list[Dual]


@dataclass
class World:
    """A batch: `parents[source, target]` is the element under each, by which every source lies over its target.

    `values` has a number per parameter, or a stratum and one per element of it; of an attribute, one per element.
    """

    h: Hierarchy
    sizes: Mapping[Stratum, int]
    parents: Mapping[tuple[Stratum, Stratum], Sequence[int]]
    values: Mapping[Expression, Any] = field(default_factory=dict)

    known: dict[Any, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.sizes = {WHOLE: 1, **self.sizes}

    @classmethod
    def of(cls, h: Hierarchy, batch: Any) -> World:
        """A chain's batch (`support.Batch`), its elements in the order of their first tokens."""
        (leaf,), row = h.leaves, batch.row.tolist()
        names: dict[Stratum, list[Any]] = {}
        code: dict[Stratum, list[int]] = {}
        for s in {*h.strata, h.rows, WHOLE}:
            known = {leaf: range(len(row)), WHOLE: [0] * len(row), h.rows: row}
            keys = known.get(s) or batch.token_labels.get(s.name) or [batch.labels[s.name][r] for r in row]
            names[s] = list(dict.fromkeys(keys))
            number = {k: i for i, k in enumerate(names[s])}
            code[s] = [number[k] for k in keys]
        seen = {s: {e: i for i, e in reversed(list(enumerate(c)))} for s, c in code.items()}
        first = {s: [places[e] for e in range(len(places))] for s, places in seen.items()}
        edges = {(f.source, f.target) for f in h.fibrations} | {(leaf, h.rows)}
        parents = {(s, t): [code[t][i] for i in first[s]] for s, t in edges}
        values: dict[Expression, Any] = {}
        for a in h.attributes.values():
            values[a] = [F(float(batch.weights[i])) for i in first[a.on]]
        for p, c in itertools.product(h.parameters.values(), ("", "+", "-")):
            given, on = batch.parameters.get(p.name, p.default), cls.home(h, p)
            labelled = isinstance(given, Mapping) and not set(given) <= {"+", "-"}
            each = [given[n] for n in names[on]] if labelled else [given] * len(names[on])
            if p.per_channel == bool(c):
                channel = [F(float(v[c] if isinstance(v, Mapping) else v)) for v in each]
                values[Component(p, c) if c else p] = on, channel
        return cls(h, {s: len(n) for s, n in names.items()}, parents, values)

    @staticmethod
    def home(h: Hierarchy, p: Parameter) -> Stratum:
        """The stratum whose labels its values are given by."""
        if p.on is not None:
            return p.on
        readers = [s for s in h.order if s not in h.leaves and str(p) in words(h.gates[s].expression)]
        return readers[0] if readers else WHOLE

    @classmethod
    def chain(cls, h: Hierarchy, parents: Mapping[Stratum, Sequence[int]], values: Any, roots: int = 1) -> World:
        """Root first, each stratum over the one before it; one row where the chain has none."""
        sizes = {s: len(parents[s]) if s in parents else roots for s in h.order}
        pairs: dict[tuple[Stratum, Stratum], Sequence[int]] = {
            (s, below): parents[s] for below, s in itertools.pairwise(h.order)
        }
        if h.rows not in h.order:
            sizes[h.rows], pairs[h.order[-1], h.rows] = 1, [0] * sizes[h.order[-1]]
        return cls(h, sizes, pairs, values)

    # ------------------------------------------------------------ who lies over whom

    @cached_property
    def tokens(self) -> list[tuple[Stratum, int]]:
        return [(leaf, i) for leaf in self.h.leaves for i in range(self.sizes[leaf])]

    def size(self, stratum: Stratum) -> int:
        return self.sizes[stratum]

    def below(self, stratum: Stratum, element: int, target: Stratum) -> Any:
        """The target element that an element lies over; None where there is no path."""
        key = stratum, element, target
        if key not in self.known:
            ways = (self.below(t, p[element], target) for (s, t), p in self.parents.items() if s == stratum)
            otherwise = 0 if target == WHOLE else None
            self.known[key] = element if stratum == target else next((e for e in ways if e is not None), otherwise)
        return self.known[key]

    def over(self, source: Stratum, target: Stratum, element: int) -> list[int]:
        key = source, target, "over"
        if key not in self.known:
            self.known[key] = lists = [[] for _ in range(self.sizes[target])]
            for a in range(self.sizes[source]):
                if (b := self.below(source, a, target)) is not None:
                    lists[b].append(a)
        return self.known[key][element]

    def coarser(self, stratum: Stratum) -> list[Stratum]:
        return [u for u in self.h.strata if u != stratum and self.is_over(stratum, u)]

    def is_over(self, stratum: Stratum, target: Stratum) -> bool:
        return stratum == target or any(
            self.is_over(f.target, target) for f in self.h.fibrations if f.source == stratum
        )

    # ------------------------------------------------------------ what is read at an element

    def atom(self, a: Expression, stratum: Stratum, element: int) -> Fraction:
        if isinstance(a, (Count, Total)):
            over = self.place(a.over, stratum)
            at = self.below(stratum, element, over)
            if a.of == Place("leaf"):
                return F(sum(len(self.over(leaf, over, at)) for leaf in self.h.leaves))
            inside = self.over(self.place(a.of, stratum), over, at)
            return F(len(inside)) if isinstance(a, Count) else sum((self.values[a.attribute][i] for i in inside), F(0))
        given = (a.on, self.values[a]) if isinstance(a, Attribute) else self.values[a]
        return given[1][self.below(stratum, element, given[0])] if isinstance(given, tuple) else given

    def place(self, place: Any, stratum: Stratum) -> Stratum:
        known = {None: stratum, Place("rows"): self.h.rows, Place(BATCH): WHOLE}
        return known.get(place, place)

    def value(self, e: Expression, stratum: Stratum, element: int, bound: Mapping[Expression, Any] = {}) -> Fraction:
        return Formulas()(e, lambda a: Dual(bound[a]) if a in bound else self.read(a, stratum, element)).value

    def read(self, a: Expression, stratum: Stratum, element: int) -> Any:
        """What a formula gets of an atom that nothing moves: a number without a slope, or whether a condition holds."""
        return Dual(self.atom(a, stratum, element))

    def weights(self, f: Any) -> list[Fraction | None]:
        """`K(a|b)` of every source element; None where the formula has no value."""
        found: list[Fraction | None] = []
        for a in range(self.sizes[f.source]):
            try:
                found.append(self.value(f.weight, f.source, a))
            except NO_VALUE:
                found.append(None)
        return found

    def weight(self, stratum: Stratum, element: int, target: Stratum) -> Fraction:
        """`K_{stratum←target}` at an element: the product along a path."""
        if stratum == target:
            return F(1)
        key = stratum, element, target, "weight"
        if key not in self.known:
            f = next(f for f in self.h.fibrations if f.source == stratum and self.is_over(f.target, target))
            rest = self.weight(f.target, self.parents[stratum, f.target][element], target)
            self.known[key] = self.value(f.weight, stratum, element) * rest
        return self.known[key]

    def mu(self, token: int) -> Fraction:
        """The objective's weight of a token."""
        leaf, i = self.tokens[token]
        return self.value(self.h.objective.weight, self.h.rows, self.below(leaf, i, self.h.rows))

    def statistic(self, a: Aggregate, s: Stratum, e: int, xs: Sequence[Dual], advantages: Sequence[Fraction]) -> Any:
        """A sum or a mean over all tokens that lie over what an element lies over."""
        assert a.kind in ("total", "mean") and isinstance(a.over, Stratum)
        base, found = self.below(s, e, a.over), []
        for k, (leaf, i) in enumerate(self.tokens):
            if self.below(leaf, i, a.over) == base:
                found.append(self.value(a.formula, leaf, i, {X: xs[k].value, ADVANTAGE: advantages[k]}))
        return sum(found, F(0)) / (len(found) if a.kind == "mean" else 1)

    # ------------------------------------------------------------ the operator

    def ratios(self, xs: Sequence[Fraction], advantages: Sequence[Fraction] = ()) -> list[Fraction]:
        """`𝒢(r)` of every token, leaf after leaf."""
        return [r.value for r in self.run([Dual(x) for x in xs], advantages, Formulas()).ratio]

    def run(self, xs: Sequence[Dual], advantages: Sequence[Fraction], formulas: Formulas) -> Result:
        h, tokens = self.h, self.tokens
        inside: dict[Stratum, list[list[int]]] = {s: [[] for _ in range(self.sizes[s])] for s in h.strata}
        for k, (leaf, i) in enumerate(tokens):
            for s in (leaf, *self.coarser(leaf)):
                inside[s][self.below(leaf, i, s)].append(k)
        order = sorted(h.strata, key=lambda s: len(self.coarser(s)))
        density: dict[tuple[Stratum, str], list[Dual]] = {}
        rho: dict[tuple[Stratum, str], list[Dual]] = {}
        gated: dict[tuple[Stratum, str], list[Dual]] = {}

        def at(e: Expression, s: Stratum, i: int, bound: Mapping[Expression, Dual], by: Formulas = formulas) -> Dual:
            return by(e, lambda a: bound[a] if a in bound else self.read(a, s, i))

        def read(a: Density, c: str, s: Stratum, e: int) -> Dual:
            return density[a.stratum, a.channel or c][self.below(s, e, a.stratum)]

        for c in h.decomposition.channels:
            split = {leaf: h.with_mass(h.decomposition[c], leaf) for leaf in h.leaves}
            own = [  # the sign of an input is decided exactly by everyone: no comparison to be counted
                at(split[leaf], leaf, i, {X: x, ADVANTAGE: Dual(a)}, type(formulas)())
                for (leaf, i), x, a in zip(tokens, xs, advantages or [F(1)] * len(xs), strict=True)
            ]
            for s in order:
                density[s, c] = [sum((own[k] for k in ks), Dual(F(0))) for ks in inside[s]]
        for c in h.decomposition.channels:
            for s in order:
                gate = in_channel(h.gate(s), c)
                densities = [a for a in words(gate).values() if isinstance(a, Density)]
                statistics = [a for a in words(gate).values() if isinstance(a, Aggregate)]
                rho[s, c], gated[s, c] = [], []
                for e, sigma in enumerate(density[s, c]):
                    for u in self.coarser(s):
                        sigma = sigma - Dual(self.weight(s, e, u)) * rho[u, c][self.below(s, e, u)]
                    bound: dict[Expression, Dual] = {RESIDUAL: sigma}
                    bound |= {a: read(a, c, s, e) for a in densities}
                    bound |= {a: Dual(self.statistic(a, s, e, xs, advantages)) for a in statistics}
                    bound[ADVANTAGE] = Dual(advantages[inside[s][e][0]] if advantages and inside[s][e] else F(1))
                    rho[s, c].append(sigma)
                    gated[s, c].append(at(gate, s, e, bound))
        found = []
        for (leaf, i), a in zip(tokens, advantages or [F(1)] * len(xs), strict=True):
            down = {
                Gated(c): sum(
                    (Dual(self.weight(leaf, i, s)) * gated[s, c][self.below(leaf, i, s)]
                     for s in (leaf, *self.coarser(leaf))),
                    Dual(F(0)),
                )
                for c in h.decomposition.channels
            }  # fmt: skip
            found.append(at(h.with_mass(h.decomposition.recovery, leaf), leaf, i, {**down, ADVANTAGE: Dual(a)}))
        return Result(density, rho, gated, found)


def words(e: Expression) -> dict[str, Expression]:
    """The atoms of an expression, by how they are written."""
    if isinstance(e, Apply):
        return {k: v for a in e.arguments for k, v in words(a).items()}
    return {} if isinstance(e, Number) else {str(e): e}


@dataclass(frozen=True)
class Exact:
    """A batch's values as floats, correctly rounded; `slope` is `dJ` along the direction."""

    ratio: np.ndarray
    ratio_slope: np.ndarray
    objective: float
    slope: float
    margin: float
    gap: float
    world: World


def exact(h: Hierarchy, batch: Any, direction: Any = None) -> Exact:
    """The definition on a chain's batch (`support.Batch`)."""
    world, formulas = World.of(h, batch), Formulas()
    direction = np.zeros(batch.tokens) if direction is None else np.asarray(direction)
    xs = [Dual(F(float(x)), F(float(d))) for x, d in zip(batch.x, direction, strict=True)]
    advantages = [F(float(a)) for a in batch.advantages]
    found = world.run(xs, advantages, formulas).ratio
    total = sum((r * Dual(world.mu(i) * a) for i, (r, a) in enumerate(zip(found, advantages, strict=True))), Dual(F(0)))
    values, slopes = (np.array([float(v) for v in vs]) for vs in ([r.value for r in found], [r.slope for r in found]))
    return Exact(values, slopes, float(total.value), float(total.slope), formulas.margin, formulas.gap, world)


# ---------------------------------------------------------------- small batches for a hierarchy


def batches(h: Hierarchy, seed: int = 0, count: int = 12, most: int = 5) -> Iterator[World]:
    """Random small batches: every element has a token over it, empty branches of trees occur, parallel paths commute."""
    rng, made = random.Random(seed), 0
    while made < count:
        sizes: dict[Stratum, int] = {}
        parents: dict[tuple[Stratum, Stratum], list[int]] = {}
        for s in h.order:
            edges = [f for f in h.fibrations if f.source == s]
            one = s == WHOLE
            sizes[s] = 1 if one else rng.randint(1, 2) if not edges else rng.randint(1, most if s in h.leaves else 3)
            for f in edges:
                parents[s, f.target] = [rng.randrange(sizes[f.target]) for _ in range(sizes[s])]
        world = World(h, sizes, parents, _settings(h, sizes, rng))
        ok = all(
            len(set(_ends(world, s, e, u))) == 1 for s in h.order for u in world.coarser(s) for e in range(sizes[s])
        )
        ok = ok and all(
            any(world.below(leaf, i, s) == e for leaf, i in world.tokens) for s in h.strata for e in range(sizes[s])
        )
        if ok and all(is_balanced(world, a) for a in h.assume if isinstance(a, Balanced)):
            made += 1
            yield world


def is_balanced(world: World, a: Balanced) -> bool:
    """`m(a∩b)·m(c) = m(a)·m(b)` over each element of their one common coarsening, which is a root here."""
    [root_] = world.h.roots
    cells: dict[tuple[int, int, int], Fraction] = {}
    for leaf, i in world.tokens:
        cell = world.below(leaf, i, root_), world.below(leaf, i, a.first), world.below(leaf, i, a.second)
        cells[cell] = cells.get(cell, F(0)) + world.weight(leaf, i, root_)

    def part(c: int, first: int | None = None, second: int | None = None) -> Fraction:
        inside = (m for (z, p, q), m in cells.items() if z == c and first in (None, p) and second in (None, q))
        return sum(inside, F(0))

    return all(
        part(c, p, q) * part(c) == part(c, p) * part(c, second=q) for c, p, _ in cells for d, _, q in cells if c == d
    )


def _ends(world: World, s: Stratum, e: int, u: Stratum) -> Iterator[int]:
    if s == u:
        yield e
    for f in world.h.fibrations:
        if f.source == s:
            yield from _ends(world, f.target, world.parents[s, f.target][e], u)


def _settings(h: Hierarchy, sizes: Mapping[Stratum, int], rng: random.Random) -> dict[Expression, Any]:
    found: dict[Expression, Any] = {}
    for p in h.parameters.values():
        for c in ("", "+", "-"):
            found[Component(p, c) if p.per_channel else p] = inside(p.lower, p.upper, F(rng.randint(1, 12), 13))
    for a in h.attributes.values():
        found[a] = [F(rng.randint(1, 9), rng.randint(1, 3)) for _ in range(sizes[a.on])]
    return found


def inside(low: float | None, high: float | None, t: Fraction) -> Fraction:
    """A number between two bounds, of which either may be missing, for `0 < t < 1`."""
    if low is not None and high is not None:
        return F(str(low)) + (F(str(high)) - F(str(low))) * t
    return F(str(low)) + 2 * t if low is not None else F(str(high)) - 2 * t if high is not None else 4 * t - 2
