"""In which order elements come: tokens as they lie in their row, or by the positions that the caller gave.

An element whose tokens lie in several rows has no order but that of positions. Elements of a coarser stratum are in the
order of their first tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fibration.runtime.batch import Codes, Members
from fibration.runtime.index.spans import Runs, Spans

LAST = np.iinfo(np.int64).max


class Located(Protocol):
    """What is asked of an index: see there."""

    @property
    def leaves(self) -> tuple[str, ...]: ...
    @property
    def every(self) -> Spans: ...
    @property
    def spans(self) -> Mapping[str, Spans]: ...
    @property
    def numbers(self) -> Mapping[str, Runs]: ...
    @property
    def size(self) -> Mapping[str, int]: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def given_positions(self) -> Codes | None: ...
    def parent(self, source: str, target: str) -> Tensor: ...
    def of_rows(self, leaf: str, target: str) -> Tensor | None: ...
    def over_rows(self, segments: str) -> tuple[tuple[Tensor, Tensor], ...]: ...
    def leaves_over(self, stratum: str) -> tuple[str, ...]: ...
    def first_tokens(self, of: str) -> Codes: ...


def of_tokens(index: Located, over: str) -> Members:
    """The tokens over each element of `over`: numbers are those of its leaves' tokens, one leaf after the other."""
    leaves = index.leaves_over(over)
    of_rows = index.of_rows(leaves[0], over) if len(leaves) == 1 else None
    if of_rows is not None and (index.given_positions is None or not in_several_rows(index, over).any()):
        elements = of_rows.cpu().numpy()
        if bool((elements[1:] >= elements[:-1]).all()):
            sizes = np.bincount(elements, index.spans[leaves[0]].sizes, index.size[over])  # whole numbers, exact
            return _members(index, None, sizes)
    keys = np.concatenate([keys_of(index, leaf) for leaf in leaves])
    order, parent = sorted_by(index, over, keys)
    return _members(index, order, np.bincount(parent, minlength=index.size[over]))


def of_elements(index: Located, of: str, over: str) -> Members:
    """The `of` elements over each element of `over`, by their first tokens."""
    parent = index.parent(of, over).cpu().numpy()
    order = np.lexsort((index.first_tokens(of), parent))
    return _members(index, order, np.bincount(parent, minlength=index.size[over]))


def first_tokens(index: Located, of: str) -> Codes:
    """What the first token of each element is ordered by, of those in this process."""
    first = np.full(index.size[of], LAST)
    for leaf in index.leaves_over(of):
        of_rows, keys = index.of_rows(leaf, of), keys_of(index, leaf)
        if of_rows is None:
            np.minimum.at(first, index.parent(leaf, of).cpu().numpy(), keys)
        else:  # along a row keys ascend
            np.minimum.at(first, of_rows.cpu().numpy(), keys[index.spans[leaf].before[:-1]])
    return first


def _members(index: Located, order: Codes | None, sizes: NDArray[Any]) -> Members:
    if order is not None and bool((order[1:] > order[:-1]).all()):
        order = None
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    moved = None if order is None else torch.from_numpy(order).to(index.device)
    return Members(moved, torch.from_numpy(offsets).to(index.device))


def sorted_by(index: Located, over: str, keys: Codes) -> tuple[Codes, Codes]:
    """The tokens of all leaves over `over` by element and key; and the element under each."""
    parent = np.concatenate([index.parent(leaf, over).cpu().numpy() for leaf in index.leaves_over(over)])
    return np.lexsort((keys, parent)), parent


def keys_of(index: Located, leaf: str) -> Codes:
    """What each token of a leaf is ordered by."""
    numbers = numbers_of(index, leaf)
    return numbers if index.given_positions is None else index.given_positions[numbers]


def numbers_of(index: Located, leaf: str) -> Codes:
    """Which of the unmasked tokens those of a leaf are."""
    return index.numbers[leaf].places() if len(index.leaves) > 1 else np.arange(len(index.every))


def in_several_rows(index: Located, over: str) -> NDArray[np.bool_]:
    """Whether an element has tokens in several rows of this process."""
    low, high = np.full(index.size[over], LAST), np.full(index.size[over], -1)
    for elements, rows in under(index, over):
        np.minimum.at(low, elements, rows)
        np.maximum.at(high, elements, rows)
    return high > low


def under(index: Located, over: str) -> list[tuple[Codes, Codes]]:
    return [(elements.cpu().numpy(), rows.cpu().numpy()) for elements, rows in index.over_rows(over)]
