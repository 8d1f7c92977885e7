"""Sums in order, on any device. Copied as text into standalone modules."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Order(NamedTuple):
    """Elements of several strata, numbered stratum after stratum, in order over each target.

    `order` sorts elements by target and place (None: they are sorted). `before` and `after`: how many elements of the
    target precede and follow each. `steps`: how many doublings of 1 reach the largest target's size.
    """

    order: Tensor | None  # int64 [elements]
    before: Tensor  # int64 [elements]
    after: Tensor  # int64 [elements]
    steps: int


def ordered(order: Tensor | None, offsets: Tensor, longest: int) -> Order:
    """The order of `order[offsets[b]:offsets[b + 1]]` over each target b, which has at most `longest` elements."""
    sizes = offsets[1:] - offsets[:-1]
    count = int(order.shape[0]) if order is not None else int(offsets[-1])
    number = torch.arange(count, device=offsets.device)
    first, end = (torch.repeat_interleave(x, sizes, output_size=count) for x in (offsets[:-1], offsets[1:]))
    return Order(order, number - first, end - 1 - number, max(longest - 1, 0).bit_length())


def scan(values: list[Tensor], sizes: list[int], into: int, o: Order, discount: Tensor, forward: bool) -> Tensor:
    """`Σ discount^(t-s)·x_s` over all s before t (or after t) of the same target: float64 [sizes[into]].

    `values`: one vector or number per stratum. After n doublings every element has the sum over 2^n elements. No sum
    is a difference of sums, and none depends on another target.
    """
    x = torch.cat([v.expand(n) for v, n in zip(values, sizes, strict=True)])
    x = x if o.order is None else x[o.order]
    room = o.before if forward else o.after
    share, reach, way = discount, 1, 1 if forward else -1
    for _ in range(o.steps):
        x = torch.where(room >= reach, x + share * x.roll(way * reach), x)
        share, reach = share * share, 2 * reach
    x = torch.where(room >= 1, discount * x.roll(way), 0.0)
    if o.order is not None:
        x = torch.empty_like(x).index_copy_(0, o.order, x)
    return x.split(sizes)[into]
