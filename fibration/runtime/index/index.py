"""The index of one batch: masks, offsets and labels become fibrations between numbered elements.

Rows are the sampled sequences: the rows of a padded `[B, T]` tensor, or the segments of a packed `[N]` one. The
elements of a stratum are numbered in order of the first appearance of their labels, those of a leaf in order of
tokens. Masked tokens, and rows without an unmasked token, belong to no element.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fibration.compiler.coupling import UNCOUPLED, Coupling
from fibration.compiler.interpret import Sizes
from fibration.errors import HierarchyIndexError
from fibration.language.atoms import BATCH, Attribute
from fibration.runtime.devices import usable
from fibration.runtime.index.elements import Edge, Elements, once
from fibration.runtime.index.spans import Spans, place_of
from fibration.runtime.ranks.group import Group
from fibration.runtime.sums import Codes, Sums, Vector
from fibration.runtime.tracing import INDEXES


@dataclass(eq=False, kw_only=True)
class Index(Elements):
    """The hierarchy's elements in one batch. Made by `operator.index(...)`, for one hierarchy and one device."""

    n_rows: int  # rows of the batch, empty ones included
    bounds: Codes  # [rows of the batch + 1]: where each row begins in the flattened shape, and the end
    labels: Mapping[str, tuple[Hashable, ...]]  # per labelled stratum, by element number
    values: Mapping[str, Tensor]  # float64 attributes, per element of their stratum
    has_row_names: bool  # whether the caller named the rows
    refuses_rewards: HierarchyIndexError | None = None  # raised by rewards if an element has no others
    coupling: Coupling = UNCOUPLED  # of the operator that made this index

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
        return mine if self.ranks is None else self.ranks.unite(mine, "what occurs together")

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
