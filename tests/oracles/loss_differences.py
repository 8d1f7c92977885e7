"""Whether a coefficient of two losses differs on random batches, by the definition in rationals (`definition.py`).

The drawn batches meet the conditions. The module uses none of the library's comparison. An infinite parameter is a
large number.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from fibration import Hierarchy, advantage
from fibration.language.atoms import Component, Count, Place, Stratum, Total
from fibration.language.expressions import Expression
from fibration.language.policies import LogProb
from fibration.language.statistics import Aggregate
from fibration.language.traversal import atoms
from oracles.definition import ADVANTAGE, FUNCTIONS, WHOLE, Dual, Formulas, World, X, inside, real

F = Fraction
TINY = F(1, 10**25)
LARGE = F(10**6)


@dataclass(frozen=True)
class Batch:
    """The element of every stratum that a token lies over, by the stratum's name; None where it lies over none."""

    labels: Mapping[str, Sequence[int | None]]
    xs: Sequence[Fraction]
    advantages: Sequence[Fraction]
    parameters: Sequence[Mapping[str, Mapping[str, Fraction]]]  # of each hierarchy, by name and channel
    log_probs: Mapping[str, Sequence[Fraction]] = field(default_factory=dict)  # of frozen policies


class Short(Formulas):
    """What is a short rational but for its last digits is one: a tie stays one though logarithms are rounded."""

    def apply(self, op: str, a: Any, b: Any = None, c: Any = None) -> Any:
        found = super().apply(op, a, b, c)
        if op not in FUNCTIONS:
            return found
        short = found.value.limit_denominator(10**8)
        return Dual(short, found.slope) if abs(short - found.value) < F(1, 10**35) else found


@dataclass
class Spoken(World):
    """A batch of which several policies say something: what is read of single tokens, and of all over an element."""

    xs: Sequence[Fraction] = ()
    advantages: Sequence[Fraction] = ()
    log_probs: Mapping[str, Sequence[Fraction]] = field(default_factory=dict)

    def read(self, a: Expression, stratum: Stratum, element: int) -> Any:
        if isinstance(a, Aggregate):
            return self.statistic(a, self.below(stratum, element, a.over or stratum))
        if (stratum, element) not in self.tokens or not (isinstance(a, LogProb) or a in (X, ADVANTAGE)):
            return super().read(a, stratum, element)
        k = self.tokens.index((stratum, element))
        if isinstance(a, LogProb):
            name = a.policy.name
            return Dual(self.log_probs["old"][k] + self.xs[k] if name == "current" else self.log_probs[name][k])
        return Dual(self.xs[k] if a == X else self.advantages[k])

    def at_token(self, e: Expression, k: int) -> Any:
        """A formula of a token: a number, or whether a condition holds."""
        found = Short()(e, lambda a: self.read(a, *self.tokens[k]))
        return found.value if isinstance(found, Dual) else found

    def statistic(self, a: Aggregate, element: int) -> Any:
        inside = [k for k, (s, i) in enumerate(self.tokens) if self.below(s, i, a.over) == element]
        values = [self.at_token(a.formula, k) for k in inside]
        if a.kind == "some":
            return any(values)
        ranked = sorted(values)
        if a.kind == "quantile":
            place = self.value(a.level, WHOLE, 0) * (len(ranked) - 1)
            low = math.floor(place)
            high = min(low + 1, len(ranked) - 1)
            return Dual(ranked[low] + (place - low) * (ranked[high] - ranked[low]))
        of = {"total": sum(values, F(0)), "mean": sum(values, F(0)) / len(values), "largest": ranked[-1]}
        return Dual(of[a.kind])

    def weight_of(self, k: int) -> Fraction:
        """`μ·w` of a token; 0 if it is not kept."""
        objective = self.h.objective
        if not all(self.at_token(keep.condition, k) for keep in objective.kept):
            return F(0)
        found = self.mu(k)
        for w in objective.weighed:
            found *= self.at_token(w, k)
        return found

    def mu(self, token: int) -> Fraction:
        """Where tokens are normalised by what is kept, of a batch that has no others."""
        counted = [c.condition for c in self.h.objective.kept if c.normaliser == "kept"]
        there = [p for k, p in enumerate(self.tokens) if all(self.at_token(c, k) for c in counted)]

        def number(a: Expression) -> Fraction:
            if not isinstance(a, (Count, Total)):
                return self.atom(a, self.h.rows, self.below(*self.tokens[token], self.h.rows))
            over = self.place(a.over, self.h.rows)
            base = self.below(*self.tokens[token], over)
            of = self.h.leaves if a.of == Place("leaf") else [self.place(a.of, self.h.rows)]
            inside = [(s, self.below(*p, s)) for p in there if self.below(*p, over) == base for s in of]
            found = {(s, e) for s, e in inside if e is not None}
            return sum((F(1) if isinstance(a, Count) else self.values[a.attribute][e] for _, e in found), F(0))

        return Formulas()(self.h.objective.weight, lambda a: Dual(number(a))).value


def differs(pair: Any, number: int, seed: int = 0) -> Batch | None:
    """A batch on which some token has another coefficient; None if that is so on none of as many."""
    for batch in drawn(pair, number, seed):
        mine, yours = (coefficients(h, batch, k) for k, h in enumerate((pair.first, pair.second)))
        if any(abs(c - d) > TINY * max(1, abs(c), abs(d)) for c, d in zip(mine, yours, strict=True)):
            return batch
    return None


def coefficients(h: Hierarchy, batch: Batch, which: int) -> list[Fraction]:
    """`c_i` of every token, in the order of the batch: the slope of `J` along one log ratio after another."""
    world, order = world_of(h, batch, which)
    mu = [world.weight_of(k) for k in range(len(order))]
    a = [batch.advantages[i] for i in order]
    xs = [batch.xs[i] for i in order]
    if h.objective.estimator == "score":
        own = [r.value for r in world.run([Dual(x) for x in xs], a, Short()).ratio]
        found = [m * v * g for m, v, g in zip(mu, a, own, strict=True)]
    else:
        found = []
        for k in range(len(order)):
            moved = [Dual(x, F(i == k)) for i, x in enumerate(xs)]
            ratio = world.run(moved, a, Short()).ratio
            found.append(sum((m * v * r.slope for m, v, r in zip(mu, a, ratio, strict=True)), F(0)))
    return [found[order.index(i)] for i in range(len(order))]


def world_of(h: Hierarchy, batch: Batch, which: int) -> tuple[Spoken, list[int]]:
    """The batch as a hierarchy sees it, and its tokens leaf by leaf."""
    strata = {*h.strata, h.rows, WHOLE}
    labels = {s: batch.labels[s.name] for s in strata}
    elements = {s: list(dict.fromkeys(e for e in labels[s] if e is not None)) for s in strata}
    first = {s: [list(labels[s]).index(e) for e in elements[s]] for s in strata}
    edges = {(f.source, f.target) for f in h.fibrations} | {(leaf, h.rows) for leaf in h.leaves}
    parents = {(s, t): [elements[t].index(labels[t][i]) for i in first[s]] for s, t in edges}
    values: dict[Any, Any] = {}
    for p in h.parameters.values():
        for channel, value in batch.parameters[which][p.name].items():
            values[Component(p, channel) if p.per_channel else p] = value
    order = [i for leaf in h.leaves for i in first[leaf]]
    xs, advantages = ([given[i] for i in order] for given in (batch.xs, batch.advantages))
    said = {name: [given[i] for i in order] for name, given in batch.log_probs.items()}
    return Spoken(h, {s: len(e) for s, e in elements.items()}, parents, values, {}, xs, advantages, said), order


# ---------------------------------------------------------------- batches


def drawn(pair: Any, number: int, seed: int = 0) -> Iterator[Batch]:
    """Random batches that both take and the conditions allow."""
    rng = random.Random(seed)
    for _ in range(number):
        yield _one(pair, rng)


def _one(pair: Any, rng: random.Random) -> Batch:
    when = {c.replace(" ", "") for c in pair.when}
    rows = 1 if "one(trajectory)" in when else rng.randint(1, 3)
    length = rng.randint(1, 3)
    lengths = [length if "equal(count(token,over=trajectory))" in when else rng.randint(1, 3) for _ in range(rows)]
    row = [r for r, n in enumerate(lengths) for _ in range(n)]
    domain = [0 if "one(domain)" in when else rng.randint(0, 1) for _ in range(3)]
    group = [0 if "one(prompt_group)" in when else rng.randint(0, 2) for _ in lengths]
    n, leaves = len(row), [s.name for s in pair.first.leaves]
    leaf = [rng.choice(leaves) for _ in row]
    labels: dict[str, list[int | None]] = {
        "trajectory": [*row],
        "prompt_group": [group[r] for r in row],
        "domain": [domain[group[r]] for r in row],
        "expert": [rng.randint(0, 1) for _ in row],
        "batch": [0] * n,
    }
    labels |= {name: [i if own == name else None for i, own in enumerate(leaf)] for name in leaves}
    for s in leaves:  # every leaf has a token
        if all(e is None for e in labels[s]):
            return _one(pair, rng)
    scale = rng.choice([F(1, 5000), F(1, 50), F(1, 5), F(1)])
    xs = [scale * rng.choice([0, 1, 1, 1]) * F(rng.randint(-24, 24), 8) for _ in row]
    if "on_policy" in when:
        xs = [F(0)] * n
    one_each = "advantage=trajectory" in when or any(
        advantage in set(atoms(g.expression))
        for h in (pair.first, pair.second)
        for s, g in h.gates.items()
        if s not in h.leaves
    )
    sign = {"advantage>=0": (0, 3), "advantage<0": (-3, -1)}
    low, high = next((sign[c] for c in when if c in sign), (-3, 3))
    per_row = [F(rng.randint(low, high), 2) for _ in lengths]
    advantages = [per_row[r] if one_each else F(rng.randint(low, high), 2) for r in row]
    one_policy = "on_policy" in when or "same(old,rollout)" in when
    said: dict[str, list[Fraction]] = {"old": [], "rollout": []}
    for x in xs:
        apart = F(0) if one_policy else scale * F(rng.randint(-24, 24), 8)
        said["old"].append(-max(x, F(0), apart) - rng.choice([F(0), F(1, 20), F(1), F(4)]))
        said["rollout"].append(said["old"][-1] + apart)
    said["rollout"] = [min(v, F(0)) for v in said["rollout"]]
    return Batch(labels, xs, advantages, _parameters(pair, rng), said)


def _parameters(pair: Any, rng: random.Random) -> list[dict[str, dict[str, Fraction]]]:
    """One value for what is one parameter, inside the bounds of all that it is called."""
    both = [pair.first.parameters, pair.second.parameters]
    called = [{n: pair.parameters.get(n, n) for n in both[0]}, {n: n for n in both[1]}]
    called = [{n: v if isinstance(v, str) else n for n, v in names.items()} for names in called]
    chosen: dict[str, dict[str, Fraction]] = {}
    for name in dict.fromkeys((*called[0].values(), *called[1].values())):
        same = [ps[n] for ps, names in zip(both, called, strict=True) for n, own in names.items() if own == name]
        lows = [p.lower for p in same if p.lower is not None]
        highs = [p.upper for p in same if p.upper is not None]
        low, high = max(lows, default=None), min(highs, default=None)
        for channel in ("+", "-") if same[0].per_channel else ("",):
            size = rng.choice([F(1, 50), F(1, 4), F(1, 2), F(12, 13)])
            value = inside(low, high, size)
            given = pair.parameters.get(name)
            fixed = value if given is None or isinstance(given, str) else LARGE if given == math.inf else F(given)
            chosen.setdefault(name, {})[channel] = fixed
    return [{n: chosen[own] for n, own in names.items()} for names in called]


def agrees_with(h: Hierarchy, found: Sequence[Fraction], batch: Batch, which: int) -> bool:
    """Whether coefficients that somebody else has found are those of the definition."""
    own = coefficients(h, batch, which)
    return all(abs(c - d) <= TINY * max(1, abs(c), abs(d)) for c, d in zip(found, own, strict=True))


def batch_of(witness: Any, pair: Any) -> Batch:
    """The batch of a counterexample, rebuilt from what it says."""
    concrete, values = witness.concrete, witness.values
    tokens = [(Stratum(name), int(number) - 1) for name, number in (t.split() for t in values["tokens"])]
    strata = concrete.shape.strata

    def label(s: Stratum, leaf: Stratum, i: int) -> int | None:
        return concrete.below(leaf, i, s) if s == leaf or s in concrete.shape.coarser(leaf) else None

    labels = {s.name: [label(s, leaf, i) for leaf, i in tokens] for s in strata}
    if "ratios" in values:
        xs = [real("log", r) for r in values["ratios"]]
    else:
        xs = list(values["log_ratios"])
    known = {str(p): v for p, v in concrete.parameters.items()}
    parameters = []
    for h, names in ((pair.first, {}), (pair.second, {v: k for k, v in pair.parameters.items() if isinstance(v, str)})):
        found: dict[str, dict[str, Fraction]] = {}
        for n, p in h.parameters.items():
            for channel in ("+", "-") if p.per_channel else ("",):
                word = f"{names.get(n, n)}[{channel}]" if channel else names.get(n, n)
                found.setdefault(n, {})[channel] = LARGE if pair.parameters.get(n) == math.inf else known[word]
        parameters.append(found)
    said = {n.removeprefix("log_probs of "): v for n, v in values.items() if n.startswith("log_probs of ")}
    for name, given in values.items():
        if name.startswith("probabilities of "):
            said[name.removeprefix("probabilities of ")] = [real("log", v) for v in given]
    return Batch(labels, xs, values["advantages"], parameters, said)
