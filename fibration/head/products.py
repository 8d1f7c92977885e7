"""Products of matrices in the precision of the inputs, accumulated in float32 (float64 for float64 inputs)."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor


class Products:
    """The products of one call with the head's weight `[V, H]`. Results are float32, or float64 for float64 inputs.

    Rounding each chunk's product to bfloat16 before it is added would bias the weight's gradient. So bfloat16 is
    multiplied as it is where torch accumulates and returns float32, and else as float32. float16 is always multiplied
    as float32: it would round small entries of the gradient to 0.
    """

    def __init__(self, weight: Tensor, dtype: torch.dtype, most: int) -> None:
        """`dtype`: the precision of the inputs. `most`: the most tokens of one product."""
        self.wide = torch.float64 if dtype == torch.float64 else torch.float32
        self.is_narrow = dtype == torch.bfloat16 and returns_float32(weight.device)
        self.given, self.dtype = dtype, dtype if self.is_narrow else self.wide
        self.weight = self._operand(weight)
        self._logits = None if self.is_narrow else weight.new_empty((most, len(weight)), dtype=self.wide)

    def _operand(self, matrix: Tensor) -> Tensor:
        """In the precision of the inputs, which under autocast is not that of `matrix`."""
        return matrix.to(self.given).to(self.dtype)

    def logits(self, hidden: Tensor) -> Tensor:
        """`[n, H]` → `[n, V]`, in memory that the next call writes over."""
        hidden = self._operand(hidden)
        if self._logits is None:
            return torch.mm(hidden, self.weight.T, out_dtype=self.wide)
        return torch.mm(hidden, self.weight.T, out=self._logits[: len(hidden)])

    def room_for_gradient(self, logits: Tensor, n: int) -> Tensor:
        """Where the gradient of the logits goes, `[n, V]` in `dtype`: the logits' own memory if it has that dtype."""
        return logits[:n] if logits.dtype == self.dtype else logits.new_empty((n, logits.shape[1]), dtype=self.dtype)

    def gradient_of_hidden(self, gradient: Tensor) -> Tensor:
        """The gradient of the logits, `[n, V]` in `dtype`, → `[n, H]`."""
        if self.is_narrow:
            return torch.mm(gradient, self.weight, out_dtype=self.wide)
        return torch.mm(gradient, self.weight)

    def add_gradient_of_weight(self, total: Tensor, gradient: Tensor, hidden: Tensor) -> None:
        """Adds to `total`, `[V, H]`."""
        hidden = self._operand(hidden)
        if self.is_narrow:
            torch.addmm(total, gradient.T, hidden, out_dtype=self.wide, out=total)
        else:
            total.addmm_(gradient.T, hidden)


@lru_cache
def returns_float32(device: torch.device) -> bool:
    """Whether torch multiplies bfloat16 matrices into float32 on this device: since torch 2.8, on GPUs."""
    a = torch.full((16, 16), 1.0078125, dtype=torch.bfloat16, device=device)
    try:
        once = torch.mm(a, a, out_dtype=torch.float32)
        torch.addmm(once, a.T, a, out_dtype=torch.float32, out=once)
    except torch.OutOfMemoryError:
        raise  # it is a RuntimeError, and says nothing of the device's products
    except (NotImplementedError, RuntimeError, TypeError):
        return False
    return torch.equal(once, 2 * torch.mm(a.float(), a.float()))
