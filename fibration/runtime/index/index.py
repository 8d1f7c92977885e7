"""The index of one batch: masks, offsets and labels become fibrations between numbered elements.

Rows are the sampled sequences: the rows of a padded `[B, T]` tensor, or the segments of a packed `[N]` one. The
elements of a stratum are numbered in order of the first appearance of their labels, those of a leaf in order of
tokens. Masked tokens, and rows without an unmasked token, belong to no element. An index stores numbers per row, per
interval of unmasked tokens, and per coarser element. Numbers per token are made on demand, unless labels were given per
token.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, wraps
from typing import Any, ClassVar, Concatenate, ParamSpec, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fibration.compiler.coupling import UNCOUPLED, Coupling
from fibration.compiler.interpret import Sizes
from fibration.errors import HierarchyIndexError
from fibration.language.atoms import BATCH, Attribute
from fibration.language.hierarchy import Hierarchy
from fibration.runtime.devices import usable
from fibration.runtime.index.spans import Intervals, Layout, Ordering, Spans, lay_out, place_of
from fibration.runtime.ranks.group import Group
from fibration.runtime.ranks.shards import Shards
from fibration.runtime.sums import Codes, Sums, Vector, steps
from fibration.runtime.tracing import INDEXES

Edge = tuple[str, str]  # names of a fibration's source and target
P = ParamSpec("P")
T = TypeVar("T")
Holder = TypeVar("Holder", bound="Index")
LAST = np.iinfo(np.int64).max  # of sort keys


def once(method: Callable[Concatenate[Holder, P], T]) -> Callable[Concatenate[Holder, P], T]:
    """Cache a method's result per arguments, for the lifetime of the index."""

    @wraps(method)
    def answer(self: Holder, *arguments: P.args, **named: P.kwargs) -> T:
        key = (method.__name__, arguments, *named.items())
        if key not in self._cache:
            self._cache[key] = method(self, *arguments, **named)
        return self._cache[key]  # type: ignore[no-any-return]

    return answer


@dataclass(eq=False, kw_only=True)  # torch.compile would read all fields of a frozen one
class Index:
    """The hierarchy's elements in one batch. Made by `operator.index(...)`, for one hierarchy and one device.

    With `ranks`, tokens are this rank's tokens, and coarser elements are the whole batch's. A segment may then have no
    token on this rank, and `rows_of` is -1 for it.
    """

    hierarchy: Hierarchy
    leaves: tuple[str, ...]  # every unmasked token is an element of one of them
    shape: tuple[int, ...]  # of every per-token tensor: [B, T] or [N]
    row_numbers: Codes  # [rows with tokens]: the batch's row of each
    every: Spans  # all unmasked tokens
    spans: Mapping[str, Spans]  # per leaf, its tokens
    numbers: Mapping[str, Intervals]  # with several leaves, per leaf: its tokens' numbers among the unmasked tokens
    edges: Mapping[Edge, Tensor]  # int64 per fibration: [source], or [rows in the leaf's span] if it is in `by_row`
    by_row: frozenset[Edge]  # fibrations of leaves whose target was labelled per row
    size: Mapping[str, int]
    device: torch.device
    n_rows: int  # rows of the batch, empty ones included
    bounds: Codes  # [rows of the batch + 1]: where each row begins in the flattened shape, and the end
    labels: Mapping[str, tuple[Hashable, ...]]  # per labelled stratum, by element number
    values: Mapping[str, Tensor]  # float64 attributes, per element of their stratum
    has_row_names: bool  # whether the caller named the rows
    given_positions: Codes | None = None  # [tokens]: the caller's positions, which order tokens
    projection: Any = None  # the `Projection` of crossed strata, if the hierarchy orthogonalises by it
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

        `rows`: a slice whose ends are ends of rows, or a list, an array or a tensor of row numbers (negative ones count
        from the end) or of one boolean per row. They come in the order given; packed tokens one row after the other.
        Rows without tokens are allowed.

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
        return self.ranks.group if self.ranks else None

    @property
    def gradient_scale(self) -> int:
        """The factor of a rank's gradient where gradients are averaged over ranks: the number of ranks, 1 without a
        group.
        """
        return self.group.size if self.group else 1

    @property
    def shares(self) -> int:
        """How many ranks share the objective of one call: each has `J` divided by this number in its loss."""
        return self.ranks.group.size if self.ranks else 1

    @property
    def parents(self) -> Mapping[Edge, Tensor]:
        """Per fibration, the target of every source element: int64 [source]."""
        return {edge: self.parent(*edge) for edge in self.edges}

    @once
    def count(self, of: str, over: str) -> Tensor:
        """The number of `of` elements over each `over` element: float64 [over]."""
        if self.ranks is not None and (of, over) in self.ranks.counts:
            return self.ranks.counts[of, over]
        if over == BATCH:
            return torch.full((1,), self.size[of], dtype=torch.float64, device=self.device)
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
        known = {} if self.ranks is None else self.ranks.sums
        found = {over: sums for (name, over), sums in known.items() if name == attribute.name}
        return Summed(self, attribute.on.name, self.values[attribute.name].cpu().numpy(), found)

    def added(self, source: str, at: Codes, values: Vector, size: int) -> Sums:
        """The sums of one number per element of `source` over `size` cells; element `i` is in cell `at[i]`.

        Sums over a leaf are the whole batch's, so every rank of a distributed index must call it.
        """
        mine = Sums.of(values, at, size)
        if self.ranks is None or source not in self.leaves:
            return mine
        return self.ranks.add(mine, at, f"masses of {source}")

    def occurring(self, keys: Codes) -> Codes:
        """The distinct `keys` (one per token) in the whole batch, ascending. Every rank of a distributed index must
        call it.
        """
        mine = np.unique(keys)
        if self.ranks is not None:
            mine = np.unique(np.concatenate(self.ranks.group.all_gather_object(mine, "what occurs together")))
        return mine

    def rows_are_tokens(self) -> bool:
        """Whether every row is one packed token, so that numbers per row and per token coincide."""
        return self.shape == (self.n_rows,) and len(self.row_numbers) == self.n_rows

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

    def _describe(self, spans: Spans, token: int) -> str:
        place = int(spans.runs.place(np.array([token]))[0])
        return f"token {place_of(place, self.shape)} of {self.describe_row(spans.row_of(token))}"

    def describe_row(self, number: int) -> str:
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
        of, rank = dict.fromkeys(self.size, ""), ""
        if self.ranks is not None:
            of |= {leaf: f" of {int(self.ranks.counts[leaf, BATCH])}" for leaf in self.leaves}
            rank = f"; rank {self.ranks.group.rank} of {self.ranks.group.size}"
        sizes = ", ".join(f"{n}{of[s]} {s}" for s, n in self.size.items() if s != BATCH)
        return f"Index({self.hierarchy.name!r}: {sizes}{rank}; {self.device})"

    # ------------------------------------------------------------ what lies over what, and where

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

    @once
    def tokens_of(self, leaf: str) -> Tensor | None:
        """The numbers of a leaf's tokens among the unmasked tokens, ascending: int64 [elements]; None for a single
        leaf.

        Raises HierarchyIndexError if `leaf` is not a leaf.
        """
        return self._move(self.token_numbers(leaf)) if self._kind(leaf) else None

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
        """The parents along any path: labels of tokens and rows made all of them, and agree (`Encoded.parent`)."""
        if source == target:
            return torch.arange(self.size[source], device=self.device)
        of_rows = self.of_rows(source, target) if source in self.leaves else None
        if of_rows is not None:
            sizes = torch.from_numpy(self.spans[source].sizes).to(self.device)
            return torch.repeat_interleave(of_rows, sizes, output_size=self.size[source])
        between = self.between(source, target)
        if between is not None:
            return self.parent(between, target)[self.parent(source, between)]
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
        if self.given_positions is not None and self.in_several_rows(segments).any():
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
        return self._move(segment), self._move(np.stack([starts, starts + steps(before)], axis=1).reshape(-1))

    @once
    def is_in_pieces(self, segments: str, leaf: str) -> bool:
        """Whether each element of `segments` is one interval of the leaf's tokens, in the order of the elements."""
        return np.array_equal(self._pieces(segments, leaf)[0], np.arange(self.size[segments]))

    def _pieces(self, segments: str, leaf: str) -> tuple[Codes, Codes, Codes]:
        spans, of_rows = self.spans[leaf], self.of_rows(leaf, segments)
        if of_rows is None:
            parent = self.parent(leaf, segments).cpu().numpy()
            starts, before = spans.pieces(np.flatnonzero(parent[1:] != parent[:-1]) + 1)
            return parent[before[:-1]], starts, before
        starts, before = spans.pieces(spans.before)
        row = spans.before.searchsorted(before[:-1], side="right") - 1
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
        return torch.from_numpy(self.projection.block(into, of)).to(self.device)

    @once
    def members(self, source: str, target: str) -> Ordering:
        """The `source` elements over every `target` element, by number."""
        if target == BATCH:
            return self._ordering(None, np.array([self.size[source]]))
        parent = self.parent(source, target).cpu().numpy()
        return self._ordering(np.argsort(parent, kind="stable"), np.bincount(parent, minlength=self.size[target]))

    @once
    def sequence(self, target: str, *sources: str) -> Ordering:
        """The elements of `sources` (leaves, or one coarser stratum) over every `target` element, in order.

        An element with tokens in several rows is ordered by positions only. Elements of a coarser stratum are in the
        order of their first tokens.
        """
        leaf = sources[0]
        of_rows = self.of_rows(leaf, target) if sources == (leaf,) and leaf in self.leaves else None
        if of_rows is not None and (self.given_positions is None or not self.in_several_rows(target).any()):
            elements = of_rows.cpu().numpy()
            if bool((elements[1:] >= elements[:-1]).all()):
                sizes = np.bincount(elements, self.spans[leaf].sizes, self.size[target])  # whole numbers, exact
                return self._ordering(None, sizes)
        order, parent = self.sorted_by(target, sources)
        return self._ordering(order, np.bincount(parent, minlength=self.size[target]))

    def _ordering(self, order: Codes | None, sizes: NDArray[Any]) -> Ordering:
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        moved = None if order is None or bool((order[1:] > order[:-1]).all()) else self._move(order)
        return Ordering(moved, self._move(offsets), int(sizes.max(initial=0)))

    def sorted_by(self, target: str, sources: tuple[str, ...]) -> tuple[Codes, Codes]:
        """The elements of all sources sorted by target and place; and the target of each."""
        parent = np.concatenate([self.parent(s, target).cpu().numpy() for s in sources])
        places = np.concatenate([self.places(s).cpu().numpy() for s in sources])
        return np.lexsort((places, parent)), parent

    @once
    def places(self, stratum: str) -> Tensor:
        """The sort key of elements: of tokens their place or given position, of others that of their first token.

        int64 [elements]; only their order has a meaning.
        """
        if self.ranks is not None and stratum in self.ranks.first:
            return self.ranks.first[stratum]
        return self._move(self.keys_of(stratum) if stratum in self.leaves else self._first_tokens(stratum))

    def _first_tokens(self, of: str) -> Codes:
        """The sort key of each element's first token in this process."""
        first = np.full(self.size[of], LAST)
        for leaf in self.leaves_over(of):
            of_rows, keys = self.of_rows(leaf, of), self.keys_of(leaf)
            if of_rows is None:
                np.minimum.at(first, self.parent(leaf, of).cpu().numpy(), keys)
            else:  # keys ascend along a row
                np.minimum.at(first, of_rows.cpu().numpy(), keys[self.spans[leaf].before[:-1]])
        return first

    def keys_of(self, leaf: str) -> Codes:
        """The sort key of each token of a leaf."""
        numbers = self.token_numbers(leaf)
        return numbers if self.given_positions is None else self.given_positions[numbers]

    def token_numbers(self, leaf: str) -> Codes:
        """The numbers of a leaf's tokens among the unmasked tokens."""
        return self.numbers[leaf].places() if len(self.leaves) > 1 else np.arange(len(self.every))

    @once
    def order(self, of: tuple[str, ...], make: Any) -> Any:
        """The order of a target's elements in a backend's form, made by `make`."""
        found = self.sequence(*of)
        return make(found.order, found.offsets, found.longest)

    @once
    def row_tensor(self) -> Tensor:
        """The batch's row of each row element: int64 [row elements]."""
        return torch.from_numpy(self.row_numbers).to(self.device)

    @once
    def rows_of(self, segments: str) -> Tensor | None:
        """The batch's row of each element: int64 [elements]; None if an element has tokens in several rows.

        Over ranks, a row of this rank's tensors: -1 without tokens on this rank, and one piece of a row in pieces.
        """
        if self.ranks is None and segments == self.hierarchy.rows.name:
            return self.row_tensor()
        under = self._row_under(segments)
        if self.ranks is None:
            return None if under is None else self.row_tensor()[under]
        if under is None and segments not in self.leaves:
            return None
        row = torch.full((self.size[segments],), -1, dtype=torch.int64, device=self.device)
        for parent, rows in self.over_rows(segments):
            row[parent] = self.row_tensor()[rows]
        return row

    def _row_under(self, segments: str) -> Tensor | None:
        """The non-empty row of each element, by number; None if an element has tokens in several rows."""
        if self.ranks is not None:
            return self.ranks.inside.get(segments)
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

    def in_several_rows(self, over: str) -> NDArray[np.bool_]:
        """Whether each element has tokens in several rows of this process."""
        low, high = np.full(self.size[over], LAST), np.full(self.size[over], -1)
        for elements, rows in self.over_rows(over):
            np.minimum.at(low, elements.cpu().numpy(), rows.cpu().numpy())
            np.maximum.at(high, elements.cpu().numpy(), rows.cpu().numpy())
        return high > low

    def kept(self, key: Hashable, make: Callable[[], T]) -> T:
        """The cached value of a key; `make` makes it on first use."""
        if key not in self._cache:
            self._cache[key] = make()
        return self._cache[key]  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Summed:
    """One number per element of a stratum, and its sums over coarser strata, which are cached."""

    index: Index
    source: str
    values: Vector
    known: dict[str, Sums] = field(default_factory=dict)

    def over(self, stratum: str) -> Sums:
        if stratum not in self.known:
            between, size = self.index.between(self.source, stratum), self.index.size[stratum]
            parent = self.index.parent(between or self.source, stratum).cpu().numpy()
            if between is None:
                self.known[stratum] = self.index.added(self.source, parent, self.values, size)
            else:  # far fewer elements, and exact
                self.known[stratum] = self.over(between).over(parent, size)
        return self.known[stratum]
