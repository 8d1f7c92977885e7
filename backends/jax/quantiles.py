"""Quantiles with static shapes. `emit.py` copies this text into the modules that it writes."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from fibration.backends.jax.fibres import Fibre


def quantile(x: Array, f: Fibre, level: Array) -> Array:
    """Returns the quantile of the source elements of each target: [target].

    It interpolates linearly at `level·(n - 1)` among `n` sorted values: NaN if a value is NaN, 0 over an empty fibre.
    """
    parent = jnp.where(f.present, f.parent, f.targets)
    x = jnp.broadcast_to(x, parent.shape) + 0.0  # + 0.0 makes -0.0 0.0, so that ties have one result
    x = x[jnp.lexsort((x, parent))]  # by target, ascending, NaN last; absent elements at the end
    sizes = jnp.zeros(f.targets, jnp.int32).at[parent].add(1, mode="drop")
    first, last = jnp.cumsum(sizes) - sizes, jnp.maximum(sizes - 1, 0)
    place = last * level
    low = jnp.floor(place).astype(jnp.int32)
    a, b, t = x[first + low], x[first + jnp.minimum(low + 1, last)], place - low
    gap = b - a
    between = jnp.where(t < 0.5, a + gap * t, b - gap * (1 - t))  # from the nearer end
    between = jnp.where(jnp.isinf(gap), a * (1 - t) + b * t, between)
    between = jnp.where((t == 0) | (a == b), a, between)
    between = jnp.where(jnp.isnan(x[first + last]), jnp.nan, between)
    return jnp.where(sizes > 0, between, 0.0)
