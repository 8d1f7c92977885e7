"""The order of tokens of elements that several ranks have tokens of, worked out by each rank from what all have said.

A rank says its tokens' positions as runs of neighbours: an element, the first position, and how many there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fibration.errors import HierarchyIndexError, an
from fibration.runtime.batch import Codes


@dataclass(frozen=True)
class Runs:
    """What one rank says of the elements that others have tokens of, too: [runs] each, of the whole batch's numbers."""

    element: Codes
    start: Codes
    size: Codes

    @staticmethod
    def of(element: Codes, position: Codes) -> Runs:
        """Of tokens by element and position: [tokens] each."""
        follows = (element[1:] == element[:-1]) & (position[1:] == position[:-1] + 1)
        first = np.flatnonzero(np.append(True, ~follows)[: len(element)])
        return Runs(element[first], position[first], np.diff(np.append(first, len(element))))


@dataclass(frozen=True)
class Pieces:
    """Tokens of one rank of which no other rank has one between: by element, and in their order: [pieces] each."""

    element: Codes
    rank: Codes
    size: Codes

    @staticmethod
    def of(said: Sequence[Runs], over: str, describe: Callable[[int], str]) -> Pieces:
        """From the runs of all ranks. HierarchyIndexError names a position that two ranks have in one element."""
        element, start, size = (
            np.concatenate([getattr(r, what) for r in said]) for what in ("element", "start", "size")
        )
        rank = np.repeat(np.arange(len(said)), [len(r.element) for r in said])
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
                remedy=f"count them through over all pieces of {an(over)}",
            )
        first = np.flatnonzero(np.append(True, ~(same & (rank[1:] == rank[:-1])))[: len(element)])
        sizes = np.add.reduceat(size, first) if len(first) else size
        return Pieces(element[first], rank[first], sizes)

    @cached_property
    def most(self) -> int:
        """How many the rank with the most of them has."""
        return int(np.bincount(self.rank).max(initial=0))

    def ends(self, rank: int, offsets: Codes) -> tuple[Codes, Codes]:
        """Which of them are a rank's; and how many of its tokens come before each, if its elements' are `offsets`."""
        mine = np.flatnonzero(self.rank == rank)
        element, size = self.element[mine], self.size[mine]
        before = np.cumsum(size) - size
        opens = np.append(True, element[1:] != element[:-1])[: len(mine)]
        inside = before - np.repeat(before[opens], np.diff(np.append(np.flatnonzero(opens), len(mine))))
        return mine, offsets[element] + inside
