"""Both sign channels of a level together: the global regimes, and the plane of both drifts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize

from fibration.plotting.canvas import plate
from fibration.plotting.gate_curve import Section
from fibration.printing.text import REGIMES

# The global regimes (par:regime_base_weight): the number of channels past their budget, and how far past.
GLOBAL: Mapping[tuple[str, ...], str] = {
    ("passed", "passed"): "G-I",
    ("passed", "rolled_back"): "G-II,r",
    ("passed", "zeroed"): "G-II",
    ("rolled_back", "rolled_back"): "G-III,r",
    ("rolled_back", "zeroed"): "G-III,r",
    ("zeroed", "zeroed"): "G-III",
}
LOOKS = {  # colours and meanings
    "G-I": ("#009E73", "both channels pass"),
    "G-II,r": ("#F0E442", "one channel rolls back"),
    "G-II": ("#E69F00", "one channel zeroed"),
    "G-III,r": ("#CC79A7", "both past their budgets, one still rolling back"),
    "G-III": ("#8B1E3F", "both channels zeroed"),
} | {r.title: (r.colour, r.meaning) for r in REGIMES.values()}
UP, DOWN = "#0072B2", "#C8102E"  # the channels + and −, as lines
CHANNEL_COLOUR = {"": UP, "+": UP, "-": DOWN}


def joint(names: Sequence[str]) -> str:
    """The regime of a level, from those of its channels: `G-II,r`, or the titles of both regimes."""
    return GLOBAL.get(tuple(sorted(names)), " / ".join(REGIMES[n].title for n in names))


def meaning(name: str) -> str:
    """A joint regime in words, for a legend."""
    return f"{name}: {LOOKS[name][1]}" if name in LOOKS else name


def colour(name: str) -> str:
    """The colour of a joint regime: for two titles, that of the worse one."""
    parts = [r for r in REGIMES.values() if r.title in name.split(" / ")]
    return LOOKS[name if name in LOOKS else parts[-1].title][0]


def plane(
    axes: Axes,
    plus: Section,
    minus: Section,
    low: float,
    reach: tuple[float, float],
    at: tuple[float, float] = (0.5, 0.5),
) -> Any:
    """Draw a level's gated channel + less channel − over the plane of both drifts, with its regimes named.

    Drifts run from `low` times their `reach` to their reach. A name stands `at` this share of a regime's width and
    height.
    """
    values = [np.linspace(low * r, r, 301) for r in reach]
    up, down = plus.gated(values[0]), minus.gated(values[1])
    net = up[None, :] - down[:, None]
    limit = float(np.abs(net).max()) or 1.0
    extent = (values[0][0], values[0][-1], values[1][0], values[1][-1])
    look: dict[str, Any] = {"origin": "lower", "aspect": "auto", "interpolation": "nearest", "cmap": "RdBu_r"}
    mesh = axes.imshow(net, extent=extent, norm=Normalize(-limit, limit), **look)
    edges, spans = [], [v[-1] - v[0] for v in values]
    for line, section, v, shade in ((axes.axvline, plus, values[0], UP), (axes.axhline, minus, values[1], DOWN)):
        inside = [b for b in section.breaks if v[0] < b < v[-1]]
        edges.append([v[0], *inside, v[-1]])
        for place in inside:
            line(place, color=shade, linewidth=1, linestyle="--" if place in section.ends else ":")
    for a, b in pairwise(edges[0]):
        for c, d in pairwise(edges[1]):
            name = joint(plus.regime((a + b) / 2) + minus.regime((c + d) / 2))
            wide, high = (b - a) / spans[0], (d - c) / spans[1]
            if name in GLOBAL.values() and high > 0.06 and wide > 0.035 * len(name) * 0.55:
                look = {"ha": "center", "va": "center", "fontsize": 8, "bbox": plate(0.65, 1.0)}
                axes.text(a + at[0] * (b - a), c + at[1] * (d - c), name, **look)
    return mesh
