"""Who lies over whom in one batch: masks, offsets and labels become fibrations with consecutive element numbers.

Rows are the sampled sequences of a batch: the rows of a padded `[B, T]` tensor, or the segments of a packed `[N]` one.
The elements of a stratum are numbered in the order in which their labels first appear, those of a leaf in the order of
the tokens. Masked tokens, and rows without an unmasked token, are no elements of anything.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fibration.compiler.interpret import Sizes
from fibration.errors import HierarchyIndexError
from fibration.language.atoms import BATCH, Attribute
from fibration.language.hierarchy import Hierarchy
from fibration.runtime.batch import Codes, Layout, Members, Ranks, lay_out

P = ParamSpec("P")
T = TypeVar("T")


def once(method: Callable[Concatenate[Index, P], T]) -> Callable[Concatenate[Index, P], T]:
    """What a method of an index answers is worked out once per arguments, and lives as long as the index."""

    @wraps(method)
    def answer(self: Index, *arguments: P.args, **named: P.kwargs) -> T:
        key = (method.__name__, arguments, *named.items())
        if key not in self._cache:
            self._cache[key] = method(self, *arguments, **named)
        return self._cache[key]  # type: ignore[no-any-return]

    return answer


class Fit(Protocol):
    """What an index asks of its projection: see `projection.py`."""

    @property
    def strata(self) -> tuple[str, ...]: ...
    def block(self, into: str, of: str) -> NDArray[np.float64]: ...


@dataclass(frozen=True, eq=False)
class Index:
    """The concrete hierarchy of one batch. Made by `operator.index(...)`; belongs to that hierarchy and device."""

    hierarchy: Hierarchy
    leaves: tuple[str, ...]  # every unmasked token is an element of one of them
    shape: tuple[int, ...]  # of every per-token tensor: [B, T] or [N]
    n_rows: int  # rows of the batch, empty ones included
    positions: Tensor  # int64 [tokens]: where the unmasked tokens lie in the flattened shape
    row_numbers: Codes  # [rows that are elements]: which row of the batch each is
    row_of_token: Tensor  # int64 [tokens], numbers of non-empty rows
    parents: Mapping[tuple[str, str], Tensor]  # int64 [source] per fibration
    size: Mapping[str, int]
    labels: Mapping[str, tuple[Hashable, ...]]  # per labelled stratum, by element number
    values: Mapping[str, Tensor]  # float64 attributes, per element of their stratum
    leaf_tokens: Mapping[str, Tensor]  # int64 [elements] per leaf, where there are several: which tokens they are
    device: torch.device
    projection: Fit | None = None  # of crossed strata, where the hierarchy orthogonalises by projection
    ranks: Ranks | None = None  # that the batch is spread over
    _cache: dict[Any, Any] = field(default_factory=dict)

    def tokens_of(self, leaf: str) -> Tensor | None:
        """Which of the unmasked tokens are elements of `leaf`, ascending: int64 [elements]; None if there is one leaf.

        Raises HierarchyIndexError where `leaf` is none.
        """
        if leaf not in self.leaves:
            raise HierarchyIndexError(f"'{leaf}' is no leaf of '{self.hierarchy.name}'", required=self._leaf_words)
        return self.leaf_tokens.get(leaf)

    @once
    def positions_of(self, leaf: str) -> Tensor:
        """Where the tokens of `leaf` lie in the flattened shape: int64 [elements]."""
        tokens = self.tokens_of(leaf)
        return self.positions if tokens is None else self.positions[tokens]

    @once
    def rows_of_tokens(self, leaf: str) -> Tensor:
        """The number of the non-empty row that every token of `leaf` lies in: int64 [elements]."""
        tokens = self.tokens_of(leaf)
        return self.row_of_token if tokens is None else self.row_of_token[tokens]

    def leaves_over(self, stratum: str) -> tuple[str, ...]:
        """The leaves whose elements lie over `stratum`, itself if it is one; over rows and batch all of them."""
        return tuple(s for s in self.leaves if stratum == BATCH or self._reaches(s, stratum))

    @property
    def _leaf_words(self) -> str:
        return f"one of {', '.join(self.leaves)}"

    def parent(self, source: str, target: str) -> Tensor:
        """The `target` element under every `source` element: int64 [source].

        `source` lies over `target`, or `target` is the batch, or the rows and no element of `source` straddles them.
        """
        if (source, target) in self.parents:
            return self.parents[source, target]
        if target == BATCH:
            return torch.zeros(1, dtype=torch.int64, device=self.device).expand(self.size[source])
        return self._compose(source, target)

    @once
    def _compose(self, source: str, target: str) -> Tensor:
        """Along the shortest path; every other gives the same (`assumed.py`)."""
        if source == target:
            return torch.arange(self.size[source], device=self.device)
        frontier: list[tuple[tuple[str, str], ...]] = [(e,) for e in self.parents if e[0] == source]
        while frontier:
            path = frontier.pop(0)
            end = path[-1][1]
            if end == target:
                parent = self.parents[path[0]]
                for edge in path[1:]:
                    parent = self.parents[edge][parent]
                return parent
            frontier += [(*path, e) for e in self.parents if e[0] == end and self._reaches(end, target)]
        inside = self._row_under(source) if target == self.hierarchy.rows.name and source in self.size else None
        if inside is None:
            raise HierarchyIndexError(f"'{source}' does not lie over '{target}' in '{self.hierarchy.name}'")
        return inside

    def _reaches(self, stratum: str, target: str) -> bool:
        return stratum == target or any(self._reaches(t, target) for s, t in self.parents if s == stratum)

    @once
    def count(self, of: str, over: str) -> Tensor:
        """How many `of` elements lie over each `over` element: float64 [over]."""
        if over == BATCH:
            return torch.tensor([self.size[of]], device=self.device).double()
        between = next((t for s, t in self.parents if s == of and t != over and self._reaches(t, over)), None)
        if between is None:
            return torch.bincount(self.parent(of, over), minlength=self.size[over]).double()
        # counts of what lies between, added up: far fewer of them, and exact
        counts = torch.zeros(self.size[over], dtype=torch.float64, device=self.device)
        return counts.index_add_(0, self.parent(between, over), self.count(of, between))

    def total(self, attribute: Attribute, over: str) -> Tensor:
        """The sum of an attribute over each `over` element: float64 [over]."""
        values = self.values[attribute.name]
        if attribute.on.name == over:
            return values
        parent = self.parent(attribute.on.name, over).cpu().numpy()
        sums = np.bincount(parent, weights=values.cpu().numpy(), minlength=self.size[over])
        return torch.from_numpy(sums).to(self.device)

    @once
    def fibre(self, source: str, target: str, make: Any) -> Any:
        """The fibration in a backend's own form."""
        return make(self.parent(source, target), self.size[target])

    @once
    def layout(self, segments: str, leaf: str | None = None) -> Layout:
        """Where the tokens of `leaf` lie that are over every element of `segments`; None means the only leaf."""
        if leaf is None:
            if len(self.leaves) > 1:
                raise HierarchyIndexError(
                    f"a layout of '{self.hierarchy.name}' without a leaf", required=self._leaf_words
                )
            return self.layout(segments, self.leaves[0])
        parent, positions = (t.cpu().numpy() for t in (self.parent(leaf, segments), self.positions_of(leaf)))
        return lay_out(parent, self.size[segments], positions, self.device)

    @once
    def matrix(self, into: str, of: str) -> Tensor:
        """A block of the projection: float64 [into, of], `ρ_into = Σ_of matrix(into, of)·s_of` (see `projection.py`).

        Raises HierarchyIndexError for strata that it does not involve.
        """
        strata = self.projection.strata if self.projection else ()
        for stratum in (into, of):
            if stratum not in strata:
                raise HierarchyIndexError(
                    f"the projection of '{self.hierarchy.name}' does not involve '{stratum}'",
                    required=f"one of {', '.join(strata) or 'none: nothing is projected'}",
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
    def row_tensor(self) -> Tensor:
        """Which row of the batch each row element is: int64 [rows that are elements]."""
        return torch.from_numpy(self.row_numbers).to(self.device)

    @once
    def rows_of(self, segments: str) -> Tensor | None:
        """The row of the batch that each element lies in: int64 [elements]; None if one of them straddles rows."""
        if segments == self.hierarchy.rows.name:
            return self.row_tensor()
        row = self._row_under(segments)
        return None if row is None else self.row_tensor()[row]

    def _row_under(self, segments: str) -> Tensor | None:
        """The number of the non-empty row that each element lies in, unless one of them straddles rows."""
        row = torch.empty(self.size[segments], dtype=torch.int64, device=self.device)
        under = [(self.parent(leaf, segments), self.rows_of_tokens(leaf)) for leaf in self.leaves_over(segments)]
        for parent, rows in under:
            row[parent] = rows
        return row if all(bool((row[parent] == rows).all()) for parent, rows in under) else None

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
        return f"token {place_of(flat, self.shape)} of trajectory {row}"

    def describe_element(self, stratum: str, element: int) -> str:
        """`domain 'math'`, by its label; a token by its place."""
        if stratum in self.leaves:
            tokens = self.tokens_of(stratum)
            return self.describe_token(element if tokens is None else int(tokens[element]))
        return f"{stratum} {self.labels[stratum][element]!r}" if stratum in self.labels else f"the {stratum}"

    def __repr__(self) -> str:
        sizes = ", ".join(f"{n} {s}" for s, n in self.size.items() if s != BATCH)
        return f"Index({self.hierarchy.name!r}: {sizes}; {self.device})"


def place_of(flat: int, shape: tuple[int, ...]) -> str:
    """`[1, 3]`: the place of a token in a padded tensor; `[7]` in a packed one."""
    return f"[{flat // shape[1]}, {flat % shape[1]}]" if len(shape) == 2 else f"[{flat}]"
