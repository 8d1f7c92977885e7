"""The arguments of a backend: the caller's tensors, and the positions of each segment's tokens in them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Hashable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fibration.compiler.arguments import GIVEN, TOKENS, token_tensor
from fibration.compiler.ir import Input, Matrix, Node
from fibration.compiler.keys import Key
from fibration.compiler.plan import Collective
from fibration.compiler.program import Program

Codes = NDArray[np.int64]
T = TypeVar("T")
LARGEST = torch.finfo(torch.float32).max


@dataclass(frozen=True)
class Layout:
    """Where the tokens of one leaf lie in the flattened tensors of a batch, by segment.

    Segment `b` has the tokens `offsets[b]:offsets[b + 1]`, numbered by segment; a segment may be empty. `positions`
    None: segments are contiguous, and segment `b` lies at `starts[b], starts[b] + 1, ...`; masked tokens and other
    leaves' tokens may lie between segments. Otherwise token `k` lies at `positions[k]`. `tokens` None: the contiguous
    segments are in order, and an empty segment starts where its predecessor ended.
    """

    offsets: Tensor  # int64 [segments + 1]
    starts: Tensor  # int64 [segments]
    positions: Tensor | None  # int64 [tokens]
    tokens: Tensor | None  # int64 [tokens]: each token's number within its leaf; None: 0, 1, 2, ...


@dataclass(frozen=True)
class Members:
    """The elements over target `b`: `order[offsets[b]:offsets[b + 1]]`. `order` None: elements are sorted by target."""

    order: Tensor | None  # int64 [source]
    offsets: Tensor  # int64 [target + 1]


@dataclass(frozen=True)
class Ordering:
    """The elements of several strata over target `b`, in order: `order[offsets[b]:offsets[b + 1]]`.

    Elements are numbered stratum after stratum. `order` None: these numbers are in order already.
    """

    order: Tensor | None  # int64 [elements]
    offsets: Tensor  # int64 [targets + 1]
    longest: int  # the most elements that one target has


class Shards(Protocol):
    """The ranks that share a batch, as backends see them."""

    @property
    def cut(self) -> bool:
        """Whether a row has tokens on several ranks."""
        ...

    @property
    def tokens(self) -> int:
        """The number of unmasked tokens on all ranks; a kernel's shape may depend on it."""
        ...

    def collect(
        self, stage: Collective, values: Mapping[Node, Tensor], index: Elements | None = None
    ) -> dict[Node, Tensor]:
        """Combine the values that a collective reads: one float64 [elements of its stratum] per node."""
        ...


class Elements(Protocol):
    """The part of an index that backends use.

    With `ranks`, tokens are this rank's tokens, and coarser elements are the whole batch's. A segment may then have no
    token on this rank, and `rows_of` is -1 for it.
    """

    @property
    def ranks(self) -> Shards | None: ...
    @property
    def leaves(self) -> tuple[str, ...]: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def positions(self) -> Tensor: ...
    @property
    def row_of_token(self) -> Tensor: ...
    @property
    def size(self) -> Mapping[str, int]: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def tokens_of_step(self) -> int: ...
    def parent(self, source: str, target: str) -> Tensor: ...
    def fibre(self, source: str, target: str, make: Any) -> Any: ...
    def tokens_of(self, leaf: str) -> Tensor | None: ...
    def positions_of(self, leaf: str) -> Tensor: ...
    def rows_of_tokens(self, leaf: str) -> Tensor: ...
    def leaves_over(self, stratum: str) -> tuple[str, ...]: ...
    def layout(self, segments: str, leaf: str | None = None) -> Layout: ...
    def members(self, source: str, target: str) -> Members: ...
    def kept(self, key: Hashable, make: Callable[[], T]) -> T: ...
    def sequence(self, target: str, *sources: str) -> Ordering: ...
    def order(self, of: tuple[str, ...], make: Any) -> Any: ...
    def rows_of(self, segments: str) -> Tensor | None: ...
    def row_tensor(self) -> Tensor: ...
    def matrix(self, into: str, of: str) -> Tensor: ...


@dataclass(frozen=True)
class Batch:
    """The data of one call.

    `tokens`: tensors of the index's shape in the caller's dtype. They are `log_probs` and `old_log_probs`, or
    `log_ratio`; `cotangent`; and `policies['rollout']` for every further policy that the program reads. `advantage`: a
    tensor of that shape, or one number per row (`per_row`); rewards in a program of advantages. `vectors`: the
    program's other inputs and its matrices `[into, of]`, float64, one number per element of the stratum. An attribute
    of a leaf has one number per token. A constant vector is an expanded view. Token results have `dtype`, and `fill`
    under the mask. `largest`: the largest value of every parameter input.
    """

    index: Elements
    tokens: Mapping[str, Tensor]
    advantage: Tensor | None
    per_row: bool
    vectors: Mapping[Input | Matrix, Tensor]
    dtype: torch.dtype
    fill: float
    largest: Mapping[Input, float] = field(default_factory=dict)


def inputs_of(batch: Batch, program: Program) -> dict[Input | Matrix, Tensor]:
    """The inputs of a program as float64 vectors, [tokens of leaf] or [elements of stratum], and its matrices."""
    index = batch.index
    values: dict[Input | Matrix, Tensor] = {m: batch.vectors[m] for m in program.matrices}
    for node in program.inputs:
        if node.kind in TOKENS:
            values[node] = gather(batch.tokens[token_tensor(node).called], batch, node.over)
        elif node.kind in GIVEN and node.over in program.leaves and batch.advantage is not None:
            if batch.per_row:
                values[node] = batch.advantage[index.row_tensor()[index.rows_of_tokens(node.over)]].double()
            else:
                values[node] = gather(batch.advantage, batch, node.over)
        else:
            values[node] = batch.vectors[node]
    return values


def gather(values: Tensor, batch: Batch, leaf: str) -> Tensor:
    """A token tensor at the tokens of one leaf: float64 [elements]."""
    return values.reshape(-1)[batch.index.positions_of(leaf)].double()


@dataclass(frozen=True)
class Places:
    """Where a program's outputs lie in its workspace, float64.

    `slices`: all of them. Those of a stratum lie side by side: `rows` has their order by stratum, and `blocks` the
    place of the first and the number of elements. `constant`: outputs that are the same in every call, and not there.
    """

    slices: Mapping[Key, slice]
    rows: Mapping[str, Mapping[Key, int]]
    blocks: Mapping[str, tuple[int, int]]
    constant: Mapping[Key, Tensor]


NOWHERE = Places({}, {}, {}, {})


class Outputs(MutableMapping[Key, Tensor]):
    """The outputs of a program: token vectors in the index's shape, the others float64 `[elements]`, or `[1]` for a
    constant.

    Most coarse outputs lie in one workspace, and are sliced on access.
    """

    def __init__(self, given: dict[Key, Tensor], work: Tensor | None = None, places: Places = NOWHERE) -> None:
        self.given, self.work, self.places = given, work, places

    def __getitem__(self, key: Key) -> Tensor:
        found = self.given.get(key)
        if found is not None:
            return found
        if key in self.places.slices:
            assert self.work is not None
            return self.work[self.places.slices[key]]
        return self.places.constant[key].clone()

    def block(self, stratum: str) -> Tensor:
        """The outputs of a stratum that lie in the workspace: float64 [outputs, elements]."""
        assert self.work is not None
        first, elements = self.places.blocks[stratum]
        return self.work[first : first + elements * len(self.places.rows[stratum])].view(-1, elements)

    def number(self, key: Key) -> float:
        """An output of one element. On a GPU, reading it waits for the device."""
        place = self.places.slices.get(key)
        if place is None or self.work is None or not self.work.is_cpu or key in self.given:
            return float(self[key])
        return ctypes.c_double.from_address(self.work.data_ptr() + 8 * place.start).value  # a tenth of a tensor's way

    def scalar(self, key: Key, dtype: torch.dtype) -> Tensor:
        """An output of one element, 0-d."""
        if self.work is not None and self.work.is_cpu:
            number = self.number(key)
            if dtype == torch.float64 or not abs(number) > LARGEST:  # `new_full` refuses to round to infinity
                return self.work.new_full((), number, dtype=dtype)
        return self[key].reshape(()).to(dtype)

    def __setitem__(self, key: Key, value: Tensor) -> None:
        self.given[key] = value

    def __delitem__(self, key: Key) -> None:
        raise TypeError(f"{key} is an output of a program")

    def __contains__(self, key: object) -> bool:
        return key in self.given or key in self.places.slices or key in self.places.constant

    def __iter__(self) -> Iterator[Key]:
        return iter(dict.fromkeys((*self.given, *self.places.slices, *self.places.constant)))

    def __len__(self) -> int:
        return len({*self.given, *self.places.slices, *self.places.constant})


GIVEN_TENSOR = "advantages"  # a launcher's name for the tensor of advantages or rewards
# A program on one index, with tensors by the caller's names, and vectors of advantages or rewards.
Launcher = Callable[[Mapping[str, Tensor], Mapping[Input, Tensor]], Outputs]


class Run(Protocol):
    """The programs of a generated file."""

    def prepare(self, program: str, batch: Batch, /) -> Launcher:
        """The program on the batch's index, which no ranks share, for tensors of the same dtypes and shapes.

        An index keeps launchers, so a launcher does not keep its index alive.
        """
        ...

    def __call__(self, program: str, batch: Batch, /) -> Outputs:
        """The outputs of a program on a batch that ranks share."""
        ...


def tensors_of(batch: Batch) -> dict[str, Tensor]:
    """The batch's tensors by a launcher's names."""
    return dict(batch.tokens) if batch.advantage is None else {**batch.tokens, GIVEN_TENSOR: batch.advantage}


def given_of(batch: Batch) -> dict[Input, Tensor]:
    """The batch's vectors of advantages or rewards."""
    return {n: v for n, v in batch.vectors.items() if isinstance(n, Input) and n.kind in GIVEN}


class Executable(Run, Protocol):
    """The programs of an operator: each for one rank, and for a batch over several ranks."""

    def choose(self, program: str, batch: Batch, /) -> str:
        """The program to run for one: itself, or a faster one that the batch's parameters allow."""
        ...

    def collectives(self, program: str, cut: bool, /) -> tuple[Collective, ...]:
        """The collectives of a program. `cut`: whether a row has tokens on several ranks."""
        ...
