"""Sums and broadcasts along fibrations with static shapes. `emit.py` copies this text into the modules that it writes.

Only those modules import JAX.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

WIDTH = 32  # how many numbers are added up at a time


class Fibre(NamedTuple):
    """The map from source elements to target elements. An absent source element belongs to no target.

    `order` sorts the sources by target (None: they are sorted, with absent ones between them). `first` and `last` are
    the places of each target's sources in this order; without sources, `last` is below `first`. If `grid` is
    `(targets, n)`, each target has `n` sources, one target after the other.
    """

    parent: Array  # int [source]: the target of each source element; any target where it is absent
    present: Array  # bool [source]
    targets: int
    first: Array  # int [target]
    last: Array  # int [target]
    grid: tuple[int, int] | None = None
    order: Array | None = None  # int [source]


def blocks(x: Array, reduce: str) -> Array:
    """Sums (or takes the maximum) over blocks of `WIDTH` numbers of the last axis; the last block may be shorter."""
    add, nothing = (jnp.sum, 0.0) if reduce == "sum" else (jnp.max, -jnp.inf)
    x = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % WIDTH)], constant_values=nothing)
    return add(x.reshape(*x.shape[:-1], -1, WIDTH), axis=-1)


def push(x: Array, f: Fibre, reduce: str = "sum") -> Array:
    """Sums (or takes the maximum) over every fibre, in a fixed order: [source] -> [target].

    A number is in at most `2·WIDTH` additions for each power of `WIDTH` up to the number of sources. No value of one
    fibre enters the sum of another. The sum over an empty fibre is 0, the maximum -inf.
    """
    nothing = 0.0 if reduce == "sum" else -jnp.inf
    x = jnp.where(f.present, x, nothing)
    if f.grid is not None:
        x = x.reshape(f.grid)
        while x.shape[-1] > 1:
            x = blocks(x, reduce)
        return x[:, 0]
    x = x if f.order is None else x[f.order]
    total = jnp.full(f.targets, nothing, x.dtype)
    low, high = f.first, f.last + 1
    while True:  # numbers outside of whole blocks are added here; then the blocks are the numbers
        inner = jnp.minimum(-(-low // WIDTH) * WIDTH, high)
        for start, end in ((low, inner), (jnp.maximum(high // WIDTH * WIDTH, inner), high)):
            place = start[:, None] + jnp.arange(WIDTH)
            part = jnp.where(place < end[:, None], x[jnp.minimum(place, x.shape[0] - 1)], nothing)
            total = total + jnp.sum(part, 1) if reduce == "sum" else jnp.maximum(total, jnp.max(part, 1))
        if x.shape[0] < WIDTH:
            return total
        low, high = -(-low // WIDTH), high // WIDTH
        x, high = blocks(x, reduce), jnp.maximum(low, high)


def pull(x: Array, f: Fibre) -> Array:
    """Gives every source element the value of its target: [target] -> [source]."""
    x = jnp.broadcast_to(x, (f.targets,))
    if f.grid is not None:
        return jnp.broadcast_to(x[:, None], f.grid).reshape(-1)
    # The copy makes XLA compute x once. On CPUs it would compute x again at each source, even behind a barrier.
    copy = jnp.zeros_like(x).at[jnp.arange(f.targets)].set(x, indices_are_sorted=True, unique_indices=True)
    return copy[f.parent]


def spread(x: Array, f: Fibre) -> Array:
    """Gives every source element the value of the batch: [1] -> [source]."""
    return jnp.broadcast_to(x, f.parent.shape)
