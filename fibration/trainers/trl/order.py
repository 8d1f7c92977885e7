"""The order of a generation's rows: TRL shuffles rows, or elements of a stratum with all of their rows."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from trl.trainer import grpo_trainer


@contextmanager
def shuffled(element: Callable[[Mapping[str, Any]], Sequence[Hashable]] | None) -> Iterator[None]:
    """While the body runs, TRL's `shuffle_sequence_dict` keeps the rows of an element next to each other.

    `element`: returns the element of every row of a generation. None: TRL shuffles rows.
    """
    if element is None:
        yield
        return
    own = grpo_trainer.shuffle_sequence_dict
    grpo_trainer.shuffle_sequence_dict = lambda given: permuted(given, in_elements(element(given)))
    try:
        yield
    finally:
        grpo_trainer.shuffle_sequence_dict = own


def in_elements(elements: Sequence[Hashable]) -> list[int]:
    """The rows, one element after another. The elements are in random order, and the rows of each in theirs."""
    found: dict[Hashable, list[int]] = {}
    for row, element in enumerate(elements):
        found.setdefault(element, []).append(row)
    each = list(found.values())
    return [row for place in torch.randperm(len(each)).tolist() for row in each[place]]


def permuted(given: Mapping[str, Any], rows: Sequence[int]) -> dict[str, Any]:
    """Tensors `[B, ...]` and sequences of `B` values in another order; other values are kept."""

    def taken(value: Any) -> Any:
        if value is None or (isinstance(value, Tensor) and value.ndim == 0):
            return value
        return value[list(rows)] if isinstance(value, Tensor) else [value[row] for row in rows]

    return {name: taken(value) for name, value in given.items()}
