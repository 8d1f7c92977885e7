"""The order of tokens in elements that several ranks share, and sums in that order.

A rank sends its tokens' positions as intervals: element, first position, number of tokens. Each rank computes the order
from those of all ranks. For an ordered sum a rank sends one number per piece: what the piece's tokens alone carry to
the next piece.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fibration.compiler.ir import Scan
from fibration.errors import HierarchyIndexError, an
from fibration.runtime.scans import Order, ordered, scan
from fibration.runtime.sums import Codes

T = TypeVar("T")


def position_ranges(element: Codes, position: Codes) -> Codes:
    """The position intervals of tokens that are sorted by element and position, `[tokens]` each: int64 [3, intervals].

    The rows are the element, the first position, and the number of tokens.
    """
    follows = (element[1:] == element[:-1]) & (position[1:] == position[:-1] + 1)
    first = np.flatnonzero(np.append(True, ~follows)[: len(element)])
    return np.stack([element[first], position[first], np.diff(np.append(first, len(element)))])


@dataclass(frozen=True)
class Pieces:
    """Maximal sequences of one rank's tokens within an element, by element and in order: [pieces] each."""

    element: Codes
    rank: Codes
    size: Codes

    @staticmethod
    def of(said: Sequence[Codes], over: str, describe: Callable[[int], str]) -> Pieces:
        """From the `position_ranges` of all ranks.

        HierarchyIndexError names a position that two ranks have in one element.
        """
        element, start, size = np.concatenate(said, axis=1)
        rank = np.repeat(np.arange(len(said)), [ranges.shape[1] for ranges in said])
        order = np.lexsort((start, element))
        element, start, size, rank = element[order], start[order], size[order], rank[order]
        same = element[1:] == element[:-1]
        again = np.flatnonzero(same & (start[1:] < start[:-1] + size[:-1]))
        if len(again):
            i = int(again[0])
            raise HierarchyIndexError(
                f"two tokens of {describe(int(element[i]))} have the position {start[i + 1]}",
                required=f"positions that differ between the tokens of {an(over)}, on all ranks together",
                found=f"one on rank {min(rank[i : i + 2])}, and one on rank {max(rank[i : i + 2])}",
                remedy=f"number the tokens through all pieces of {an(over)}",
            )
        first = np.flatnonzero(np.append(True, ~(same & (rank[1:] == rank[:-1])))[: len(element)])
        sizes = np.add.reduceat(size, first) if len(first) else size
        return Pieces(element[first], rank[first], sizes)

    @cached_property
    def most(self) -> int:
        """The most pieces that one rank has."""
        return int(np.bincount(self.rank).max(initial=0))

    def ends(self, rank: int, offsets: Codes) -> tuple[Codes, Codes]:
        """A rank's pieces, and the number of the rank's tokens before each; `offsets`: bounds of its elements."""
        mine = np.flatnonzero(self.rank == rank)
        element, size = self.element[mine], self.size[mine]
        before = np.cumsum(size) - size
        opens = np.append(True, element[1:] != element[:-1])[: len(mine)]
        inside = before - np.repeat(before[opens], np.diff(np.append(np.flatnonzero(opens), len(mine))))
        return mine, offsets[element] + inside


class Elements(Protocol):
    """What ranks read of an index."""

    @property
    def size(self) -> Mapping[str, int]: ...
    @property
    def device(self) -> torch.device: ...
    def parent(self, source: str, target: str) -> Tensor: ...
    def sequence(self, target: str, *sources: str) -> Any: ...
    def kept(self, key: Hashable, make: Callable[[], T]) -> T: ...


@dataclass(frozen=True)
class Carries:
    """One order on one rank. Pieces are segments, and so are elements that lie on this rank alone."""

    inside: Order  # of this rank's tokens, by segment
    sizes: Tensor  # int64 [segments]
    segment: Tensor  # int64 [own pieces]
    first: Tensor  # int64 [own pieces]: the place of the first token among this rank's tokens in order
    last: Tensor  # int64 [own pieces]: the place of the last token
    own: Tensor  # int64 [own pieces]: their numbers among all pieces
    among: Order  # of all pieces, by element
    tokens: Tensor  # float64 [pieces]: the number of tokens
    places: Tensor  # int64 [pieces]: the place of a piece's number among all sent numbers

    @staticmethod
    def of(order: tuple[str, ...], index: Elements, pieces: Pieces | None, rank: int) -> Carries:
        """`order`: a target, and the strata whose elements are ordered over it."""
        found, device = index.sequence(*order), index.device
        offsets = found.offsets.cpu().numpy()
        nothing = np.zeros(0, np.int64)
        pieces = pieces or Pieces(nothing, nothing, nothing)
        own, first = pieces.ends(rank, offsets)
        bounds = np.unique(np.concatenate([offsets, first]))
        sizes = np.diff(bounds)
        counts = np.bincount(pieces.rank)
        by_rank = np.argsort(pieces.rank, kind="stable")
        places = np.empty(len(by_rank), np.int64)
        places[by_rank] = np.arange(len(by_rank)) - np.repeat(np.cumsum(counts) - counts, counts)
        places += pieces.rank * pieces.most
        per_element = np.unique(pieces.element, return_counts=True)[1]

        def move(array: NDArray[Any]) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(array)).to(device)

        return Carries(
            inside=ordered(found.order, move(bounds), int(sizes.max(initial=0))),
            sizes=move(sizes),
            segment=move(np.searchsorted(bounds, first)),
            first=move(first),
            last=move(first + pieces.size[own] - 1),
            own=move(own),
            among=ordered(None, move(np.append(0, np.cumsum(per_element))), int(per_element.max(initial=0))),
            tokens=move(pieces.size.astype(np.float64)),
            places=move(places),
        )

    def within(self, node: Scan, x: Tensor, discount: Tensor) -> tuple[Tensor, Tensor]:
        """The sums inside every segment; and the carry of each own piece to the next: float64 [own pieces]."""
        sums = scan([x], [len(x)], 0, self.inside, discount, node.forward)
        end = self.last if node.forward else self.first
        if self.inside.order is not None:
            end = self.inside.order[end]
        return sums, discount * (sums[end] + x[end])

    def carried(self, node: Scan, sums: Tensor, left: Tensor, discount: Tensor) -> Tensor:
        """`sums` plus the carries from other pieces; `left` is the carry of each piece: float64 [pieces]."""
        share = discount**self.tokens
        room = self.among.before if node.forward else self.among.after
        way = 1 if node.forward else -1
        reach = 1
        for _ in range(self.among.steps):
            left, share = (
                torch.where(room >= reach, left + share * left.roll(way * reach), left),
                torch.where(room >= reach, share * share.roll(way * reach), share),
            )
            reach *= 2
        incoming = torch.where(room >= 1, left.roll(way), 0.0)[self.own]
        carry = torch.zeros(len(self.sizes), dtype=sums.dtype, device=sums.device)
        carry = carry.index_copy_(0, self.segment, incoming)
        at = self.inside.before if node.forward else self.inside.after
        added = discount**at * torch.repeat_interleave(carry, self.sizes, output_size=len(at))
        if self.inside.order is not None:
            added = torch.empty_like(added).index_copy_(0, self.inside.order, added)
        return sums + added
