"""The regimes of gates, and how tables and pictures show them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fibration.language.cancel import cancel
from fibration.language.decompositions import Decomposition, log_ratio, ratio_deviation, signed_log_ratio
from fibration.language.expressions import Expression
from fibration.language.hierarchy import Hierarchy


@dataclass(frozen=True)
class Regime:
    """The look of a regime in tables and pictures. The colours are safe for colour-blind readers."""

    title: str
    meaning: str
    colour: str
    style: str  # in a terminal


REGIMES: Mapping[str, Regime] = {
    "passed": Regime("passed", "unchanged, within the budget", "#009E73", "green"),
    "rolled_back": Regime("rolled back", "past the budget, pulled back towards 0", "#E69F00", "yellow"),
    "zeroed": Regime("zeroed", "removed", "#D55E00", "red"),
    "limited": Regime("limited", "held at the bound", "#0072B2", "blue"),
    "attenuated": Regime("attenuated", "shrunk", "#CC79A7", "magenta"),
}


CHANNELS = {"": "", "+": "+", "-": "−"}

UNITS = (("nats", signed_log_ratio), ("nats", log_ratio), ("r − 1", ratio_deviation))


def unit(hierarchy: Hierarchy) -> str:
    """Returns the unit of the drift of a verified hierarchy.

    Residuals are means of the coordinate only if the decomposition's scale is the measure that the kernels spread.
    Otherwise they are densities, in "units of F".
    """
    d = hierarchy.decomposition
    if any(hierarchy.masses[s] != cancel(hierarchy.with_mass(d.scale, s)) for s in hierarchy.leaves):
        return "units of F"
    densities = _densities(d)
    return next((name for name, make in UNITS if _densities(make(d.scale)) == densities), "units of F")


def _densities(decomposition: Decomposition) -> list[tuple[str, Expression]]:
    return [(channel, cancel(density)) for channel, density in decomposition.densities]
