"""The residuals that can reach a gate, and how large log ratios may be before a residual leaves an interval."""

from __future__ import annotations

from typing import Any

import sympy
from sympy import oo

from fibration.language.atoms import Stratum
from fibration.language.hierarchy import Hierarchy
from fibration.laws.signs.assumptions import Assumptions


def is_effect(h: Hierarchy, stratum: Stratum) -> bool:
    """Whether a residual comes from a least-squares fit, and not from a fixed combination of means."""
    if h.orthogonalise is None:
        return False
    fitted = h.shape.crossed()
    return stratum in fitted or any(u in fitted for u in h.shape.moebius(stratum))


def domain(h: Hierarchy, stratum: Stratum, coordinate: str) -> tuple[Any, Any]:
    """The residuals that can reach a gate, in intensive units, as far as they are bounded by 0 or -1."""
    if stratum not in h.roots or is_effect(h, stratum) or coordinate not in ("split", "deviation"):
        return -oo, oo
    return (0, oo) if coordinate == "split" else (-1, oo)  # a root sees means of max(±x, 0), or of r - 1


def stays_below(h: Hierarchy, stratum: Stratum) -> bool:
    """Whether an element whose own density is 0 has a residual that is not above 0, when no density is below 0."""
    return not is_effect(h, stratum) and all(c > 0 for c in h.shape.moebius(stratum).values())


def reach(h: Hierarchy, stratum: Stratum, known: str, low: Any, high: Any, assume: Assumptions) -> list[Any] | None:
    """How large `|x|` may be so that this gate's residual stays in `[low, high]`, whatever the sizes.

    The residual is `s_v - Σ c_u·s_u`, and each mean may be at either end of its range.
    """
    below = oo if low == -oo else -low
    if below == high == oo:
        return [oo, oo]
    if is_effect(h, stratum):
        return None
    factors = h.shape.moebius(stratum).values()
    added = 1 + sum(-c for c in factors if c < 0)  # how often means count with a plus, and how often with a minus
    taken = sum(c for c in factors if c > 0)
    if known == "deviation":
        if not taken:
            room = frozenset({0}) if below == oo else assume.signs(1 + low)
            down = oo if room <= {-1, 0} else -sympy.log(1 + low) if room == {1} else None
            return None if down is None else [oo if high == oo else sympy.log(1 + high), down]
        if added != taken:
            return None
        # at opposite ends of [exp(-R) - 1, exp(R) - 1]: 2 sinh(R) apart
        ends = (v if v == oo else v / added for v in (below, high))
        return [v if v == oo else sympy.log(v / 2 + sympy.sqrt(1 + v**2 / 4)) for v in ends]
    if known == "split":  # means of max(±x, 0) lie in [0, R]
        up = [high if high == oo else high / added]
        return [below if below == oo else below / taken, *up] if taken else up
    return [v if v == oo else v / (added + taken) for v in (below, high)]  # means lie in [-R, R]
