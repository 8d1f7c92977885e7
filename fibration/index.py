"""Who lies over whom in one batch: masks, offsets and labels become fibrations with consecutive element numbers.

Rows are the sampled sequences of a batch: the rows of a padded `[B, T]` tensor, or the segments of a packed `[N]` one.
The elements of a stratum are numbered in the order in which their labels first appear. Masked tokens, and rows without
an unmasked token, are no elements of anything.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fibration.batch import Codes, Layout, Members, lay_out
from fibration.errors import HierarchyIndexError
from fibration.interpret import Sizes
from fibration.spec import Hierarchy
from fibration.symbols import BATCH, Attribute


@dataclass(frozen=True, eq=False)
class Index:
    """The concrete hierarchy of one batch. Made by `operator.index(...)`; belongs to that hierarchy and device."""

    hierarchy: Hierarchy
    shape: tuple[int, ...]  # of every per-token tensor: [B, T] or [N]
    n_rows: int  # rows of the batch, empty ones included
    positions: Tensor  # int64 [tokens]: where the unmasked tokens lie in the flattened shape
    row_numbers: Codes  # [rows that are elements]: which row of the batch each is
    row_of_token: Tensor  # int64 [tokens], numbers of non-empty rows
    parents: Mapping[tuple[str, str], Tensor]  # int64 [source] per fibration
    size: Mapping[str, int]
    labels: Mapping[str, tuple[Hashable, ...]]  # per labelled stratum, by element number
    values: Mapping[str, Tensor]  # float64 attributes, per element of their stratum
    device: torch.device
    _cache: dict[Any, Any] = field(default_factory=dict)

    def parent(self, source: str, target: str) -> Tensor:
        """The `target` element under every `source` element: int64 [source]."""
        if (source, target) in self.parents:
            return self.parents[source, target]
        if target == BATCH:
            return torch.zeros(1, dtype=torch.int64, device=self.device).expand(self.size[source])
        key = ("parent", source, target)
        if key not in self._cache:
            here, parent = source, None
            while here != target:
                step = next(((s, t) for s, t in self.parents if s == here and self._reaches(t, target)), None)
                if step is None:
                    raise HierarchyIndexError(f"'{source}' does not lie over '{target}' in '{self.hierarchy.name}'")
                parent = self.parents[step] if parent is None else self.parents[step][parent]
                here = step[1]
            self._cache[key] = parent if parent is not None else torch.arange(self.size[source], device=self.device)
        return self._cache[key]  # type: ignore[no-any-return]

    def _reaches(self, stratum: str, target: str) -> bool:
        return stratum == target or any(self._reaches(t, target) for s, t in self.parents if s == stratum)

    def count(self, of: str, over: str) -> Tensor:
        """How many `of` elements lie over each `over` element: float64 [over]."""
        key = ("count", of, over)
        if key not in self._cache:
            between = next((t for s, t in self.parents if s == of and t != over and self._reaches(t, over)), None)
            if over == BATCH:
                counts = torch.tensor([self.size[of]], device=self.device).double()
            elif between is None:
                counts = torch.bincount(self.parent(of, over), minlength=self.size[over]).double()
            else:  # counts of what lies between, added up: far fewer of them, and exact
                fewer = self.count(of, between)
                counts = torch.zeros(self.size[over], dtype=torch.float64, device=self.device)
                counts.index_add_(0, self.parent(between, over), fewer)
            self._cache[key] = counts
        return self._cache[key]  # type: ignore[no-any-return]

    def total(self, attribute: Attribute, over: str) -> Tensor:
        """The sum of an attribute over each `over` element: float64 [over]."""
        values = self.values[attribute.name]
        if attribute.on.name == over:
            return values
        parent = self.parent(attribute.on.name, over).cpu().numpy()
        sums = np.bincount(parent, weights=values.cpu().numpy(), minlength=self.size[over])
        return torch.from_numpy(sums).to(self.device)

    def fibre(self, source: str, target: str, make: Any) -> Any:
        """The fibration in a backend's own form, made once."""
        key = ("fibre", source, target, make)
        if key not in self._cache:
            self._cache[key] = make(self.parent(source, target), self.size[target])
        return self._cache[key]

    def layout(self, segments: str) -> Layout:
        """Where the tokens of every element of `segments` lie."""
        key = ("layout", segments)
        if key not in self._cache:
            leaf = self.hierarchy.leaf.name
            parent, positions = (t.cpu().numpy() for t in (self.parent(leaf, segments), self.positions))
            self._cache[key] = lay_out(parent, self.size[segments], positions, self.device)
        return self._cache[key]  # type: ignore[no-any-return]

    def members(self, source: str, target: str) -> Members:
        """The `source` elements over every `target` element."""
        key = ("members", source, target)
        if key not in self._cache:
            parent = self.parent(source, target).cpu().numpy()
            offsets = np.concatenate([[0], np.cumsum(np.bincount(parent, minlength=self.size[target]))])
            in_order = bool((parent[1:] >= parent[:-1]).all())
            order = None if in_order else torch.from_numpy(np.argsort(parent, kind="stable")).to(self.device)
            self._cache[key] = Members(order, torch.from_numpy(offsets).to(self.device))
        return self._cache[key]  # type: ignore[no-any-return]

    def row_tensor(self) -> Tensor:
        """Which row of the batch each row element is: int64 [rows that are elements]."""
        key = "row numbers"
        if key not in self._cache:
            self._cache[key] = torch.from_numpy(self.row_numbers).to(self.device)
        return self._cache[key]  # type: ignore[no-any-return]

    def rows_of(self, segments: str) -> Tensor | None:
        """The row of the batch that each element lies in: int64 [elements]; None if one of them straddles rows."""
        key = ("rows", segments)
        if key not in self._cache:
            rows = self.hierarchy.rows.name
            if segments == rows:
                self._cache[key] = self.row_tensor()
            else:
                parent = self.parent(self.hierarchy.leaf.name, segments)
                row = torch.empty(self.size[segments], dtype=torch.int64, device=self.device)
                row[parent] = self.row_of_token
                inside = bool((row[parent] == self.row_of_token).all())
                self._cache[key] = self.row_tensor()[row] if inside else None
        return self._cache[key]  # type: ignore[no-any-return]

    def sizes(self, edges: Sequence[tuple[str, str]]) -> Sizes:
        """The same fibrations for the interpreter."""
        return Sizes({e: self.parent(*e).cpu().numpy() for e in edges}, dict(self.size))

    @cached_property
    def element_numbers(self) -> Mapping[str, Mapping[Hashable, int]]:
        """Number of every labelled element, by stratum and label."""
        return {s: {label: i for i, label in enumerate(names)} for s, names in self.labels.items()}

    def describe_token(self, token: int) -> str:
        """A person's words for an unmasked token: its place, and its trajectory."""
        flat = int(self.positions[token])
        row = int(self.row_numbers[int(self.row_of_token[token])])
        place = f"[{flat // self.shape[1]}, {flat % self.shape[1]}]" if len(self.shape) == 2 else f"[{flat}]"
        return f"token {place} of trajectory {row}"

    def __repr__(self) -> str:
        sizes = ", ".join(f"{n} {s}" for s, n in self.size.items() if s != BATCH)
        return f"Index({self.hierarchy.name!r}: {sizes}; {self.device})"
