"""The public call, and its autograd function: gradients are computed in the forward, and scaled in the backward."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fibration.head.checks import check_head, check_numbers, check_targets
from fibration.head.parts import default_chunk
from fibration.head.stream import CALL, Given, Head, Metrics, Stream
from fibration.runtime.index.index import Index
from fibration.runtime.index.micro import MicroIndex
from fibration.runtime.inputs import check_tokens, checked
from fibration.runtime.metrics import Loss
from fibration.runtime.operator import Operator, once, scaled
from fibration.runtime.ranks.group import agreed
from fibration.runtime.tracing import refuse_graphs, refuse_traces, refuse_transforms


@dataclass(frozen=True)
class HeadLoss(Loss):
    """The result of `op.loss`, and what was computed on the way.

    `log_probs`: of the targets, in nats, without a graph. `entropy`: of the distribution at each token, in nats,
    without a graph; None if it was not asked for. Both are float32 (float64 for float64 inputs), of the index's shape,
    and 0 under the mask.
    """

    log_probs: Tensor
    entropy: Tensor | None


@refuse_transforms
def loss(
    op: Operator,
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor | None,
    index: Index,
    *,
    bias: Tensor | None = None,
    temperature: float = 1.0,
    softcap: float | None = None,
    policies: Mapping[str, Tensor] | None = None,
    parameters: Mapping[str, Any] | None = None,
    metrics: Metrics = True,
    entropy: bool = False,
    entropy_bonus: float = 0.0,
    chunk: int | None = None,
) -> HeadLoss:
    """`op.loss(...)` of the log-probs of a head, with gradients of `hidden`, `weight` and `bias`, and never more logits
    than those of one chunk of tokens.

    `hidden`: `[B, T, H]` or packed `[N, H]`; the state at each place predicts the target at the same place. `weight`:
    `[V, H]`. `targets`: the sampled tokens, integers in the index's shape. `old_log_probs`, `advantages`, `index`,
    `parameters`, `policies`, `metrics`: as in `op.loss`; `index` may be of a whole step, a micro-batch or ranks. What
    lies under the mask is never read.

    Logits are `softcap·tanh((hidden·weightᵀ + bias)/softcap)/temperature`; without `softcap`, `(hidden·weightᵀ +
    bias)/temperature`. `old_log_probs` must be of the same temperature.

    `entropy`: whether the result has the entropy of each token. `entropy_bonus`: `κ` of a term `-κ·H` of the loss,
    where `H` is the mean entropy over the unmasked tokens of the whole step, so that micro-batches and ranks add up.

    `chunk`: the most tokens whose logits exist at once; default `2**26 / V`, on a GPU `2**28 / V`.

    Products are in the inputs' dtype (that of autocast, if it is on), and accumulate in float32; all else is float32,
    or float64 for float64 inputs. Gradients have the dtype of their tensor. A tensor without `requires_grad` costs no
    product.

    Over ranks, all ranks make this call. On a GPU it reads from the device, once per chunk, how many tokens have a
    coefficient.

    Raises BatchError for tensors that do not fit each other, targets out of range, log-probs that are not finite and
    DTensors; on a GPU such values give NaN. The gradient cannot be differentiated again.
    """
    check_numbers(temperature, softcap, entropy_bonus, chunk)
    group = index.group if isinstance(index, Index) and not isinstance(index, MicroIndex) else None
    graph = torch.is_grad_enabled()
    with agreed(group, CALL):
        refuse_traces()
        if graph:
            refuse_graphs("objective", parameters, policies, advantages=advantages, old_log_probs=old_log_probs)
        named = {f"policies[{k!r}]": t for k, t in policies.items()} if isinstance(policies, Mapping) else {}
        index = check_tokens(op.hierarchy, index, old_log_probs=old_log_probs, **named)
        dtype = check_head(index, hidden, weight, bias)
        found = check_targets(index, targets, len(weight))
        per_row = False
        if advantages is not None:
            _, per_row = checked(op.hierarchy, index, "advantage", advantages)
    head = Head(
        targets=found,
        dtype=dtype,
        softcap=softcap,
        temperature=temperature,
        bonus=entropy_bonus / max(index.tokens_of_step, 1),
        with_entropy=entropy or entropy_bonus != 0,
        chunk=default_chunk(len(weight), weight.device) if chunk is None else chunk,
    )
    given = Given(old_log_probs, advantages, per_row, parameters, policies, metrics)
    wanted = [graph and t is not None and t.requires_grad for t in (hidden, weight, bias)]
    stream = Stream(
        op, index, given, head, hidden.detach(), weight.detach(), None if bias is None else bias.detach(), wanted
    )
    share: Tensor = _Streamed.apply(hidden, weight, bias, stream)
    log_probs, of_tokens = stream.found.log_probs, stream.found.entropy
    return HeadLoss(
        loss=share,
        measured=stream.measured,
        log_probs=_in_shape(index, log_probs),
        entropy=None if of_tokens is None else _in_shape(index, of_tokens),
    )


def _in_shape(index: Index, values: Tensor) -> Tensor:
    made = values.new_zeros(index.shape)
    made.view(-1)[index.positions] = values
    return made


class _Streamed(torch.autograd.Function):
    """A rank's share of the loss. Its gradients are precomputed."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, stream: Stream) -> Tensor:
        with torch.autocast(hidden.device.type, enabled=False):
            share = stream.run()
        made = stream.gradients
        ctx.save_for_backward(hidden, made.hidden, made.weight, made.bias)
        ctx.places, ctx.weight, ctx.bias = stream.places, weight, bias
        return share

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        hidden, of_hidden, of_weight, of_bias = ctx.saved_tensors
        made: list[Tensor | None] = [None, None, None]
        if of_hidden is not None:
            whole = hidden.new_zeros(hidden.shape)
            whole.view(-1, hidden.shape[-1])[ctx.places] = scaled(of_hidden, gradient, hidden.dtype)
            made[0] = once(whole, hidden)
        for i, known, source in ((1, of_weight, ctx.weight), (2, of_bias, ctx.bias)):
            if known is not None:
                made[i] = once(scaled(known, gradient, source.dtype), source)
        return made[0], made[1], made[2], None
