"""Random trees and quivers, and random batches for them. A seed always gives the same.

Kernels are coherent by construction: they are quotients of additive measures, jointly where several strata lie over
one. Below a crossing one measure is spread along all paths. Elsewhere every edge has its own kernel.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from support import Batch, packed

from fibration import (
    Attribute,
    Decomposition,
    Fibration,
    Gate,
    Hierarchy,
    MarkovKernel,
    Objective,
    Parameter,
    absolute,
    advantage,
    clip,
    constant_normaliser,
    count,
    decomposition,
    density,
    expm1,
    gated,
    identity_gate,
    log1p,
    log_ratio,
    mass,
    maximum,
    minimum,
    populated,
    proportional,
    ratio_deviation,
    residual,
    sigmoid,
    signed_log_ratio,
    sqrt,
    tanh,
    token_log_ratio,
    token_mean,
    total,
    trajectory_mean,
    uniform,
    where,
)
from fibration.errors import HierarchyIndexError
from fibration.language.atoms import BATCH, Stratum, pull
from fibration.language.expressions import Expression, as_expression
from fibration.language.report import Report
from fibration.language.traversal import atoms
from fibration.runtime.operator import Operator
from hierarchies.random_chains import Drawn, names_of, near

# ---------------------------------------------------------------- shapes


@dataclass(frozen=True)
class Kind:
    """Fibrations as `finer>coarser`, the stratum of the rows, and the strata over which one measure is spread on."""

    edges: str
    base: str = ""  # empty: a tree
    rows: str = "trajectory"

    @property
    def pairs(self) -> list[tuple[str, str]]:
        return [(e.split(">")[0], e.split(">")[1]) for e in self.edges.split()]


DIAMOND = "token>trajectory trajectory>domain trajectory>modality domain>batch modality>batch"
KINDS: dict[str, Kind] = {
    "two leaves": Kind("text>trajectory image>trajectory"),
    "two leaves over groups": Kind("text>trajectory image>trajectory trajectory>prompt_group"),
    "leaves at two depths": Kind("text>trajectory image>picture picture>trajectory trajectory>prompt_group"),
    "a leaf beside the turns": Kind("text>turn turn>trajectory image>trajectory trajectory>batch"),
    "three leaves": Kind("text>trajectory image>trajectory audio>trajectory trajectory>prompt_group prompt_group>domain"),
    "three depths": Kind("text>turn turn>trajectory image>picture picture>trajectory audio>trajectory trajectory>batch"),
    "two leaves in a picture": Kind("text>trajectory image>picture audio>picture picture>trajectory"),
    "rows beside": Kind("text>prompt_group image>prompt_group prompt_group>domain"),
    "diamond": Kind(DIAMOND, "trajectory"),
    "no common root": Kind("token>trajectory trajectory>domain trajectory>modality", "trajectory"),
    "crossing at the leaf": Kind("token>trajectory token>expert trajectory>batch expert>batch", "token"),
    "experts, no root": Kind("token>trajectory token>expert", "token"),
    "experts alone": Kind("token>expert token>domain expert>batch domain>batch", "token"),
    "nested": Kind("token>trajectory token>expert trajectory>domain trajectory>modality domain>batch modality>batch "
                   "expert>batch", "token"),
    "three crossing": Kind(DIAMOND + " trajectory>language language>batch", "trajectory"),
    "cells": Kind("token>trajectory trajectory>cell cell>domain cell>modality domain>batch modality>batch", "trajectory"),
    "levels above": Kind("token>trajectory trajectory>prompt_group trajectory>modality prompt_group>domain domain>batch "
                         "modality>batch", "trajectory"),
    "levels on both sides": Kind("token>trajectory trajectory>prompt_group trajectory>modality prompt_group>domain "
                                 "modality>family domain>batch family>batch", "trajectory"),
    "within domains": Kind("token>trajectory trajectory>prompt_group trajectory>style prompt_group>domain style>domain "
                           "domain>batch", "trajectory"),
    "turns crossing": Kind("token>turn turn>trajectory turn>tool trajectory>batch tool>batch", "turn"),
    "tree over a diamond": Kind(DIAMOND.replace("token>", "text>") + " image>trajectory", "trajectory"),
    "a crossing of one leaf": Kind("text>trajectory image>trajectory image>expert trajectory>batch expert>batch",
                                   "text image"),
    "a rung between": Kind("token>trajectory trajectory>prompt_group trajectory>modality prompt_group>domain "
                           "prompt_group>level domain>batch level>batch modality>batch", "trajectory"),
}  # fmt: skip
TREES = tuple(k for k, v in KINDS.items() if not v.base)
QUIVERS = tuple(k for k, v in KINDS.items() if v.base)
ROOTLESS = ("no common root", "experts, no root")
PARTIAL = "a crossing of one leaf"  # not projected: what crosses has other leaves than what it lies over
PROJECTED = tuple(k for k in QUIVERS if k not in (*ROOTLESS, PARTIAL))
GROUPS = {  # label of a row, given its domain, modality and random numbers
    "prompt_group": lambda d, m, g: f"{d} {g % 2}",
    "domain": lambda d, m, g: d,
    "modality": lambda d, m, g: m,
    "cell": lambda d, m, g: (d, m),
    "language": lambda d, m, g: f"language {g // 2 % 2}",
    "family": lambda d, m, g: f"family {m[-1] == '0'}",
    "style": lambda d, m, g: f"{d}, style {g // 4 % 2}",
    "level": lambda d, m, g: f"level {(len(d) + g % 2) % 2}",
}


# ---------------------------------------------------------------- hierarchies


CASES = tuple(
    [*itertools.chain.from_iterable((t, q) for t, q in zip(itertools.cycle(TREES), QUIVERS * 2, strict=False))]
    + [f"{k}, projected" for k in PROJECTED]
)  # the kind of every seed
COUNT = len(CASES)


@functools.cache
def quiver(seed: int) -> Hierarchy:
    """A tree or a quiver: gates, kernels, decomposition, objective, parameters and attributes drawn at random."""
    name = CASES[seed]
    kind = name.removesuffix(", projected")
    return _Draw(f"quiver {seed}", KINDS[kind], name != kind).hierarchy(f"quiver_{seed}")


def plain(name: str, projected: bool = False, seed: int = 0, signed: bool = False) -> Hierarchy:
    """One of `KINDS` with identity gates, and the leaf measure as its scale."""
    h = _Draw(f"plain {seed}", KINDS[name], projected).hierarchy("plain")
    split = signed_log_ratio(scale=mass) if signed else log_ratio(scale=mass)
    return h.replace(gates={s: identity_gate() for s in h.strata}, decomposition=split)


class _Draw(Drawn):
    """One hierarchy."""

    def __init__(self, seed: str, kind: Kind, projected: bool) -> None:
        super().__init__(seed)
        self.kind, self.projected = kind, projected
        names = list(dict.fromkeys(s for pair in kind.pairs for s in pair))
        self.strata = {n: Stratum(n) for n in names}
        self.leaves = [n for n in names if not any(b == n for _, b in kind.pairs)]
        self.roots = [n for n in names if not any(a == n for a, _ in kind.pairs)]
        self.attributes = {n: Attribute(f"w_{n}", on=self.strata[n]) for n in names if n != BATCH and self.chance(0.5)}
        self.signed = self.chance(0.45)
        self.parametric = not projected and self.chance(0.5)  # a kernel may read parameters
        self.assume: list[Any] = []

    def coarser(self, name: str) -> list[str]:
        found: list[str] = []
        for a, b in self.kind.pairs:
            if a == name:
                found += [s for s in [b, *self.coarser(b)] if s not in found]
        return found

    def finer(self, name: str) -> list[str]:
        return [s for s in self.strata if name in self.coarser(s)]

    # ------------------------------------------------------------ the whole

    def hierarchy(self, name: str) -> Hierarchy:
        fibrations = self.fibrations()
        split = self.decomposition()
        gates = {self.strata[s]: self.gate(s) for s in self.strata}
        return Hierarchy(
            name=name,
            fibrations=fibrations,
            gates=gates,
            decomposition=split,
            objective=self.objective(),
            assume=self.assume,
            orthogonalise="projection" if self.projected else None,
            rows=Stratum(self.kind.rows),
            gives_up={} if self.projected or not self.kind.base else {"orthogonality": "crossed at random"},
        )

    # ------------------------------------------------------------ kernels

    def fibrations(self) -> list[Fibration]:
        base = self.kind.base.split()
        spread = {b for s in base for b in (s, *self.coarser(s))}
        kernels: dict[tuple[str, str], MarkovKernel] = {}
        if base:
            measure = self.measure(base)
            for a, b in self.kind.pairs:
                if a in spread:
                    even = len(base) == 1 and measure(a) == as_expression(1)
                    kernels[a, b] = uniform() if even else MarkovKernel(measure(a) / measure(b))
        for target in self.strata:
            sources = [a for a, b in self.kind.pairs if b == target and (a, b) not in kernels]
            made = self.joint(sources, target) if len(sources) > 1 else [self.single(s, target) for s in sources]
            kernels.update({(s, target): k for s, k in zip(sources, made, strict=True)})
        return [Fibration(self.strata[a], self.strata[b], kernel=kernels[a, b]) for a, b in self.kind.pairs]

    def measure(self, base: list[str]) -> Callable[[str], Expression]:
        """One additive measure of all that is spread over an element of a stratum."""
        if len(base) > 1:  # several leaves: their tokens count alike

            def tokens(over: str) -> Expression:
                parts = [as_expression(1) if s == over else count(self.strata[s], over=self.strata[over])
                         for s in base if s == over or over in self.coarser(s)]  # fmt: skip
                return functools.reduce(lambda x, y: x + y, parts)

            return tokens
        (b,) = base
        of = self.random.choice([b, b, *(self.finer(b) if len(self.leaves) == 1 else [])])
        attribute = self.attributes.get(of) if self.chance(0.5) else None

        def one(over: str) -> Expression:
            if attribute is not None:
                return attribute if of == over else total(attribute, over=self.strata[over])
            return as_expression(1) if of == over else count(self.strata[of], over=self.strata[over])

        return one

    def single(self, a: str, b: str) -> MarkovKernel:
        full = [f for f in (a, *self.finer(a)) if self.tokens(f) == self.tokens(a)]  # none of them can be empty
        measures: list[Expression] = [count(self.strata[f]) for f in full]
        measures += [total(self.attributes[f]) for f in full if f in self.attributes]
        made = self.one(uniform, lambda: proportional(self.random.choice(measures)))
        if self.chance(0.25) and b not in self.leaves:
            even = 1 / count(self.strata[a], over=self.strata[b])
            share = proportional(self.random.choice(measures)).weight
            mixture = self.share(f"mix_{a}")
            made = self.one(
                lambda: MarkovKernel(mixture * share + (1 - mixture) * even),
                lambda: MarkovKernel(where(count(self.strata[a], over=self.strata[b]) <= 2, share, even)),
            )
        return made

    def tokens(self, s: str) -> set[str]:
        """The leaves over a stratum."""
        return {leaf for leaf in self.leaves if leaf == s or s in self.coarser(leaf)}

    def share(self, name: str) -> Expression:
        """A parameter, where no index needs its value."""
        value = round(self.random.uniform(0.2, 0.8), 3)
        return Parameter(name, default=value, upper=1) if self.parametric else as_expression(value)

    def joint(self, sources: list[str], target: str) -> list[MarkovKernel]:
        """Kernels that are reflecting together."""
        t = self.strata[target]

        def measured(s: str) -> tuple[Expression, Expression]:
            """A measure at `s`, and its total over the target."""
            if s in self.attributes and self.chance(0.5):
                return self.attributes[s], total(self.attributes[s], over=t)
            finest = [f for f in (s, *self.finer(s)) if f == s or len(self.finer(f)) == 0]
            of = self.random.choice(finest[:1] if len(finest) > 2 else finest)
            return (as_expression(1) if of == s else count(self.strata[of])), count(self.strata[of], over=t)

        def together() -> list[MarkovKernel]:
            pairs = [measured(s) for s in sources]
            whole = functools.reduce(lambda x, y: x + y, (w for _, w in pairs))
            return [MarkovKernel(own / whole) for own, _ in pairs]

        def shared() -> list[MarkovKernel]:
            self.assume += [populated(self.strata[s], over=t) for s in sources]
            rest = 1.0
            kernels = []
            for i, s in enumerate(sources):
                share = rest if i == len(sources) - 1 else round(rest * self.random.uniform(0.3, 0.6), 3)
                rest = round(rest - share, 3)
                kernels.append(uniform(share) if self.chance(0.6) else proportional(count(self.strata[s]), share))
            return kernels

        def if_there() -> list[MarkovKernel]:
            first, second = (count(self.strata[s], over=t) for s in sources)
            share = self.share(f"share_{target}")
            return [
                MarkovKernel(where(second > 0, share, 1) / first),
                MarkovKernel(where(first > 0, 1 - share, 1) / second),
            ]

        return self.one(together, together, shared, *([if_there] if len(sources) == 2 else []))

    # ------------------------------------------------------------ coordinates and weights

    def scale(self) -> Expression:
        rows = self.kind.rows
        options: list[Expression] = [mass] * 3
        if len(self.roots) == 1:
            options += [as_expression(1), as_expression(0.5)]
            if all(rows in self.coarser(leaf) for leaf in self.leaves):
                over = [count(self.strata[leaf], over=self.strata[rows]) for leaf in self.leaves]
                options += [1 / functools.reduce(lambda x, y: x + y, over)] * 2
        return self.random.choice(options)

    def decomposition(self) -> Decomposition:
        scale = self.scale()
        if self.signed:
            return signed_log_ratio(scale=scale)
        return self.one(
            lambda: log_ratio(scale=scale),
            lambda: log_ratio(scale=scale),
            lambda: ratio_deviation(scale=scale),
            lambda: decomposition(density=scale * expm1(token_log_ratio), recovery=1 + gated("") / scale, scale=scale),
        )

    def objective(self) -> Objective:
        length = Parameter("length", default=64)
        made = self.one(trajectory_mean, token_mean, lambda: constant_normaliser(length))
        return made.score() if self.chance(0.25) else made

    # ------------------------------------------------------------ gates

    def gate(self, s: str) -> Gate:
        made = self.registered(s) if self.chance(0.5) else self.formula(s)
        if len(self.roots) > 1 or self.chance(0.65):
            return made.per(mass)
        scales = [as_expression(0.5), as_expression(2), self.size(s), 1 / self.size(self.roots[0])]
        if s in self.attributes:
            scales.append(self.attributes[s])
        return made.per(self.random.choice(scales)) if self.chance(0.4) else made

    def size(self, s: str) -> Expression:
        """How many tokens lie over an element: never 0."""
        parts = [as_expression(1) if leaf == s else count(self.strata[leaf], over=self.strata[s])
                 for leaf in self.leaves if leaf == s or s in self.coarser(leaf)]  # fmt: skip
        return functools.reduce(lambda x, y: x + y, parts)

    def fits(self, gate: Gate, s: str) -> bool:
        return advantage not in set(atoms(gate.expression)) or self.reads_advantage(s)

    def reads_advantage(self, s: str) -> bool:
        return (s in self.leaves or s == self.kind.rows) and not self.signed

    def places(self, s: str) -> list[Stratum]:
        return [self.strata[c] for c in self.coarser(s) if c != BATCH]

    def formula(self, s: str) -> Gate:
        p, q = self.parameter("p", s, 0.05, 0.5, upper=1), self.parameter("q", s, 0.05, 0.5, upper=1)
        r = residual
        options: list[Callable[[], Expression]] = [
            lambda: p * tanh(r / p),
            lambda: 4 * q * (sigmoid(r / q) - 0.5),
            lambda: r / sqrt(1 + (r / p) ** 2),
            lambda: where(r >= 0, r / (1 + log1p(r * r)), r),
            lambda: where(r >= 0, -expm1(-r), expm1(r)),
            lambda: clip(r, -p, q),
            lambda: maximum(minimum(r, p), -0.3),
            lambda: where(r > p, p + q * (r - p), where(r < -p, -p + q * (r + p), r)),
            lambda: where((r > 2 * p) | (r < -q), 0, r),
            lambda: where(self.size(s) <= 3, r, clip(r, -p, p)),
        ]
        readable = self.coarser(s) * 2 if len(self.roots) == 1 else []  # of several roots the unit is free
        for c in readable:
            base = density(self.strata[c])
            other = density(self.strata[c], "-") if self.signed else base
            options += [
                lambda base=base: clip(r, -(p + absolute(base)), p + absolute(base)),
                lambda base=base: r / (1 + base * base * r * r),
                lambda base=base: where(base > 0.05, p * tanh(r / p), r),
                lambda other=other: clip(r, -p - absolute(other) / 2, p),
            ]
        if s in self.attributes:
            w = self.attributes[s]
            options += [lambda: clip(r, -p * w, q * w), lambda: r / (1 + w * r * r)]
        coarse = next((c for c in self.coarser(s) if c in self.attributes), None)
        if coarse is not None:
            options.append(lambda: clip(r, -p, p * self.attributes[coarse]))
        if self.reads_advantage(s):
            options += [lambda: where(advantage > 0, minimum(r, p), maximum(r, -q))] * 4
        return Gate(self.random.choice(options)())


# ---------------------------------------------------------------- batches


def batch_for(h: Hierarchy, seed: int, small: bool = False, balanced: bool = False, zeros: str = "") -> Batch:
    """Rows of 1 token beside longer and empty ones, an empty branch now and then; some or all x exactly 0.

    `small`: at most about twenty tokens. `balanced`: every cell of the crossed strata has the same rows and lengths.
    `zeros`: none, some or all x are 0. What a projection cannot tell apart is drawn again.
    """
    for attempt in range(60):
        batch = _batch(h, np.random.default_rng([seed, attempt, 17]), small, balanced, zeros)
        if not h.orthogonalise:
            return batch
        try:
            packed(Operator(h, Report(h, ()), "none", "", {}, _refuse), batch)
        except HierarchyIndexError as error:
            if "cannot be separated" not in str(error):
                raise
            continue
        return batch
    raise AssertionError(f"'{h.name}': sixty batches whose effects cannot be separated")


def _refuse(*_: Any) -> Any:
    raise AssertionError("an operator without code was called")


def _batch(h: Hierarchy, generator: np.random.Generator, small: bool, balanced: bool, zeros: str) -> Batch:
    leaves = [s.name for s in h.leaves]
    if balanced:
        cells = [(d, m, g) for d in range(2) for m in range(2) for g in range(8)]
        lengths = np.full(len(cells), 6 if len(leaves) > 1 else 2)
    else:
        n_rows = int(generator.integers(3, 5 if small else 9)) + 2 * bool(h.orthogonalise)
        cells = list(zip(*(generator.integers(0, k, size=n_rows) for k in (3, 2, 8)), strict=True))
        lengths = generator.integers(0, 5 if small else 9, size=n_rows)
        lengths[generator.integers(n_rows)] = 1
        if not small and generator.random() < 0.15:
            lengths[generator.integers(n_rows)] = 60
        if h.assume:  # no empty branch: every row has all leaves, in each of its pictures and turns
            lengths = np.where(lengths > 0, np.maximum(lengths, 2 * len(leaves)), 0)
        while lengths.sum() in (0, 1, n_rows) or lengths.sum() < len(leaves):
            lengths[generator.integers(n_rows)] += 2
    row = np.repeat(np.arange(len(cells)), lengths)
    within = np.arange(len(row)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    n = len(row)

    leaf = _leaf_of_tokens(h, generator, row, within, balanced)
    token_labels: dict[str, list[Any]] = {}
    if len(leaves) > 1:
        token_labels |= {name: [bool(own == k) for own in leaf] for k, name in enumerate(leaves)}
    step = within % 2 if balanced else within // 3 if generator.random() < 0.5 else within % 3
    turn = [int(r) * 1000 + int(t) for r, t in zip(row, step, strict=True)]
    expert = within % 2 if balanced else generator.integers(0, 3, size=n)
    fine = {
        "turn": turn,
        "picture": [f"{r}/{int(i) % 2}" for r, i in zip(row, within, strict=True)],
        "expert": [f"expert {e}" for e in expert],
        "tool": [f"tool {t % 2 if balanced else (t * 7919 >> 3) % 3}" for t in turn],
        "state": [f"state {(int(r) // 2, int(i) // 2)}" for r, i in zip(row, within, strict=True)],
    }
    names = {s.name for s in h.strata}
    for name, given in fine.items():
        if name in names:
            mine = [k for k, one in enumerate(leaves) if name in {s.name for s in h.coarser(Stratum(one))}]
            token_labels[name] = [g if own in mine else None for g, own in zip(given, leaf, strict=True)]
    labels = {
        name: [make(f"domain {'abc'[d] * (d + 1)}", f"modality {m}", g) for d, m, g in cells]
        for name, make in GROUPS.items()
    }

    scale = [0.05, 0.2, 0.6][int(generator.integers(3))]
    drift = generator.normal(size=3)[[d for d, _, _ in cells]] + generator.normal(size=len(cells))
    x = scale * (0.5 * drift[row] + 0.3 * leaf + generator.normal(size=n))
    drawn = ["none", "some", "some", "all"][int(generator.integers(4))]
    zeros = zeros or drawn
    if zeros != "none":
        x[generator.random(n) < (0.3 if zeros == "some" else 2)] = 0.0
    per_row = generator.random() < 0.3 or any(
        {advantage, pull} & set(atoms(g.expression)) for s, g in h.gates.items() if s not in h.leaves
    )
    advantages = generator.normal(size=len(cells))[row] if per_row else generator.normal(size=n)
    batch = Batch(
        lengths=tuple(int(k) for k in lengths), x=x, advantages=advantages, labels=labels, token_labels=token_labels
    )
    return replace(
        batch,
        attributes={a.name: _spread(batch, a, h, generator, balanced) for a in h.attributes.values()},
        parameters=_chosen(batch, h, generator),
    )


def _leaf_of_tokens(h: Hierarchy, generator: np.random.Generator, row: Any, within: Any, balanced: bool) -> Any:
    """The number of every token's leaf: all leaves in every row where that is assumed, else a branch may be empty."""
    k = len(h.leaves)
    if k == 1 or balanced:
        return within % k
    leaf = generator.integers(0, k, size=len(row))
    if h.assume:
        leaf = within // 2 % k
    else:
        whole = generator.random(int(row.max()) + 1) < 0.3  # rows of one kind
        leaf = np.where(whole[row], generator.integers(0, k, size=int(row.max()) + 1)[row], leaf)
    for j in range(k):  # every leaf has a token
        if not (leaf == j).any():
            leaf[j] = j
    return leaf


def _spread(batch: Batch, a: Attribute, h: Hierarchy, generator: np.random.Generator, balanced: bool) -> Any:
    """Multiples of 1/64, whose sums are exact."""
    names = names_of(batch, a.on, h)
    values = generator.integers(32, 128, size=batch.tokens if names is None else len(names)) / 64
    values = np.ones_like(values) if balanced else values
    return values if names is None else dict(zip(names, values.tolist(), strict=True))


def _chosen(batch: Batch, h: Hierarchy, generator: np.random.Generator) -> dict[str, Any]:
    """Values for some of the parameters: a number, one per channel, one per element."""

    chosen: dict[str, Any] = {}
    for p in h.parameters.values():
        readers = [s for s, g in h.gates.items() if p in set(atoms(g.expression))]
        home = p.on or (readers[0] if readers and readers[0] not in h.leaves else Stratum(BATCH))
        names, kind = names_of(batch, home, h), generator.integers(3)
        if kind == 0:
            chosen[p.name] = near(p.default, p, generator)
        elif kind == 1 and names is not None and readers:
            chosen[p.name] = {name: near(p.default, p, generator) for name in names}
    return chosen


def written(h: Hierarchy) -> str:
    """Everything that a hierarchy declares, in words."""
    gates = (g.written for g in h.gates.values())
    return " ".join([*gates, str(h.decomposition), str(h.objective), *map(str, h.fibrations)])
