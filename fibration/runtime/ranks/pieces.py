"""The order of tokens in elements that several ranks share, and sums in that order.

A rank sends its tokens' positions as intervals: element, first position, number of tokens. Each rank computes the order
from those of all ranks. For an ordered sum every rank sends its tokens' values, and adds those of all ranks in order,
so that the sums have the same bits however tokens lie on ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from fibration.errors import HierarchyIndexError, an
from fibration.runtime.scans import Order, ordered, scan
from fibration.runtime.sums import Codes


def position_ranges(element: Codes, position: Codes) -> Codes:
    """The position intervals of tokens that are sorted by element and position, `[tokens]` each: int64 [3, intervals].

    The rows are the element, the first position, and the number of tokens.
    """
    follows = (element[1:] == element[:-1]) & (position[1:] == position[:-1] + 1)
    first = np.flatnonzero(np.append(True, ~follows)[: len(element)])
    return np.stack([element[first], position[first], np.diff(np.append(first, len(element)))])


@dataclass(frozen=True)
class Pieces:
    """Intervals of one rank's tokens within an element, by element and in order: [pieces] each."""

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
        again = np.flatnonzero((element[1:] == element[:-1]) & (start[1:] < start[:-1] + size[:-1]))
        if len(again):
            i = int(again[0])
            raise HierarchyIndexError(
                f"two tokens of {describe(int(element[i]))} have the position {start[i + 1]}",
                required=f"positions that differ between the tokens of {an(over)}, on all ranks together",
                found=f"one on rank {min(rank[i : i + 2])}, and one on rank {max(rank[i : i + 2])}",
                remedy=f"number the tokens through all pieces of {an(over)}",
            )
        return Pieces(element, rank, size)

    @cached_property
    def most(self) -> int:
        """The most tokens that one rank has in them; every rank sends so many numbers."""
        return int(np.bincount(self.rank, self.size).max(initial=0))


@dataclass(frozen=True)
class Shared:
    """The tokens of elements that several ranks have, in one order. Each rank sends its own, sorted by element and
    position.
    """

    most: int
    mine: Tensor  # int64: this rank's, among the tokens of all leaves of the order
    places: Tensor  # int64 [tokens]: the place of each among all sent numbers, in order
    own: Tensor  # int64: which of them are this rank's
    order: Order

    @staticmethod
    def of(found: Any, pieces: Pieces, rank: int, device: torch.device) -> Shared:
        """`found`: the order of this rank's tokens over every element, an `Ordering`."""
        offsets = found.offsets.cpu().numpy()
        element = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        mine = torch.from_numpy(np.isin(element, pieces.element).nonzero()[0]).to(device)
        of_rank = np.repeat(pieces.rank, pieces.size)
        places = np.empty(len(of_rank), np.int64)
        for r, count in enumerate(np.bincount(of_rank)):
            places[of_rank == r] = r * pieces.most + np.arange(count)
        sizes = np.bincount(np.unique(pieces.element, return_inverse=True)[1], pieces.size).astype(np.int64)
        bounds = torch.from_numpy(np.append(0, np.cumsum(sizes))).to(device)
        return Shared(
            most=pieces.most,
            mine=mine if found.order is None else found.order[mine],
            places=torch.from_numpy(places).to(device),
            own=torch.from_numpy(np.flatnonzero(of_rank == rank)).to(device),
            order=ordered(None, bounds, int(sizes.max(initial=0))),
        )

    def sent(self, x: Tensor) -> Tensor:
        """The numbers that this rank sends: float64 [most]."""
        return pad(x[self.mine], (0, self.most - len(self.mine)))

    def summed(self, gathered: Tensor, sums: Tensor, discount: Tensor, forward: bool) -> Tensor:
        """This rank's `sums` of all tokens, with those of shared elements. `gathered`: [ranks, most]."""
        x = gathered.reshape(-1)[self.places]
        whole = scan([x], [len(x)], 0, self.order, discount, forward)
        return sums.index_copy(0, self.mine, whole[self.own])
