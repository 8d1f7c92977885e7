"""Sums and broadcasts along fibrations with static shapes. `emit.py` copies this text into the modules that it writes.

Only those modules import JAX.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

WIDTH = 32  # how many numbers one step of `fold` adds up


class Fibre(NamedTuple):
    """The map from source elements to target elements. An absent source element belongs to no target.

    `order` sorts the sources by target (None: they are sorted), absent ones last. `first` and `last` are the places of
    each target's sources in this order; without sources, `last` is -1. If `grid` is `(targets, n)`, each target has `n`
    sources.
    """

    parent: Array  # int [source]: the target of each source element; any target where it is absent
    present: Array  # bool [source]
    targets: int
    first: Array  # int [target]
    last: Array  # int [target]
    grid: tuple[int, int] | None = None
    order: Array | None = None  # int [source]


def fold(x: Array, reduce: str) -> Array:
    """Sums (or takes the maximum) over the last axis: `WIDTH` numbers at a time, then `WIDTH` of the results.

    So `n` numbers are summed with at most `WIDTH·log(n)/log(WIDTH)` roundings each.
    """
    add, nothing = (jnp.sum, 0.0) if reduce == "sum" else (jnp.max, -jnp.inf)
    while x.shape[-1] > WIDTH:
        x = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % WIDTH)], constant_values=nothing)
        x = add(x.reshape(*x.shape[:-1], -1, WIDTH), axis=-1)
    return add(x, axis=-1, initial=nothing)


def push(x: Array, f: Fibre, reduce: str = "sum") -> Array:
    """Sums (or takes the maximum) over every fibre, in a fixed order: [source] -> [target].

    No value of one fibre enters the sum of another. The sum over an empty fibre is 0, the maximum -inf.
    """
    nothing = 0.0 if reduce == "sum" else -jnp.inf
    x = jnp.where(f.present, x, nothing)
    if f.grid is not None:
        return fold(x.reshape(f.grid), reduce)
    parent = f.parent if f.order is None else f.parent[f.order]
    x = x if f.order is None else x[f.order]
    room = jnp.arange(x.shape[0]) - f.first[parent]  # how many sources of its target precede each source

    def step(k: Array, x: Array) -> Array:
        reach = jnp.left_shift(1, k)
        before = jnp.roll(x, reach)
        both = x + before if reduce == "sum" else jnp.maximum(x, before)
        return jnp.where(room >= reach, both, x)

    # after k steps, at every source, the sum over 2^k sources up to it
    x = lax.fori_loop(0, max(x.shape[0] - 1, 0).bit_length(), step, x)
    return jnp.where(f.last >= 0, x[f.last], nothing)


def pull(x: Array, f: Fibre) -> Array:
    """Gives every source element the value of its target: [target] -> [source]."""
    return jnp.broadcast_to(x, (f.targets,))[f.parent]


def spread(x: Array, f: Fibre) -> Array:
    """Gives every source element the value of the batch: [1] -> [source]."""
    return jnp.broadcast_to(x, f.parent.shape)
