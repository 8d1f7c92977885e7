"""One property of a function, and the search for the smallest batch on which it fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fibration.auditing.batch import Batch, Floats, small
from fibration.auditing.function import Found, Function
from fibration.errors import AuditError

Status = Literal["holds", "fails", "note"]
MARK: dict[Status, str] = {"holds": "✓", "fails": "✗", "note": "·"}
CLOSE = 1e-9
MU = 2e-6  # functions write ÷ (n + 1e-6) for ÷ n


@dataclass(frozen=True)
class Finding:
    """One property. `batch`: the smallest found on which it fails. `other`: one that should have the same loss."""

    name: str
    status: Status
    text: str
    batch: Batch | None = None
    other: Batch | None = None


def is_close(one: Floats, other: Floats, scale: float | None = None) -> bool:
    size = max(float(np.abs(one).max(initial=0)), 1e-300) if scale is None else scale
    return bool(np.isfinite(other).all() and (np.abs(one - other) <= CLOSE * size).all())


def alike(one: Found, other: Found) -> bool:
    """Whether coefficients and values are equal. Two results with NaN are: NaN is a property of its own."""
    if not one.is_finite:
        return not other.is_finite
    return is_close(one.coefficients, other.coefficients) and abs(one.value - other.value) <= CLOSE * (
        1 + abs(one.value)
    )


def first_failure(
    function: Function, fails: Callable[[Batch], bool], batches: tuple[Batch, ...] | None = None
) -> Batch | None:
    """The first batch for which `fails` holds. A batch that the function does not take fails nothing."""
    for batch in small() if batches is None else batches:
        try:
            if fails(batch):
                return batch
        except AuditError:
            continue
    return None
