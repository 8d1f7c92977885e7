"""The rows of one optimizer step, off policy, and budgets that put its elements into every regime."""

from __future__ import annotations

import functools
from typing import Any

import example_loops
import support
import torch
from torch import Tensor

from fibration.runtime.operator import Operator

B, T = 24, 10
NAN = float("nan")
LABELS: dict[str, list[Any]] = {
    "prompt_group": [f"p{i // 4}" for i in range(B)],
    "domain": ["math" if i < 8 else "code" if i < 16 else "maps" for i in range(B)],
}

LABELS["domain"][5], LABELS["prompt_group"][22] = None, NAN  # of rows without a token


@functools.cache
def step(dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """A step off policy; two rows without tokens, a mask with holes, and NaN wherever it is False."""
    make = torch.Generator().manual_seed(3)
    mask = torch.rand(B, T, generator=make) < 0.8
    mask[5] = mask[22] = False
    old = torch.randn(B, T, generator=make, dtype=torch.float64) - 2
    per_row = torch.randn(B, 1, generator=make, dtype=torch.float64)
    new = old + 0.3 * torch.randn(B, T, generator=make, dtype=torch.float64) + 0.3 * per_row
    advantages = torch.randn(B, generator=make, dtype=torch.float64)
    advantages[[5, 22]] = NAN
    weights = 0.5 + torch.rand(B, T, generator=make, dtype=torch.float64)
    off = torch.randn(B, T, generator=make, dtype=torch.float64)
    rollout = old + 0.15 * torch.randn(B, T, generator=make, dtype=torch.float64)
    second = new + 0.1 * off + 0.1 * off.mean(1, keepdim=True)  # of another pass: every level has changes of regime
    found = {"old": old, "new": new, "second": second, "advantages": advantages, "weights": weights}
    found["rollout"] = rollout
    found = {k: v.to(dtype) for k, v in found.items()}
    for name in ("old", "new", "second", "weights", "rollout"):
        found[name] = found[name].where(mask, NAN)
    return {**found, "mask": mask}


def operator(name: str = "fiberpo_domain", backend: str = "torch") -> Operator:
    return support.operator(support.spec(name), backend)


@functools.cache
def budgets() -> dict[str, Any]:
    """With which elements of every level are rolled back and zeroed on both channels."""
    s = step()
    op = operator()
    index = op.index(mask=s["mask"], **LABELS)
    chosen = example_loops.narrow(op, index, s["new"] - s["old"])
    example_loops.every_regime(op.coefficients(s["new"], s["old"], s["advantages"], index, chosen).metrics)
    return chosen


def in_pieces(values: Any, name: str = "") -> Any:
    """Each row as two of one trajectory: its first four places, and the others."""
    if not isinstance(values, Tensor):
        return [x for x in values for _ in range(2)]
    if values.ndim == 1:
        return values.repeat_interleave(2)
    fill = False if values.dtype == torch.bool else NAN
    first = torch.arange(T) < 4
    return torch.stack([values.where(first, fill), values.where(~first, fill)], 1).reshape(2 * B, T)
