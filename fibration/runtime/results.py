"""The results of an operator's calls."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from torch import Tensor

from fibration.runtime.metrics import Metric


class MetricSource(Protocol):
    """A source of metrics."""

    def metrics(self) -> dict[str, Metric]: ...
    def scalars(self, prefix: str, **more: Tensor) -> dict[str, float]: ...


class _Result:
    measured: MetricSource

    @cached_property
    def metrics(self) -> dict[str, Metric]:
        """Metrics by name, as docs/metrics.md lists them: `Mean` or `Extreme`, whose tensors do not wait for the
        device.
        """
        return self.measured.metrics()


@dataclass(frozen=True)
class Loss(_Result):
    """`loss` is `-J`, a differentiable scalar; `metrics` are the requested ones.

    For a batch over ranks, `loss` is this rank's share: `-J` divided by the number of ranks, with the gradient of this
    rank's tokens. Metrics are the whole batch's. DDP and FSDP average gradients over ranks, where the sum is needed:
    call `(loss * index.gradient_scale).backward()`.
    """

    loss: Tensor
    measured: MetricSource = field(repr=False)

    def scalars(self, prefix: str = "") -> dict[str, float]:
        """`loss` and the metrics as floats for a logger, in one copy from the device. `prefix` precedes every name.
        Metrics over no element are left out.
        """
        return self.measured.scalars(prefix, loss=self.loss)


@dataclass(frozen=True)
class Coefficients(_Result):
    """`values` is `∂J/∂log π` per token, in the shape of the log-probs and 0 under the mask; `objective` is `J`.

    For a batch over ranks, `values` are of this rank's tokens; the objective and metrics are the whole batch's.
    """

    values: Tensor
    objective: Tensor
    measured: MetricSource = field(repr=False)

    def scalars(self, prefix: str = "") -> dict[str, float]:
        """`objective` and the metrics as floats, as in `Loss.scalars`."""
        return self.measured.scalars(prefix, objective=self.objective)


@dataclass(frozen=True)
class Levels:
    """The residual before and after every gate, per element: float64, by (stratum, channel)."""

    residual: dict[tuple[str, str], Tensor]
    gated: dict[tuple[str, str], Tensor]
