"""Sums in order with static shapes. `emit.py` copies this text into the modules that it writes."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax

from fibration.backends.jax.fibres import Fibre


def scan(x: Array, f: Fibre, discount: Array, forward: bool) -> Array:
    """`Σ discount^(t-s)·x_s` over all tokens s before t (or after t) of the same target: [token].

    Masked tokens are not counted. No sum is a difference of sums, and none depends on another target.
    """
    order = jnp.arange(f.parent.shape[0]) if f.order is None else f.order
    parent, present = f.parent[order], f.present[order]
    place, way = jnp.arange(order.shape[0]), 1 if forward else -1
    room = place - f.first[parent] if forward else f.last[parent] - place  # how many sources precede, or follow
    x = jnp.where(present, discount * jnp.broadcast_to(x, parent.shape)[order], 0.0)
    share = jnp.where(present, discount, 1.0).astype(x.dtype)

    def step(k: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        """A token turns the sum `s` before it into `share·s + x`; this composes the maps of 2^k tokens with as many."""
        (share, x), reach = carry, jnp.left_shift(1, k)
        others, sums = jnp.roll(share, way * reach), jnp.roll(x, way * reach)
        inside = room >= reach
        return jnp.where(inside, share * others, share), jnp.where(inside, share * sums + x, x)

    _, x = lax.fori_loop(0, max(x.shape[0] - 1, 0).bit_length(), step, (share, x))
    x = jnp.where(room >= 1, jnp.roll(x, way), 0.0)
    return jnp.zeros_like(x).at[order].set(x, unique_indices=True)
