"""Whether a token is ever pushed further out against its own advantage, whatever the levels below and above do.

The law `inward` is about one gate and its residual. This module judges the whole hierarchy, token by token. A token is
reversed if `A·x < 0`, so that its advantage leads it back, and `c·x > 0`, so that its coefficient leads it further out.
Weights and masks reverse no token, because no weight is below 0. Three arguments show that no token is reversed:

- The coefficients of a score estimator are `μ·w·𝒢·A`, and `𝒢` is above 0.
- With one level, `c = μ·w·A·∂𝒢/∂x`, and the gate turns no inward pull round.
- With the letters of `facts/levels.py`, `c_i/(m_i·F') = Σ_u E_m[(G_u - G_v)·y | u(i)]`. `G_v` is the slope of the level
  directly over `u` that the token lies over; over a leaf it is 0. Suppose that all advantages over `u` have one sign
  wherever the two slopes differ, and that `G_u` is nowhere below `G_v`. Then every term has the sign of the advantage.
"""

from __future__ import annotations

import itertools
from typing import Any

from fibration.language.atoms import Density, Stratum, advantage
from fibration.language.hierarchy import Hierarchy, gates
from fibration.language.order import Ordered
from fibration.language.places import whole_batch
from fibration.language.sympy_bridge import symbol, vanishes
from fibration.language.traversal import atoms
from fibration.laws.gates.contributions import Lines, slopes
from fibration.laws.gates.pieces import Line
from fibration.laws.law import Proved
from fibration.laws.off_policy.further_out import LOST, OPENED
from fibration.laws.off_policy.pushes import Pushed
from fibration.laws.subject import Subject

SIDES = (1, -1)  # of the advantage


def never_reverses(subject: Subject, table: Lines, known: str) -> Proved | None:
    """The argument that no token is pushed out against its advantage, if `μ` is at least 0; None without one."""
    h = subject.hierarchy
    if h.objective.estimator == "score":
        why = "every coefficient is μ·w·𝒢·A, and 𝒢(r) > 0"
        return Proved(why) if subject.proved("positivity") else None
    if not known or any(atoms(e, Ordered) for _, e in h.decomposition.densities):
        return None
    if len(h.order) == 1:
        channels = [Pushed(subject, h.order[0], channel) for channel in h.decomposition.channels]
        turns_none = all(pushed.is_kept(but=OPENED) or pushed.is_kept(but=LOST) for pushed in channels)
        return Proved("one gate, which turns no inward pull round") if turns_none else None
    return _of_levels(subject, table, known)


def _of_levels(subject: Subject, table: Lines, known: str) -> Proved | None:
    h = subject.hierarchy
    if h.orthogonalise is not None or not h.shape.is_tree or known == "split deviation":
        return None
    if any(atoms(gate, Density) for _, _, gate in gates(h)):
        return None
    coupled = {s for s in h.order if s not in h.leaves and not _passes_alike(subject, s, table, known)}
    if any(s != h.rows and s not in whole_batch(h).finer(h.rows) for s in coupled):
        return None  # tokens of several rows, with advantages of either sign
    for channel, side in itertools.product(h.decomposition.channels, SIDES):
        if channel and (side == 1) == (channel == "+"):
            continue  # what the advantage pushes out
        held = {k: [line for line in found or () if _holds(line, side)] for k, found in table.items()}
        if any(found is None for found in table.values()) or not _rise(subject, channel, held, known):
            return None
    return Proved(
        "towards residual 0 no level passes on less of a pull than the level over it, and none turns it round"
    )


def one_advantage(h: Hierarchy) -> bool:
    """Whether every batch has one advantage per row, because a gate on rows or below reads it."""
    below = (h.rows, *whole_batch(h).coarser(h.rows))
    return any(s in below and advantage in atoms(gate) for s, _, gate in gates(h))


def _passes_alike(subject: Subject, u: Stratum, table: Lines, known: str) -> bool:
    """Whether a level and all levels directly over it have one slope, the same for all."""
    found = []
    for s, channel in itertools.product((u, *(f.source for f in subject.hierarchy.shape.above(u))), _channels(subject)):
        ends = slopes(s, channel, table, subject, known)
        if ends is None:
            return False
        found += [*ends[0], *ends[1]]
    return all(vanishes(v - found[0]) for v in found)


def _channels(subject: Subject) -> tuple[str, ...]:
    return subject.hierarchy.decomposition.channels


def _rise(subject: Subject, channel: str, held: Lines, known: str) -> bool:
    """Whether slopes are at least 0 on leaves, and no slope is below one of the levels directly over it."""
    h = subject.hierarchy
    ends = {s: slopes(s, channel, held, subject, known) if held[s, channel] else None for s in h.order}
    for s in h.order:
        if (own := ends[s]) is None:
            return False
        if s in h.leaves and not _are_at_least(subject, own[0], [0]):
            return False
        for f in h.shape.above(s):
            if (over := ends[f.source]) is None or not _are_at_least(subject, own[0], over[1]):
                return False
    return True


def _are_at_least(subject: Subject, lows: list[Any], highs: list[Any]) -> bool:
    return all(-1 not in subject.assume.signs(low - high) for low, high in itertools.product(lows, highs))


def _holds(line: Line, side: int) -> bool:
    """Whether a line of a gate can hold for advantages of this sign."""
    return side in line.assume.extra.get(symbol(advantage), frozenset({side}))
