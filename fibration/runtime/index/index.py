"""The index of one batch: masks, offsets and labels become fibrations between numbered elements.

Rows are the sampled sequences: the rows of a padded `[B, T]` tensor, or the segments of a packed `[N]` one. The
elements of a stratum are numbered in order of the first appearance of their labels, those of a leaf in order of
tokens. Masked tokens, and rows without an unmasked token, belong to no element.

An index stores numbers per row, per interval of unmasked tokens, and per coarser element. Numbers per token are made
on demand, unless labels were given per token.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fibration.compiler.coupling import UNCOUPLED, Coupling
from fibration.compiler.interpret import Sizes
from fibration.errors import HierarchyIndexError
from fibration.language.atoms import BATCH, Attribute
from fibration.language.hierarchy import Hierarchy
from fibration.runtime.batch import Codes, Layout, Members, Ordering
from fibration.runtime.devices import usable
from fibration.runtime.handles import INDEXES
from fibration.runtime.index import sequence
from fibration.runtime.index.derived import Edge, Parents, Summed, once
from fibration.runtime.index.spans import Intervals, Spans, lay_out, place_of
from fibration.runtime.ranks.collect import Shards
from fibration.runtime.ranks.group import Group
from fibration.runtime.sums import Sums, Vector

T = TypeVar("T")


class Fit(Protocol):
    """The part of `Projection` that an index uses."""

    @property
    def strata(self) -> tuple[str, ...]: ...
    def block(self, into: str, of: str) -> NDArray[np.float64]: ...


@dataclass(eq=False)  # torch.compile would read all fields of a frozen one
class Index:
    """The hierarchy's elements in one batch. Made by `operator.index(...)`, for one hierarchy and one device."""

    hierarchy: Hierarchy
    leaves: tuple[str, ...]  # every unmasked token is an element of one of them
    shape: tuple[int, ...]  # of every per-token tensor: [B, T] or [N]
    n_rows: int  # rows of the batch, empty ones included
    row_numbers: Codes  # [rows with tokens]: the batch's row of each
    every: Spans  # all unmasked tokens
    spans: Mapping[str, Spans]  # per leaf, its tokens
    numbers: Mapping[str, Intervals]  # with several leaves, per leaf: its tokens' numbers among the unmasked tokens
    edges: Mapping[Edge, Tensor]  # int64 per fibration: [source], or [rows in the leaf's span] if it is in `by_row`
    by_row: frozenset[Edge]  # fibrations of leaves whose target was labelled per row
    size: Mapping[str, int]
    labels: Mapping[str, tuple[Hashable, ...]]  # per labelled stratum, by element number
    values: Mapping[str, Tensor]  # float64 attributes, per element of their stratum
    device: torch.device
    bounds: Codes  # [rows of the batch + 1]: where each row begins in the flattened shape, and the end
    has_row_names: bool  # whether the caller named the rows
    given_positions: Codes | None = None  # [tokens]: the caller's positions, which order tokens
    projection: Fit | None = None  # of crossed strata, if the hierarchy orthogonalises by projection
    ranks: Shards | None = None  # the ranks that share the batch
    refuses_rewards: HierarchyIndexError | None = None  # raised by rewards if an element has no others
    coupling: Coupling = UNCOUPLED  # of the operator that made this index
    _cache: dict[Any, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.handle: Tensor = INDEXES.tensor(self)  # stands for the index in custom torch operators

    def __getstate__(self) -> dict[str, Any]:
        """The fields without the cache, which belongs to this process."""
        return self.__dict__ | {"_cache": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__post_init__()  # every copy has its own handle

    # What `index.micro(rows)` returns; set by `micro.py`, which imports this module.
    _micro: ClassVar[Callable[[Index, Any], Index]]

    def __len__(self) -> int:
        """The number of rows of the batch."""
        return self.n_rows

    def micro(self, rows: Any) -> Index:
        """The index of a micro-batch: some rows of this step, with the counts and normalisers of the whole step.

        `rows`: a slice, or a list, an array or a tensor of row numbers (negative ones count from the end) or of one
        boolean per row. They come in the order given; packed tokens one row after the other. Rows without tokens are
        allowed.

        `op.loss` and `op.coefficients` on it take the tensors of these rows, and return this part's share of `J` and of
        the gradient: over micro-batches that have every row once, and over ranks, they add up to the whole step's. No
        ranks meet in such a call. A loss with `op.coupling.frozen` needs `op.freeze(...)` on the whole step first.

        Raises HierarchyIndexError for rows that are not there or come twice, and for an element of `op.coupling.strata`
        with tokens here and elsewhere.
        """
        return self._micro(rows)

    def to(self, device: torch.device | str) -> Index:
        """The index on another device, or itself if it is there already. Cached values are computed again.

        Raises HierarchyIndexError for a device that cannot be used, and for a distributed index.
        """
        target = usable(device)
        if target == self.device:
            return self
        if self.ranks is not None:
            raise HierarchyIndexError(
                f"the index of rank {self.ranks.group.rank} cannot move to {target}",
                required="the device on which it was built",
                remedy=f"build it there: op.index(..., device='{target}')",
            )
        edges = {edge: parent.to(target) for edge, parent in self.edges.items()}
        values = {name: value.to(target) for name, value in self.values.items()}
        return replace(self, edges=edges, values=values, device=target, _cache={})

    @property
    def group(self) -> Group | None:
        """The ranks that share the batch; None for one process."""
        return None

    @property
    def gradient_scale(self) -> int:
        """The factor of a rank's gradient where gradients are averaged over ranks: the number of ranks, 1 without a
        group.
        """
        return self.group.size if self.group else 1

    @property
    def shares(self) -> int:
        """How many ranks share the objective of one call: each has `J` divided by this number in its loss."""
        return self.gradient_scale

    @property
    def tokens_of_step(self) -> int:
        """The unmasked tokens of the whole step, on all ranks. The shape of a kernel may depend on it."""
        return self.ranks.tokens if self.ranks else sum(self.size[leaf] for leaf in self.leaves)

    @property
    def positions(self) -> Tensor:
        """The places of the unmasked tokens in the flattened shape: int64 [tokens]."""
        return self._places_of(None)

    @property
    def row_of_token(self) -> Tensor:
        """The non-empty row of every unmasked token, by number: int64 [tokens]."""
        return self._rows_of(None)

    @property
    def parents(self) -> Mapping[Edge, Tensor]:
        """Per fibration, the target of every source element: int64 [source]."""
        return Parents(self)

    def tokens_of(self, leaf: str) -> Tensor | None:
        """The numbers of a leaf's tokens among the unmasked tokens, ascending: int64 [elements]; None for a single
        leaf.

        Raises HierarchyIndexError if `leaf` is not a leaf.
        """
        return self._numbers_of(leaf) if self._kind(leaf) else None

    def positions_of(self, leaf: str) -> Tensor:
        """The places of a leaf's tokens in the flattened shape: int64 [elements]."""
        return self._places_of(self._kind(leaf))

    def rows_of_tokens(self, leaf: str) -> Tensor:
        """The non-empty row of every token of a leaf, by number: int64 [elements]."""
        return self._rows_of(self._kind(leaf))

    def _kind(self, leaf: str) -> str | None:
        """`leaf`, or None if it is the only leaf."""
        if leaf not in self.leaves:
            raise HierarchyIndexError(f"'{leaf}' is not a leaf of '{self.hierarchy.name}'", required=self._leaf_words)
        return leaf if len(self.leaves) > 1 else None

    @once
    def _numbers_of(self, leaf: str) -> Tensor:
        return self._move(self.numbers[leaf].places())

    @once
    def _places_of(self, leaf: str | None) -> Tensor:
        return self._move((self.every if leaf is None else self.spans[leaf]).runs.places())

    @once
    def _rows_of(self, leaf: str | None) -> Tensor:
        return self._move((self.every if leaf is None else self.spans[leaf]).row_of_token())

    def _move(self, array: Codes) -> Tensor:
        return torch.from_numpy(array).to(self.device)

    def leaves_over(self, stratum: str) -> tuple[str, ...]:
        """The leaves over `stratum`, itself if it is a leaf; all leaves for rows and the batch."""
        return tuple(s for s in self.leaves if stratum == BATCH or self._reaches(s, stratum))

    @property
    def _leaf_words(self) -> str:
        return f"one of {', '.join(self.leaves)}"

    def parent(self, source: str, target: str) -> Tensor:
        """The `target` element of every `source` element: int64 [source].

        `source` lies over `target`; or `target` is the batch; or it is the rows, and no element of `source` has tokens
        in several rows.
        """
        if (source, target) in self.edges and (source, target) not in self.by_row:
            return self.edges[source, target]
        if target == BATCH:
            return torch.zeros(1, dtype=torch.int64, device=self.device).expand(self.size[source])
        return self._compose(source, target)

    @once
    def _compose(self, source: str, target: str) -> Tensor:
        """The parents along the shortest path; all paths agree (`assumed.py`)."""
        if source == target:
            return torch.arange(self.size[source], device=self.device)
        of_rows = self.of_rows(source, target) if source in self.leaves else None
        if of_rows is not None:
            sizes = torch.from_numpy(self.spans[source].sizes).to(self.device)
            return torch.repeat_interleave(of_rows, sizes, output_size=self.size[source])
        frontier: list[tuple[Edge, ...]] = [(e,) for e in self.edges if e[0] == source]
        while frontier:
            path = frontier.pop(0)
            end = path[-1][1]
            if end == target:
                parent = self.parents[path[0]]
                for edge in path[1:]:
                    parent = self.parents[edge][parent]
                return parent
            frontier += [(*path, e) for e in self.edges if e[0] == end and self._reaches(end, target)]
        inside = self._row_under(source) if target == self.hierarchy.rows.name and source in self.size else None
        if inside is None:
            raise HierarchyIndexError(f"'{source}' does not lie over '{target}' in '{self.hierarchy.name}'")
        return inside

    @once
    def of_rows(self, leaf: str, target: str) -> Tensor | None:
        """The `target` element of a leaf's tokens in each row that has some: int64 [those rows].

        None if labels were given per token.
        """
        if target == BATCH:
            return torch.zeros(len(self.spans[leaf].rows), dtype=torch.int64, device=self.device)
        if (leaf, target) in self.by_row:
            return self.edges[leaf, target]
        between = next((t for s, t in self.by_row if s == leaf and self._reaches(t, target)), None)
        return None if between is None else self.parent(between, target)[self.edges[leaf, between]]

    def between(self, source: str, over: str) -> str | None:
        """A stratum directly under `source` on a path to `over`; None if `over` itself is directly under it."""
        below = (t for s, t in self.edges if s == source and t != over)
        return next((t for t in below if over == BATCH or self._reaches(t, over)), None)

    def _reaches(self, stratum: str, target: str) -> bool:
        return stratum == target or any(self._reaches(t, target) for s, t in self.edges if s == stratum)

    @once
    def count(self, of: str, over: str) -> Tensor:
        """The number of `of` elements over each `over` element: float64 [over]."""
        if over == BATCH:
            return torch.tensor([self.size[of]], device=self.device).double()
        between = self.between(of, over)
        if between is not None:  # adds up the counts of the stratum between: far fewer numbers, and exact
            parent, counts = self.parent(between, over), self.count(of, between)
        elif (of, over) in self.by_row:
            parent, counts = self.edges[of, over], torch.from_numpy(self.spans[of].sizes).to(self.device).double()
        else:
            return torch.bincount(self.parent(of, over), minlength=self.size[over]).double()
        return torch.zeros(self.size[over], dtype=torch.float64, device=self.device).index_add_(0, parent, counts)

    @once
    def total(self, attribute: Attribute, over: str) -> Tensor:
        """The sum of an attribute over each `over` element: float64 [over]."""
        if attribute.on.name == over:
            return self.values[attribute.name]
        return torch.from_numpy(self.summed(attribute).over(over).values()).to(self.device)

    @once
    def summed(self, attribute: Attribute) -> Summed:
        """An attribute, and its sums over coarser strata."""
        return Summed(self, attribute.on.name, self.values[attribute.name].cpu().numpy())

    def added(self, source: str, at: Codes, values: Vector, size: int) -> Sums:
        """The sums of one number per element of `source` over `size` cells; element `i` is in cell `at[i]`.

        Sums over a leaf are the whole batch's, so every rank of a distributed index must call it.
        """
        return Sums.of(values, at, size)

    def occurring(self, keys: Codes) -> Codes:
        """The distinct `keys` (one per token) in the whole batch, ascending. Every rank of a distributed index must
        call it.
        """
        return np.unique(keys)

    @once
    def fibre(self, source: str, target: str, make: Any) -> Any:
        """The fibration in a backend's form, made by `make`."""
        return make(self.parent(source, target), self.size[target])

    @once
    def layout(self, segments: str, leaf: str | None = None) -> Layout:
        """Where the tokens of `leaf` over every element of `segments` lie, in order. `leaf` None: the only leaf."""
        if leaf is None:
            if len(self.leaves) > 1:
                raise HierarchyIndexError(
                    f"a layout of '{self.hierarchy.name}' without a leaf", required=self._leaf_words
                )
            return self.layout(segments, self.leaves[0])
        if self.given_positions is not None and sequence.in_several_rows(self, segments).any():
            listed = self.sequence(segments, leaf)
            if listed.order is not None:
                places = self.positions_of(leaf)[listed.order]
                return Layout(listed.offsets, torch.zeros_like(listed.offsets[1:]), places, listed.order)
        segment, starts, before = self._pieces(segments, leaf)
        return lay_out(segment, self.size[segments], starts, before, self.device)

    @once
    def pieces(self, segments: str, leaf: str) -> tuple[Tensor, Tensor]:
        """Maximal intervals of a leaf's neighbouring tokens over one element of `segments`.

        The element of each interval: int64 [pieces]; and its bounds in the flattened shape: int64 [2·pieces].
        """
        segment, starts, before = self._pieces(segments, leaf)
        return self._move(segment), self._move(np.stack([starts, starts + np.diff(before)], axis=1).reshape(-1))

    def _pieces(self, segments: str, leaf: str) -> tuple[Codes, Codes, Codes]:
        spans, of_rows = self.spans[leaf], self.of_rows(leaf, segments)
        if of_rows is None:
            parent = self.parent(leaf, segments).cpu().numpy()
            starts, before = spans.pieces(np.flatnonzero(parent[1:] != parent[:-1]) + 1)
            return parent[before[:-1]], starts, before
        starts, before = spans.pieces(spans.before)
        row = np.searchsorted(spans.before, before[:-1], side="right") - 1
        return of_rows.cpu().numpy()[row], starts, before

    @once
    def matrix(self, into: str, of: str) -> Tensor:
        """A block of the projection: float64 [into, of], `ρ_into = Σ_of matrix(into, of)·s_of` (see `projection.py`).

        Raises HierarchyIndexError for strata outside the projection.
        """
        strata = self.projection.strata if self.projection else ()
        for stratum in (into, of):
            if stratum not in strata:
                raise HierarchyIndexError(
                    f"the projection of '{self.hierarchy.name}' does not involve '{stratum}'",
                    required=f"one of {', '.join(strata) or 'none: the hierarchy has no projection'}",
                )
        assert self.projection is not None
        return torch.from_numpy(self.projection.block(into, of)).to(self.device)

    @once
    def members(self, source: str, target: str) -> Members:
        """The `source` elements over every `target` element."""
        parent = self.parent(source, target).cpu().numpy()
        offsets = np.concatenate([[0], np.cumsum(np.bincount(parent, minlength=self.size[target]))])
        in_order = bool((parent[1:] >= parent[:-1]).all())
        order = None if in_order else torch.from_numpy(np.argsort(parent, kind="stable")).to(self.device)
        return Members(order, torch.from_numpy(offsets).to(self.device))

    @once
    def sequence(self, target: str, *sources: str) -> Ordering:
        """The elements of `sources` (leaves, or one coarser stratum) over every `target` element, in order."""
        return sequence.ordering(self, target, sources)

    @once
    def places(self, stratum: str) -> Tensor:
        """The sort key of elements: of tokens their place or given position, of others that of their first token.

        int64 [elements]; only their order has a meaning.
        """
        of_tokens = stratum in self.leaves
        return self._move(sequence.keys_of(self, stratum) if of_tokens else sequence.first_tokens(self, stratum))

    @once
    def order(self, of: tuple[str, ...], make: Any) -> Any:
        """The order of a target's elements in a backend's form, made by `make`."""
        found = self.sequence(*of)
        return make(found.order, found.offsets, found.longest)

    @once
    def row_tensor(self) -> Tensor:
        """The batch's row of each row element: int64 [row elements]."""
        return torch.from_numpy(self.row_numbers).to(self.device)

    def rows_are_tokens(self) -> bool:
        """Whether every row is one packed token, so that numbers per row and per token coincide."""
        return self.shape == (self.n_rows,) and len(self.row_numbers) == self.n_rows

    @once
    def rows_of(self, segments: str) -> Tensor | None:
        """The batch's row of each element: int64 [elements]; None if an element has tokens in several rows."""
        if segments == self.hierarchy.rows.name:
            return self.row_tensor()
        row = self._row_under(segments)
        return None if row is None else self.row_tensor()[row]

    def _row_under(self, segments: str) -> Tensor | None:
        """The non-empty row of each element, by number; None if an element has tokens in several rows."""
        row = torch.empty(self.size[segments], dtype=torch.int64, device=self.device)
        under = self.over_rows(segments)
        for parent, rows in under:
            row[parent] = rows
        return row if all(bool((row[parent] == rows).all()) for parent, rows in under) else None

    @once
    def over_rows(self, segments: str) -> tuple[tuple[Tensor, Tensor], ...]:
        """Per leaf, elements of `segments` and a non-empty row in which each has tokens: two int64 tensors."""
        under = []
        for leaf in self.leaves_over(segments):
            of_rows = self.of_rows(leaf, segments)
            if of_rows is None:
                under.append((self.parent(leaf, segments), self.rows_of_tokens(leaf)))
            else:
                under.append((of_rows, self._move(self.spans[leaf].rows)))
        return tuple(under)

    def kept(self, key: Hashable, make: Callable[[], T]) -> T:
        """The cached value of a key; `make` makes it on first use."""
        if key not in self._cache:
            self._cache[key] = make()
        return self._cache[key]  # type: ignore[no-any-return]

    def keep(self, key: str, value: object) -> None:
        """Keep `value` alive as long as this index."""
        self._cache["keep", key] = value

    def told(self, key: str) -> Any:
        """What `keep` was given under this key; None without it."""
        return self._cache.get(("keep", key))

    def sizes(self, edges: Iterable[tuple[str, str]]) -> Sizes:
        """The fibrations for the interpreter."""
        places = {s: self.places(s).cpu().numpy() for s in dict.fromkeys(s for s, _ in edges)}
        return Sizes({e: self.parent(*e).cpu().numpy() for e in edges}, dict(self.size), places)

    @cached_property
    def element_numbers(self) -> Mapping[str, Mapping[Hashable, int]]:
        """The number of every labelled element, by stratum and label."""
        return {s: {label: i for i, label in enumerate(names)} for s, names in self.labels.items()}

    def describe_token(self, token: int) -> str:
        """An unmasked token in words: its place, and its row."""
        return self._describe(self.every, token)

    def describe_row(self, token: int) -> str:
        """The row of an unmasked token, in words."""
        return self._describe_row(self.every.row_of(token))

    def _describe(self, spans: Spans, token: int) -> str:
        place = int(spans.runs.place(np.array([token]))[0])
        return f"token {place_of(place, self.shape)} of {self._describe_row(spans.row_of(token))}"

    def _describe_row(self, number: int) -> str:
        """A non-empty row by its place in this process's tensors, and by its label if it has another."""
        rows, row = self.hierarchy.rows.name, int(self.row_numbers[number])
        label: Hashable = row
        if rows in self.labels:
            element = next(int(e) for over, at in self.over_rows(rows) for e in over[at == number][:1])
            label = self.labels[rows][element]
        return f"{rows} {row}" if label == row else f"row {row} ({rows} {label!r})"

    def describe_element(self, stratum: str, element: int) -> str:
        """An element by its label, `domain 'math'`; a token by its place."""
        if stratum in self.leaves:
            return self._describe(self.spans[stratum], element)
        return f"{stratum} {self.labels[stratum][element]!r}" if stratum in self.labels else f"the {stratum}"

    def __repr__(self) -> str:
        sizes = ", ".join(f"{n} {s}" for s, n in self.size.items() if s != BATCH)
        return f"Index({self.hierarchy.name!r}: {sizes}; {self.device})"
