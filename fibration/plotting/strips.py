"""Names above the strips of a picture: side by side if they fit, else upright, with a line from each to its strip."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from fibration.plotting.drifts import Colours

Vector = NDArray[np.float64]
BOLD = 0.72  # width of a bold character, relative to its size
GAP = 0.12  # inches between names


@dataclass(frozen=True)
class Names:
    """The places of names above the strips of parts. Places are middles, from 0 to 1 of the strips' width."""

    names: tuple[str, ...]
    numbers: tuple[int, ...]  # of the parts that have tokens
    strips: Vector  # the middle of each part's strip
    places: Vector  # the middle of each part's name
    upright: bool
    size: float  # points

    @property
    def moved(self) -> bool:
        """Whether some name does not stand over its strip. Lines then lead from names to strips."""
        return self.upright or bool((np.abs(self.places - self.strips) > 0.01).any())

    @property
    def line(self) -> float:
        """The distance of the names from the strips, in inches."""
        return 0.25 if self.upright else 0.2 if self.moved else 0.05

    @property
    def head(self) -> float:
        """The room that the names need above the picture beyond one line of text, in inches."""
        longest = max(map(len, self.names), default=0)
        return BOLD * self.size * longest / 72 + 0.1 if self.upright else 0.15 * self.moved

    @staticmethod
    def of(who: Colours, wide: float) -> Names:
        """The names of the parts of `who` above strips of `wide` inches; none if there is one part."""
        counts = np.bincount(who.tokens, minlength=len(who.names))
        middles = (np.cumsum(counts) - counts / 2) / counts.sum()
        numbers = tuple(np.flatnonzero(counts).tolist()) if len(who.names) > 1 else ()
        names, strips = tuple(who.names[i] for i in numbers), middles[list(numbers)]
        for size in (10.0, 8.5):
            widths = np.array([BOLD * size * len(name) / 72 + GAP for name in names]) / wide
            if widths.sum() <= 1:
                return Names(names, numbers, strips, apart(strips, widths), False, size)
        size = min(8.5, 72 * wide / (1.25 * len(names)))
        return Names(names, numbers, strips, apart(strips, np.full(len(names), 1.25 * size / 72 / wide)), True, size)

    def draw(self, axes: Axes, who: Colours, top: float, inch: float) -> None:
        """Draw the names above strips that begin at `top`. An inch is `inch` units of the vertical axis."""
        wide = axes.get_xlim()[1]
        for i, name, strip, place in zip(self.numbers, self.names, self.strips * wide, self.places * wide, strict=True):
            line = top - self.line * inch
            word = axes.text(place, line, name, color=who.colour(i), fontweight="bold", fontsize=self.size, ha="center")
            word.set(va="bottom", rotation=90 if self.upright else 0, rotation_mode="default")
            if self.moved:
                edge = line + 0.02 * inch
                axes.plot([place, strip], [edge, top], color=who.colour(i), linewidth=0.8, clip_on=False)


def apart(wanted: Vector, widths: Vector) -> Vector:
    """Places intervals of these widths without overlap, in order, in 0 ... 1, and returns their middles.

    The middles have the least sum of squared distances from `wanted`, if all intervals fit into 0 ... 1.
    """
    if not len(wanted):
        return wanted
    before = np.concatenate([[0.0], np.cumsum((widths[1:] + widths[:-1]) / 2)])
    groups: list[tuple[float, int]] = []  # isotonic regression: means that never decrease, and their counts
    for x in (wanted - before).tolist():
        mean, n = x, 1
        while groups and groups[-1][0] >= mean:
            left, m = groups.pop()
            mean, n = (left * m + mean * n) / (m + n), m + n
        groups.append((mean, n))
    found = np.repeat([mean for mean, _ in groups], [n for _, n in groups])
    return np.clip(found, widths[0] / 2, max(1 - before[-1] - widths[-1] / 2, widths[0] / 2)) + before
