"""Metrics that add up exactly over batches (sums with counts, extremes), and the names that select them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from fibration.compiler.diagnostics import REGIMES, has_pulls, levels, read_at, report_of
from fibration.compiler.ir import Key
from fibration.errors import BatchError, an, shown, suggest
from fibration.language.atoms import BATCH
from fibration.language.hierarchy import Hierarchy


@dataclass(frozen=True)
class Mean:
    """A sum and a count, both 0-d float64 tensors. `float()` is their quotient; `+` adds over batches."""

    sum: Tensor
    count: Tensor

    def __float__(self) -> float:
        return float(self.sum) / float(self.count) if float(self.count) else float("nan")

    def __add__(self, other: Mean) -> Mean:
        return Mean(self.sum + other.sum, self.count + other.count)

    def __repr__(self) -> str:
        return f"{float(self):.6g}"

    def __format__(self, spec: str) -> str:
        return format(float(self), spec or ".6g")


@dataclass(frozen=True)
class Extreme:
    """A maximum or a minimum, a 0-d float64 tensor; `+` keeps the more extreme of two."""

    value: Tensor
    largest: bool

    def __float__(self) -> float:
        return float(self.value)

    def __add__(self, other: Extreme) -> Extreme:
        pick = torch.maximum if self.largest else torch.minimum
        return Extreme(pick(self.value, other.value), self.largest)

    def __repr__(self) -> str:
        return f"{float(self):.6g}"

    def __format__(self, spec: str) -> str:
        return format(float(self), spec or ".6g")


Metric = Mean | Extreme


# ---------------------------------------------------------------- metrics of a hierarchy

ALL, WHOLE = "all", "levels"  # all metrics; all except metrics per element
Asked = frozenset[str]  # of `ALL`, `WHOLE`, names of strata, and `GROUPS`
GROUPS = ("gated_ratio", "divergences", "weights", "penalties")  # metrics that belong to no level


@dataclass(frozen=True)
class Row:
    """One metric of a program's outputs, or one per element of `over`: a sum, or an extreme without a count.

    `count`: what a sum is divided by: the number of elements of `count[0]` over `count[1]`, or an output.
    """

    name: str
    group: str
    key: Key
    over: str = BATCH
    count: tuple[str, str] | Key | None = None
    largest: bool = True

    @property
    def needs(self) -> tuple[Key, ...]:
        return (self.key, self.count) if isinstance(self.count, Key) else (self.key,)


@cache
def rows(hierarchy: Hierarchy) -> tuple[Row, ...]:
    """All metrics of a hierarchy."""
    return tuple(_rows(hierarchy))


def _rows(h: Hierarchy) -> Iterator[Row]:
    report, leaves, every = report_of(h), tuple(s.name for s in h.leaves), h.rows.name

    def of_level(name: str, word: str, stratum: str, channel: str) -> Iterator[Row]:
        is_sum = word != "peak"
        yield Row(name, stratum, report.total(word, stratum, channel), BATCH, (stratum, BATCH) if is_sum else None)
        for over in filter(report.has_elements, report.over(stratum)):
            key = report.key(word, stratum, channel, over)
            yield Row(name, stratum, key, over, (stratum, over) if is_sum else None)

    for stratum, channel in levels(h):
        key = f"{stratum}/{channel}" if channel else stratum
        for regime in (*REGIMES, "drift"):
            yield from of_level(f"{key}/{regime}", regime, stratum, channel)
        yield from of_level(f"{key}/drift_max", "peak", stratum, channel)
    for s in h.order if has_pulls(h) else ():
        yield Row(f"{s}/pull", s.name, Key("pull", s.name), count=Key("pull_sum"))
    for leaf in leaves:
        yield from of_level(f"{leaf}/clipped", "clipped", leaf, "")
    yield Row("gated_ratio/max", "gated_ratio", Key("ratio_max"))
    yield Row("gated_ratio/min", "gated_ratio", Key("ratio_min"), largest=False)
    for word in ("tv", "kl"):
        yield Row(word, "divergences", Key(word), count=(every, BATCH))
    kept = Key("kept") if h.objective.kept else (ALL, BATCH)
    if h.objective.kept:
        yield Row("kept", "weights", Key("kept"), count=(ALL, BATCH))
    for i in range(1, len(h.objective.weighed) + 1):
        word, name = f"weight_{i}", f"weight_{i}" if len(h.objective.weighed) > 1 else "weight"
        yield Row(f"{name}/mean", "weights", Key(word), count=kept)
        yield Row(f"{name}/mean_square", "weights", Key(f"{word}_square"), count=kept)
        yield Row(f"{name}/max", "weights", Key(f"{word}_max"))
    for name, penalty in h.penalties.items():
        counted = read_at(h, penalty).name
        yield Row(f"penalty/{name}", "penalties", Key("penalty_sum", name), count=(counted, BATCH))
    for name in (p.name for p in h.policies.values() if p.is_passed):
        for word in ("log_ratio", "kl"):
            yield Row(f"{name}/{word}", "divergences", Key(f"{name}_{word}"), count=(ALL, BATCH))


def asked_for(hierarchy: Hierarchy, metrics: object) -> Asked:
    """The metrics that `metrics=` names: True, False, one name or several. Raises BatchError for an unknown name."""
    if isinstance(metrics, bool):
        return frozenset({ALL} if metrics else ())
    words = [metrics] if isinstance(metrics, str) else metrics
    known = list(dict.fromkeys([s.name for s in hierarchy.order] + [g for g in GROUPS if g in _groups(hierarchy)]))
    required = f"True, False, or some of {', '.join(map(repr, (*known, WHOLE, ALL)))}"
    if not isinstance(words, Sequence) or not all(isinstance(w, str) for w in words):
        raise BatchError(f"metrics={shown(metrics)}", required=required, found=an(type(metrics).__name__))
    for word in words:
        if word not in (*known, WHOLE, ALL):
            group = next((row.group for row in rows(hierarchy) if row.name == word), "")
            what = (
                f"{word!r} is one metric, and metrics= takes sets"
                if group
                else f"'{hierarchy.name}' has no metrics called {word!r}"
            )
            remedy = f"'{word}' belongs to the set '{group}': pass metrics='{group}'" if group else suggest(word, known)
            raise BatchError(what, required=required, remedy=remedy)
    return frozenset(words)


def _groups(hierarchy: Hierarchy) -> set[str]:
    return {row.group for row in rows(hierarchy)}


def chosen(row: Row, asked: Asked) -> bool:
    """Whether a metric is requested. Metrics per element need both names: the group and the stratum of the elements."""
    if ALL in asked:
        return True
    if row.over != BATCH:
        return row.group in asked and row.over in asked
    return row.group in asked or WHOLE in asked
