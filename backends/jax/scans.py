"""Sums in order with static shapes. `emit.py` copies this text into the modules that it writes."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax

from fibration.backends.jax.fibres import Fibre


def scan(x: Array, f: Fibre, discount: Array, forward: bool) -> Array:
    """`Σ discount^(t-s)·x_s` over all tokens s before t (or after t) of the same target: [token].

    Masked tokens are not counted. No sum is a difference of sums, and none depends on another target.
    """
    place = jnp.where(f.present, f.parent, f.targets)
    order = jnp.argsort(place, stable=True)  # the tokens of each target, in order; masked ones last
    place, number = place[order], jnp.arange(order.shape[0])
    bounds = jnp.searchsorted(place, jnp.arange(f.targets + 2))
    room = number - bounds[place] if forward else bounds[place + 1] - 1 - number  # how many precede, or follow
    way = 1 if forward else -1

    def step(k: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        (share, x), reach = carry, jnp.left_shift(1, k)
        return share * share, jnp.where(room >= reach, x + share * jnp.roll(x, way * reach), x)

    # after k steps, at every token, the sum over 2^k tokens up to it
    carry = discount.reshape(()), jnp.broadcast_to(x, place.shape)[order]
    _, x = lax.fori_loop(0, max(order.shape[0] - 1, 0).bit_length(), step, carry)
    x = jnp.where((room >= 1) & (place < f.targets), discount * jnp.roll(x, way), 0.0)
    return jnp.zeros_like(x).at[order].set(x, unique_indices=True)
