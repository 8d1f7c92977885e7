"""How the levels of a hierarchy share a coefficient, by sums over a small batch in fractions.

`J = Σ μ·A·𝒢`. `reach[v][b] = ∂J/∂h_b` is how far `J` moves with what the gate of `v` gives at its element `b`.
"""

from __future__ import annotations

from fractions import Fraction

from fibration.language.atoms import in_channel
from oracles.definition import ADVANTAGE, RESIDUAL, Dual, Formulas, words

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


def slopes(world, xs, advantages):
    """The slope of every gate at every element, in its residual."""
    h, found = world.h, {}
    result = world.run([Dual(x) for x in xs], list(advantages), Formulas())
    for s in h.order:
        for channel in h.decomposition.channels:
            gate = in_channel(h.gate(s), channel)
            found[s, channel] = []
            for b, rho in enumerate(result.residual[s, channel]):
                k = next(k for k, (leaf, i) in enumerate(world.tokens) if _lies_over(world, leaf, i, s, b))
                bound = {RESIDUAL: Dual(rho.value, F(1)), ADVANTAGE: Dual(advantages[k])}
                for a in words(gate).values():
                    if a not in bound:
                        known = hasattr(a, "kind") and world.statistic(a, s, b, [Dual(x) for x in xs], advantages)
                        bound[a] = Dual(known) if hasattr(a, "kind") else world.read(a, s, b)
                found[s, channel].append(Formulas()(gate, bound.__getitem__).slope)
    return found


def _lies_over(world, leaf, i, s, b):
    return (s == leaf or world.is_over(leaf, s)) and world.below(leaf, i, s) == b


def parts(world, xs, advantages):
    """What every level and channel adds to the pull on every token: `P_v` of the fact `share`."""
    h = world.h
    pull, slope = reach(world, xs, advantages), slopes(world, xs, advantages)
    found = {}
    for v in h.order:
        for channel in h.decomposition.channels:
            passed = [g * y for g, y in zip(slope[v, channel], pull[v, channel], strict=True)]
            found[v, channel] = []
            for leaf, i in world.tokens:
                level = passed[world.below(leaf, i, v)] if v == leaf or world.is_over(leaf, v) else F(0)
                for u, c in h.shape.moebius(v).items():
                    if leaf in h.shape.leaves_over(u):
                        at = world.below(leaf, i, u)
                        mean = (passed[b] * world.weight(v, b, u) for b in world.over(v, u, at))
                        level -= c * sum(mean, F(0))
                found[v, channel].append(level)
    return found


def shares(world, xs, advantages):
    """What every level adds to the coefficient of every token, by the formula of the fact `share`."""
    h, of_levels = world.h, parts(world, xs, advantages)
    added = {s: [F(0)] * len(world.tokens) for s in h.order}
    for (v, channel), levels in of_levels.items():
        for k, (leaf, i) in enumerate(world.tokens):
            split = h.with_mass(h.decomposition[channel], leaf)
            own = Formulas()(split, lambda a: _at_token(world, a, leaf, i, xs[k], advantages[k])).slope  # noqa: B023
            added[v][k] += own * levels[k]
    return added


def squares(world, xs, advantages):
    """`Σ m·Y²` of every level, over its elements and the channels: as a sum over the tokens that they have."""
    masses = [world.value(world.h.masses[leaf], leaf, i) for leaf, i in world.tokens]
    found = dict.fromkeys(world.h.order, F(0))
    for (v, _), pulls in reach(world, xs, advantages).items():
        for m, (leaf, i) in zip(masses, world.tokens, strict=True):
            if v == leaf or world.is_over(leaf, v):
                found[v] += m * pulls[world.below(leaf, i, v)] ** 2
    return found


def _at_token(world, a, leaf, i, x, own):
    known = {"token_log_ratio": Dual(x, F(1)), "advantage": Dual(own)}
    return known[str(a)] if str(a) in known else world.read(a, leaf, i)
