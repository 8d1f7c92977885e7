"""The arguments of a backend: the caller's tensors, and the positions of each segment's tokens in them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from fibration.compiler.arguments import GIVEN, TOKENS, token_tensor
from fibration.compiler.ir import Input, Key, Matrix
from fibration.compiler.plan import Collective
from fibration.compiler.program import Program
from fibration.runtime.index.index import Index

LARGEST = torch.finfo(torch.float32).max


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

    index: Index
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

    - `starts`: by stratum, where its vectors begin, and the number of its elements.
    - `numbers`: the stratum of every output, and the number of its vector there.
    - `blocks`: outputs of one stratum lie side by side, in rows of a block. The number of its first vector, and that of
      its rows.
    - `rows`: by stratum, the row of each output. Equal outputs share one.
    - `constant`: outputs that are the same in every call. They have no place.
    """

    starts: Mapping[str, tuple[int, int]]
    numbers: Mapping[Key, tuple[str, int]]
    rows: Mapping[str, Mapping[Key, int]]
    blocks: Mapping[str, tuple[int, int]]
    constant: Mapping[Key, Tensor]

    def place(self, of: tuple[str, int]) -> slice:
        """The place of a vector, by its stratum and its number there."""
        first, size = self.starts[of[0]]
        return slice(first + of[1] * size, first + (of[1] + 1) * size)


NOWHERE = Places({}, {}, {}, {}, {})


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
        of = self.places.numbers.get(key)
        if of is not None:
            assert self.work is not None
            return self.work[self.places.place(of)]
        return self.places.constant[key].clone()

    def block(self, stratum: str) -> Tensor:
        """The outputs of a stratum that lie in the workspace: float64 [outputs, elements]."""
        assert self.work is not None
        first, rows = self.places.blocks[stratum]
        at, elements = self.places.starts[stratum]
        return self.work[at + first * elements : at + (first + rows) * elements].view(rows, elements)

    def number(self, key: Key) -> float:
        """An output of one element. On a GPU, reading it waits for the device."""
        of = self.places.numbers.get(key)
        if of is None or self.work is None or not self.work.is_cpu or key in self.given:
            return float(self[key])
        first, size = self.places.starts[of[0]]  # ten times as fast as float(tensor)
        return ctypes.c_double.from_address(self.work.data_ptr() + 8 * (first + of[1] * size)).value

    def scalar(self, key: Key, dtype: torch.dtype, sign: int = 1) -> Tensor:
        """An output of one element, 0-d; or minus it."""
        if self.work is not None and self.work.is_cpu:
            number = self.number(key)
            if dtype == torch.float64 or not abs(number) > LARGEST:  # `new_full` refuses to round to infinity
                return self.work.new_full((), sign * number, dtype=dtype)
        found = self[key].reshape(()).to(dtype)
        return found if sign == 1 else found.neg()

    def __setitem__(self, key: Key, value: Tensor) -> None:
        self.given[key] = value

    def __delitem__(self, key: Key) -> None:
        raise TypeError(f"{key} is an output of a program")

    def __contains__(self, key: object) -> bool:
        return key in self.given or key in self.places.numbers or key in self.places.constant

    def __iter__(self) -> Iterator[Key]:
        return iter(dict.fromkeys((*self.given, *self.places.numbers, *self.places.constant)))

    def __len__(self) -> int:
        return len({*self.given, *self.places.numbers, *self.places.constant})


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
