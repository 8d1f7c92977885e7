"""Whether a token is ever pushed further out against its own advantage, whatever the levels below and above do.

The law `inward` is about one gate and its residual. This module judges the whole hierarchy, token by token. A token is
reversed if `A·x < 0`, so that its advantage leads it back, and `c·x > 0`, so that its coefficient leads it further out.
Weights and masks reverse no token, because no weight is below 0. Four arguments show that no token is reversed:

- The coefficients of a score estimator are `μ·w·𝒢·A`, and `𝒢` is above 0.
- With one level, `c = μ·w·A·∂𝒢/∂x`, and the gate turns no inward pull round.
- With the letters of `facts/levels.py`, `c_i/(m_i·F') = Σ_u E_m[(G_u - G_v)·y | u(i)]`. `G_v` is the slope of the level
  directly over `u` that the token lies over; over a leaf it is 0. Suppose that all advantages over `u` have one sign
  wherever the two slopes differ, and that `G_u` is nowhere below `G_v`. Then every term has the sign of the advantage.
- No ratio of a row falls as a log ratio of the row rises, so that `c` has the sign of `A`. That is so on a chain whose
  coarsest level is one of rows, or a finer one, if densities and the recovery fall nowhere, not even where no token's
  density lies, and if on each channel all levels pass everything, or the coarsest one alone passes anything, and does
  not turn it round.
"""

from __future__ import annotations

import itertools
from typing import Any

from fibration.language.atoms import Density, Stratum, Summary, advantage, residual, token_log_ratio
from fibration.language.declared import LogProb
from fibration.language.hierarchy import Hierarchy, gates
from fibration.language.outline import whole_batch
from fibration.language.statistics import Ordered
from fibration.language.sympy_bridge import vanishes
from fibration.language.traversal import atoms, substitute
from fibration.laws.gates.contributions import Lines, held, slopes
from fibration.laws.gates.coordinates import recovery_slopes
from fibration.laws.gates.pieces import Line, Piece, pieces
from fibration.laws.law import Proved
from fibration.laws.off_policy.further_out import LOST, OPENED
from fibration.laws.off_policy.pushes import Pushed
from fibration.laws.signs.assumptions import Assumptions
from fibration.laws.signs.neighbourhood import RHO, is_kinked
from fibration.laws.subject import Subject

SIDES = (1, -1)  # of the advantage


def never_reverses(subject: Subject, table: Lines, known: str) -> Proved | None:
    """The argument that no token is pushed out against its advantage, if `μ` is at least 0; None without one."""
    h = subject.hierarchy
    if h.objective.estimator == "score":
        why = "every coefficient is μ·w·𝒢·A, and 𝒢(r) > 0"
        return Proved(why) if subject.proved("positivity") else None
    ordered = any(atoms(e, Ordered) for _, e in h.decomposition.densities)
    if len(h.order) == 1:
        channels = [Pushed(subject, h.order[0], channel) for channel in h.decomposition.channels]
        turns_none = all(pushed.is_kept(but=OPENED) or pushed.is_kept(but=LOST) for pushed in channels)
        return Proved("one gate, which turns no inward pull round") if known and turns_none and not ordered else None
    found = _of_levels(subject, table, known) if known and not ordered else None
    if found is None and _ratios_rise(subject, table):
        return Proved("no ratio falls as a log ratio of its row rises, so that a coefficient has its advantage's sign")
    return found


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
        if None in table.values() or not _rise(subject, channel, held(table, side), known):
            return None
    return Proved(
        "towards residual 0 no level passes on less of a pull than the level over it, and none turns it round"
    )


def _ratios_rise(subject: Subject, table: Lines) -> bool:
    """Whether no ratio of a row falls as any log ratio of the row rises, and none depends on those of other rows."""
    h, root = subject.hierarchy, subject.hierarchy.order[0]
    if h.orthogonalise is not None or not h.shape.is_tree or len(h.leaves) > 1 or subject.first_failure("markov"):
        return False
    (leaf,), recovery = h.leaves, h.decomposition.recovery
    read = [*(gate for _, _, gate in gates(h)), *(e for _, e in h.decomposition.densities), recovery]
    if root not in (h.rows, *whole_batch(h).finer(h.rows)) or any(atoms(e, *_OF_OTHERS) for e in read):
        return False
    if token_log_ratio in atoms(recovery):
        return False

    def density(channel: str) -> list[Line] | None:
        """The pieces of a density along the log ratio of its token."""
        own = h.with_mass(h.decomposition[channel], leaf)
        return pieces(substitute(own, {token_log_ratio: residual}), subject.at(leaf))

    def passes(channel: str) -> bool:
        """Whether all levels pass everything, or the coarsest one alone passes anything."""
        if all(_has_slope(1, table[s, channel]) for s in h.order):
            return True
        return _rises(table[root, channel]) and all(_has_slope(0, table[s, channel]) for s in h.order[1:])

    return all(
        -1 not in recovery_slopes(subject, channel) and _rises(density(channel)) and passes(channel)
        for channel in h.decomposition.channels
    )


_OF_OTHERS = (Density, Summary, LogProb)  # read at several places, or with gradients of their own


def _rises(lines: list[Line] | None) -> bool:
    """Whether a gradient passes through every piece with its sign, or not at all."""
    return lines is not None and all(_passes_up(p, line.assume) for line in lines for p in line.pieces)


def _passes_up(p: Piece, assume: Assumptions) -> bool:
    if is_kinked(p.value) or is_kinked(p.slope):
        return False
    return -1 not in assume.signs(p.slope.subs(RHO, p.low)) if p.is_point else p.passes(assume) in (0, 1)


def _has_slope(slope: int, lines: list[Line] | None) -> bool:
    return lines is not None and all(vanishes(p.slope - slope) for line in lines for p in line.pieces)


def one_advantage(h: Hierarchy) -> bool:
    """Whether every batch has one advantage per row, because a gate on rows or on coarser strata reads it."""
    rows_or_coarser = (h.rows, *whole_batch(h).coarser(h.rows))
    return any(s in rows_or_coarser and advantage in atoms(gate) for s, _, gate in gates(h))


def _passes_alike(subject: Subject, u: Stratum, table: Lines, known: str) -> bool:
    """Whether a level and all levels directly over it have one slope, the same for all."""
    found = []
    h = subject.hierarchy
    for s, channel in itertools.product((u, *(f.source for f in h.shape.above(u))), h.decomposition.channels):
        ends = slopes(s, channel, table, subject, known)
        if ends is None:
            return False
        found += [*ends[0], *ends[1]]
    return all(vanishes(v - found[0]) for v in found)


def _rise(subject: Subject, channel: str, table: Lines, known: str) -> bool:
    """Whether slopes are at least 0 on leaves, and no slope is below one of the levels directly over it."""
    h = subject.hierarchy
    ends = {s: slopes(s, channel, table, subject, known) if table[s, channel] else None for s in h.order}
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
