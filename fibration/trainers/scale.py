"""The guard: what a trainer's loss makes of an advantage, measured in its own backward pass.

A loss that adds up `-A·r` over tokens, times whatever the trainer divides by and scales with, has minus that factor as
its gradient towards an advantage where `r` is 1, however much KL or entropy it adds. So advantages are handed over as a
tensor that asks for its gradient: a release of a trainer that divides by one thing more is an error then, and no silent
factor of the learning rate.
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
from fibration.runtime.ranks.agreement import agreed
from fibration.runtime.ranks.group import as_group

OPERATIONS = 8  # rounded ones between an advantage and the loss
SIMPLE = 64  # the largest denominator of a ratio that is said as one


class Scale:
    """Of a loss called `what` in errors; off after so many `windows`, when `expects` returns what it is given.

    `counts`: what the trainer may have divided or multiplied by, `{"accumulation steps": 4, "ranks": 2}`, for errors.
    """

    def __init__(self, what: str, *, windows: int = 2, counts: Mapping[str, float] | None = None) -> None:
        self.what, self.windows, self.counts = what, windows, counts or {}
        self._handed: list[_Handed] = []

    def begin(self) -> None:
        """Another window begins: forget what was handed over for one that was broken off before it was checked."""
        self._handed = []

    def expects(
        self, advantages: Tensor, expected: float | Tensor, mask: Tensor, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """The tensor to hand to the trainer in the place of `advantages`, for one micro-batch.

        `advantages`: `[B, T]`, or `[B]` or `[B, 1]` for all tokens of a row. `expected`: the factor of `-A·r` in what
        the trainer calls backward on, of every token `[B, T]` or one; a gradient scaler's scale is part of it. `mask`:
        the tokens that count, `[B, T]`. `dtype`: the coarsest that the trainer computes its loss in.
        """
        if self.windows <= 0:
            return advantages
        factor = torch.as_tensor(expected, dtype=torch.float64, device=mask.device) * mask
        if advantages.shape != mask.shape:
            factor = factor.sum(1).reshape(advantages.shape)
        # rounding to nearest, at most one half eps each; the tokens of a row are added up too
        operations = OPERATIONS + (mask.shape[1] if advantages.shape != mask.shape else 0)
        bound = operations * max(torch.finfo(t).eps for t in (dtype, torch.float32)) / 2
        handed = _Handed(factor, bound)
        self._handed.append(handed)
        watched = advantages.detach().requires_grad_()
        watched.register_hook(handed.see)
        return watched

    def checked(self, group: Any = None) -> None:
        """Raise TrainerError on every rank of `group` where one's loss had another scale; call it between the backward
        of a window's last micro-batch and the optimizer's step.

        Each micro-batch's ratio of what was found and expected has to be 1 on every unmasked token, within the rounding
        of `OPERATIONS` operations: 4.8e-7 in float32, 3 % in bfloat16, and half an eps more for each token where
        advantages are per row. Reads back from a device once.
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
                f"{self.what}: no gradient came to the advantages of {len(unused)} of {len(found)} micro-batches",
                required="a loss that multiplies the advantages that it was given, in a backward pass before this",
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
            f"{self.what} scales advantages by another factor than is known of it",
            required="a sum of -A·r over unmasked tokens, times that factor: gradients would be too small or too large",
            found=f"{found[0]} of it on every token" if same else f"between {found[0]} and {found[1]} of it",
            remedy=f"advantages are {listed(causes)}: undo that"
            if causes
            else "look for what it divides by or leaves out: accumulation steps, ranks, tokens, rows, a mask",
        )


@dataclass(eq=False)
class _Handed:
    """The advantages of one micro-batch: what their gradient is without a sign, and what it was."""

    factor: Tensor
    bound: float
    gradient: Tensor | None = None

    def see(self, gradient: Tensor) -> None:
        """Of one backward pass, of which more would add up."""
        self.gradient = gradient if self.gradient is None else self.gradient + gradient

    def range(self) -> Tensor:
        """The least and the greatest ratio of both where a token counts: float64 [2]; infinite where none does."""
        ratio = torch.zeros_like(self.factor) if self.gradient is None else -self.gradient.double() / self.factor
        counts = self.factor != 0
        least, greatest = (torch.where(counts, ratio, worst).reshape(-1) for worst in (torch.inf, -torch.inf))
        return torch.stack([pad(least, (0, 1), value=torch.inf).amin(), pad(greatest, (0, 1), value=-torch.inf).amax()])


def in_words(ratio: float, bound: float) -> str:
    """A ratio as a fraction, if it is a simple one: `1/3`, `2`, `3/4`."""
    for denominator in range(1, SIMPLE + 1):
        numerator = round(ratio * denominator) if math.isfinite(ratio) else 0
        if numerator and abs(numerator / denominator / ratio - 1) <= bound:
            return f"{numerator}/{denominator}" if denominator > 1 else f"{numerator}"
    return f"{ratio:.8g}"
