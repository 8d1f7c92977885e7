"""What a backend is given: the caller's tensors as they lie in memory, and where the tokens of every segment are."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Layout:
    """Where the tokens of one leaf lie in the flattened tensors of a batch, segment by segment.

    Segment `b` has the tokens `offsets[b]:offsets[b + 1]`, counted segment by segment; there may be none. They are the
    positions `starts[b], starts[b] + 1, ...` where segments are whole (`positions` is None; what lies between is
    masked, or other leaves' tokens), else `positions[k]`. Where whole segments are in order too (`tokens` is None), one
    without tokens starts where the one before it ended.
    """

    offsets: Tensor  # int64 [segments + 1]
    starts: Tensor  # int64 [segments]
    positions: Tensor | None  # int64 [tokens]
    tokens: Tensor | None  # int64 [tokens]: the number of each among its leaf's, None where they are counted so


@dataclass(frozen=True)
class Members:
    """The elements over each target: `order[offsets[b]:offsets[b + 1]]`, where `order` None means they are sorted."""

    order: Tensor | None  # int64 [source]
    offsets: Tensor  # int64 [target + 1]


@dataclass(frozen=True)
class Ordering:
    """The elements of several strata over each target, in one order: `order[offsets[b]:offsets[b + 1]]`.

    They are numbered through, one stratum after the other; `order` None means they are so already.
    """

    order: Tensor | None  # int64 [elements]
    offsets: Tensor  # int64 [targets + 1]
    longest: int  # how many one target has at most


class Ranks(Protocol):
    """The ranks that a batch is spread over, as backends see them."""

    @property
    def cut(self) -> bool:
        """Whether a row has tokens on several ranks."""
        ...

    @property
    def tokens(self) -> int:
        """How many unmasked tokens there are on all ranks: what a kernel's shape may depend on."""
        ...

    def collect(
        self, stage: Collective, values: Mapping[Node, Tensor], index: Elements | None = None
    ) -> dict[Node, Tensor]:
        """The values of a collective, put together: float64 [elements of its stratum] each, of what it reads."""
        ...


class Elements(Protocol):
    """The part of an index that backends use.

    Where there are `ranks`, tokens are those of this rank, and the elements of everything coarser those of the whole
    batch; a segment may then have no token here, and `rows_of` is -1 for it.
    """

    @property
    def ranks(self) -> Ranks | None: ...
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
    """One call. `tokens` holds tensors of the index's shape, in the caller's dtype: `log_probs` and `old_log_probs`,
    or `log_ratio`; `cotangent`; of every further policy that the program reads `policies['rollout']`. `advantage` is
    such a tensor, or one number per row; in a program of advantages it is the reward. `vectors` are the program's other
    inputs, and matrices `[into, of]`: float64, one number per element of their stratum (an attribute of a leaf: per
    token of it), expanded views where they hold one value throughout. Token results come in `dtype`, with `fill` under
    the mask.
    """

    index: Elements
    tokens: Mapping[str, Tensor]
    advantage: Tensor | None
    per_row: bool
    vectors: Mapping[Input | Matrix, Tensor]
    dtype: torch.dtype
    fill: float


def inputs_of(batch: Batch, program: Program) -> dict[Input | Matrix, Tensor]:
    """Float64 vectors for the inputs of a program: [tokens of its leaf], or [elements] of its stratum; and matrices."""
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


class Outputs(MutableMapping[Key, Tensor]):
    """What a program computed: token vectors in the index's shape, the others float64 `[elements]`, or `[1]` for all.

    Most of the others lie in one vector, at `work[places[key]]`, and are taken out of it where somebody asks for them.
    What is in `constant` has these numbers in every call.
    """

    def __init__(
        self,
        given: dict[Key, Tensor],
        work: Tensor | None = None,
        places: Mapping[Key, slice] | None = None,
        constant: Mapping[Key, Tensor] | None = None,
    ) -> None:
        self.given, self.work, self.places, self.constant = given, work, places or {}, constant or {}

    def __getitem__(self, key: Key) -> Tensor:
        found = self.given.get(key)
        if found is not None:
            return found
        if key in self.places:
            assert self.work is not None
            return self.work[self.places[key]]
        return self.constant[key].clone()

    def __setitem__(self, key: Key, value: Tensor) -> None:
        self.given[key] = value

    def __delitem__(self, key: Key) -> None:
        raise TypeError(f"{key} is an output of a program")

    def __contains__(self, key: object) -> bool:
        return key in self.given or key in self.places or key in self.constant

    def __iter__(self) -> Iterator[Key]:
        return iter(dict.fromkeys((*self.given, *self.places, *self.constant)))

    def __len__(self) -> int:
        return len({*self.given, *self.places, *self.constant})


Run = Callable[[str, Batch], Outputs]  # of a program, on a batch


class Runs(Protocol):
    """The programs of an operator, for batches that are spread over ranks and for others."""

    def __call__(self, program: str, batch: Batch, /) -> Outputs: ...
    def collectives(self, program: str, cut: bool, /) -> tuple[Collective, ...]:
        """Where ranks meet in a program; `cut`: whether a row has tokens on several."""
        ...
