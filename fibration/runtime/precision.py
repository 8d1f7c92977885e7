"""Warns once if the rounding of half-precision log-probs alone is large enough to reach a gate."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from fibration.errors import PrecisionWarning, an, listed
from fibration.language import atoms, traversal
from fibration.language.exact import NoValue, TooLarge
from fibration.language.expressions import Expression
from fibration.language.hierarchy import Hierarchy
from fibration.runtime.index.index import Index

HALF = (torch.bfloat16, torch.float16)
REACHES = 8  # warn if rounding exceeds 1/8 of a band: below that, it changes the regime of under 1 % of elements
LEAST = Fraction(1, 10**7)  # a gate that changes a smaller residual changes every residual


def warn_of_rounding(index: Index, log_probs: Tensor, old_log_probs: Tensor, numbers: Mapping[Any, Any]) -> None:
    """Warn if the rounding of half-precision log-probs moves elements by a large part of a gate's band.

    `numbers`: parameter values, from `parameter_values`.
    """
    hierarchy = index.hierarchy
    halves = [t.dtype for t in (log_probs, old_log_probs) if t.dtype in HALF]
    step = max(torch.finfo(dtype).eps for dtype in halves)  # spacing of numbers between 1 and 2
    each = math.hypot(*(torch.finfo(dtype).eps for dtype in halves)) / math.sqrt(12)  # standard deviation of rounding
    tokens = sum(index.size[leaf] for leaf in index.leaves)
    found = []
    for gated in hierarchy.order:
        for read, band in narrowest(hierarchy, gated, numbers).items():
            over = 1.0 if read in index.leaves else tokens / index.size[read]
            moved = each / math.sqrt(over)
            if REACHES * moved > band:
                found.append((moved / band, gated.name, read, moved, band))
    if not found:
        return
    _, gate, name, moved, band = max(found)
    said = listed(dict.fromkeys(str(t.dtype).removeprefix("torch.") for t in (log_probs, old_log_probs)))
    differ = ", and so differ even where the policies are equal" if log_probs.dtype != old_log_probs.dtype else ""
    warnings.warn(
        f"'{hierarchy.name}' is given log-probs of {said}{differ}: between -1 and -2 their spacing is {step:.2g}, "
        f"between -2 and -4 {2 * step:.2g}. Rounding alone moves {an(name)} of this batch by about {moved:.1g} "
        f"nats, and the gate on {gate} passes {band:.2g}. Compute log-probs in float32 from float32 logits, and "
        "keep the old ones in float32",
        PrecisionWarning,
        stacklevel=_outside(),
    )


def narrowest(hierarchy: Hierarchy, stratum: atoms.Stratum, numbers: Mapping[Any, Any]) -> dict[str, float]:
    """The smallest drift that a gate changes, in nats, by the stratum of the drift.

    Strata: the gate's own, and others whose density the gate reads. A stratum is missing if the gate changes every
    drift or none up to 1, or reads data of the batch.
    """
    values: dict[tuple[str, str], Fraction] = {}
    for node, given in numbers.items():
        values[node.key] = Fraction(min(given, key=abs))
    found: dict[str, float] = {}
    for channel in hierarchy.decomposition.channels:
        formula = atoms.in_channel(hierarchy.gate(stratum), channel)
        drifts = {a: a.stratum.name for a in traversal.atoms(formula, atoms.Density)}
        for moved, name in ({atoms.residual: stratum.name} | drifts).items():
            for side in (1, -1):
                for pulled in (1, -1):
                    at = _first(formula, moved, values, side, Fraction(pulled))
                    if at is not None:
                        found[name] = min(at, found.get(name, at))
    return found


def _first(
    formula: Expression, moved: Expression, values: Mapping[tuple[str, str], Fraction], side: int, pulled: Fraction
) -> float | None:
    """The smallest drift on one side that the formula changes, for an element of one token (all counts are 1); None if
    none.
    """

    def changes(size: Fraction) -> bool:
        def atom(a: Expression) -> Fraction:
            if a == moved:
                return side * size
            if a in (atoms.advantage, atoms.pull):
                return pulled
            if isinstance(a, atoms.Component):
                return values[a.parameter.name, a.channel]
            if isinstance(a, atoms.Parameter):
                return values[a.name, ""]
            if a == atoms.residual or isinstance(a, atoms.Density):
                return Fraction(0)
            if a == atoms.mass or isinstance(a, (atoms.Count, atoms.Total, atoms.Attribute)):
                return Fraction(1)
            raise KeyError(a)

        return bool(traversal.evaluate(formula, atom) != side * size)

    try:
        if changes(LEAST) or not changes(Fraction(1)):
            return None
        low, high = LEAST, Fraction(1)
        while high > low * Fraction(1001, 1000):
            middle = Fraction(math.sqrt(low * high)).limit_denominator(10**12)
            low, high = (low, middle) if changes(middle) else (middle, high)
    except (KeyError, NoValue, TooLarge):
        return None
    return float(high)


def _outside() -> int:
    """The stack level of the library's caller."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("fibration."):
        level, frame = level + 1, frame.f_back
    return level
