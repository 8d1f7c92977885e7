"""Whether log-probs are told apart finely enough for the gates: warned of once, where rounding alone reaches a gate."""

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
from fibration.language.atoms import (
    Attribute,
    Component,
    Count,
    Density,
    Parameter,
    Stratum,
    Total,
    advantage,
    in_channel,
    mass,
    pull,
    residual,
)
from fibration.language.exact import NoValue, TooLarge
from fibration.language.expressions import Expression
from fibration.language.hierarchy import Hierarchy
from fibration.language.traversal import atoms, evaluate
from fibration.runtime.index.index import Index

HALF = (torch.bfloat16, torch.float16)
REACHES = 8  # rounding is warned of from this part of a band on: below it, under one element in a hundred is regated
LEAST = Fraction(1, 10**7)  # what a gate changes below is changed everywhere


def warn_of_rounding(
    hierarchy: Hierarchy, index: Index, log_probs: Tensor, old_log_probs: Tensor, numbers: Mapping[Any, Any]
) -> None:
    """Warn where the rounding of half-precision log-probs moves elements by much of what a gate lets pass.

    `numbers`: those of parameters, as `parameter_values` gives them.
    """
    halves = [t.dtype for t in (log_probs, old_log_probs) if t.dtype in HALF]
    step = max(torch.finfo(dtype).eps for dtype in halves)  # of numbers between 1 and 2
    each = math.hypot(*(torch.finfo(dtype).eps for dtype in halves)) / math.sqrt(12)  # spread of what is rounded off
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
    differ = ", and so are not equal where the policies are" if log_probs.dtype != old_log_probs.dtype else ""
    warnings.warn(
        f"'{hierarchy.name}' is given log-probs of {said}{differ}: between -1 and -2 they come in steps of {step:.2g}, "
        f"between -2 and -4 of {2 * step:.2g}. Rounding alone moves {an(name)} of this batch by about {moved:.1g} "
        f"nats, and the gate on {gate} lets {band:.2g} pass. Compute log-probs in float32, of float32 logits, and "
        "keep the old ones so",
        PrecisionWarning,
        stacklevel=_outside(),
    )


def narrowest(hierarchy: Hierarchy, stratum: Stratum, numbers: Mapping[Any, Any]) -> dict[str, float]:
    """From where on a gate changes what it reads, in nats of an element's drift, on the side where that comes first.

    By the stratum whose drift it is: the gate's own, and others whose density it reads. One lacks where the gate
    changes everything or nothing up to 1, or reads what is known of a batch alone.
    """
    values: dict[tuple[str, str], Fraction] = {}
    for node, given in numbers.items():
        values[node.key] = Fraction(min(given, key=abs))
    found: dict[str, float] = {}
    for channel in hierarchy.decomposition.channels:
        formula = in_channel(hierarchy.gate(stratum), channel)
        drifts = {a: a.stratum.name for a in atoms(formula, Density)}
        for moved, name in ({residual: stratum.name} | drifts).items():
            for side in (1, -1):
                for pulled in (1, -1):
                    at = _first(formula, moved, values, side, Fraction(pulled))
                    if at is not None:
                        found[name] = min(at, found.get(name, at))
    return found


def _first(
    formula: Expression, moved: Expression, values: Mapping[tuple[str, str], Fraction], side: int, pulled: Fraction
) -> float | None:
    """The least drift on one side that the formula changes, of an element that is one token: all counts are 1."""

    def changes(size: Fraction) -> bool:
        def atom(a: Expression) -> Fraction:
            if a == moved:
                return side * size
            if a in (advantage, pull):
                return pulled
            if isinstance(a, Component):
                return values[a.parameter.name, a.channel]
            if isinstance(a, Parameter):
                return values[a.name, ""]
            if a == residual or isinstance(a, Density):
                return Fraction(0)
            if a == mass or isinstance(a, (Count, Total, Attribute)):
                return Fraction(1)
            raise KeyError(a)

        return bool(evaluate(formula, atom) != side * size)

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
    """How many frames up the caller of the library is."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("fibration."):
        level, frame = level + 1, frame.f_back
    return level
