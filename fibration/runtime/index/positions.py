"""The caller's positions of tokens. An element with tokens in several rows needs them where an order is read."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fibration.errors import HierarchyIndexError, an
from fibration.language.hierarchy import Hierarchy
from fibration.language.statistics import Ordered
from fibration.runtime.index.attributes import to_numpy
from fibration.runtime.index.elements import LAST
from fibration.runtime.index.index import Index
from fibration.runtime.index.spans import Spans
from fibration.runtime.ranks.pieces import position_ranges
from fibration.runtime.sums import Codes

KEYWORD = "positions"  # of `Operator.index`


def read_positions(
    given: Any, shape: tuple[int, ...], every: Spans, keep: NDArray[np.bool_] | None, token: Callable[[int], str]
) -> Codes | None:
    """The position of every unmasked token, from positions of all places. `every`: the unmasked tokens; `token`
    describes one.
    """
    if given is None:
        return None
    array = to_numpy(given, f"the {KEYWORD}")
    rule = f"whole numbers from 0, of the batch's shape {list(shape)}, that ascend along every row"
    if array.shape != shape and (array.size or math.prod(shape)):
        raise HierarchyIndexError(f"the {KEYWORD} have shape {list(array.shape)}", required=rule)
    if array.size and array.dtype.kind not in "iu":
        raise HierarchyIndexError(f"the {KEYWORD} have dtype {array.dtype}", required=rule)
    mine = array.reshape(-1) if keep is None else array.reshape(-1)[keep]
    wrong = (mine < 0) | (mine > LAST)
    if wrong.any():
        at = int(np.argmax(wrong))
        raise HierarchyIndexError(f"{token(at)} has the position {mine[at]}", required=rule)
    mine = mine.astype(np.int64)
    falls = mine[1:] <= mine[:-1]
    falls[every.before[1:-1] - 1] = False  # between two rows
    if falls.any():
        at = int(np.argmax(falls))
        raise HierarchyIndexError(
            f"{token(at)} has the position {mine[at]}, and {token(at + 1)} behind it {mine[at + 1]}",
            required=rule,
            found="a row whose tokens are not in the order in which they were sampled",
            remedy=f"give every token its position in the whole sequence; {KEYWORD} may have gaps",
        )
    return mine


def check_order(index: Index) -> None:
    """Refuse elements whose tokens have no order although a formula reads one. The error names rows or tokens."""
    for over, read in read_over(index.hierarchy).items():
        scattered = index.in_several_rows(over)
        if not scattered.any():
            continue
        if index.given_positions is None:
            element = int(np.argmax(scattered))
            rows = torch.cat([at[over_ == element] for over_, at in index.over_rows(over)]).unique()
            found = " and ".join(index.describe_row(int(row)) for row in rows[:2])
            raise unordered(read, index.describe_element(over, element), f"tokens in {found}")
        _refuse_repeats(index, over)


def read_over(h: Hierarchy) -> dict[str, Ordered]:
    """The strata over which an order is read, each with one formula that reads it."""
    return {str(a.over): a for a in h.ordered}


def unordered(read: Ordered, element: str, found: str) -> HierarchyIndexError:
    """The error for an element in several pieces without positions."""
    return HierarchyIndexError(
        f"{element} spans several rows or ranks, which gives its tokens no order",
        required=f"{KEYWORD}=, of the batch's shape: the position of each token in its {read.over}",
        found=f"{found}; {read} reads the order of tokens",
        remedy=f"pass {KEYWORD}=..., numbered through all pieces of {an(str(read.over))}",
    )


def runs_of(local: Index, over: str, number: Codes, several: NDArray[np.bool_]) -> Codes:
    """The `position_ranges` of this rank's tokens over elements that `several` ranks share: int64 [3, intervals].

    `number`: the whole batch's number of each of this rank's elements.
    """
    leaves = local.leaves_over(over)
    order, parent = local.sorted_by(over, leaves)
    order = order[several[number[parent[order]]]]
    keys = np.concatenate([local.keys_of(leaf) for leaf in leaves])
    return position_ranges(number[parent[order]], keys[order])


def _refuse_repeats(index: Index, over: str) -> None:
    leaves = index.leaves_over(over)
    keys = np.concatenate([index.keys_of(leaf) for leaf in leaves])
    order, parent = index.sorted_by(over, leaves)
    again = np.flatnonzero((keys[order][1:] == keys[order][:-1]) & (parent[order][1:] == parent[order][:-1]))
    if len(again):
        numbers = np.concatenate([index.token_numbers(leaf) for leaf in leaves])
        one, other = sorted(int(numbers[i]) for i in order[again[0] : again[0] + 2])
        element = index.describe_element(over, int(parent[order[again[0]]]))
        raise HierarchyIndexError(
            f"{index.describe_token(one)} and {index.describe_token(other)} both have the position "
            f"{keys[order[again[0]]]} in {element}",
            required=f"positions that differ between the tokens of {an(over)}",
            remedy=f"number the tokens through all pieces of {an(over)}",
        )
