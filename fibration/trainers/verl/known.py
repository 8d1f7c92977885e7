"""Old log-probs that the weights at hand gave: their ratio is 1, and no forward pass is needed to know it."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by the bytes of a number


class Known:
    """Digests of the log-probs that a model gave, at a temperature, and of the weights that it gave them with.

    What is asked for is known by its values, never by when it was computed: rows that another worker computed,
    log-probs of what sampled, weights that were loaded or put back in between are all unknown.
    """

    def __init__(self) -> None:
        self._by: tuple[int, Any] | None = None
        self._rows: set[bytes] = set()

    def add(self, model: nn.Module, temperature: Any, log_probs: Tensor) -> None:
        """`log_probs`: `[B, T]`, 0 behind a row's end. All there is is forgotten if it came from other weights."""
        by = _weights(model), temperature
        if by != self._by:
            self._by, self._rows = by, set()
        self._rows.update(_rows(log_probs))

    def forget(self) -> None:
        self._by, self._rows = None, set()

    def has(self, model: nn.Module, temperature: Any, log_probs: Tensor, mask: Tensor) -> bool:
        """Whether this rank's part of the model, as it is, gave every row of which a token is unmasked."""
        used = log_probs[mask.any(1)]
        return self._by == (_weights(model), temperature) and all(row in self._rows for row in _rows(used))


def _rows(log_probs: Tensor) -> Iterator[bytes]:
    """Of the values as float32, in which trainers hand them around, however wide the padding."""
    for row in log_probs.float().cpu().numpy():
        yield blake2b(np.trim_zeros(row, "b").tobytes(), digest_size=16).digest()


def _weights(model: nn.Module) -> int:
    """The sum of their bits, of this rank's shards."""
    shards = [getattr(p, "to_local", lambda p=p: p)().detach().contiguous() for p in model.parameters()]
    return int(torch.stack([s.view(BITS[s.element_size()]).sum(dtype=torch.int64) for s in shards]).sum())
