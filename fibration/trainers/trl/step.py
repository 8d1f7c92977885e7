"""One optimizer step of TRL, and the rows that its forward passes take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fibration.trainers.micro_batches import MicroBatches


class Row(NamedTuple):
    """Data of a row: the number of steps begun when it was sampled, and its label of every stratum."""

    steps: int
    labels: dict[str, Any]


@dataclass
class Step:
    """One optimizer step of a rank."""

    batches: MicroBatches
    places: list[int]  # the slice of the window in each micro-batch
    scale: float  # of coefficients
    forwards: int  # forward passes before the first micro-batch

    def live(self) -> Live | None:
        """The rows of the next micro-batch that its forward pass takes; None: all."""
        live = self.batches.live()
        return None if live.all() else Live(live)

    def coefficients(self, log_probs: Tensor) -> tuple[Tensor, Tensor]:
        """The coefficients `[b, T]` of the next micro-batch, which has these log-probs, and its part of the objective.

        After `live`, both are of the live rows. The parts of all micro-batches add up to `J` on average over ranks.
        """
        values, objective = self.batches.coefficients(log_probs)
        return values * self.scale, objective * (1.0 if self.batches.is_whole else self.scale)


class Live:
    """Some rows of a slice. `mask`: bool `[b]`, on the CPU."""

    def __init__(self, mask: Tensor) -> None:
        self.mask, self.rows = mask, mask.nonzero()[:, 0]

    def of(self, values: Tensor) -> Tensor:
        """The values of these rows: `[n, ...]` from `[b, ...]`."""
        return values[self.rows.to(values.device)]

    def placed(self, values: Tensor) -> Tensor:
        """`[b, ...]` with the values `[n, ...]` of these rows, and 0 elsewhere."""
        empty = values.new_zeros(len(self.mask), *values.shape[1:])
        return torch.index_copy(empty, 0, self.rows.to(values.device), values)
