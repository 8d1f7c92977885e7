"""The arguments of a generated function: a frame has those of the index, and holes for the tensors of a call."""

from __future__ import annotations

import itertools
import math
import weakref
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fibration.compiler.arguments import GIVEN, KINDS, LAYOUT, Argument, for_each, tensor_of
from fibration.compiler.ir import Const, Input, Key, Node
from fibration.compiler.plan import Plan
from fibration.runtime.batch import GIVEN_TENSOR, Batch, Index, Launcher, Outputs, Places, given_of, tensors_of

MAPPED = 32 << 20  # bytes from which glibc's malloc never keeps freed memory for the next call
KEPT = 256 << 20  # bytes: more go back to the system
ALIGNMENT = 64  # bytes, as torch aligns its own memory
FREE: deque[NDArray[np.uint8]] = deque(maxlen=2)  # memory of results that nothing refers to, for the next ones


@dataclass(frozen=True)
class BoundPlan:
    """A plan on one index: where outputs lie in its workspace of `length`, and the arguments that no call changes.

    `whole`: segments cover all tokens, so kernels fill the gaps between segments. `by_row`: every segment that reads
    advantages lies in one row.
    """

    length: int
    whole: bool
    by_row: bool
    values: tuple[object, ...]  # by argument
    places: Places


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

    def filled(self, tensors: Mapping[str, Tensor], given: Mapping[Input, Tensor]) -> tuple[Outputs, Holes]:
        """Memory for the outputs of one call, with the fill where kernels do not write; and what fills the holes: the
        caller's tensors, vectors of its advantages or rewards, and outputs.
        """
        binding, whole, found = self.binding, self.bound.whole, dict(self.vectors)
        holes = [(i, tensors[name].contiguous()) for i, name in binding.tokens]
        if given:
            found |= {key: given[node] for key, node in binding.inputs.items() if node in given}
            holes += [(i, given[node]) for i, node in binding.given]
        for i, key in binding.results:
            if self.is_mapped:
                result = mapped(self.shape, self.empty.dtype)
                result = result if whole else result.fill_(self.fill)
            else:  # one operation, whether filled or not
                result = self.empty.new_empty(self.shape) if whole else self.empty.new_full(self.shape, self.fill)
            found[key] = result
            holes.append((i, result))
        work = self.workspace.new_empty(self.bound.length)
        holes.append((binding.work, work))
        return Outputs(found, work, self.bound.places), holes

    def vector_of(self, node: Node, work: Tensor, batch: Batch) -> Tensor:
        if node in self.binding.slots:
            return work[self.bound.places.place(self.binding.slots[node])]
        if isinstance(node, Const):
            return torch.full((1,), node.value, dtype=torch.float64, device=work.device)
        assert isinstance(node, Input)
        return batch.vectors[node]


def mapped(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Memory of an earlier result that nothing refers to any more. Else new memory, in huge pages if there are any: the
    system takes longer to hand out pages than a kernel takes to write them.
    """
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(0, np.uint8)
    with suppress(IndexError):
        memory = FREE.pop()
    if not size + ALIGNMENT <= memory.size <= 2 * size + ALIGNMENT:
        memory = np.empty(size + ALIGNMENT, np.uint8)
    first = -memory.ctypes.data % ALIGNMENT
    part = memory[first : first + size]  # which the tensor refers to
    if memory.size <= KEPT:
        weakref.finalize(part, FREE.append, memory).atexit = False
    return torch.from_numpy(part).view(dtype).view(shape)


class Binding:
    """Binds the arguments of one plan: once per index, and once per batch."""

    def __init__(self, plan: Plan, arguments: tuple[Argument, ...]) -> None:
        self.plan, self.arguments = plan, arguments
        self.of_index = [(i, a) for i, a in enumerate(arguments) if a.kind in OF_INDEX]
        self.coarse = {k: n for k, n in plan.program.outputs.items() if n.stratum not in plan.program.leaves}
        self.slots: dict[Node, tuple[str, int]] = {}
        self.vectors: Counter[str] = Counter()  # the vectors of each stratum, one stratum after the other
        for node in plan.saved:
            self.slots[node] = node.stratum, self.vectors[node.stratum]
            self.vectors[node.stratum] += 1
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

    def _bound(self, index: Index) -> BoundPlan:
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
            length=at,
            whole=alone and all(lay.positions is None and lay.tokens is None and len(lay.starts) for lay in layouts),
            by_row=all(index.rows_of(segments) is not None for segments in self.reading),
            values=tuple(values),
            places=Places(
                starts=starts,
                numbers=self.numbers,
                rows=self.rows,
                blocks=self.blocks,
                constant=self._constants(index.device),
            ),
        )

    def _constants(self, device: torch.device) -> Mapping[Key, Tensor]:
        """The outputs that are numbers, on a device."""
        if device not in self._constant:
            values = {k: n.value for k, n in self.coarse.items() if isinstance(n, Const)}
            one = torch.ones(1, dtype=torch.float64, device=device)
            self._constant[device] = {k: torch.full_like(one, v) for k, v in values.items()}
        return self._constant[device]

    def frame(self, batch: Batch) -> Frame:
        bound, index = batch.index.kept(self, lambda: self._bound(batch.index)), batch.index
        values, per_row = list(bound.values), batch.per_row and bound.by_row
        for i, a in self.of_call:
            values[i] = OF_CALL[a.kind](per_row, batch, a)
        return Frame(
            binding=self,
            bound=bound,
            values=values,
            vectors={key: batch.vectors[node] for key, node in self.inputs.items() if node.kind not in GIVEN},
            shape=index.shape,
            per_row=per_row,
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
        check: Callable[[Index], None],
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
        plan, work, ranks = frame.binding.plan, outputs.work, batch.index.ranks
        assert work is not None and ranks is not None
        for (function, section), stage in itertools.zip_longest(plan.functions(program).items(), plan.collectives):
            if section:
                call(function, holes)
            if stage:
                vectors = {n: frame.vector_of(n, work, batch) for n in stage.reads}
                for node, whole in ranks.collect(stage, vectors, batch.index).items():
                    frame.vector_of(node, work, batch).copy_(whole)
        return outputs

    def _ready(self, program: str, batch: Batch) -> tuple[Frame, Fill, Call]:
        """A frame, what fills its holes for one call, and what calls the program's functions."""
        self.check(batch.index)
        frame = self.bindings[program].frame(batch)
        fill = frame.filled
        if batch.per_row and not frame.per_row:
            spread = _spread_of(batch.index)

            def fill(tensors: Mapping[str, Tensor], given: Mapping[Input, Tensor]) -> tuple[Outputs, Holes]:
                return frame.filled({**tensors, GIVEN_TENSOR: spread(tensors[GIVEN_TENSOR])}, given)

        return frame, fill, self.ready(program, frame, batch)


# The value of an argument by its kind: those that depend on the index alone, then the others.
OF_INDEX: Mapping[str, Callable[[Index, Argument], object]] = {
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
OF_CALL: Mapping[str, Callable[[bool, Batch, Argument], object]] = {
    "rows": lambda per_row, batch, a: batch.index.rows_of(a.key[0]) if per_row else None,
    "vector": lambda _, batch, a: batch.vectors.get(a.key[0]),  # only metrics read what is not there
    "stride": lambda _, batch, a: _stride(batch.vectors.get(a.key[0])),
    "matrix": lambda _, batch, a: batch.vectors.get(a.key[0]),
    "fill": lambda _, batch, a: batch.fill,
}
for_each("values of arguments", KINDS, {**OF_INDEX, **OF_CALL, **dict.fromkeys(HOLES)})


def _spread_of(index: Index) -> Callable[[Tensor], Tensor]:
    """What puts numbers per row at every token."""
    shape, positions, rows = index.shape, index.positions, index.row_tensor()[index.row_of_token]

    def spread(given: Tensor) -> Tensor:
        made = given.new_zeros(shape)
        made.view(-1)[positions] = given[rows]
        return made

    return spread


def _stride(vector: Tensor | None) -> int:
    return 0 if vector is None or vector.numel() == 1 or vector.stride(0) == 0 else 1
