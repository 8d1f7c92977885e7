"""Refuses the inputs of `fibration.head.loss` that do not fit each other."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fibration.errors import BatchError, shown
from fibration.runtime import devices
from fibration.runtime.index.index import Index
from fibration.runtime.inputs import refuse_device, refuse_dtype
from fibration.runtime.tracing import refuse_kind


def check_numbers(temperature: float, softcap: float | None, bonus: float, chunk: int | None) -> None:
    for name, value in (("temperature", temperature), ("softcap", softcap)):
        if value is not None and not (_is_number(value) and 0 < value < math.inf):
            remedy = "leave it out, for a head without" if name == "softcap" else ""
            raise BatchError(f"{name} is {shown(value)}", required="a finite number above 0", remedy=remedy)
    if not (_is_number(bonus) and math.isfinite(bonus)):
        raise BatchError(f"entropy_bonus is {shown(bonus)}", required="a finite number")
    if chunk is not None and not (isinstance(chunk, int) and not isinstance(chunk, bool) and chunk > 0):
        raise BatchError(f"chunk is {shown(chunk)}", required="a number of tokens, at least 1")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def check_head(index: Index, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> torch.dtype:
    """The precision of products: that of `hidden` and `weight`, or autocast's."""
    for name, tensor in (("hidden", hidden), ("weight", weight), ("bias", bias)):
        if tensor is None and name == "bias":
            continue
        if hasattr(tensor, "full_tensor"):
            raise BatchError(
                f"{name} is a DTensor, a part of which is on this rank",
                required="all of it on this rank: probabilities are of the whole vocabulary",
                remedy=f'pass {name}.full_tensor(grad_placements=[Partial("avg")]): gradients are averaged over ranks',
            )
        refuse_dtype(name, tensor)
        assert tensor is not None
        refuse_device(name, tensor, index)
    _check_shapes(index, hidden, weight, bias)
    kind = index.device.type
    if torch.is_autocast_enabled(kind) and torch.float64 not in (hidden.dtype, weight.dtype):
        return torch.get_autocast_dtype(kind)
    if hidden.dtype != weight.dtype:
        raise BatchError(
            f"hidden is {hidden.dtype}, and weight is {weight.dtype}",
            required="the same dtype, or torch.autocast",
            remedy=f"pass hidden.to({weight.dtype}), or weight.to({hidden.dtype})",
        )
    return hidden.dtype


def _check_shapes(index: Index, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    if hidden.ndim != len(index.shape) + 1 or tuple(hidden.shape[:-1]) != index.shape:
        wanted = f"[{', '.join(map(str, index.shape))}, H]"
        remedy = (
            "leave out the hidden state of the last place: the state at each place is that which predicts its target"
        )
        if hidden.ndim == 3 and hidden.shape[:-1].numel() == math.prod(index.shape) and len(index.shape) == 1:
            remedy = "pass hidden.flatten(0, 1)"
        elif hidden.ndim == 2 and hidden.shape[0] == math.prod(index.shape):
            remedy = f"pass hidden.unflatten(0, {index.shape})"
        elif hidden.ndim != 3 or hidden.shape[:2] != (index.shape[0], index.shape[-1] + 1):
            remedy = "pass the hidden states of the index's batch: one for each target"
        raise BatchError(
            f"hidden has shape {list(hidden.shape)}", required=f"{wanted}, for the index's tokens", remedy=remedy
        )
    width = hidden.shape[-1]
    if weight.ndim != 2 or weight.shape[1] != width or not len(weight):
        remedy = "pass weight.T" if weight.ndim == 2 and weight.shape[0] == width else ""
        raise BatchError(
            f"weight has shape {list(weight.shape)}",
            required=f"[V, {width}], for hidden states of {width} numbers",
            remedy=remedy,
        )
    if bias is not None and tuple(bias.shape) != (len(weight),):
        raise BatchError(f"bias has shape {list(bias.shape)}", required=f"[{len(weight)}], as many as weight has rows")


def check_targets(index: Index, targets: Tensor, vocabulary: int) -> Tensor:
    """The target of every unmasked token: int64 [tokens]. On a GPU a target out of range is -1."""
    refuse_kind("targets", targets)
    kinds = (torch.int64, torch.int32, torch.int16, torch.uint8, torch.int8)
    if not isinstance(targets, Tensor) or targets.dtype not in kinds:
        raise BatchError(
            f"targets: {getattr(targets, 'dtype', type(targets).__name__)}",
            required="a tensor of int64: the number of each sampled token in the vocabulary",
        )
    if tuple(targets.shape) != index.shape:
        raise BatchError(
            f"targets have shape {list(targets.shape)}",
            required=f"{list(index.shape)}, the shape of the index",
            remedy="pass the sampled tokens in the shape of old_log_probs",
        )
    refuse_device("targets", targets, index, "are")
    found = targets.detach().reshape(-1)[index.positions].long()
    outside = (found < 0) | (found >= vocabulary)
    if not devices.can_sync(index.device):
        return found.masked_fill(outside, -1)
    if bool(outside.any()):
        token = int(outside.nonzero()[0])
        raise BatchError(
            f"the target of {index.describe_token(token)} is {int(found[token])}",
            required=f"a number from 0 to {vocabulary - 1}: weight has {vocabulary} rows",
            remedy="mask the token, or pass the whole weight: a vocabulary over several ranks is not supported",
        )
    return found


def check_finite(index: Index, log_probs: Tensor, first: int, hidden: Tensor) -> None:
    """Refuses log-probs that are not finite, where the device allows it. They are those of the tokens from `first` on.

    `hidden`: the hidden states of these tokens.
    """
    if not devices.can_sync(index.device):
        return
    bad = ~torch.isfinite(log_probs)
    if not bool(bad.any()):
        return
    token = int(bad.nonzero()[0])
    is_finite = bool(torch.isfinite(hidden[token]).all())
    raise BatchError(
        f"the log-prob of {index.describe_token(first + token)} is {float(log_probs[token]):g}",
        required="a finite log-prob of every unmasked token",
        found="finite hidden states" if is_finite else "hidden states that are not finite",
        remedy="look for an overflow in weight or bias, or a target that the bias excludes"
        if is_finite
        else "look for an overflow in the model, or mask the token",
    )
