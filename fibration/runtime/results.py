"""What calls of an operator return."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from torch import Tensor

from fibration.runtime.metrics import Metric


class Read(Protocol):
    """What metrics are read from."""

    def metrics(self) -> dict[str, Metric]: ...
    def scalars(self, prefix: str, **more: Tensor) -> dict[str, float]: ...


class _Result:
    measured: Read

    @cached_property
    def metrics(self) -> dict[str, Metric]:
        """By name, as docs/metrics.md lists them: a `Mean` or an `Extreme` each, tensors that wait for nothing."""
        return self.measured.metrics()


@dataclass(frozen=True)
class Loss(_Result):
    """`loss` is `-J`, a differentiable scalar; `metrics` are those that were asked for.

    Where the batch is spread over ranks, `loss` is this rank's share, `-J` by their number, with the gradient of its
    own tokens; metrics are the whole batch's. DDP and FSDP average gradients over ranks, where their sum is wanted:
    `(loss * index.gradient_scale).backward()`.
    """

    loss: Tensor
    measured: Read = field(repr=False)

    def scalars(self, prefix: str = "") -> dict[str, float]:
        """`loss` and the metrics as plain floats, for a logger, in one copy from the device; `prefix` is put before
        every name. A metric over no element at all is left out.
        """
        return self.measured.scalars(prefix, loss=self.loss)


@dataclass(frozen=True)
class Coefficients(_Result):
    """`values` is `∂J/∂log π` per token, shaped like the log-probs and 0 under the mask; `objective` is `J`.

    Where the batch is spread over ranks, `values` are of this rank's tokens, and all else is the whole batch's.
    """

    values: Tensor
    objective: Tensor
    measured: Read = field(repr=False)

    def scalars(self, prefix: str = "") -> dict[str, float]:
        """`objective` and the metrics as plain floats, as those of `Loss`."""
        return self.measured.scalars(prefix, objective=self.objective)


@dataclass(frozen=True)
class Levels:
    """What every gate read and gave, per element: float64, by (stratum, channel). For pictures and tables."""

    residual: dict[tuple[str, str], Tensor]
    gated: dict[tuple[str, str], Tensor]
