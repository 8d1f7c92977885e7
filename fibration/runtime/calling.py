"""The arguments of a generated function: a frame has those of the index, and holes for the tensors of a call."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fibration.compiler.arguments import GIVEN, KINDS, LAYOUT, Argument, for_each, tensor_of
from fibration.compiler.ir import Const, Input, Node
from fibration.compiler.keys import Key
from fibration.compiler.plan import Plan
from fibration.runtime.batch import GIVEN_TENSOR, Batch, Elements, Launcher, Outputs, Places, given_of, tensors_of

MAPPED = 32 << 20  # bytes from which glibc's malloc never keeps freed memory for the next call
ALIGNMENT = 64  # bytes, as torch aligns its own memory


@dataclass(frozen=True)
class BoundPlan:
    """A plan on one index: the layout of its workspace, and the arguments that no call changes.

    `whole`: segments cover all tokens, so kernels fill the gaps between segments. `by_row`: every segment that reads
    advantages lies in one row. `constant` and `given`: outputs that are numbers or inputs, so that nothing computes
    them.
    """

    plan: Plan
    slots: Mapping[Node, tuple[str, int]]
    length: int
    whole: bool
    by_row: bool
    values: list[object]  # by argument
    places: Places
    given: Mapping[Key, Input]

    def per_row(self, batch: Batch) -> bool:
        """Whether kernels read one advantage per row: the batch has them, and each segment that reads one lies in one
        row.
        """
        return batch.per_row and self.by_row

    def vector_of(self, node: Node, work: Tensor, batch: Batch) -> Tensor:
        if node in self.slots:
            return work[self.places.place(self.slots[node])]
        if isinstance(node, Const):
            return torch.full((1,), node.value, dtype=torch.float64, device=work.device)
        assert isinstance(node, Input)
        return batch.vectors[node]


@dataclass(frozen=True)
class Frame:
    """The arguments of calls that differ in their tensors alone: every value in order, None in the holes.

    `vectors`: outputs that are inputs. `empty` and `workspace`: tensors without places, in the dtype of results and
    in float64.
    """

    binding: Binding
    bound: BoundPlan
    values: list[object]
    vectors: Mapping[Key, Tensor]
    shape: tuple[int, ...]
    per_row: bool  # whether kernels read one advantage per row
    fill: float
    empty: Tensor
    workspace: Tensor

    @cached_property
    def is_mapped(self) -> bool:
        """Whether results are so large that malloc asks the system for their pages in every call."""
        return self.empty.is_cpu and math.prod(self.shape) * self.empty.itemsize >= MAPPED

    @property
    def is_filled(self) -> bool:
        """Whether memory for results comes with the fill in it, so that kernels need not write it."""
        return self.is_mapped and self.fill == 0

    def outputs(self, given: Mapping[Input, Tensor]) -> Outputs:
        """Memory for the outputs of one call. The fill is in it where kernels do not write every place."""
        bound, whole = self.bound, self.bound.whole
        found = dict(self.vectors)
        if given:
            found |= {key: given[node] for key, node in bound.given.items() if node in given}
        for _, key in self.binding.results:
            if self.is_mapped:
                found[key] = mapped_zeros(self.shape, self.empty.dtype)
                if not whole and self.fill:
                    found[key].fill_(self.fill)
            else:
                found[key] = self.empty.new_empty(self.shape) if whole else self.empty.new_full(self.shape, self.fill)
        return Outputs(found, self.workspace.new_empty(bound.length), bound.places)

    def holes(
        self, tensors: Mapping[str, Tensor], given: Mapping[Input, Tensor], outputs: Outputs
    ) -> list[tuple[int, Tensor]]:
        """What fills the holes: the caller's tensors, vectors of its advantages or rewards, and outputs."""
        assert outputs.work is not None
        found = [(i, tensors[name].contiguous()) for i, name in self.binding.tokens]
        found += [(i, given[node]) for i, node in self.binding.given]
        found += [(i, outputs.given[key]) for i, key in self.binding.results]
        found.append((self.binding.work, outputs.work))
        return found


def mapped_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros whose pages the system hands out when they are first written, and huge pages where it has them.

    `torch.zeros` writes every page, and its pages are small.
    """
    size = math.prod(shape) * dtype.itemsize
    memory = np.zeros(size + ALIGNMENT, np.uint8)
    first = -memory.ctypes.data % ALIGNMENT
    return torch.from_numpy(memory[first : first + size]).view(dtype).view(shape)


class Binding:
    """Binds the arguments of one plan: once per index, and once per batch."""

    def __init__(self, plan: Plan, arguments: tuple[Argument, ...]) -> None:
        self.plan, self.arguments = plan, arguments
        self.of_index = [(i, a) for i, a in enumerate(arguments) if a.kind in OF_INDEX]
        self.coarse = {k: n for k, n in plan.program.outputs.items() if n.stratum not in plan.program.leaves}
        self.vectors = Counter(n.stratum for n in plan.saved)  # one stratum after the other
        self.slots = {n: (n.stratum, i) for s in self.vectors for i, n in enumerate(_of(s, plan.saved))}
        self.numbers = {k: self.slots[n] for k, n in self.coarse.items() if n in self.slots}
        self.inputs = {k: n for k, n in self.coarse.items() if isinstance(n, Input)}
        self.blocks = {s: (self.slots[block[0]][1], len(block)) for s, block in plan.blocks.items()}
        self._constant: dict[torch.device, Mapping[Key, Tensor]] = {}
        order = {n: i for block in plan.blocks.values() for i, n in enumerate(block)}
        self.rows: dict[str, dict[Key, int]] = {stratum: {} for stratum in plan.blocks}
        for key, node in self.coarse.items():
            if node in order:
                self.rows[node.stratum][key] = order[node]
        self.reading = [s.segments for s in plan.sweeps if any(i.kind in GIVEN for p in s.passes for i in p.reads)]
        places = {kind: [(i, a) for i, a in enumerate(arguments) if a.kind == kind] for kind in KINDS}
        self.tokens = [(i, tensor_of(*a.key).called) for i, a in places["token"]]
        self.tokens += [(i, GIVEN_TENSOR) for i, _ in places["advantage"]]
        self.given = [(i, a.key[0]) for i, a in places["vector"] if a.key[0].kind in GIVEN]
        self.results = [(i, a.key[0]) for i, a in places["result"]]
        ((self.work, _),) = places["work"]
        holes = {self.work, *(i for part in (self.tokens, self.given, self.results) for i, _ in part)}
        self.of_call = [(i, a) for i, a in enumerate(arguments) if a.kind in OF_CALL and i not in holes]

    def on(self, index: Elements) -> BoundPlan:
        return index.kept(self, lambda: self._bound(index))

    def _bound(self, index: Elements) -> BoundPlan:
        starts, at = {}, 0
        for stratum, number in self.vectors.items():
            starts[stratum] = at, index.size[stratum]
            at += number * index.size[stratum]
        # contiguous segments in order fill the gaps between them; with several leaves, such gaps hold other tokens
        layouts = [index.layout(*a.key) for a in self.arguments if a.kind == "offsets"]
        alone = len(self.plan.program.leaves) == 1
        values: list[object] = [None] * len(self.arguments)
        for i, a in self.of_index:
            values[i] = OF_INDEX[a.kind](index, a)
        return BoundPlan(
            plan=self.plan,
            slots=self.slots,
            length=at,
            whole=alone and all(lay.positions is None and lay.tokens is None and len(lay.starts) for lay in layouts),
            by_row=all(index.rows_of(segments) is not None for segments in self.reading),
            values=values,
            places=Places(
                starts=starts,
                numbers=self.numbers,
                rows=self.rows,
                blocks={s: (starts[s][0] + first * starts[s][1], n, starts[s][1]) for s, (first, n) in self.blocks.items()},
                constant=self._constants(index.device),
            ),
            given=self.inputs,
        )

    def _constants(self, device: torch.device) -> Mapping[Key, Tensor]:
        """The outputs that are numbers, on a device."""
        if device not in self._constant:
            values = {k: n.value for k, n in self.coarse.items() if isinstance(n, Const)}
            one = torch.ones(1, dtype=torch.float64, device=device)
            self._constant[device] = {k: torch.full_like(one, v) for k, v in values.items()}
        return self._constant[device]

    def frame(self, batch: Batch) -> Frame:
        bound, index = self.on(batch.index), batch.index
        values = bound.values.copy()
        for i, a in self.of_call:
            values[i] = OF_CALL[a.kind](bound, batch, a)
        return Frame(
            binding=self,
            bound=bound,
            values=values,
            vectors={key: batch.vectors[node] for key, node in bound.given.items() if node.kind not in GIVEN},
            shape=index.shape,
            per_row=bound.per_row(batch),
            fill=batch.fill,
            empty=torch.empty(0, dtype=batch.dtype, device=index.device),
            workspace=torch.empty(0, dtype=torch.float64, device=index.device),
        )


Holes = list[tuple[int, Tensor]]  # the places of arguments, and what fills them
Fill = Callable[[Mapping[str, Tensor], Mapping[Input, Tensor]], tuple[Outputs, Holes]]
Call = Callable[[str, Holes], None]


class Runner:
    """Runs the programs of a generated file. `ready` returns what calls the functions of one with a frame's values.

    `check` raises for an index on a device that the backend cannot use.
    """

    def __init__(
        self,
        bindings: Mapping[str, Binding],
        check: Callable[[Elements], None],
        ready: Callable[[str, Frame, Batch], Call],
    ) -> None:
        self.bindings, self.check, self.ready = bindings, check, ready

    def prepare(self, program: str, batch: Batch) -> Launcher:
        """The program on this batch's index, without ranks."""
        _, fill, call = self._ready(program, batch)

        def launch(tensors: Mapping[str, Tensor], given: Mapping[Input, Tensor]) -> Outputs:
            outputs, holes = fill(tensors, given)
            call(program, holes)
            return outputs

        return launch

    def __call__(self, program: str, batch: Batch) -> Outputs:
        """Run it over ranks. Between two functions, their partial sums are combined."""
        frame, fill, call = self._ready(program, batch)
        outputs, holes = fill(tensors_of(batch), given_of(batch))
        plan, bound, work, ranks = frame.bound.plan, frame.bound, outputs.work, batch.index.ranks
        assert work is not None and ranks is not None
        for (function, section), stage in itertools.zip_longest(plan.functions(program).items(), plan.collectives):
            if section:
                call(function, holes)
            if stage:
                vectors = {n: bound.vector_of(n, work, batch) for n in stage.reads}
                for node, whole in ranks.collect(stage, vectors, batch.index).items():
                    bound.vector_of(node, work, batch).copy_(whole)
        return outputs

    def _ready(self, program: str, batch: Batch) -> tuple[Frame, Fill, Call]:
        """A frame, what fills its holes for one call, and what calls the program's functions."""
        self.check(batch.index)
        frame = self.bindings[program].frame(batch)
        spread = _spread_of(batch.index) if batch.per_row and not frame.per_row else None

        def fill(tensors: Mapping[str, Tensor], given: Mapping[Input, Tensor]) -> tuple[Outputs, Holes]:
            if spread is not None:
                tensors = {**tensors, GIVEN_TENSOR: spread(tensors[GIVEN_TENSOR])}
            outputs = frame.outputs(given)
            return outputs, frame.holes(tensors, given, outputs)

        return frame, fill, self.ready(program, frame, batch)


# The value of an argument by its kind: those that depend on the index alone, then the others.
OF_INDEX: Mapping[str, Callable[[Elements, Argument], object]] = {
    "size": lambda index, a: index.size[a.key[0]],
    **{kind: lambda index, a: getattr(index.layout(*a.key), a.kind) for kind in LAYOUT},
    "parent": lambda index, a: index.parent(*a.key).contiguous(),
    "order": lambda index, a: index.members(*a.key).order,
    "members": lambda index, a: index.members(*a.key).offsets,
    "sequence": lambda index, a: index.sequence(*a.key).order,
    "sequence_members": lambda index, a: index.sequence(*a.key).offsets,
    "places": lambda index, a: math.prod(index.shape),
}
HOLES = ("token", "advantage", "result", "work")
OF_CALL: Mapping[str, Callable[[BoundPlan, Batch, Argument], object]] = {
    "rows": lambda bound, batch, a: batch.index.rows_of(a.key[0]) if bound.per_row(batch) else None,
    "vector": lambda bound, batch, a: batch.vectors.get(a.key[0]),  # only metrics read what is not there
    "stride": lambda bound, batch, a: _stride(batch.vectors.get(a.key[0])),
    "matrix": lambda bound, batch, a: batch.vectors.get(a.key[0]),
    "fill": lambda bound, batch, a: batch.fill,
}
for_each("values of arguments", KINDS, {**OF_INDEX, **OF_CALL, **dict.fromkeys(HOLES)})


def _spread_of(index: Elements) -> Callable[[Tensor], Tensor]:
    """What puts numbers per row at every token."""
    shape, positions, rows = index.shape, index.positions, index.row_tensor()[index.row_of_token]

    def spread(given: Tensor) -> Tensor:
        made = given.new_zeros(shape)
        made.view(-1)[positions] = given[rows]
        return made

    return spread


def _of(stratum: str, nodes: tuple[Node, ...]) -> list[Node]:
    return [n for n in nodes if n.stratum == stratum]


def _stride(vector: Tensor | None) -> int:
    return 0 if vector is None or vector.numel() == 1 or vector.stride(0) == 0 else 1
