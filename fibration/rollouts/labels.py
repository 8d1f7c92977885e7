"""Labels of elements: any hashable objects, stored as numbers and names."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fibration.errors import RolloutsError, shown

NONE = -1  # the number of no label


@dataclass(frozen=True, eq=False)
class Labels:
    """The element of a stratum that each token or each trajectory lies over."""

    of: NDArray[np.int32]  # [N] or [n] positions in names, -1 for no label
    names: tuple[Hashable, ...]  # strings, numbers, and tuples of these; no two are equal

    @property
    def each(self) -> list[Hashable | None]:
        """The label of every token or trajectory, or `None`."""
        names = (*self.names, None)  # index -1 finds None
        return [names[i] for i in self.of.tolist()]

    @staticmethod
    def of_each(labels: Sequence[Any] | NDArray[Any], what: str) -> Labels:
        """Returns the labels of tokens or trajectories, numbered in the order of first appearance.

        A label that is no string, number or tuple is named by its `str`. Raises RolloutsError, whose message calls the
        labels `what`.
        """
        if isinstance(labels, np.ndarray) and labels.dtype.kind in "iub":
            values, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
            order = np.argsort(first)
            number = np.empty(len(order), np.int32)
            number[order] = np.arange(len(order))
            return Labels(number[inverse.reshape(-1)], tuple(values[order].tolist()))
        numbers: dict[Hashable, int] = {}
        of = np.empty(len(labels), np.int32)
        for i, label in enumerate(labels):
            label = _plain(label)
            try:
                of[i] = NONE if label is None else numbers.setdefault(label, len(numbers))
            except TypeError:
                raise RolloutsError(
                    f"{what}: {shown(label)} is not hashable",
                    required="one label per token or per row: strings, numbers, tuples, other hashable values, or None",
                    remedy="of several experts per token, say, give the first one, or a tuple of all",
                ) from None
        given = {_name(label, what): label for label in numbers}
        if len(given) < len(numbers):
            one = next(label for label in numbers if given[_name(label, what)] is not label)
            other = given[_name(one, what)]
            raise RolloutsError(
                f"{what}: two different labels are named {str(one)!r}",
                required="names that tell elements apart",
                found=f"{shown(one)} and {shown(other)}",
                remedy="give strings or numbers",
            )
        return Labels(of, tuple(given))


def _plain(label: Any) -> Any:
    """Converts scalars of numpy and torch to Python's, so that equal labels compare equal, and arrays to lists.

    Lists are not hashable, so `of_each` refuses them.
    """
    return label.tolist() if hasattr(label, "tolist") else label


def _name(label: Hashable, what: str) -> Hashable:
    """Returns the name of a label in a file. Raises RolloutsError for NaN and infinity."""
    if isinstance(label, float) and not math.isfinite(label):
        raise RolloutsError(f"{what}: one of them is {label}", required="a label, or None where there is none")
    if isinstance(label, tuple):
        return tuple(_name(part, what) for part in label)
    return label if isinstance(label, (str, int, float)) or label is None else str(label)
