"""Refuses what is not log-probs in their place: advantages, probabilities, negative log-likelihoods.

`calls.py` uses it in the calls that it checks, `prepared.py` in all others.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from fibration.compiler.arguments import GIVEN
from fibration.errors import BatchError
from fibration.runtime.index.index import Index

FEW_TOKENS = 8  # with fewer tokens, or fewer different advantages, signs prove nothing
NO_LOG_PROBS = ("log_ratio", "cotangent", *GIVEN.values())


def highest(name: str, dtype: torch.dtype) -> float:
    """How far rounding lifts a log-prob above 0; infinity for a tensor of other numbers.

    Two units in the last place of a float32 logit of size 128, and eight of 1 in half precision.
    """
    return torch.inf if name in NO_LOG_PROBS else max(2.0**-15, 8 * torch.finfo(dtype).eps)


def refuse_exchanged(tensors: Mapping[str, Tensor], index: Index, word: str, given: object) -> None:
    """Refuse log-probs that are exchanged with `given`, numbers per token (`word`: advantages or rewards)."""
    name = exchanged(tensors, index, given)
    if name is None:
        return
    values = _unmasked(tensors[name], index)
    token = int(values.argmax())
    raise BatchError(
        f"{name} and {word} look exchanged",
        required=f"{name}, which are never above 0, and {word} in their own places",
        found=f"{name} of {index.describe_token(token)} is {float(values[token]):g}, and none of the {word} is above 0",
        remedy=f"pass them by name: op.loss(log_probs=..., old_log_probs=..., {word}=..., index=...)",
    )


def exchanged(tensors: Mapping[str, Tensor], index: Index, given: object) -> str | None:
    """The name of a tensor of log-probs that has numbers above 0, if `given` looks like log-probs instead; else None.

    `given` looks so if it is per token, has at least `FEW_TOKENS` different numbers, and none above 0. Log ratios
    beside old log-probs of zeros are accepted.
    """
    if not isinstance(given, Tensor) or tuple(given.shape) != index.shape or given.device != index.device:
        return None
    some = sample_of(index)  # enough for most batches
    if not len(some) or given.detach().reshape(-1)[some].amax().item() > 0:
        return None
    for name, tensor in tensors.items():
        limit = highest(name, tensor.dtype)
        # one pass is enough: what lies under the mask, even a NaN, leads to the exact answer
        if tensor.detach().amax().item() <= limit:
            continue
        if bool((_unmasked(tensor, index) > limit).any()):
            numbers, old = _unmasked(given, index), tensors.get("old_log_probs")
            is_relative = old is not None and not bool(_unmasked(old, index).any())
            is_like_log_probs = not bool((numbers > 0).any()) and numbers.unique().numel() >= FEW_TOKENS
            return name if is_like_log_probs and not is_relative else None
    return None


def sample_of(index: Index) -> Tensor:
    """The places of about 64 unmasked tokens."""

    def places() -> Tensor:
        runs = index.every.runs
        return torch.from_numpy(runs.place(np.arange(0, len(runs), len(runs) // 64 + 1))).to(index.device)

    return index.kept("a few tokens", places)


def refuse_negated(tensors: Mapping[str, Tensor], index: Index) -> None:
    """Refuse negative log-likelihoods in place of log-probs: no value is below 0, and most are above.

    Log ratios beside zeros are accepted.
    """
    given = {name: _unmasked(tensors[name], index) for name in ("log_probs", "old_log_probs")}
    for name, values in given.items() if bool(given["old_log_probs"].any()) else ():
        above = int((values > 0).sum())
        if len(values) >= FEW_TOKENS and 2 * above > len(values) and not bool((values < 0).any()):
            first = int((values > 0).nonzero()[0])
            remedy = f"of negative log-likelihoods, pass -{name}"
            if not bool((values > 1).any()):
                remedy = f"of probabilities, pass {name}.log(); {remedy}"
            raise BatchError(
                f"{name} are above 0 at {above} of {len(values)} tokens, and below 0 at none",
                required="logarithms of probabilities, which are at most 0",
                found=f"{float(values[first]):g} at {index.describe_token(first)}",
                remedy=remedy,
            )


def _unmasked(tensor: Tensor, index: Index) -> Tensor:
    return tensor.detach().reshape(-1)[index.positions]
