"""The order of elements: tokens by their place in the row, or by the caller's positions.

An element with tokens in several rows is ordered by positions only. Elements of a coarser stratum are in the order of
their first tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from fibration.runtime.index.spans import Ordering
from fibration.runtime.sums import Codes

if TYPE_CHECKING:
    from fibration.runtime.index.elements import Elements

LAST = np.iinfo(np.int64).max


def ordering(index: Elements, target: str, sources: tuple[str, ...]) -> Ordering:
    """The elements of `sources` over each target, numbered stratum after stratum."""
    leaf = sources[0]
    of_rows = index.of_rows(leaf, target) if sources == (leaf,) and leaf in index.leaves else None
    if of_rows is not None and (index.given_positions is None or not in_several_rows(index, target).any()):
        elements = of_rows.cpu().numpy()
        if bool((elements[1:] >= elements[:-1]).all()):
            sizes = np.bincount(elements, index.spans[leaf].sizes, index.size[target])  # whole numbers, exact
            return _ordering(index, None, sizes)
    order, parent = sorted_by(index, target, sources)
    return _ordering(index, order, np.bincount(parent, minlength=index.size[target]))


def first_tokens(index: Elements, of: str) -> Codes:
    """The sort key of each element's first token in this process."""
    first = np.full(index.size[of], LAST)
    for leaf in index.leaves_over(of):
        of_rows, keys = index.of_rows(leaf, of), keys_of(index, leaf)
        if of_rows is None:
            np.minimum.at(first, index.parent(leaf, of).cpu().numpy(), keys)
        else:  # keys ascend along a row
            np.minimum.at(first, of_rows.cpu().numpy(), keys[index.spans[leaf].before[:-1]])
    return first


def _ordering(index: Elements, order: Codes | None, sizes: NDArray[Any]) -> Ordering:
    if order is not None and bool((order[1:] > order[:-1]).all()):
        order = None
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    moved = None if order is None else torch.from_numpy(order).to(index.device)
    return Ordering(moved, torch.from_numpy(offsets).to(index.device), int(sizes.max(initial=0)))


def sorted_by(index: Elements, target: str, sources: tuple[str, ...]) -> tuple[Codes, Codes]:
    """The elements of all sources sorted by target and place; and the target of each."""
    parent = np.concatenate([index.parent(s, target).cpu().numpy() for s in sources])
    places = np.concatenate([index.places(s).cpu().numpy() for s in sources])
    return np.lexsort((places, parent)), parent


def keys_of(index: Elements, leaf: str) -> Codes:
    """The sort key of each token of a leaf."""
    numbers = numbers_of(index, leaf)
    return numbers if index.given_positions is None else index.given_positions[numbers]


def numbers_of(index: Elements, leaf: str) -> Codes:
    """The numbers of a leaf's tokens among the unmasked tokens."""
    return index.numbers[leaf].places() if len(index.leaves) > 1 else np.arange(len(index.every))


def in_several_rows(index: Elements, over: str) -> NDArray[np.bool_]:
    """Whether each element has tokens in several rows of this process."""
    low, high = np.full(index.size[over], LAST), np.full(index.size[over], -1)
    for elements, rows in under(index, over):
        np.minimum.at(low, elements, rows)
        np.maximum.at(high, elements, rows)
    return high > low


def under(index: Elements, over: str) -> list[tuple[Codes, Codes]]:
    return [(elements.cpu().numpy(), rows.cpu().numpy()) for elements, rows in index.over_rows(over)]
