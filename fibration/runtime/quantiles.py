"""Quantiles over fibres, on any device. Copied as text into standalone modules."""

from __future__ import annotations

import torch
from torch import Tensor


def quantile(values: list[Tensor], parents: list[Tensor], targets: int, level: Tensor) -> Tensor:
    """Returns the quantile of the source elements of each target: float64 [targets].

    `values`: float64 [sources] per stratum; `parents`: int64 [sources]; `level`: [targets] or [1]. It interpolates
    linearly at `level·(n - 1)` among `n` sorted values: NaN if a value is NaN, 0 over an empty fibre.
    """
    x, parent = torch.cat([v.expand(p.shape) for v, p in zip(values, parents, strict=True)]), torch.cat(parents)
    order = torch.argsort(x)  # NaN last
    order = order[torch.argsort(parent[order], stable=True)]
    x = torch.cat([x[order] + 0.0, x.new_zeros(1)])  # + 0.0 makes -0.0 0.0, so that ties have one result
    sizes = torch.bincount(parent, minlength=targets)
    first, last = sizes.cumsum(0) - sizes, (sizes - 1).clamp(min=0)
    place = level * last
    low = place.floor().long()
    a, b, t = x[first + low], x[first + torch.minimum(low + 1, last)], place - low
    gap = b - a
    between = torch.where(t < 0.5, a + gap * t, b - gap * (1 - t))  # from the nearer end
    between = torch.where(gap.isinf(), a * (1 - t) + b * t, between)
    between = torch.where((t == 0) | (a == b), a, between)
    between = torch.where(x[first + last].isnan(), torch.nan, between)
    return torch.where(sizes > 0, between, 0.0)
