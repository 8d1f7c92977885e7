"""Old log-probs that the current weights gave: their ratio is 1, and pass 1 can be skipped."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by the bytes of a number


class Known:
    """Digests of the log-probs that a model gave, with its weights and the temperature.

    Log-probs are recognised by value. Rows of another worker, rollout log-probs, and weights that were loaded or
    restored in between are not recognised.
    """

    def __init__(self) -> None:
        self._by: tuple[int, Any] | None = None
        self._rows: set[bytes] = set()

    def add(self, model: nn.Module, temperature: Any, log_probs: Tensor) -> None:
        """Add log-probs `[B, T]`, 0 after a row's end. Forgets those of other weights."""
        by = _weights(model), temperature
        if by != self._by:
            self._by, self._rows = by, set()
        self._rows.update(_rows(log_probs))

    def forget(self) -> None:
        self._by, self._rows = None, set()

    def has(self, model: nn.Module, temperature: Any, log_probs: Tensor, mask: Tensor) -> bool:
        """Whether this rank's part of the model, with its current weights, gave every row with an unmasked token."""
        used = log_probs[mask.any(1)]
        return self._by == (_weights(model), temperature) and all(row in self._rows for row in _rows(used))


def _rows(log_probs: Tensor) -> Iterator[bytes]:
    """A digest per row, of the values as float32 (the dtype that trainers pass on), independent of padding."""
    for row in log_probs.float().cpu().numpy():
        yield blake2b(np.trim_zeros(row, "b").tobytes(), digest_size=16).digest()


def _weights(model: nn.Module) -> int:
    """The sum of the weights' bits in this rank's shards."""
    shards = [getattr(p, "to_local", lambda p=p: p)().detach().contiguous() for p in model.parameters()]
    return int(torch.stack([s.view(BITS[s.element_size()]).sum(dtype=torch.int64) for s in shards]).sum())
