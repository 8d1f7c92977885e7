"""Several batches as one: disjoint rows, each batch with a batch of its own in the sums of a declared loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fibration.auditing.batch import Batch, Floats
from fibration.compiler.interpret import Sizes
from fibration.compiler.program import Program
from fibration.errors import HierarchyIndexError
from fibration.language.hierarchy import Hierarchy
from fibration.runtime.index.build import build_index
from fibration.runtime.index.index import Index

Codes = NDArray[np.int64]
LABELLED = {"prompt_group"}  # strata whose labels are `group_ids`


@dataclass(frozen=True)
class Joined:
    """Batches whose tokens are listed batch by batch."""

    batches: tuple[Batch, ...]
    _layouts: dict[Any, Layout] = field(default_factory=dict, compare=False)

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """The tokens of each batch."""
        return tuple(b.tokens for b in self.batches)

    @cached_property
    def starts(self) -> Codes:
        """The first token of each batch, and the number of tokens."""
        return np.cumsum([0, *self.lengths])

    @cached_property
    def batch_of_token(self) -> Codes:
        return np.repeat(np.arange(len(self.batches)), self.lengths)

    @cached_property
    def _numbers(self) -> dict[str, Floats]:
        return {}

    def log_probs(self, policy: str) -> Floats:
        if policy not in self._numbers:
            self._numbers[policy] = np.concatenate([b.of(policy) for b in self.batches])
        return self._numbers[policy]

    def given(self, name: str) -> Floats:
        """The advantage or the reward of every row that has a token."""
        if name not in self._numbers:
            self._numbers[name] = np.array([getattr(r, name) for b in self.batches for r in b.rows if len(r)], float)
        return self._numbers[name]

    def largest(self, values: Floats) -> Floats:
        """The largest of values `[..., tokens]` of each batch: `[..., batches]`."""
        return np.asarray(np.maximum.reduceat(values, self.starts[:-1], axis=-1))

    def layout(self, h: Hierarchy, from_rewards: bool) -> Layout:
        """How the tokens lie over the strata of a loss. Losses with equal strata share it."""
        key = str((h.leaves, h.rows, h.order, h.fibrations, h.groups, h.others, h.assume, from_rewards))
        key += str(h.others_rewarded) if from_rewards else ""
        if key not in self._layouts:
            self._layouts[key] = Layout([_indexed(h, b, from_rewards) for b in self.batches])
        return self._layouts[key]


def _indexed(h: Hierarchy, batch: Batch, from_rewards: bool) -> Index | None:
    """The index of a batch; None if the loss does not take it, such as a group of one row."""
    groups = [r.group for r in batch.rows]
    labels: dict[str, Any] = {s.name: groups for s in (*h.strata, *h.groups) if s.name in LABELLED}
    try:
        index = build_index(h, labels, offsets=np.cumsum([0, *batch.lengths]))
    except HierarchyIndexError:
        return None
    return None if from_rewards and index.refuses_rewards is not None else index


class Layout:
    """The strata of joined batches. `taken`: which batches the loss takes."""

    def __init__(self, indexes: Sequence[Index | None]) -> None:
        self.taken = tuple(i for i, index in enumerate(indexes) if index is not None)
        self.indexes = [index for index in indexes if index is not None]
        self._sizes: list[tuple[Program, int, Sizes]] = []
        self._counts: dict[tuple[str, str], Floats] = {}
        self._parents: dict[tuple[str, str], Codes] = {}

    @cached_property
    def size(self) -> dict[str, int]:
        return {s: sum(index.size[s] for index in self.indexes) for s in self.indexes[0].size}

    def parent(self, source: str, target: str) -> Codes:
        """The element of `target` under each element of `source`."""
        if (source, target) not in self._parents:
            before = np.cumsum([0, *(index.size[target] for index in self.indexes)])
            parts = [i.parent(source, target).numpy() + n for i, n in zip(self.indexes, before[:-1], strict=True)]
            self._parents[source, target] = np.concatenate(parts)
        return self._parents[source, target]

    def count(self, of: str, over: str) -> Floats:
        if (of, over) not in self._counts:
            counts = [np.broadcast_to(i.count(of, over).numpy(), (i.size[over],)) for i in self.indexes]
            self._counts[of, over] = np.concatenate(counts).astype(np.float64)
        return self._counts[of, over]

    def sizes(self, program: Program, copies: int) -> Sizes:
        """The fibrations of so many copies of the batches, for the interpreter."""
        for known, number, sizes in self._sizes:
            if known is program and number == copies:
                return sizes
        parents = {}
        for s, t in program.edges:
            shift = self.size[t] * np.arange(copies)[:, None]
            parents[s, t] = (self.parent(s, t) + shift).ravel()
        ordered = dict.fromkeys(s for s, _ in program.edges)
        places = {s: np.tile(np.concatenate([i.places(s).numpy() for i in self.indexes]), copies) for s in ordered}
        made = Sizes(parents, {s: n * copies for s, n in self.size.items()}, places)
        self._sizes = [(program, copies, made), *self._sizes[:3]]
        return made
