"""A hierarchy as a picture: strata with their gates as boxes, and beside them the drift of a batch.

All pictures of a batch use `Colours`: one for each part of the rollouts. The parts are named above their
strips: side by side if the names fit, else upright.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from numpy.typing import NDArray

from fibration.language.atoms import Stratum
from fibration.language.hierarchy import Hierarchy
from fibration.plotting.canvas import CODE, INK, PALETTE, Vector, character, plate, sheet, title
from fibration.printing.text import shortened, unit
from fibration.rollouts.replay import Gated

TOP, BOTTOM = 0.14, 0.79  # of a box, within its row: where arrows start and end
WIDE = 6.1  # width of the batch beside the boxes, in inches
SMALL = 7.5  # font size of kernels that stand side by side, in points
BOLD = 0.72  # width of a bold character, relative to its size
GAP = 0.12  # inches between names


def hierarchy(h: Hierarchy, gated: Gated | None = None) -> Figure:
    """Strata with their gates as boxes, fibrations with their kernels as arrows; beside them, a batch's drift."""
    rows = h.shape.layers()
    who = colours(gated) if gated else None
    names = Names.of(who, WIDE) if who else None
    head = names.head if names else 0.0
    wide = 13.0 if gated else 6.5
    high = head + 1.2 + (1.75 if all(len(row) == 1 for row in rows) else 2.05) * len(rows)
    margins = {"left": 0.015 * wide, "right": (0.08 if gated else 0.015) * wide, "top": 0.75 + head, "bottom": 0.75}
    ratios = [1, 1.15] if gated else [1]
    figure, grid = sheet(wide, high, (1, len(ratios)), width_ratios=ratios, wspace=0.05, **margins)
    axes = figure.add_subplot(grid[0, 0])
    axes.set(xlim=(0, 1), ylim=(len(rows), 0))
    axes.axis("off")
    place = {s: ((i + 0.5) / len(row), depth) for depth, row in enumerate(rows) for i, s in enumerate(row)}
    inches = axes.get_position().width * wide
    for s, (x, y) in place.items():
        _box(axes, x, y, 0.94 / len(rows[y]), inches, h, s, gated)
    _arrows(axes, h, place, rows, inches)
    title(figure, f"{h.name}: gates on strata, kernels on fibrations", 0.03, 0.22)
    if gated and who and names:
        inch = len(rows) / (axes.get_position().height * high)  # of the vertical axis
        _icicle(figure.add_subplot(grid[0, 1]), gated, rows, who, names, inch)
    return figure


def _arrows(
    axes: Axes, h: Hierarchy, place: Mapping[Stratum, tuple[float, int]], rows: list[list[Stratum]], inches: float
) -> None:
    """Fibrations as arrows, labelled with their kernels: beside a single arrow, otherwise at the middle of each.

    Labels between the same two rows of boxes stand side by side, each in its own column, as near to its arrow as the
    column allows. The label of an arrow over more than one row stands at its start.
    """
    between: dict[int, list[tuple[float, str]]] = {}
    for f in h.fibrations:
        (x, y), (to_x, to_y) = place[f.source], place[f.target]
        far = y - to_y > 1  # a long arrow passes behind the boxes between, and beside the box straight above
        aside = -0.2 / max(len(rows[y]), len(rows[to_y])) if far else 0.0
        start, end = (x + aside, y + TOP), (to_x + aside, to_y + BOTTOM)
        look: dict[str, Any] = {"arrowstyle": "-|>", "mutation_scale": 14, "color": INK, "shrinkA": 1, "shrinkB": 1}
        axes.add_patch(FancyArrowPatch(start, end, **look, zorder=0.5 if far else 1))
        share = (y + TOP - _middle(y)) / (start[1] - end[1])
        between.setdefault(y, []).append((start[0] + share * (end[0] - start[0]), str(f.kernel)))
    for y, labels in between.items():
        if len(labels) == 1 and len(rows[y]) == len(rows[y - 1]) == 1:
            left, one = labels[0][0] + 0.02, character(CODE["fontsize"]) / inches
            axes.text(left, _middle(y), wrapped(f"kernel {labels[0][1]}", int((0.97 - left) / one)), color=INK, **CODE)
            continue
        wide, one = 1 / len(labels), character(SMALL) / inches
        gutter = 1.5 * one
        for i, (x, kernel) in enumerate(sorted(labels)):
            label = wrapped(kernel, int((wide - 2 * gutter) / one))
            lines = label.split("\n")
            half = gutter + 0.5 * one * max(map(len, lines))
            centre = min(max(x, i * wide + half), (i + 1) * wide - half)
            look = {**CODE, "fontsize": SMALL * min(1, 4 / len(lines)), "ha": "center", "linespacing": 1.05}
            axes.text(centre, _middle(y), label, color=INK, bbox=plate(0.85, 0.6), **look)


def _middle(y: int) -> float:
    """Half way between a row of boxes and the row above it."""
    return y + (TOP + BOTTOM - 1) / 2


def _box(
    axes: Axes, x: float, y: float, width: float, inches: float, h: Hierarchy, s: Stratum, gated: Gated | None
) -> None:
    """A stratum with its gate. The number of its elements stands beside its name, or below if it does not fit."""
    left, right = x - width / 2 + 0.04, x + width / 2 - 0.04
    look: Mapping[str, Any] = {"boxstyle": "round,pad=0.015,rounding_size=0.03", "mutation_aspect": 2.2}
    axes.add_patch(FancyBboxPatch((left - 0.02, y + 0.16), width - 0.04, 0.62, fc="#F2F5F8", ec=INK, **look))
    free = (right - left) * inches
    size = min(13.0, 72 * free / (BOLD * len(s.name)))
    count = f"{gated.index.size[s.name]} in this batch" if gated else ""
    below = bool(count) and BOLD * size * len(s.name) / 72 + 0.11 * len(count) > free
    axes.text(left, y + 0.25 if below else y + 0.3, s.name, fontsize=size, fontweight="bold", va="center")
    if below:
        axes.text(left, y + 0.38, count, va="center", color=INK, fontsize=9)
    else:
        axes.text(right, y + 0.3, count, va="center", ha="right", color=INK)
    gate = wrapped(str(h.gates[s]), int((free + 0.015 * inches) / character(CODE["fontsize"])))
    lines = gate.count("\n") + 1
    axes.text(left, y + 0.58, gate, **{**CODE, "fontsize": CODE["fontsize"] if lines <= 3 else 25.5 / lines})


def wrapped(code: str, width: int) -> str:
    """Code in lines of at most `width` characters, broken after commas, brackets and spaces if possible."""
    parts = re.findall(r".+?(?:, |[(]|[)](?=[.])|$|(?<=\S) )", code)
    lines = [""]
    for part in parts:
        if lines[-1] and len(lines[-1]) + len(part.rstrip()) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(line.rstrip() for line in lines)


def _icicle(axes: Axes, gated: Gated, rows: list[list[Stratum]], who: Colours, names: Names, inch: float) -> None:
    """The batch to scale: a band per stratum, each element as wide as its tokens and coloured by its mean drift.

    Strata in the same row of boxes share the height of the row.
    """
    h = gated.op.hierarchy
    parents = {s.name: under(gated, s.name) for row in rows for s in row}
    order = np.lexsort((*reversed(parents.values()), who.tokens))
    drifts = {name: drift(gated, name) for name in parents}
    leaves = np.concatenate([d[np.isfinite(d)] for d in (drifts[s.name] for s in h.leaves)])
    limit = max(float(np.quantile(np.abs(leaves), 0.9)), 1e-9)
    look: dict[str, Any] = {"cmap": "RdBu_r", "norm": Normalize(-limit, limit)}
    for depth, row in enumerate(rows):
        high, band = depth + 0.13, 0.68 / len(row)
        for i, stratum in enumerate(row):
            top, low = high + i * band, high + (i + 1) * band - (0.05 if i + 1 < len(row) else 0)
            values = drifts[stratum.name][order][None, :]
            place = (0, len(order), low, top)
            axes.imshow(values, aspect="auto", interpolation="nearest", extent=place, **look)
            edges = np.flatnonzero(np.diff(parents[stratum.name][order])) + 1
            if len(edges) <= 400:
                axes.vlines(edges, top, low, color="white", linewidth=0.9 if len(edges) < 60 else 0.25)
            if len(row) > 1:
                words: dict[str, Any] = {"va": "center", "fontsize": 9, "bbox": plate(0.75, 1.5)}
                axes.text(0.01 * len(order), (top + low) / 2, stratum.name, **words)
    axes.set(xlim=(0, len(order)), ylim=(len(rows), 0), yticks=[], xlabel="tokens, ordered by what they lie over")
    axes.spines[:].set_visible(False)
    names.draw(axes, who, 0.13, inch)
    axes.set_title("the batch: mean drift of every element", fontsize=11, loc="left", pad=8 + 72 * names.head)
    bar = axes.figure.colorbar(ScalarMappable(**look), cax=axes.inset_axes((1.02, 0.1, 0.02, 0.8)), extend="both")
    bar.set_label(f"mean drift ({unit(h)})")


# ---------------------------------------------------------------- a batch, per token


@dataclass(frozen=True)
class Colours:
    """One colour per part of the rollouts, for the elements of every stratum; grey for elements of several parts."""

    names: tuple[str, ...]
    of: dict[str, NDArray[np.int64]]  # per stratum, the part of each element; `len(names)` means several parts
    tokens: NDArray[np.int64]  # the part of every unmasked token

    def colour(self, i: int) -> str:
        return PALETTE[i % len(PALETTE)] if i < len(self.names) else INK

    def leading(self, most: int = 6) -> list[tuple[tuple[int, ...], str, str]]:
        """Groups of parts: numbers, name and colour. Of many parts, the largest ones and one group of all others."""
        every = range(len(self.names))
        if len(every) <= most + 1:
            return [((i,), self.names[i], self.colour(i)) for i in every]
        counts = np.bincount(self.tokens, minlength=len(every))
        shown = sorted(np.argsort(-counts, kind="stable")[:most].tolist())
        others = tuple(i for i in every if i not in shown)
        alone = [((i,), self.names[i], PALETTE[k]) for k, i in enumerate(shown)]  # colours that differ
        return [*alone, (others, f"{len(others)} others", INK)]

    def rows(self, stratum: str) -> tuple[str, ...]:
        """Names of the parts, and `several` if an element of the stratum belongs to several parts."""
        return (*self.names, *(["several"] if (self.of[stratum] == len(self.names)).any() else []))


def colours(gated: Gated) -> Colours:
    index, names = gated.index, gated.parts.names or ("all",)
    tokens = gated.parts.of_token[index.positions.numpy()]
    of = {}
    for stratum in gated.op.hierarchy.order:
        parent = under(gated, stratum.name)
        mine, size = parent >= 0, index.size[stratum.name]
        found = np.zeros(size, np.int64)
        found[parent[mine]] = tokens[mine]
        several = np.zeros(size, bool)
        several[parent[mine][found[parent[mine]] != tokens[mine]]] = True
        of[stratum.name] = np.where(several, len(names), found)
    short = (shortened(name, 16).replace("$", r"\$") for name in names)  # a $ would start mathematics
    return Colours(tuple(short), of, tokens)


def under(gated: Gated, stratum: str) -> NDArray[np.int64]:
    """The element of a stratum that every unmasked token lies over, or -1 without one: `[tokens]`."""
    index = gated.index
    found = np.full(len(index.positions), -1, np.int64)
    for leaf in index.leaves_over(stratum):
        tokens = index.tokens_of(leaf)
        found[slice(None) if tokens is None else tokens.numpy()] = index.parent(leaf, stratum).numpy()
    return found


def drift(gated: Gated, stratum: str) -> Vector:
    """The mean drift of the element under every token, coarser strata included. NaN for a token without one."""
    h = gated.op.hierarchy
    here = next(s for s in h.order if s.name == stratum)
    total = np.where(under(gated, stratum) >= 0, 0.0, np.nan)
    for s in (here, *h.coarser(here)):
        total += net(gated, s.name)[under(gated, s.name)]
    return total


def net(gated: Gated, stratum: str) -> Vector:
    """The residual drift of every element, channel + less channel −."""
    parts = gated.levels.residual
    sign = {"": 1.0, "+": 1.0, "-": -1.0}
    return sum(sign[c] * parts[stratum, c].numpy() for c in gated.op.hierarchy.decomposition.channels)  # type: ignore[return-value]


# ---------------------------------------------------------------- names above strips


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
