"""The places of a batch's tokens, stored per row or interval instead of per token."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fibration.runtime.sums import Codes, steps


@dataclass(frozen=True)
class Intervals:
    """Ascending places as intervals: interval `k` has the places `starts[k], starts[k] + 1, ...`."""

    starts: Codes  # [intervals]
    before: Codes  # [intervals + 1]: the number of places before each interval, and in all

    @staticmethod
    def first(n: int) -> Intervals:
        """The places from 0 to n - 1."""
        return Intervals(np.zeros(min(n, 1), np.int64), np.unique([0, n]))

    @staticmethod
    def of(keep: NDArray[np.bool_]) -> Intervals:
        """The places where `keep`, a flat array, is True."""
        edges = np.concatenate([keep[:1], keep[1:] != keep[:-1], keep[-1:]]).nonzero()[0]
        starts, ends = edges[::2], edges[1::2]
        return Intervals(starts, _before(ends - starts))

    def __len__(self) -> int:
        return int(self.before[-1])

    def places(self) -> Codes:
        """All places: [places]."""
        return spread_out(self.starts, steps(self.before))

    def place(self, numbers: Codes) -> Codes:
        """The places with these numbers, from 0."""
        run = self.before.searchsorted(numbers, side="right") - 1
        return self.starts[run] + numbers - self.before[run]

    def before_places(self, places: Codes) -> Codes:
        """The number of places before each of `places`."""
        run = self.starts.searchsorted(places, side="left") - 1  # the last interval that starts before it
        if not len(self.starts):
            return np.zeros(len(places), np.int64)
        inside = np.minimum(places - self.starts[run], steps(self.before)[run])
        return np.where(run < 0, 0, self.before[run] + inside)


@dataclass(frozen=True)
class Spans:
    """The tokens of one leaf, or all unmasked tokens, by row."""

    runs: Intervals  # their places in the flattened shape
    rows: Codes  # [rows with such tokens]: numbers of non-empty rows, ascending
    before: Codes  # [rows with such tokens + 1]: the number of tokens before each row, and in all

    @staticmethod
    def of(runs: Intervals, before: Codes) -> Spans:
        """`before`: the number of tokens before each row, and in all: [rows + 1]."""
        rows = steps(before).nonzero()[0]
        return Spans(runs, rows, np.concatenate([before[rows], before[-1:]]))

    def __len__(self) -> int:
        return len(self.runs)

    @property
    def sizes(self) -> Codes:
        """The number of tokens in each of `rows`."""
        return steps(self.before)

    def row_of(self, token: int) -> int:
        """The non-empty row of one token, by number."""
        return int(self.rows[np.searchsorted(self.before, token, side="right") - 1])

    def row_of_token(self) -> Codes:
        """The non-empty row of every token, by number: [tokens]."""
        return np.repeat(self.rows, self.sizes)

    def pieces(self, cuts: Codes) -> tuple[Codes, Codes]:
        """The intervals, cut also before the tokens with the numbers `cuts`: where each starts, and the tokens before
        each.
        """
        before = np.concatenate([self.runs.before, cuts])
        before.sort(kind="stable")  # merges two ascending arrays
        before = np.concatenate([before[:1], before[1:][before[1:] != before[:-1]]])
        return self.runs.place(before[:-1]), before


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

    @cached_property
    def by_length(self) -> Tensor:
        """int64 [segments]: the segments, longest first. Programs that start late are then short, and rows that share
        one are of about one length.
        """
        return self.offsets.diff().argsort(descending=True, stable=True)


@dataclass(frozen=True)
class Ordering:
    """The elements of several strata over target `b`, in order: `order[offsets[b]:offsets[b + 1]]`.

    Elements are numbered stratum after stratum. `order` None: these numbers are in order already.
    """

    order: Tensor | None  # int64 [elements]
    offsets: Tensor  # int64 [targets + 1]
    longest: int  # the most elements that one target has


def lay_out(segment: Codes, segments: int, starts: Codes, before: Codes, device: torch.device) -> Layout:
    """The layout of tokens in pieces: `segment[k]` has the tokens `before[k]:before[k + 1]`, from place `starts[k]`
    on.

    Pieces are in order of place, and so are the tokens of a segment.
    """

    def move(array: Codes) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array, np.int64)).to(device)

    if len(segment) == segments and bool((segment[1:] > segment[:-1]).all()):  # one piece each
        return Layout(move(before), move(starts), None, None)
    sizes, first = steps(before), before[:-1]
    in_order = bool((segment[1:] >= segment[:-1]).all())
    if not in_order:
        order = np.argsort(segment, kind="stable")
        segment, starts, sizes, first = segment[order], starts[order], sizes[order], first[order]
    ends = starts + sizes
    whole = bool(((starts[1:] == ends[:-1]) | (segment[1:] != segment[:-1])).all())
    cuts = segment.searchsorted(np.arange(segments + 1))  # the first piece of each segment, or the next one's
    start = np.concatenate([[0], ends])[cuts[:-1]]  # an empty segment starts where its predecessor ended
    filled = steps(cuts).nonzero()[0]
    start[filled] = starts[cuts[filled]]
    return Layout(
        offsets=move(_before(sizes)[cuts]),
        starts=move(start),
        positions=None if whole else move(spread_out(starts, sizes)),
        tokens=None if in_order else move(spread_out(first, sizes)),
    )


def spread_out(starts: Codes, sizes: Codes) -> Codes:
    """`starts[k], starts[k] + 1, ...`, `sizes[k]` numbers for each `k`, concatenated."""
    result = np.arange(int(sizes.sum()))
    result += np.repeat(starts - _before(sizes)[:-1], sizes)
    return result


def _before(sizes: Codes) -> Codes:
    return np.concatenate([np.zeros(1, np.int64), sizes.cumsum()])


def place_of(flat: int, shape: tuple[int, ...]) -> str:
    """`[1, 3]`: the place of a token in a padded tensor; `[7]` in a packed one."""
    return f"[{flat // shape[1]}, {flat % shape[1]}]" if len(shape) == 2 else f"[{flat}]"
