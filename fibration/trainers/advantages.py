"""Coefficients as the advantages of any trainer that reduces a clipped ratio over tokens, whatever it divides by.

At a ratio of 1 the gradient of `-min(r A, clip(r) A)` is `-A ∇log π`. The trainer then sums over tokens, divides by
counts, accumulates micro-batches and averages over ranks, which is all linear. This module undoes those factors
beforehand, so that the result is `-Σ c ∇log π` over the whole optimizer step.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fibration.errors import TrainerError, listed, shown
from fibration.runtime import devices

REDUCTIONS = {"sum": (), "token-mean": ("count",), "sequence-mean": ("count", "lengths")}  # and their arguments


def coefficients_as_advantages(
    coefficients: Tensor,
    mask: Tensor,
    *,
    reduction: str,
    count: float | Tensor | None = None,
    lengths: float | Tensor | None = None,
    accumulation: int = 1,
    ranks: int = 1,
) -> Tensor:
    """The advantages for which a trainer's loss, at a ratio of 1, has the gradient `-Σ c ∇log π(i)` over all
    micro-batches and ranks.

    `coefficients`: `c` of a rank's part of an optimizer step, or of one of its micro-batches, in any shape, computed
    from all rows of the step on all ranks. `mask`: the trainer's, of their shape, bool or 0/1. `reduction` of `l = -A
    r` over the unmasked tokens:

    - `"sum"`: `Σ l`
    - `"token-mean"`: `Σ l / count`
    - `"sequence-mean"`: `Σ over rows (Σ over tokens l / lengths) / count`, with rows along the first dimension

    `count`: the trainer's divisor. If it counts the whole step on all ranks, it is one number for all. If it counts
    each micro-batch by itself (`count=mask.sum()`), call this function once per micro-batch. `lengths`: the divisor of
    a row, one number or one per row `[B]`; default: the row's number of unmasked tokens.

    `accumulation` and `ranks`: further divisors, if the trainer divides each loss by the number of micro-batches, or
    averages gradients over ranks, and neither a factor nor its counts make up for it.

    Returns a tensor like `coefficients`, without a graph, 0 under the mask. Weights of tokens belong to the advantages
    from which `c` is computed. Raises TrainerError for a count that is not positive (an empty micro-batch), a length
    that is not positive in a row with tokens, a coefficient at a masked token, or a mask of weights. On GPUs no values
    are read: such counts and lengths make NaN.
    """
    if reduction not in REDUCTIONS:
        raise TrainerError(f"reduction={shown(reduction)}", required=f"one of {listed(map(repr, REDUCTIONS))}")
    takes = REDUCTIONS[reduction]
    for name, given in (("count", count), ("lengths", lengths)):
        if given is not None and name not in takes:
            raise TrainerError(
                f"reduction={reduction!r} has no {name}", required=listed((*takes, "accumulation", "ranks"))
            )
    if count is None and takes:
        raise TrainerError(f"reduction={reduction!r} needs a count", required="count=, the divisor of the trainer")
    for name, times in (("accumulation", accumulation), ("ranks", ranks)):
        if isinstance(times, bool) or not isinstance(times, int) or times < 1:
            raise TrainerError(f"{name}={shown(times)}", required="how many there are: a whole number, at least 1")
    _fits(coefficients, mask, reduction)

    with torch.no_grad():
        kept = mask.bool()
        found = torch.where(kept, coefficients, 0) * (accumulation * ranks)
        if takes:
            what = "tokens" if reduction == "token-mean" else "rows"
            found = found * _positive(count, found, f"the {what} that a loss is divided by")
        if reduction == "sequence-mean":
            found = found * _per_row(kept.flatten(1).sum(1) if lengths is None else lengths, kept, found)
        return torch.where(kept, found, 0)


def _fits(coefficients: Tensor, mask: Tensor, reduction: str) -> None:
    if mask.shape != coefficients.shape:
        raise TrainerError(
            f"a mask of shape {list(mask.shape)} for coefficients of shape {list(coefficients.shape)}",
            required="the trainer's mask of the same tokens",
        )
    if reduction == "sequence-mean" and mask.ndim < 2:
        raise TrainerError(
            "reduction='sequence-mean' of packed tokens",
            required="rows along the first dimension",
            found=f"shape {list(mask.shape)}",
            remedy="pad the rows to one width",
        )
    if not devices.can_sync(mask.device):
        return
    strange = mask[(mask != 0) & (mask != 1)]
    if len(strange):
        raise TrainerError(
            f"a mask with {shown(strange[0].item())} in it",
            required="bool, or 0 and 1",
            remedy="weights of tokens belong to the advantages from which coefficients are computed",
        )
    lost = (coefficients != 0) & (mask == 0)
    if lost.any():
        raise TrainerError(
            f"token {lost.nonzero()[0].tolist()} is masked, and has a coefficient",
            required="the mask that the coefficients were computed with",
            found=f"{coefficients[lost][0].item():.3g}",
            remedy="check whether one is shifted by a token, and whether the trainer drops rows afterwards",
        )


def _positive(given: float | Tensor | None, like: Tensor, what: str) -> Tensor:
    """A divisor as a factor; on GPUs NaN if it is not positive."""
    assert given is not None
    count = torch.as_tensor(given, dtype=like.dtype, device=like.device)
    if count.numel() != 1:
        raise TrainerError(f"{what}: {count.numel()} counts", required="one count", remedy="call it per micro-batch")
    count = count.reshape(())
    if devices.can_sync(like.device) and not (0 < float(count) < float("inf")):
        raise TrainerError(
            f"{what} are {float(count):g}, and dividing by them leaves no gradient",
            required="a positive count",
            remedy="leave out a micro-batch without an unmasked token",
        )
    return torch.where(count > 0, count, torch.nan)


def _per_row(given: float | Tensor, kept: Tensor, like: Tensor) -> Tensor:
    """The divisor of every row as a factor that broadcasts over its tokens; 1 for rows without tokens."""
    length = torch.as_tensor(given, dtype=like.dtype, device=like.device)
    if length.ndim == 0:
        length = length.expand(len(kept))
    if length.shape != kept.shape[:1]:
        raise TrainerError(
            f"lengths of shape {list(length.shape)} for {len(kept)} rows", required="one number, or one per row"
        )
    some = kept.flatten(1).any(1)
    wrong = some & ~((length > 0) & length.isfinite())
    if devices.can_sync(like.device) and wrong.any():
        row = int(wrong.nonzero()[0])
        raise TrainerError(
            f"row {row} has unmasked tokens and is divided by {float(length[row]):g}", required="a positive length"
        )
    length = torch.where(some, torch.where(wrong, torch.nan, length), 1)
    return length.reshape(-1, *[1] * (kept.ndim - 1))
