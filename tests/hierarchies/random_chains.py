"""Random chains of 1 to 6 strata, and random batches for them. A seed always gives the same chain.

Parts come from the registry of constructors, so a new gate is drawn as soon as it is registered. Formulas pass through 0
with slope 1, which keeps most laws.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from support import Batch, example_words, reads_advantage

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
    count,
    decomposition,
    density,
    exp,
    expm1,
    gated,
    identity_gate,
    log1p,
    log_ratio,
    maximum,
    minimum,
    ratio_deviation,
    residual,
    sigmoid,
    signed_log_ratio,
    sqrt,
    strata,
    tanh,
    token_log_ratio,
    total,
    trajectory_mean,
    where,
    zero_gate,
)
from fibration.language.atoms import BATCH, Stratum
from fibration.language.expressions import Expression, as_expression
from fibration.language.grammar import CONSTRUCTORS, construct
from fibration.language.outline import home
from fibration.language.traversal import atoms

T = TypeVar("T")
DEPTHS = (1, 2, 3, 4, 2, 1, 3, 2, 5, 6, 1, 2, 3, 4, 2, 1, 3, 2, 5, 4)  # strata in a chain, by its seed
token, sentence, turn, trajectory, prompt_group, domain = strata("token sentence turn trajectory prompt_group domain")
ROOT = Stratum(BATCH)
ABOVE = (sentence, turn, trajectory, prompt_group, domain, ROOT)


# ---------------------------------------------------------------- chains


@functools.cache
def chain(seed: int) -> Hierarchy:
    """Gates, kernels, decomposition, objective, parameters and attributes drawn at random."""
    return _Draw(f"{seed}/0", DEPTHS[seed % len(DEPTHS)]).hierarchy(f"chain_{seed}")


@functools.cache
def linear_chain(seed: int) -> Hierarchy:
    """As `chain`, with gates that pass a level or remove it: `G` is a linear map of the log ratios."""
    return _Draw(f"linear {seed}/0", DEPTHS[seed % len(DEPTHS)]).linear(f"linear_{seed}")


class Drawn:
    """Parts of a hierarchy: numbers, parameters, and gates of the registry."""

    signed: bool
    fits: Callable[[Gate, Any], bool]  # whether the gate reads nothing that its stratum has not
    size: Callable[[Any], Expression]
    places: Callable[[Any], list[Stratum]]  # of which a parameter may have a value each
    formula: Callable[[Any], Gate]

    def __init__(self, seed: str) -> None:
        self.random = random.Random(seed)

    def chance(self, p: float) -> bool:
        return self.random.random() < p

    def one(self, *options: Callable[[], T]) -> T:
        """One of several, of which only that one is made."""
        return self.random.choice(options)()

    def registered(self, s: Any) -> Gate:
        """A gate of the registry, each free word of its example a parameter, some of them a number or a count."""
        texts = [t for c in CONSTRUCTORS.values() if issubclass(c.kind, Gate) for t in c.examples]
        text = self.random.choice(texts)
        gate = construct(Gate, text, {word: self.argument(word, s) for word in example_words(text)}, "an example")
        return self.formula(s) if not self.fits(gate, s) or (gate == zero_gate() and self.chance(0.7)) else gate

    def argument(self, word: str, s: Any) -> Any:
        if word == "k":
            return self.one(lambda: as_expression(3), lambda: self.size(s), lambda: self.parameter("k", s, 2.0, 6.0))
        if word == "ceiling":
            return self.parameter("ceiling", s, 1.5, 3.0, lower=1)
        return self.parameter(word, s, 0.05, 0.4, upper=1)

    def parameter(self, word: str, s: Any, low: float, high: float, **bounds: Any) -> Parameter:
        value = round(self.random.uniform(low, high), 3)
        two = self.signed and self.chance(0.5) and bounds.get("lower", 0) == 0
        coarser = self.places(s)
        return Parameter(
            f"{word}_{s}",
            default={"+": value, "-": round(1.25 * value, 3)} if two else value,
            per_channel=two,
            on=self.random.choice(coarser) if coarser and self.chance(0.3) else None,
            **bounds,
        )


class _Draw(Drawn):
    """One chain."""

    def __init__(self, seed: str, depth: int) -> None:
        super().__init__(seed)
        above = sorted(self.random.sample(range(len(ABOVE)), depth - 1))
        self.rows = Stratum("sample") if self.chance(0.2) else trajectory
        self.strata = [token, *(self.rows if ABOVE[i] == trajectory else ABOVE[i] for i in above)]  # finest first
        self.root = self.strata[-1]
        self.attributes = {
            s: Attribute(f"w_{s.name}", on=s) for s in self.strata if self.chance(0.5) and s.name != BATCH
        }
        self.signed = self.chance(0.45)
        self.plain_kernels = depth > 4  # what the laws take apart case by case is kept to one kernel and one gate
        self.coupled = False

    # ------------------------------------------------------------ the whole

    def hierarchy(self, name: str) -> Hierarchy:
        split, kernels = self.decomposition(), self.kernels()
        plain = self.plain(name, split, kernels)
        units = {s.name: m for s, m in plain.masses.items()}
        gates = {s: self.gate(s, units[s.name]) for s in self.strata}
        return plain.replace(gates=gates, objective=self.objective(), gives_up=self.gives_up(gates))

    def linear(self, name: str) -> Hierarchy:
        h = self.plain(name, log_ratio(scale=self.scale()), self.kernels())
        gates = {s: zero_gate() if self.chance(0.4) else identity_gate() for s in self.strata}
        return h.replace(gates=gates, objective=self.objective(), gives_up=self.gives_up(gates))

    def gives_up(self, gates: dict[Stratum, Gate]) -> dict[str, str]:
        removed = any(g.written.startswith("zero_gate()") for g in gates.values())
        return {"first_order": "a level is removed"} if removed else {}

    def plain(self, name: str, split: Decomposition, kernels: list[Fibration]) -> Hierarchy:
        return Hierarchy(
            name=name,
            fibrations=kernels,
            gates={s: identity_gate() for s in self.strata},
            decomposition=split,
            objective=trajectory_mean(),
            rows=self.rows,
        )

    # ------------------------------------------------------------ kernels, coordinates, weights

    def kernels(self) -> list[Fibration]:
        return [Fibration(a, b, kernel=self.kernel(a, b)) for a, b in itertools.pairwise(self.strata)]

    def kernel(self, a: Stratum, b: Stratum) -> MarkovKernel:
        known = [c for c in CONSTRUCTORS.values() if issubclass(c.kind, MarkovKernel)]
        measure = self.measure(a)
        even, share = 1 / count(a, over=b), measure(a) / measure(b)
        mixture = Parameter(f"mix_{a.name}", default=self.random.uniform(0.2, 0.8), upper=1)
        text = self.random.choice([text for c in known for text in c.examples])
        if self.plain_kernels or self.chance(0.6):
            return construct(MarkovKernel, text, {"measure": measure(None)}, "a kernel")
        self.plain_kernels = True
        if len(self.strata) == 2 and self.chance(0.5):
            return MarkovKernel(mixture * share + (1 - mixture) * even)
        return MarkovKernel(where(count(a, over=b) <= 3, share, even))

    def measure(self, a: Stratum) -> Callable[[Stratum | None], Expression]:
        """An additive measure on `a` and below: a count, or the total of an attribute, of `a` or something finer."""
        finer = self.strata[: self.strata.index(a) + 1]
        of = self.random.choice(finer)
        if of in self.attributes and self.chance(0.6):
            return lambda over: total(self.attributes[of]) if over is None else total(self.attributes[of], over=over)
        return lambda over: count(of) if over is None else count(of, over=over)

    def scale(self) -> Expression | float:
        over = self.rows if self.rows in self.strata else self.root
        return self.random.choice([1, 1 / count(token, over=over), 1 / count(token, over=over), 0.5])

    def decomposition(self) -> Decomposition:
        scale = self.scale()
        if self.signed:
            return signed_log_ratio() if scale == 1 else signed_log_ratio(scale=scale)
        if len(self.strata) == 1 or (len(self.strata) == 2 and self.chance(0.3)):
            return self.one(
                lambda: ratio_deviation(scale=scale),
                lambda: decomposition(density=expm1(token_log_ratio), recovery=1 + gated("")),
            )
        known = [
            text
            for c in CONSTRUCTORS.values()
            if issubclass(c.kind, Decomposition) and "scale" not in inspect.signature(c.function).parameters
            for text in c.examples
        ]
        return self.one(
            lambda: log_ratio(scale=scale),
            lambda: decomposition(density=2 * token_log_ratio, recovery=exp(gated("") / 2)),
            *(lambda text=text: construct(Decomposition, text, {}, "a decomposition") for text in known),
        )

    def objective(self) -> Objective:
        texts = [t for c in CONSTRUCTORS.values() if issubclass(c.kind, Objective) for t in c.examples]
        length = Parameter("length", default=64)
        more = ["constant_normaliser(length)"]
        if self.rows in self.strata:
            more.append(f"constant_normaliser(count(token, over={self.rows.name}))")
        return construct(
            Objective,
            self.random.choice([*texts, *more]),
            {"length": length, **{s.name: s for s in self.strata}},
            "an objective",
            bare=Objective,
        )

    # ------------------------------------------------------------ gates

    def gate(self, s: Stratum, unit: Expression) -> Gate:
        made = self.registered(s) if self.chance(0.5) else self.formula(s)
        plain = unit.size < 20 and not any(isinstance(a, Parameter) for a in atoms(unit))  # else the laws take long
        if self.chance(0.6) and plain:
            return made.per(unit)  # a budget in units of the coordinate
        scales = [0.5, 2, count(token), 1 / count(token, over=self.root)]
        if s in self.attributes:
            scales.append(self.attributes[s])
        return made.per(self.random.choice(scales)) if self.chance(0.3) else made

    def fits(self, gate: Gate, s: Stratum) -> bool:
        alone = Hierarchy(name="alone", gates={s: gate}, decomposition=log_ratio(), objective=trajectory_mean())
        return not reads_advantage(alone) or (s in (token, self.rows) and not self.signed)

    def size(self, s: Stratum) -> Expression:
        return count(token)

    def places(self, s: Stratum) -> list[Stratum]:
        return self.strata[self.strata.index(s) + 1 :]

    def formula(self, s: Stratum) -> Gate:
        """A formula with value 0 and slope 1 at residual 0, from both sides and wherever else it may look."""
        p, q = self.parameter("p", s, 0.05, 0.5, upper=1), self.parameter("q", s, 0.05, 0.5, upper=1)
        r = residual
        options: list[Callable[[], Expression]] = [
            lambda: p * tanh(r / p),
            lambda: 4 * q * (sigmoid(r / q) - 0.5),
            lambda: r / (1 + r * r),
            lambda: r / sqrt(1 + (r / p) ** 2),
            lambda: where(r >= 0, r / (1 + log1p(r * r)), r),
            lambda: where(r >= 0, -expm1(-r), expm1(r)),
            lambda: where(r < 0, r / (1 + r * r), r),
            lambda: clip(r, -p, q),
            lambda: clip(r, -p, 2 * q),
            lambda: maximum(minimum(r, p), -0.3),
            lambda: where(r > p, p + q * (r - p), where(r < -p, -p + q * (r + p), r)),
            lambda: where((r > 2 * p) | (r < -q), 0, r),
            lambda: where((r >= -p) & ~(r > q), r, where(r > q, q, -p)),
            lambda: where(count(token) <= 3, r, clip(r, -p, p)),
        ]
        if s != self.root and not self.coupled:
            self.coupled = True
            base = density(self.random.choice(self.strata[self.strata.index(s) + 1 :]))
            room = p + absolute(base) / (1 + base * base)
            options += [
                lambda: clip(r, -room, room),
                lambda: r / (1 + base * base * r * r),
                lambda: where(base > 0.05, p * tanh(r / p), r),
            ]
            if self.signed:
                other = density(self.root, "-")
                options.append(lambda: clip(r, -p - other, p))
        if s in self.attributes:
            w = self.attributes[s]
            options += [lambda: clip(r, -p * w, q * w), lambda: r / (1 + w * r * r)]
        coarse = next((c for c in self.strata[self.strata.index(s) + 1 :] if c in self.attributes), None)
        if coarse is not None:
            options.append(lambda: clip(r, -p, p * self.attributes[coarse]))
        if s in (token, self.rows):
            options += [
                lambda: where(advantage > 0, minimum(r, p), maximum(r, -q)),
                lambda: r / (1 + advantage * advantage * r * r),
            ]
        return Gate(self.random.choice(options)())


# ---------------------------------------------------------------- batches


def batch_for(hierarchy: Hierarchy, seed: int, small: bool = False, smooth: bool = False) -> Batch:
    """Rows of 1 token beside long ones and empty ones; drift of its own at every level; some or all x exactly 0.

    `small`: at most about twenty tokens. `smooth`: no x at 0, where a loss may have a kink.
    """
    generator = np.random.default_rng([seed, 7])
    n_rows = int(generator.integers(2, 5 if small else 12))
    lengths = generator.integers(0, 5 if small else 40, size=n_rows)
    lengths[generator.integers(n_rows)] = 1
    if not small and generator.random() < 0.25:
        lengths[generator.integers(n_rows)] = generator.integers(500, 3000)
    while lengths.sum() in (1, n_rows):  # as many tokens as rows would not tell one from the other
        lengths[generator.integers(n_rows)] += 2
    row = np.repeat(np.arange(n_rows), lengths)
    n = len(row)

    domains = [f"domain {d}" for d in generator.integers(0, 3, size=n_rows)]
    groups = [(d, int(g)) for d, g in zip(domains, generator.integers(0, 2, size=n_rows), strict=True)]
    # turns are contiguous or interleaved, and numbered through; a sentence lies within a turn
    within = np.arange(n) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    step = within // 3 if generator.random() < 0.5 else within % 3
    turns = [int(r) * 10_000 + int(t) for r, t in zip(row, step, strict=True)]
    sentences = [f"{t}/{int(i) % 2}" for t, i in zip(turns, within, strict=True)]

    scale = [0.03, 0.15, 0.5, 1.2][int(generator.integers(4))]
    of_group = {g: generator.normal() for g in dict.fromkeys(groups)}
    drift = np.array([of_group[g] for g in groups]) + generator.normal(size=n_rows)
    x = scale * (0.4 * drift[row] + generator.normal(size=n))
    zeros = "none" if smooth else ["none", "some", "some", "all"][int(generator.integers(4))]
    if zeros != "none":
        x[generator.random(n) < (0.3 if zeros == "some" else 2)] = 0.0

    per_row = generator.random() < 0.3 or any(s != hierarchy.leaves[0] for s in reads_advantage(hierarchy))
    advantages = generator.normal(size=n_rows)[row] if per_row else generator.normal(size=n)
    if generator.random() < 0.2 and not per_row:
        advantages[::4] = 0.0
    batch = Batch(
        lengths=tuple(int(k) for k in lengths),
        x=x,
        advantages=advantages,
        labels={"prompt_group": groups, "domain": domains},
        token_labels={"turn": turns, "sentence": sentences},
    )
    return replace(
        batch,
        attributes={a.name: _spread(batch, a.on, hierarchy, generator) for a in hierarchy.attributes.values()},
        parameters=dict(_chosen(batch, hierarchy, generator)),
    )


def names_of(batch: Batch, s: Stratum, h: Hierarchy) -> list[Any] | None:
    """The labels of a stratum's elements, or None where they have none."""
    full = [r for r, k in enumerate(batch.lengths) if k]
    if s == h.rows:
        return full
    if s in h.leaves or s.name == BATCH:
        return None
    given = batch.token_labels.get(s.name) or [batch.labels[s.name][r] for r in full]
    return [name for name in dict.fromkeys(given) if name is not None]


def near(value: Any, p: Parameter, generator: np.random.Generator) -> Any:
    """Another value than the default, or one per channel."""
    if isinstance(value, dict):
        return {c: near(v, p, generator) for c, v in value.items()}
    low = p.lower or 0.0
    return float(min(low + (value - low) * generator.uniform(0.6, 1.2), 0.95 if p.upper == 1 else np.inf))


def _spread(batch: Batch, on: Stratum, h: Hierarchy, generator: np.random.Generator) -> Any:
    """A positive attribute: one number per token, or per label."""
    names = names_of(batch, on, h)
    values = generator.uniform(0.5, 2.0, size=batch.tokens if names is None else len(names))
    return values if names is None else dict(zip(names, values.tolist(), strict=True))


def _chosen(batch: Batch, h: Hierarchy, generator: np.random.Generator) -> Iterator[tuple[str, Any]]:
    """Values for some of the parameters: a number, one per channel, one per element."""

    for p in h.parameters.values():
        names = names_of(batch, Stratum(home(h, p)), h)
        value = dict(p.default) if isinstance(p.default, dict) else p.default
        per_channel = near(value, p, generator)
        kind = generator.integers(3)
        if kind == 0:
            yield p.name, per_channel
        elif kind == 1 and names is not None:
            yield p.name, {n: per_channel if i % 2 else value for i, n in enumerate(names)}
