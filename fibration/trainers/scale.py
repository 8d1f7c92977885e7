"""Measures by what factor a trainer's loss scales an advantage, in the trainer's own backward pass.

A loss that sums `-A·r` over tokens times a factor has minus that factor as its gradient in an advantage at `r` = 1,
whatever KL or entropy it adds. So advantages are passed as a tensor that requires grad. A trainer release with one
more divisor then raises an error, and does not silently scale the learning rate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from fibration.errors import TrainerError, listed
from fibration.runtime.ranks.group import agreed, as_group

OPERATIONS = 8  # rounded operations between an advantage and the loss
SIMPLE = 64  # the largest denominator of a ratio that errors print as a fraction


class Scale:
    """The scale of a loss, which errors call `what`. It is checked in the first `windows` windows.

    `counts`: factors by which the trainer may have divided or multiplied, `{"accumulation steps": 4, "ranks": 2}`, for
    errors.
    """

    def __init__(self, what: str, *, windows: int = 2, counts: Mapping[str, float] | None = None) -> None:
        self.what, self.windows, self.counts = what, windows, counts or {}
        self._handed: list[_Handed] = []

    def begin(self) -> None:
        """Begin a window: forget the advantages of a window that ended before its check."""
        self._handed = []

    def expects(
        self, advantages: Tensor, expected: float | Tensor, mask: Tensor, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """The tensor to pass to the trainer in place of `advantages`, for one micro-batch; `advantages` itself after
        the first windows.

        `advantages`: `[B, T]`, or `[B]` or `[B, 1]` for all tokens of a row. `expected`: the factor of `-A·r` in the
        loss on which the trainer calls backward, one number or one per token `[B, T]`, including a gradient scaler's
        scale. `mask`: the tokens that count, `[B, T]`. `dtype`: the coarsest dtype in which the trainer computes its
        loss.
        """
        if self.windows <= 0:
            return advantages
        factor = torch.as_tensor(expected, dtype=torch.float64, device=mask.device) * mask
        if advantages.shape != mask.shape:
            factor = factor.sum(1).reshape(advantages.shape)
        # rounding to nearest: at most half an eps per operation; advantages per row also sum the row's tokens
        operations = OPERATIONS + (mask.shape[1] if advantages.shape != mask.shape else 0)
        bound = operations * max(torch.finfo(t).eps for t in (dtype, torch.float32)) / 2
        handed = _Handed(factor, bound)
        self._handed.append(handed)
        watched = advantages.detach().requires_grad_()
        watched.register_hook(handed.see)
        return watched

    def checked(self, group: Any = None) -> None:
        """Raise TrainerError on every rank of `group` if a loss on one rank has another scale.

        Call it after the backward pass of a window's last micro-batch, before the optimizer's step. The ratio of the
        found to the expected factor must be 1 on every unmasked token, within the rounding of `OPERATIONS` operations:
        4.8e-7 in float32, 3 % in bfloat16, plus half an eps per token if advantages are per row. Reads from the device
        once.
        """
        if self.windows <= 0:
            return
        handed, self._handed = self._handed, []
        self.windows -= 1
        with agreed(None if group is None else as_group(group), "the scale of the loss"):
            self._check(handed)

    def _check(self, handed: list[_Handed]) -> None:
        if not handed:
            return
        ranges = torch.stack([one.range() for one in handed]).tolist()
        found = [(one, *ends) for one, ends in zip(handed, ranges, strict=True) if ends[0] != torch.inf]
        unused = [one for one, *_ in found if one.gradient is None]
        if unused:
            raise TrainerError(
                f"{self.what}: the advantages of {len(unused)} of {len(found)} micro-batches got no gradient",
                required="a loss that multiplies the given advantages, and its backward pass before this check",
                remedy="look for where the trainer detaches, copies or replaces them",
            )
        for one, low, high in found:
            if not (abs(low - 1) <= one.bound and abs(high - 1) <= one.bound):
                raise self._wrong(low, high, one.bound)

    def _wrong(self, low: float, high: float, bound: float) -> TrainerError:
        same = abs(high - low) <= 2 * bound * abs(high)
        found = [in_words(ratio, bound) for ratio in (low, high)]
        causes = [
            f"{done} by the {name}, {count:g}"
            for name, count in self.counts.items()
            for done, factor in (("divided", 1 / count), ("multiplied", count))
            if same and count != 1 and abs(low / factor - 1) <= 4 * bound
        ]
        return TrainerError(
            f"{self.what} scales advantages by another factor than expected",
            required="a sum of -A·r over unmasked tokens, times that factor: gradients would be too small or too large",
            found=f"{found[0]} of it on every token" if same else f"between {found[0]} and {found[1]} of it",
            remedy=f"advantages are {listed(causes)}: undo that"
            if causes
            else "look for what it divides by or leaves out: accumulation steps, ranks, tokens, rows, a mask",
        )


@dataclass(eq=False)
class _Handed:
    """The advantages of one micro-batch: the expected factor of their gradient, and the gradient."""

    factor: Tensor
    bound: float
    gradient: Tensor | None = None

    def see(self, gradient: Tensor) -> None:
        """Add the gradient of one backward pass."""
        self.gradient = gradient if self.gradient is None else self.gradient + gradient

    def range(self) -> Tensor:
        """The smallest and the largest ratio of found to expected factor, over counted tokens: float64 [2]; inf, -inf
        if none counts.
        """
        ratio = torch.zeros_like(self.factor) if self.gradient is None else -self.gradient.double() / self.factor
        counts = self.factor != 0
        least, greatest = (torch.where(counts, ratio, worst).reshape(-1) for worst in (torch.inf, -torch.inf))
        return torch.stack([pad(least, (0, 1), value=torch.inf).amin(), pad(greatest, (0, 1), value=-torch.inf).amax()])


def in_words(ratio: float, bound: float) -> str:
    """A ratio as text, as a fraction if it is a simple one: `1/3`, `2`, `3/4`."""
    for denominator in range(1, SIMPLE + 1):
        numerator = round(ratio * denominator) if math.isfinite(ratio) else 0
        if numerator and abs(numerator / denominator / ratio - 1) <= bound:
            return f"{numerator}/{denominator}" if denominator > 1 else f"{numerator}"
    return f"{ratio:.8g}"
