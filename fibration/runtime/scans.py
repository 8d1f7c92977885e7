"""Sums in order, of vectors on any device. Copied as text into modules that leave this library."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Order(NamedTuple):
    """Elements of several strata, numbered through, in one order over each target.

    `order` sorts them by target and place (None if they are so), `before` and `after` are how many of a target's come
    before and after each of these, `steps` is how often 1 is doubled to reach the most that a target has.
    """

    order: Tensor | None  # int64 [elements]
    before: Tensor  # int64 [elements]
    after: Tensor  # int64 [elements]
    steps: int


def ordered(order: Tensor | None, offsets: Tensor, longest: int) -> Order:
    """The order of `order[offsets[b]:offsets[b + 1]]` over each target b, which has up to `longest`."""
    sizes = offsets[1:] - offsets[:-1]
    count = int(order.shape[0]) if order is not None else int(offsets[-1])
    number = torch.arange(count, device=offsets.device)
    first, end = (torch.repeat_interleave(x, sizes, output_size=count) for x in (offsets[:-1], offsets[1:]))
    return Order(order, number - first, end - 1 - number, max(longest - 1, 0).bit_length())


def scan(values: list[Tensor], sizes: list[int], into: int, o: Order, discount: Tensor, forward: bool) -> Tensor:
    """`Σ discount^(t-s)·x_s` over all s before t of the same target, or after it: float64 [sizes[into]].

    `values` are a vector, or one number, for the elements of each stratum. Doubling: after n steps every element has
    the sum over 2^n of them, so that no sum is a difference of others, nor depends on another target's.
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
