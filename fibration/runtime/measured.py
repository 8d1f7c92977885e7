"""The metrics of one call, read from a program's outputs in a few operations for all of them.

The layout of the metrics is computed once for an operator and an index. Reading them does not wait for the device, and
a replayed CUDA graph writes into the same memory.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fibration.compiler.keys import Key
from fibration.compiler.program import Program
from fibration.errors import BatchError
from fibration.language.atoms import BATCH
from fibration.language.hierarchy import Hierarchy
from fibration.runtime.batch import Outputs
from fibration.runtime.index.index import Index
from fibration.runtime.metrics import ALL, Asked, Extreme, Mean, Metric, Row, asked_for, chosen, rows

ALL_METRICS, NO_METRICS = frozenset({ALL}), frozenset[str]()
FEW = 32  # a coarsest stratum with more elements has no metrics per element


def metric_capacity(hierarchy: Hierarchy) -> int:
    """The most numbers that the metrics of a call have, two per metric, whatever the batch."""
    return sum(2 * FEW if row.how == "each" else 2 for row in rows(hierarchy))


@dataclass(frozen=True)
class Place:
    """The place of a metric in the vector of numbers: of its sum and its count, or of its value."""

    name: str
    at: int
    count: int | None
    largest: bool


@dataclass(frozen=True)
class Measured:
    """The metrics of one call: their numbers, float64 `[numbers]`, and the place of each."""

    values: Tensor | None = None
    places: tuple[Place, ...] = ()

    def metrics(self) -> dict[str, Metric]:
        if self.values is None:
            return {}
        numbers = self.values.unbind()
        return {
            p.name: Extreme(numbers[p.at], p.largest) if p.count is None else Mean(numbers[p.at], numbers[p.count])
            for p in self.places
        }

    def scalars(self, prefix: str, **more: Tensor) -> dict[str, float]:
        """`more`, 0-d tensors, and every metric over at least one element, in one copy from the device."""
        parts = [t.detach().reshape(1).double() for t in more.values()]
        numbers: list[float] = torch.cat(parts if self.values is None else [*parts, self.values]).tolist()
        found = {prefix + name: number for name, number in zip(more, numbers, strict=False)}
        numbers = numbers[len(more) :]
        for p in self.places:
            value = numbers[p.at]
            if p.count is None:
                if value != (-math.inf if p.largest else math.inf):
                    found[prefix + p.name] = value
            elif numbers[p.count]:
                found[prefix + p.name] = value / numbers[p.count]
        return found


class Collector:
    """Reads the metrics of an operator from the outputs of its programs."""

    def __init__(self, hierarchy: Hierarchy, programs: Mapping[str, Program]) -> None:
        self.hierarchy, self.programs = hierarchy, programs
        self._asked: dict[object, Asked] = {}

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
        needed = {k for row in self.rows(self.programs["evaluate"].outputs, asked) for k in row.keys}
        return "objective" if needed <= self.programs["objective"].outputs.keys() else "evaluate"

    def rows(self, outputs: Mapping[Key, object], asked: Asked) -> list[Row]:
        """The requested metrics whose outputs the program computes.

        A policy that only the formula of advantages reads has no metrics: its program is a separate one.
        """
        return [r for r in rows(self.hierarchy) if chosen(r, asked) and all(k in outputs for k in r.keys)]

    def collect(self, program: str, outputs: Outputs, index: Index, asked: Asked) -> Measured:
        """The requested metrics of a program's outputs; docs/metrics.md defines each.

        A coarsest stratum with few elements has metrics per element, unless it is the rows. An element without tokens
        has NaN means and maxima of -inf.
        """
        if not asked:
            return Measured()
        key = (self, program, asked)
        table = index.kept(key, lambda: Table.of(self.rows(outputs, asked), outputs, index))
        return Measured(table.read(outputs), table.places)


@dataclass(frozen=True)
class Table:
    """The layout of some metrics of a program on one index.

    Gathered outputs are `[multiplied, others, blocks]`. `multiplied`: means, which are multiplied by a count.
    `others`: vectors or numbers that are metrics as they are. A block `[vectors, elements]` is summed, or its maxima
    are taken. The numbers of all metrics are the first `own` gathered numbers, then sums and maxima, then outputs that
    are counts, then constants.
    """

    places: tuple[Place, ...]
    gathered: Tensor  # int64: places in the workspace
    pieces: tuple[int | tuple[Key, int], ...]  # lengths of gathered pieces; outputs outside the workspace in between
    own: int
    blocks: tuple[tuple[int, int, int, bool], ...]  # start, vectors, elements, whether maxima
    counting: tuple[int, ...]
    fixed: Tensor  # float64
    times: Tensor  # float64 [multiplied]
    negated: int | None

    def read(self, outputs: Outputs) -> Tensor:
        """The numbers of all metrics: float64."""
        flat = self._taken(outputs)
        parts = [flat[: self.own]]
        for start, vectors, elements, largest in self.blocks:
            block = flat[start : start + vectors * elements].view(vectors, elements)
            parts.append(block.amax(1) if largest else block.sum(1))
        parts += [flat[i : i + 1] for i in self.counting]
        numbers = torch.cat([*parts, self.fixed])
        if len(self.times):
            numbers[: len(self.times)].mul_(self.times)
        if self.negated is not None:
            numbers[self.negated : self.negated + 1].neg_()
        return numbers

    def _taken(self, outputs: Outputs) -> Tensor:
        if not len(self.pieces):
            return self.fixed[:0]
        found: list[Tensor] = []
        if len(self.gathered):
            assert outputs.work is not None
            found = [outputs.work.index_select(0, self.gathered)]
            if len(self.pieces) == 1:
                return found[0]
            found = list(found[0].split([p for p in self.pieces if isinstance(p, int)]))
        left = iter(found)
        return torch.cat([next(left) if isinstance(p, int) else outputs[p[0]].expand(p[1]) for p in self.pieces])

    @staticmethod
    def of(chosen: Sequence[Row], outputs: Outputs, index: Index) -> Table:
        return _TableBuilder(chosen, outputs, index).table()


class _TableBuilder:
    def __init__(self, chosen: Sequence[Row], outputs: Outputs, index: Index) -> None:
        self.rows, self.outputs, self.index = chosen, outputs, index
        self.taken: dict[Key, tuple[int, int]] = {}  # start and length of each output
        self.length = 0
        self.blocks: list[tuple[int, int, int, bool]] = []
        self.results: dict[tuple[Key, ...], int] = {}  # by outputs of a block: the number of their sum or maximum
        self.fixed: list[Tensor] = []
        self.fixed_length = 0
        self.counts: dict[tuple[str, str, int], Tensor] = {}  # shared: most metrics have the same few counts

    def named(self, over: str) -> Sequence[object]:
        names = self.index.labels.get(over, ())
        return names if 1 < len(names) <= FEW else ()

    def is_fixed(self, row: Row) -> bool:
        return all(k in self.outputs.constant for k in row.keys)

    def counts_itself(self, row: Row) -> bool:
        """Whether the count of a mean is an output, which changes with every call."""
        return isinstance(row.count, Key) and row.count not in self.outputs.constant

    def table(self) -> Table:
        self.rows = [r for r in self.rows if r.how != "each" or self.named(r.over)]
        moving = [r for r in self.rows if not self.is_fixed(r)]
        means = [r for r in moving if r.is_mean]
        for r in means:
            self.take(r.keys[0], 1)
        own = self.lay_out(moving)
        number = itertools.count(own)
        for keys in self.reduced:
            self.results[keys] = next(number)
        counting: list[int] = []
        counts: dict[int, int] = {}
        for i, r in enumerate(self.rows):
            if self.counts_itself(r):
                counting.append(self.taken[r.count][0])  # type: ignore[index]
                counts[i] = next(number)
        start = next(number)
        places = [place for i, r in enumerate(self.rows) for place in self.places(r, counts.get(i), start)]
        nothing = torch.zeros(0, dtype=torch.float64, device=self.index.device)
        least = next((p.at for p in places if p.name == "gated_ratio/min" and p.at < start), None)
        return Table(
            places=tuple(places),
            gathered=self.gathered(),
            pieces=self.pieces(),
            own=own,
            blocks=tuple(self.blocks),
            counting=tuple(counting),
            fixed=torch.cat([*self.fixed, nothing]),
            times=torch.cat([*(self.number_of(r) for r in means), nothing]),
            negated=least,
        )

    # ------------------------------------------------------------ places of outputs

    def take(self, key: Key, length: int) -> None:
        if key not in self.taken:
            self.taken[key] = (self.length, length)
            self.length += length

    def lay_out(self, moving: Sequence[Row]) -> int:
        """Place outputs one after another; returns how many of the numbers are metrics by themselves."""
        size = self.index.size
        vectors: dict[tuple[str, bool], dict[tuple[Key, ...], None]] = {}
        for r in moving:
            several = len(r.keys) > 1
            if several or (r.how in ("sum", "max") and size[r.over] > 1):
                vectors.setdefault(("" if several else r.over, several or r.how == "max"), {})[r.keys] = None
            elif r.how != "each":
                self.take(r.keys[0], size[r.over])
        for r in self.rows:
            if self.counts_itself(r):
                assert isinstance(r.count, Key)
                self.take(r.count, 1)
        self.reduced: list[tuple[Key, ...]] = []
        by_name = sorted(vectors, key=lambda v: not self.named(v[0]))  # stable; strata with metrics per element first
        own: int | None = None
        for over, largest in by_name:
            if own is None and not self.named(over):
                own = self.take_each(moving)
            every = vectors[over, largest]
            elements = len(next(iter(every))) if not over else size[over]
            self.blocks.append((self.length, len(every), elements, largest))
            for keys in every:
                for k in keys:
                    self.take(k, elements if over else 1)
            self.reduced += every
        return self.take_each(moving) if own is None else own

    def take_each(self, moving: Sequence[Row]) -> int:
        """Place the vectors of metrics per element; returns where the numbers that are metrics by themselves end."""
        for r in moving:
            if r.how == "each":
                self.take(r.keys[0], self.index.size[r.over])
        return self.length

    def gathered(self) -> Tensor:
        places = self.outputs.places
        runs = [(places[k].start, n) for k, (_, n) in self.taken.items() if k in places]
        starts, lengths = np.array(runs, dtype=np.int64).reshape(-1, 2).T
        before = lengths.cumsum() - lengths
        return torch.from_numpy(np.repeat(starts - before, lengths) + np.arange(lengths.sum())).to(self.index.device)

    def pieces(self) -> tuple[int | tuple[Key, int], ...]:
        found: list[int | tuple[Key, int]] = []
        for here, group in itertools.groupby(self.taken.items(), lambda item: item[0] in self.outputs.places):
            mine = [(k, n) for k, (_, n) in group]
            found += [sum(n for _, n in mine)] if here else mine
        return tuple(found)

    # ------------------------------------------------------------ names of metrics

    def places(self, row: Row, count: int | None, start: int) -> list[Place]:
        names = [row.name]
        if row.how == "each":
            names = [f"{row.name}[{row.over}={label}]" for label in self.named(row.over)]
        at = self.place_of(row, start)
        if row.count is None:
            return [Place(name, at + i, None, row.how != "least") for i, name in enumerate(names)]
        first = self.fix(self.number_of(row), start) if count is None else count
        return [Place(name, at + i, first + i, True) for i, name in enumerate(names)]

    def place_of(self, row: Row, start: int) -> int:
        if row.keys in self.results and row.how != "each":
            return self.results[row.keys]
        if not self.is_fixed(row):
            return self.taken[row.keys[0]][0]
        number = torch.stack([self.outputs.constant[k].reshape(()) for k in row.keys]).amax().reshape(1)
        if row.how in ("sum", "each"):
            elements = self.index.size[row.over]
            number = number * elements if row.how == "sum" else number.expand(elements)
        number = number * self.number_of(row) if row.is_mean else number
        return self.fix(-number if row.how == "least" else number, start)

    def fix(self, numbers: Tensor, start: int) -> int:
        """Append constants: each metric has its own numbers, so that changing one in place changes no other."""
        at = start + self.fixed_length
        self.fixed.append(numbers)
        self.fixed_length += len(numbers)
        return at

    def number_of(self, row: Row) -> Tensor:
        """A count: float64 [1], or [elements]."""
        if isinstance(row.count, Key):
            return self.outputs.constant[row.count]
        assert row.count is not None
        of, over = row.count
        key = (of, over, self.index.size[over] if row.how == "each" else 1)
        if key not in self.counts:
            self.counts[key] = self.count(*key)
        return self.counts[key]

    def count(self, of: str, over: str, elements: int) -> Tensor:
        if of != ALL:
            return self.index.count(of, over)[:elements]
        return torch.stack([self.index.count(leaf, BATCH)[0] for leaf in self.index.leaves]).sum().reshape(1)
