"""How the levels of a hierarchy share a coefficient, by sums over a small batch in fractions.

`J = Σ μ·A·𝒢`. `reach[v][b] = ∂J/∂h_b` is how far `J` moves with what the gate of `v` gives at its element `b`.
"""

from __future__ import annotations

from fractions import Fraction

F = Fraction


def reach(world, xs, advantages):
    """`∂J/∂h` of every element and channel, for a recovery that is an exponential, or 1 plus what is gated."""
    h = world.h
    ratios = world.ratios(xs, list(advantages))
    is_log = "exp" in str(h.decomposition.recovery)
    found = {}
    for s in h.order:
        for channel in h.decomposition.channels:
            sums = [F(0)] * world.size(s)
            for k, (leaf, i) in enumerate(world.tokens):
                b = world.below(leaf, i, s)
                if b is None or not (s == leaf or world.is_over(leaf, s)):
                    continue
                back = (ratios[k] if is_log else F(1)) / world.value(h.with_mass(h.decomposition.scale, leaf), leaf, i)
                sign = -1 if channel == "-" else 1
                sums[b] += world.mu(k) * advantages[k] * sign * back * world.weight(leaf, i, s)
            found[s, channel] = sums
    return found


def squares(world, xs, advantages):
    """`Σ m·Y²` of every level, over its elements and the channels: as a sum over the tokens that they have."""
    masses = [world.value(world.h.masses[leaf], leaf, i) for leaf, i in world.tokens]
    found = dict.fromkeys(world.h.order, F(0))
    for (v, _), pulls in reach(world, xs, advantages).items():
        for m, (leaf, i) in zip(masses, world.tokens, strict=True):
            if v == leaf or world.is_over(leaf, v):
                found[v] += m * pulls[world.below(leaf, i, v)] ** 2
    return found
