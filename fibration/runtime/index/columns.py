"""Labels from tensors, arrays, lists, and columns of tables."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from fibration.runtime.sums import Codes


def plain(label: Any) -> Any:
    """A label that can be compared: a 0-d tensor as a number, because tensors hash by identity; others as lists."""
    if isinstance(label, (Tensor, np.ndarray)):
        return label.item() if label.ndim == 0 else label.tolist()
    return label


def listed(value: Any, shape: tuple[int, ...]) -> Any:
    """The labels as a list. Integers and booleans per row or per token stay an array."""
    column = next((way for way in ("tolist", "to_list", "to_pylist") if hasattr(value, way)), None)
    if column and not isinstance(value, (Tensor, np.ndarray)):
        return getattr(value, column)()
    if isinstance(value, Tensor) and not (value.is_floating_point() or value.is_complex()):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray) and value.dtype.kind in "iub" and (value.ndim == 1 or value.shape == shape):
        return value
    return to_list(value)


def is_nested(given: Any) -> bool:
    return given.ndim > 1 if isinstance(given, np.ndarray) else all(isinstance(g, list) for g in given)


def chosen(given: Any, places: Codes) -> Any:
    """The labels at these ascending places."""
    if len(places) == len(given):
        return given
    return given[places] if isinstance(given, np.ndarray) else [given[i] for i in places.tolist()]


def to_list(value: Any) -> Any:
    if isinstance(value, (Tensor, np.ndarray)):
        return value.tolist()
    return value
