"""What a backend is given: the caller's tensors as they lie in memory, and where the tokens of every segment are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Codes = NDArray[np.int64]


@dataclass(frozen=True)
class Layout:
    """Where the tokens of every segment lie in the flattened tensors of a batch.

    Segment `b` has the tokens `offsets[b]:offsets[b + 1]`, counted segment by segment. They are the positions
    `starts[b], starts[b] + 1, ...` where segments are whole (`positions` is None), else `positions[k]`.
    """

    offsets: Tensor  # int64 [segments + 1]
    starts: Tensor  # int64 [segments]
    positions: Tensor | None  # int64 [tokens]
    tokens: Tensor | None  # int64 [tokens]: the index's number of each, None where they are counted the same way
    longest: int
    total: int  # tokens of all segments

    @property
    def count(self) -> int:
        return len(self.starts)


def lay_out(parent: Codes, segments: int, positions: Codes, device: torch.device) -> Layout:
    """The layout of the tokens at `positions`, `parent[i]` being the segment of the `i`th."""
    sizes = np.bincount(parent, minlength=segments)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    in_order = bool((parent[1:] >= parent[:-1]).all())
    order = None if in_order else np.argsort(parent, kind="stable")
    there = positions if order is None else positions[order]  # ascending within every segment
    starts = there[offsets[:-1]]
    whole = bool((there[offsets[1:] - 1] - starts == sizes - 1).all())

    def move(array: Codes) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array, np.int64)).to(device)

    return Layout(
        offsets=move(offsets),
        starts=move(starts),
        positions=None if whole else move(there),
        tokens=None if order is None else move(order),
        longest=int(sizes.max()),
        total=len(positions),
    )


@dataclass(frozen=True)
class Members:
    """The elements over each target: `order[offsets[b]:offsets[b + 1]]`, where `order` None means they are sorted."""

    order: Tensor | None  # int64 [source]
    offsets: Tensor  # int64 [target + 1]


class Elements(Protocol):
    """The part of an index that backends use."""

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
    def parent(self, source: str, target: str) -> Tensor: ...
    def fibre(self, source: str, target: str, make: Any) -> Any: ...
    def layout(self, segments: str) -> Layout: ...
    def members(self, source: str, target: str) -> Members: ...
    def rows_of(self, segments: str) -> Tensor | None: ...
    def row_tensor(self) -> Tensor: ...


@dataclass(frozen=True)
class Batch:
    """One call. `tokens` holds tensors of the index's shape, in the caller's dtype: `log_probs` and `old_log_probs`,
    or `log_ratio`; `cotangent`. `advantage` is such a tensor, or one number per row. `vectors` are the program's other
    inputs: float64, one number per element of their stratum (a token attribute: per unmasked token); those that hold
    one value throughout may be expanded views. Token results come in `dtype`, with `fill` under the mask.
    """

    index: Elements
    tokens: Mapping[str, Tensor]
    advantage: Tensor | None
    per_row: bool
    vectors: Mapping[str, Tensor]
    dtype: torch.dtype
    fill: float


def inputs_of(batch: Batch) -> dict[str, Tensor]:
    """A float64 vector for every input: [unmasked tokens], or [elements] of its stratum."""
    values = {name: gather(t, batch) for name, t in batch.tokens.items()}
    if "log_probs" in values:
        values["log_ratio"] = values.pop("log_probs") - values.pop("old_log_probs")
    if batch.advantage is not None:
        a = batch.advantage
        if batch.per_row:
            values["advantage"] = a[batch.index.row_tensor()].double()[batch.index.row_of_token]
        else:
            values["advantage"] = gather(a, batch)
    return {**batch.vectors, **values}


def gather(values: Tensor, batch: Batch) -> Tensor:
    return values.reshape(-1)[batch.index.positions].double()


# (program, batch) -> its outputs: token vectors in the index's shape, the others float64 [elements]
Run = Callable[[str, Batch], dict[str, Tensor]]
