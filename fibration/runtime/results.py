"""What calls of an operator return."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fibration.runtime.metrics import Metric


@dataclass(frozen=True)
class Loss:
    """`loss` is `-J`, a differentiable scalar; `metrics` as in `fibration.runtime.metrics.collect`.

    Where the batch is spread over ranks, `loss` is this rank's share, `-J` by their number, with the gradient of its
    own tokens; metrics are the whole batch's. DDP and FSDP average gradients over ranks, where their sum is wanted:
    `(loss * index.gradient_scale).backward()`.
    """

    loss: Tensor
    metrics: dict[str, Metric]


@dataclass(frozen=True)
class Coefficients:
    """`values` is `∂J/∂log π` per token, shaped like the log-probs and 0 under the mask; `objective` is `J`.

    Where the batch is spread over ranks, `values` are of this rank's tokens, and all else is the whole batch's.
    """

    values: Tensor
    objective: Tensor
    metrics: dict[str, Metric]


@dataclass(frozen=True)
class Levels:
    """What every gate read and gave, per element: float64, by (stratum, channel). For pictures and tables."""

    residual: dict[tuple[str, str], Tensor]
    gated: dict[tuple[str, str], Tensor]
