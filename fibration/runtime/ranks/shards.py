"""The shards of a batch: which rank has which elements, and how ranks combine vectors over strata.

A combined vector has the same bits on each rank, wherever tokens lie. There is one all-gather per stage. A rank sends
numbers for the elements of which it has tokens, so the traffic grows with rows and coarser elements, not with tokens.
Quantiles and ordered sums over elements on several ranks are the exception: ranks send token values. Nothing is read
back from a device, and no floats are added.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from fibration.compiler.arguments import GIVEN
from fibration.compiler.ir import Input, Node, Quantile, Scan
from fibration.compiler.plan import Collective
from fibration.errors import HierarchyIndexError, RanksError, an, listed
from fibration.runtime import devices
from fibration.runtime.quantiles import quantile
from fibration.runtime.ranks.group import Group, agree
from fibration.runtime.scans import Order, ordered, scan
from fibration.runtime.sums import Codes, Sums, sum_of_multiples

Edge = tuple[str, str]
T = TypeVar("T")
UNSAID = -torch.inf  # sent for an element of which a rank has tokens but no value
NOWHERE = -1  # the element of padding


class _FailedElsewhere(Exception):
    """Another rank failed and sent NaN."""


@dataclass(frozen=True)
class RankElements:
    """The elements of one stratum of which each rank has tokens. Every element has tokens on some rank."""

    elements: Sequence[Tensor]  # per rank: int64, ascending
    size: int  # number of elements of the stratum

    @cached_property
    def most(self) -> int:
        """The most elements that one rank has; every rank sends so many numbers."""
        return max(len(e) for e in self.elements)

    @cached_property
    def places(self) -> Tensor:
        """The places of elements' numbers among the [ranks × most] sent numbers: int64 [sent numbers]."""
        found = [np.arange(len(e)) + i * self.most for i, e in enumerate(self.elements)]
        return torch.from_numpy(np.concatenate(found)).to(self.elements[0].device)

    @cached_property
    def element(self) -> Tensor:
        """The element of each of these numbers: int64 [sent numbers]."""
        return torch.cat(list(self.elements))

    @cached_property
    def alone(self) -> bool:
        """Whether the tokens of every element lie on one rank."""
        return len(self.element) == self.size


@dataclass(frozen=True)
class Shards:
    """The ranks that share a batch: which elements each has, and what an index cannot count on one rank.

    `rank_elements`: by stratum coarser than the leaves. `labels`: of labelled strata, for errors. `structure`: a digest
    of the fibrations and of each rank's elements; indexes with equal digests give equal results.
    """

    group: Group
    cut: bool  # whether a row has tokens on several ranks
    tokens: int  # the number of unmasked tokens on all ranks
    rank_elements: Mapping[str, RankElements]
    labels: Mapping[str, Sequence[Hashable]]
    structure: str = ""
    most: Mapping[str, int] = field(default_factory=dict)  # by leaf: the most tokens that one rank has
    pieces: Mapping[str, Pieces] = field(default_factory=dict)  # of elements on several ranks whose order is read
    counts: Mapping[Edge, Tensor] = field(default_factory=dict)  # float64 [target]: a leaf's tokens on all ranks
    sums: Mapping[Edge, Sums] = field(default_factory=dict)  # by attribute of a leaf, and a stratum directly under it
    inside: Mapping[str, Tensor | None] = field(default_factory=dict)  # elements' rows; None if one has several
    first: Mapping[str, Tensor] = field(default_factory=dict)  # the sort key of elements whose order is read
    _met: list[Collective] = field(default_factory=list, repr=False, compare=False)  # collectives of this call so far

    def add(self, mine: Sums, at: Codes, what: str) -> Sums:
        """Sums over the whole batch from this rank's, which has tokens in the cells `at` alone. All ranks call it."""
        here = np.unique(at)  # sends only the cells of this rank's tokens
        sent = here, Sums(len(here), {k: digit[here] for k, digit in mine.digits.items()})
        total = Sums(mine.size, {})
        for cells, sums in self.group.all_gather_object(sent, what):
            total = total.plus(sums.over(cells, mine.size))
        return total

    def collect(self, stage: Collective, values: Mapping[Node, Tensor], index: Any = None) -> dict[Node, Tensor]:
        """The values of a stage in the whole batch, float64 [elements] each, from this rank's `values`.

        `index`: of this rank, for quantiles and ordered sums.

        A sum is NaN if a rank's part is not finite or exceeds 2^53 units. If ranks disagree on the value of an
        element, every rank raises RanksError; on a GPU the value is NaN instead.
        """
        fine = values[stage.reads[0]].new_zeros(1)
        mine = [self._mine(values[node], self.rank_elements[node.stratum]) for node in (*stage.whole, *stage.parts)]
        for q in stage.quantiles:
            for v in q.values:
                mine += self._tokens(values[v], index.parent(v.stratum, q.target), v.stratum)
        given = {s: torch.cat([values[v].expand(index.size[v.stratum]) for v in s.values]) for s in stage.scans}
        mine += [self._shared(s, index).sent(x) for s, x in given.items() if s.target in self.pieces]
        gathered = self._exchanged(stage, torch.cat([fine, *mine]))
        self._met.append(stage)
        if devices.can_sync(gathered.device) and bool(gathered[:, 0].isnan().any()):
            raise _FailedElsewhere
        result: dict[Node, Tensor] = {}
        parts, failed = iter(gathered[:, 1:].split(self._widths(stage), dim=1)), gathered[:, 0].sum()  # 0 or NaN
        for node in (*stage.whole, *stage.parts):
            rank_elements = self.rank_elements[node.stratum]
            known = next(parts).reshape(-1)[rank_elements.places]
            if node in stage.units:
                result[node] = sum_of_multiples(known, rank_elements.element, rank_elements.size, stage.units[node])  # type: ignore[index]
            elif node in stage.parts:
                result[node] = _extreme(known, rank_elements, "amax")
            else:
                word = GIVEN.get(node.kind, "values") if isinstance(node, Input) else "values"
                result[node] = self._agreed(known, rank_elements, node.stratum, word)
        for q in stage.quantiles:
            of_tokens = [next(parts) for _ in range(2 * len(q.values))]
            result[q] = self._quantile(q, of_tokens, values[q.level]) + failed
        for s, x in given.items():
            sums = scan([x], [len(x)], 0, index.order(s.order, ordered), values[s.discount], s.forward)
            if s.target in self.pieces:
                sums = self._shared(s, index).summed(next(parts), sums, values[s.discount], s.forward)
            result[s] = (sums + failed).split([index.size[of] for of in s.sources])[s.sources.index(s.into)]
        return result

    def run(self, what: str, stages: Sequence[Collective], work: Callable[[], T], device: torch.device) -> T:
        """`work()`, which runs the collectives `stages`. If it fails on one rank, all ranks raise (see `agreed`).

        On a GPU, which is not read, the other ranks get NaN instead.
        """
        self._met.clear()
        try:
            return work()
        except RanksError:  # all ranks raise it
            raise
        except _FailedElsewhere:
            agree(self.group, what, {})
            raise
        except Exception as error:
            for stage in stages[len(self._met) :]:
                numbers = 1 + sum(self._widths(stage))
                self._exchanged(stage, torch.full((numbers,), torch.nan, dtype=torch.float64, device=device))
                if devices.can_sync(device):
                    agree(self.group, what, {}, error)
            raise

    def _widths(self, stage: Collective) -> list[int]:
        """How many numbers every rank sends for each vector of a stage."""
        found = [self.rank_elements[node.stratum].most for node in (*stage.whole, *stage.parts)]
        found += [self.most[leaf] for q in stage.quantiles for leaf in q.sources for _ in range(2)]
        return found + [self.pieces[s.target].most for s in stage.scans if s.target in self.pieces]

    def _exchanged(self, stage: Collective, sent: Tensor) -> Tensor:
        """The numbers of every rank, whose first is 0, or NaN if the rank failed: float64 [ranks, numbers]."""
        return self.group.all_gather(sent, f"values over {listed(dict.fromkeys(n.stratum for n in stage.values))}")

    def _mine(self, values: Tensor, rank_elements: RankElements) -> Tensor:
        """The numbers that this rank sends for a vector: float64 [rank_elements.most]."""
        mine = values.expand(rank_elements.size)[rank_elements.elements[self.group.rank]]
        return pad(mine, (0, rank_elements.most - len(mine)))

    def _tokens(self, values: Tensor, parent: Tensor, leaf: str) -> list[Tensor]:
        """The token values that this rank sends, and the element of each token, padded to the largest rank."""
        room = self.most[leaf] - len(parent)
        return [pad(values.expand(parent.shape), (0, room)), pad(parent.double(), (0, room), value=float(NOWHERE))]

    def _shared(self, node: Scan, index: Any) -> Shared:
        pieces, rank = self.pieces[node.target], self.group.rank
        found: Shared = index.kept(
            ("shared", *node.order), lambda: Shared.of(index.sequence(*node.order), pieces, rank, index.device)
        )
        return found

    def _quantile(self, node: Quantile, parts: Sequence[Tensor], level: Tensor) -> Tensor:
        """The quantile over the tokens of all ranks; `parts`: per leaf values and elements, [ranks, most]."""
        size = self.rank_elements[node.target].size
        elements = [torch.where(e >= 0, e, size).reshape(-1).long() for e in parts[1::2]]  # padding has its own element
        levels = pad(level.expand(size), (0, 1))
        return quantile([v.reshape(-1) for v in parts[::2]], elements, size + 1, levels)[:size]

    def _agreed(self, known: Tensor, rank_elements: RankElements, stratum: str, word: str) -> Tensor:
        """Each element's one value, from the ranks that have its tokens and did not send `UNSAID`."""
        if rank_elements.alone:
            return known.new_empty(rank_elements.size).index_copy_(0, rank_elements.element, known)
        says = known != UNSAID
        high, low = (
            _extreme(known, rank_elements, "amax"),
            _extreme(torch.where(says, known, torch.inf), rank_elements, "amin"),
        )
        differs = (high != low) & (high != UNSAID)
        if devices.can_sync(known.device) and bool((differs & ~high.isnan()).any()):
            element = int((differs & ~high.isnan()).nonzero()[0])
            there = ((rank_elements.element == element) & says).nonzero()[:, 0]
            other = there[known[there] != known[there[0]]][0]
            found = [
                f"{float(known[i]):g} on rank {int(rank_elements.places[i]) // rank_elements.most}"
                for i in (there[0], other)
            ]
            name = repr(self.labels[stratum][element]) if stratum in self.labels else f"number {element}"
            raise RanksError(
                f"ranks have different {word} for the {stratum} {name}, which has tokens on several ranks",
                required=f"one {word.removesuffix('s')} per {stratum}",
                found=listed(found),
                remedy=f"give {an(stratum)} the same {word.removesuffix('s')} on every rank",
            )
        return torch.where(differs, torch.nan, high)


def _extreme(known: Tensor, rank_elements: RankElements, reduce: str) -> Tensor:
    worst = -torch.inf if reduce == "amax" else torch.inf
    return known.new_full((rank_elements.size,), worst).scatter_reduce_(0, rank_elements.element, known, reduce)


# ---------------------------------------------------------------- order of tokens in elements that several ranks share


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
