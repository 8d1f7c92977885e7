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
    """Where the tokens of one leaf lie in the flattened tensors of a batch, segment by segment.

    Segment `b` has the tokens `offsets[b]:offsets[b + 1]`, counted segment by segment; there may be none, and then
    `starts[b]` means nothing. They are the positions `starts[b], starts[b] + 1, ...` where segments are whole
    (`positions` is None; what lies between segments is masked, or other leaves' tokens), else `positions[k]`.
    """

    offsets: Tensor  # int64 [segments + 1]
    starts: Tensor  # int64 [segments]
    positions: Tensor | None  # int64 [tokens]
    tokens: Tensor | None  # int64 [tokens]: the number of each among its leaf's, None where they are counted so
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
    filled = np.flatnonzero(sizes)
    starts = np.zeros(segments, np.int64)
    starts[filled] = there[offsets[filled]]
    ends = there[offsets[filled + 1] - 1]
    whole = bool((ends - starts[filled] == sizes[filled] - 1).all())

    def move(array: Codes) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array, np.int64)).to(device)

    return Layout(
        offsets=move(offsets),
        starts=move(starts),
        positions=None if whole else move(there),
        tokens=None if order is None else move(order),
        longest=int(sizes.max(initial=0)),
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
    def parent(self, source: str, target: str) -> Tensor: ...
    def fibre(self, source: str, target: str, make: Any) -> Any: ...
    def tokens_of(self, leaf: str) -> Tensor | None: ...
    def positions_of(self, leaf: str) -> Tensor: ...
    def rows_of_tokens(self, leaf: str) -> Tensor: ...
    def leaves_over(self, stratum: str) -> tuple[str, ...]: ...
    def layout(self, segments: str, leaf: str | None = None) -> Layout: ...
    def members(self, source: str, target: str) -> Members: ...
    def rows_of(self, segments: str) -> Tensor | None: ...
    def row_tensor(self) -> Tensor: ...
    def matrix(self, into: str, of: str) -> Tensor: ...


@dataclass(frozen=True)
class Batch:
    """One call. `tokens` holds tensors of the index's shape, in the caller's dtype: `log_probs` and `old_log_probs`,
    or `log_ratio`; `cotangent`. `advantage` is such a tensor, or one number per row. `vectors` are the program's other
    inputs: float64, one number per element of their stratum (an attribute of a leaf: per token of it), expanded
    views where they hold one value throughout; and matrices `[into, of]`. Token results come in `dtype`, with `fill`
    under the mask.
    """

    index: Elements
    tokens: Mapping[str, Tensor]
    advantage: Tensor | None
    per_row: bool
    vectors: Mapping[str, Tensor]
    dtype: torch.dtype
    fill: float


def leaf_name(name: str, leaf: str, leaves: tuple[str, ...]) -> str:
    """What a program calls a token input of `leaf`: `log_ratio`; of several leaves, `log_ratio_text_token`."""
    return name if len(leaves) == 1 else f"{name}_{leaf}"


def inputs_of(batch: Batch) -> dict[str, Tensor]:
    """A float64 vector for every input: [tokens of its leaf], or [elements] of its stratum; and the matrices.

    Where log-probs are given, `log_ratio` is their difference and `log_prob` the new ones. Token inputs of several
    leaves carry the leaf's name (`leaf_name`).
    """
    index = batch.index
    values = dict(batch.vectors)
    for leaf in index.leaves:
        here = {name: gather(t, batch, leaf) for name, t in batch.tokens.items()}
        if "log_probs" in here and "old_log_probs" in here:
            here["log_prob"] = here.pop("log_probs")
            here["log_ratio"] = here["log_prob"] - here.pop("old_log_probs")
        if batch.advantage is not None:
            a = batch.advantage
            if batch.per_row:
                here["advantage"] = a[index.row_tensor()].double()[index.rows_of_tokens(leaf)]
            else:
                here["advantage"] = gather(a, batch, leaf)
        values.update({leaf_name(name, leaf, index.leaves): value for name, value in here.items()})
    return values


def gather(values: Tensor, batch: Batch, leaf: str) -> Tensor:
    """A token tensor at the tokens of one leaf: float64 [elements]."""
    return values.reshape(-1)[batch.index.positions_of(leaf)].double()


# (program, batch) -> its outputs: token vectors in the index's shape, the others float64 [elements]
Run = Callable[[str, Batch], dict[str, Tensor]]
