"""Autograd functions of an operator: a gradient is precomputed, or comes from the operator's adjoint program."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fibration.compiler.ir import Key
from fibration.runtime import devices
from fibration.runtime.batch import Outputs
from fibration.runtime.graphs import differentiated_again
from fibration.runtime.index.index import Index

COEFFICIENTS, OBJECTIVE = Key("coefficients"), Key("objective")


class Share(torch.autograd.Function):
    """A rank's share of `-J`. Its gradient is precomputed: minus the coefficients of the rank's tokens.

    On the CPU the saved coefficients are negated in place, without a copy. A backward pass with the incoming gradient
    1, as `loss.backward()` has, returns them as they are, or a copy if autograd keeps the graph. On a GPU they are
    multiplied once.
    """

    @staticmethod
    def forward(ctx: Any, log_probs: Tensor, outputs: Outputs, dtype: torch.dtype, scale: int) -> Tensor:
        coefficients = outputs[COEFFICIENTS]
        ctx.looks = devices.can_sync(coefficients.device)
        ctx.save_for_backward(coefficients.neg_() if ctx.looks else coefficients)
        ctx.source = log_probs
        share = outputs.scalar(OBJECTIVE, dtype, -1)
        return share if scale == 1 else share / scale

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        (known,) = ctx.saved_tensors
        result = scaled(known, gradient if ctx.looks else -gradient, ctx.source.dtype)
        return once(result, ctx.source), None, None, None


def scaled(known: Tensor, times: Tensor, dtype: torch.dtype) -> Tensor:
    """A saved gradient times the incoming one, a scalar, in `dtype`: `known` itself if it fits and is not kept."""
    if devices.can_sync(times.device) and times.item() == 1.0:
        return known.to(dtype, copy=_graph_is_kept())
    with torch.no_grad():
        return known * times if known.dtype == dtype else torch.mul(known, times, out=known.new_empty(0, dtype=dtype))


# Whether the running backward pass keeps the graph. True if torch does not tell.
_graph_is_kept = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", lambda: True)


class Gated(torch.autograd.Function):
    """Gated ratios. The backward pass runs the operator's adjoint program."""

    @staticmethod
    def forward(
        ctx: Any,
        log_ratio: Tensor,
        calls: Any,
        index: Index,
        advantages: Any,
        parameters: Any,
        policies: Any,
        graph: bool,
    ) -> Tensor:
        tokens = {"log_ratio": log_ratio}
        dtype = log_ratio.dtype if isinstance(log_ratio, Tensor) else torch.float64
        outputs, batch = calls.call("gate", index, tokens, advantages, parameters, policies, dtype, graph, fill=1.0)
        read = None if batch.advantage is None else advantages
        others = {name: tensor for name, tensor in batch.tokens.items() if name != "log_ratio"}
        ctx.others = tuple(others)
        # with saved tensors, autograd refuses the backward pass if one was changed in place
        ctx.save_for_backward(log_ratio, read, *others.values())
        ctx.calls, ctx.ranks = calls, index.ranks
        ctx.batch = replace(batch, tokens={}, advantage=None, fill=0.0)
        return outputs[Key("gated_ratio")]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None, None, None]:
        log_ratio, advantages, *others = ctx.saved_tensors
        with torch.no_grad():
            tokens = {"log_ratio": log_ratio.detach(), "cotangent": gradient}
            tokens |= dict(zip(ctx.others, others, strict=True))
            given = None if advantages is None else advantages.detach()
            batch = replace(ctx.batch, tokens=tokens, advantage=given)
            result = ctx.calls.gate_adjoint(batch, ctx.ranks)
        return once(result, log_ratio), None, None, None, None, None, None


def once(gradient: Tensor, source: Tensor) -> Tensor:
    """The gradient, which depends on `source`. With `create_graph`, differentiating it again raises."""
    return _Once.apply(gradient, source) if torch.is_grad_enabled() else gradient  # type: ignore[no-any-return]


class _Once(torch.autograd.Function):
    """A gradient that cannot be differentiated: a constant would make second derivatives silently wrong."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, source: Tensor) -> Tensor:
        return gradient.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None]:
        raise differentiated_again()
