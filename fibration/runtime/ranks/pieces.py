"""The order of tokens in elements that several ranks share, computed by each rank from the positions of all.

A rank sends its tokens' positions as intervals: element, first position, number of tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fibration.errors import HierarchyIndexError, an
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
