"""Numbers labels in order of first appearance, all at once."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from numbers import Number
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fibration.runtime.sums import Codes

Names = tuple[Hashable, ...]


def numbered(labels: Sequence[Any] | NDArray[Any], per_token: bool) -> tuple[Codes, Names] | None:
    """The number of each label, and the labels by number; None if a label needs a closer check.

    `labels`: any objects, or an array of integers or booleans.
    """
    if isinstance(labels, np.ndarray):
        return None if per_token and labels.min(initial=0) < 0 else _of_integers(labels)
    try:
        numbers: dict[Hashable, int] = dict.fromkeys(labels, 0)
    except TypeError:
        return None
    if any(_is_doubtful(label, per_token) for label in numbers):
        return None
    for number, label in enumerate(numbers):
        numbers[label] = number
    return np.fromiter(map(numbers.__getitem__, labels), np.int64, len(labels)), tuple(numbers)


def renumbered(codes: Codes) -> tuple[Codes, Codes]:
    """Codes renumbered from 0 in order of first appearance (-1 stays), and the old code of each new one."""
    used, first = np.unique(codes[codes >= 0], return_index=True)
    order = used[np.argsort(first)]
    number = np.full(codes.max(initial=-1) + 2, -1)  # the last entry is for -1
    number[order] = np.arange(len(order))
    return number[codes], order


def _is_doubtful(label: Any, per_token: bool) -> bool:
    """Whether a label may be refused: None, NaN, a tensor, or of tokens a number that may equal a negative integer."""
    if label is None or isinstance(label, Tensor) or label != label:
        return True
    return per_token and isinstance(label, Number) and label != abs(label)  # type: ignore[arg-type]


def _of_integers(labels: NDArray[Any]) -> tuple[Codes, Names]:
    if not len(labels):
        return np.zeros(0, np.int64), ()
    low, high = int(labels.min()), int(labels.max())
    if high - low <= 4 * len(labels) and high <= np.iinfo(np.int64).max:
        place = labels.astype(np.int64) - low
        first = np.full(high - low + 1, -1)
        first[place[::-1]] = np.arange(len(place) - 1, -1, -1)  # the last write wins: the first appearance
        order = np.sort(first[first >= 0])
        first[place[order]] = np.arange(len(order))
        return first[place], tuple(labels[order].tolist())
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    order = np.argsort(first)
    number = np.empty(len(order), np.int64)
    number[order] = np.arange(len(order))
    return number[inverse], tuple(labels[first[order]].tolist())
