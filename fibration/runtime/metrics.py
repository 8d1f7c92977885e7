"""Metrics that add up exactly over batches (sums with counts, extremes), the names that select them, and results.

A call's metrics are read from its program's outputs in one operation. Where they lie depends on labels alone, and is
computed once. Reading them does not wait for the device, and a replayed CUDA graph writes into the same memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from typing import Protocol

import torch
from torch import Tensor

from fibration.cache import Recent
from fibration.compiler.diagnostics import REGIMES, has_pulls, levels, read_at, report_of
from fibration.compiler.ir import Key
from fibration.compiler.program import Program
from fibration.errors import BatchError, an, shown, suggest
from fibration.language.atoms import BATCH
from fibration.language.hierarchy import Hierarchy
from fibration.runtime import devices
from fibration.runtime.batch import Outputs
from fibration.runtime.index.index import Index
from fibration.runtime.index.micro import MicroIndex, of_whole_step


class _Printed:
    def __repr__(self) -> str:
        return format(self)

    def __format__(self, spec: str) -> str:
        return format(float(self), spec or ".6g")  # type: ignore[arg-type]


@dataclass(frozen=True, repr=False)
class Mean(_Printed):
    """A sum and a count, both 0-d float64 tensors. `float()` is their quotient; `+` adds over batches."""

    sum: Tensor
    count: Tensor

    def __float__(self) -> float:
        return float(self.sum) / float(self.count) if float(self.count) else float("nan")

    def __add__(self, other: Mean) -> Mean:
        return Mean(self.sum + other.sum, self.count + other.count)


@dataclass(frozen=True, repr=False)
class Extreme(_Printed):
    """A maximum or a minimum, a 0-d float64 tensor; `+` keeps the more extreme of two."""

    value: Tensor
    largest: bool

    def __float__(self) -> float:
        return float(self.value)

    def __add__(self, other: Extreme) -> Extreme:
        pick = torch.maximum if self.largest else torch.minimum
        return Extreme(pick(self.value, other.value), self.largest)


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
    groups = {row.group for row in rows(hierarchy)}
    known = list(dict.fromkeys([s.name for s in hierarchy.order] + [g for g in GROUPS if g in groups]))
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


def chosen(row: Row, asked: Asked) -> bool:
    """Whether a metric is requested. Metrics per element need both names: the group and the stratum of the elements."""
    if ALL in asked:
        return True
    if row.over != BATCH:
        return row.group in asked and row.over in asked
    return row.group in asked or WHOLE in asked


# ---------------------------------------------------------------- metrics of one call

ALL_METRICS, NO_METRICS = frozenset({ALL}), frozenset[str]()
MANY = 64  # tables that an operator keeps
FEW = 32  # a coarsest stratum with more elements has no metrics per element


def metric_capacity(hierarchy: Hierarchy) -> int:
    """The most numbers that the metrics of a call have, whatever the batch: each has its own, and its own count."""
    return sum((1 if row.over == BATCH else FEW) + isinstance(row.count, Key) for row in rows(hierarchy))


@dataclass(frozen=True)
class Entry:
    """One metric: the place of its number, and what counts it.

    `count`: the place of another number; or (of, over, element): the elements of `of` over one of `over` are counted.
    """

    name: str
    at: int
    count: int | tuple[str, str, int] | None
    largest: bool


@dataclass(frozen=True)
class Table:
    """Where the numbers of metrics lie: rows of `blocks` of a stratum's outputs, then `vectors`, then constants."""

    blocks: tuple[tuple[str, Tensor], ...]  # the rows of each: int64
    vectors: tuple[tuple[Key, int], ...]  # of other outputs, each with its number of elements
    fixed: Tensor  # float64
    entries: tuple[Entry, ...]

    def read(self, outputs: Outputs) -> Tensor:
        """The numbers, float64, in memory of their own."""
        parts = [outputs.block(stratum).index_select(0, rows).view(-1) for stratum, rows in self.blocks]
        if len(parts) == 1 and not self.vectors and not self.fixed.numel():
            return parts[0]
        return torch.cat([*parts, *(outputs[key].expand(n) for key, n in self.vectors), self.fixed])


@dataclass(frozen=True)
class Measured:
    """The metrics of one call: their numbers, or the outputs that have them; and the index, which counts.

    A micro-batch has none: a metric is a number of the whole step.
    """

    source: Tensor | Outputs | None = None
    table: Table | None = None
    index: Index | None = None

    @cached_property
    def numbers(self) -> Tensor | None:
        """Read on first use; the outputs are then let go."""
        if not isinstance(self.source, Outputs) or self.table is None:
            return self.source  # type: ignore[return-value]
        found, self.source.work = self.table.read(self.source), None
        return found

    def metrics(self) -> dict[str, Metric]:
        """The metrics. Each has numbers of its own, so that changing one in place changes no other."""
        if isinstance(self.index, MicroIndex):
            raise of_whole_step(self.index.hierarchy, "metrics")
        if self.numbers is None or self.table is None:
            return {}
        numbers = self.numbers.unbind()
        return {
            e.name: Extreme(numbers[e.at], e.largest) if e.count is None else Mean(numbers[e.at], self._count(e.count))
            for e in self.table.entries
        }

    def _count(self, count: int | tuple[str, str, int]) -> Tensor:
        assert self.numbers is not None and self.index is not None
        if isinstance(count, int):
            return self.numbers[count]
        of, over, element = count
        return counted(self.index, of, over)[element].clone()

    def scalars(self, prefix: str, **more: Tensor) -> dict[str, float]:
        """`more`, 0-d tensors, and every metric over at least one element, in one copy from the device."""
        parts = [t.detach().reshape(1).double() for t in more.values()]
        if self.numbers is None or self.table is None:
            values: list[float] = torch.cat(parts).tolist()
            return {prefix + name: value for name, value in zip(more, values, strict=True)}
        assert self.index is not None
        start: dict[tuple[str, str], int] = {}
        length = len(self.numbers)
        vectors = []
        for e in self.table.entries:
            if isinstance(e.count, tuple) and e.count[:2] not in start:
                vectors.append(counted(self.index, *e.count[:2]))
                start[e.count[:2]] = length
                length += len(vectors[-1])
        values = torch.cat([*parts, self.numbers, *vectors]).tolist()
        found = {prefix + name: value for name, value in zip(more, values, strict=False)}
        numbers = values[len(more) :]
        for e in self.table.entries:
            value = numbers[e.at]
            if e.count is None:
                if value != (-math.inf if e.largest else math.inf):
                    found[prefix + e.name] = value
                continue
            count = numbers[e.count if isinstance(e.count, int) else start[e.count[:2]] + e.count[2]]
            if count:
                found[prefix + e.name] = value / count
        return found


def counted(index: Index, of: str, over: str) -> Tensor:
    """The elements of `of` over each element of `over`: float64 [elements]; `ALL` counts the tokens of every leaf."""
    if of != ALL:
        return index.count(of, over)
    return index.kept((ALL, over), lambda: torch.stack([index.count(leaf, over) for leaf in index.leaves]).sum(0))


class Collector:
    """Reads the metrics of an operator from the outputs of its programs."""

    def __init__(self, hierarchy: Hierarchy, programs: Mapping[str, Program]) -> None:
        self.hierarchy, self.programs = hierarchy, programs
        self._asked: dict[object, Asked] = {}
        self._tables: Recent[tuple[Table, object]] = Recent(MANY)

    def asked(self, metrics: object) -> Asked:
        """The metrics that `metrics=` of a call names. Raises BatchError for an unknown name."""
        if isinstance(metrics, bool):
            return ALL_METRICS if metrics else NO_METRICS
        key = tuple(metrics) if isinstance(metrics, list) else metrics
        if not isinstance(key, (str, tuple)):
            return asked_for(self.hierarchy, metrics)
        if key not in self._asked:
            self._asked[key] = asked_for(self.hierarchy, metrics)
        return self._asked[key]

    def program(self, metrics: object) -> str:
        """The cheapest program that computes the metrics; any program if a name is unknown."""
        if isinstance(metrics, bool):
            return "evaluate" if metrics else "objective"
        try:
            asked = self.asked(metrics)
        except BatchError:  # the call raises it, on all ranks
            return "objective"
        needed = {key for row in self.rows(self.programs["evaluate"].outputs, asked) for key in row.needs}
        return "objective" if needed <= self.programs["objective"].outputs.keys() else "evaluate"

    def rows(self, outputs: Mapping[Key, object], asked: Asked) -> list[Row]:
        """The requested metrics whose outputs the program computes.

        A policy that only the formula of advantages reads has no metrics: its program is a separate one.
        """
        return [r for r in rows(self.hierarchy) if chosen(r, asked) and all(key in outputs for key in r.needs)]

    def collect(self, program: str, outputs: Outputs, index: Index, asked: Asked) -> Measured:
        """The requested metrics of a program's outputs; docs/metrics.md defines each.

        A coarsest stratum with few elements has metrics per element, unless it is the rows. An element without tokens
        has NaN means and maxima of -inf.
        """
        if isinstance(index, MicroIndex):
            return Measured(index=index)
        if not asked:
            return Measured()
        made = partial(self._table, program, outputs, index, asked)
        table: Table = index.kept((self, id(outputs.places.rows), program, asked), made)
        kept = Outputs({key: outputs[key] for key, _ in table.vectors}, outputs.work, outputs.places)
        return Measured(kept if devices.can_sync(index.device) else table.read(kept), table, index)

    def _table(self, program: str, outputs: Outputs, index: Index, asked: Asked) -> Table:
        names = {s: index.labels.get(s, ()) for s in dict.fromkeys(r.over for r in rows(self.hierarchy))}
        few = tuple((s, tuple(n)) for s, n in names.items() if 1 < len(n) <= FEW)
        lie = outputs.places.rows
        key = f"{program} {sorted(asked)} {index.device} {id(lie)} {few!r}"  # `repr` tells 1 from True
        made = self._tables.get(key, lambda: (_table(self.rows(outputs, asked), outputs, index, dict(few)), lie))
        if not devices.can_sync(index.device):  # a CUDA graph copies nothing from the host: count before it is recorded
            for e in made[0].entries:
                if isinstance(e.count, tuple):
                    counted(index, *e.count[:2])
        return made[0]


def _table(chosen: Iterable[Row], outputs: Outputs, index: Index, names: Mapping[str, tuple[object, ...]]) -> Table:
    places = outputs.places
    rows = [r for r in chosen if r.over == BATCH or r.over in names]
    wanted = [(r.key, len(names.get(r.over, (None,)))) for r in rows]
    wanted += [(r.count, 1) for r in rows if isinstance(r.count, Key)]  # one for each: see `Measured.metrics`
    rows_of = {key: (stratum, i) for stratum, block in places.rows.items() for key, i in block.items()}
    blocks: dict[str, list[int]] = {}
    vectors: list[int] = []
    fixed: list[int] = []
    for i, (key, _) in enumerate(wanted):
        kind = fixed if key in places.constant else vectors
        (blocks.setdefault(rows_of[key][0], []) if key in rows_of else kind).append(i)
    start, length = {}, 0
    for i in (*(i for block in blocks.values() for i in block), *vectors, *fixed):
        start[i] = length
        length += wanted[i][1]
    entries: list[Entry] = []
    counters = iter(range(len(rows), len(wanted)))
    for i, r in enumerate(rows):
        counter = start[next(counters)] if isinstance(r.count, Key) else None
        for element, label in enumerate(names.get(r.over, (None,))):
            name = r.name if r.over == BATCH else f"{r.name}[{r.over}={label}]"
            count = counter if isinstance(r.count, Key) or r.count is None else (*r.count, element)
            entries.append(Entry(name, start[i] + element, count, r.largest))
    constants = [places.constant[wanted[i][0]].expand(wanted[i][1]) for i in fixed]
    of_blocks = {s: torch.tensor([rows_of[wanted[i][0]][1] for i in block]) for s, block in blocks.items()}
    return Table(
        blocks=tuple((s, numbers.to(index.device)) for s, numbers in of_blocks.items()),
        vectors=tuple(wanted[i] for i in vectors),
        fixed=torch.cat([torch.zeros(0, dtype=torch.float64, device=index.device), *constants]),
        entries=tuple(entries),
    )


# ---------------------------------------------------------------- results


class MetricSource(Protocol):
    """A source of metrics."""

    def metrics(self) -> dict[str, Metric]: ...
    def scalars(self, prefix: str, **more: Tensor) -> dict[str, float]: ...


class _Result:
    measured: MetricSource

    @cached_property
    def metrics(self) -> dict[str, Metric]:
        """Metrics by name, as docs/metrics.md lists them: `Mean` or `Extreme`, whose tensors do not wait for the
        device.
        """
        return self.measured.metrics()


@dataclass(frozen=True)
class Loss(_Result):
    """`loss` is `-J`, a differentiable scalar; `metrics` are the requested ones.

    For a batch over ranks, `loss` is this rank's share: `-J` divided by the number of ranks, with the gradient of this
    rank's tokens. Metrics are the whole batch's. DDP and FSDP average gradients over ranks, where the sum is needed:
    call `(loss * index.gradient_scale).backward()`.
    """

    loss: Tensor
    measured: MetricSource = field(repr=False)

    def scalars(self, prefix: str = "") -> dict[str, float]:
        """`loss` and the metrics as floats for a logger, in one copy from the device. `prefix` precedes every name.
        Metrics over no element are left out.
        """
        return self.measured.scalars(prefix, loss=self.loss)


@dataclass(frozen=True)
class Coefficients(_Result):
    """`values` is `∂J/∂log π` per token, in the shape of the log-probs and 0 under the mask; `objective` is `J`.

    For a batch over ranks, `values` are of this rank's tokens; the objective and metrics are the whole batch's.
    """

    values: Tensor
    objective: Tensor
    measured: MetricSource = field(repr=False)

    def scalars(self, prefix: str = "") -> dict[str, float]:
        """`objective` and the metrics as floats, as in `Loss.scalars`."""
        return self.measured.scalars(prefix, objective=self.objective)


@dataclass(frozen=True)
class Levels:
    """The residual before and after every gate, per element: float64, by (stratum, channel)."""

    residual: dict[tuple[str, str], Tensor]
    gated: dict[tuple[str, str], Tensor]
