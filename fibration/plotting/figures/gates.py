"""Figure `gates` (fig:fiber_weight): every gate along its residual, its slope, and the sum of both channels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from fibration.compiler.diagnostics import REGIMES as NAMES
from fibration.errors import an
from fibration.plotting.canvas import INK, PALETTE, title
from fibration.plotting.figures.joint import plane
from fibration.plotting.figures.sample import Sample, dealing, sample
from fibration.plotting.gate_curve import Section, Vector, removes, sections
from fibration.plotting.recorded_batch import Curve, residual_label, shade
from fibration.printing.regimes import CHANNELS, REGIMES, unit
from fibration.runtime.operator import Operator

TOKENS = 2  # tokens of the drawn trajectory: the caption's k = T_τ = 2
POINTS = 801


@dataclass(frozen=True)
class Exact(Curve):
    """A curve with its breakpoints on the grid: the regime of a cell is that of its middle."""

    slope: Vector
    codes: tuple[str, ...]

    def regime(self) -> list[str]:
        return list(self.codes)


def figure(op: Operator, parameters: Mapping[str, Any], note: str) -> Figure:
    """The picture of one hierarchy. `note` stands under the title."""
    h = op.hierarchy
    strata, channels = h.order, h.decomposition.channels
    seen = reference(op, parameters)
    cells = {(s.name, c): cases(seen, s.name, c) for s in strata for c in channels}
    # levels with a panel for the sum of both channels: those that add something
    joint = [s for s in strata if len(channels) == 2 and s not in h.leaves and not removes(op, s.name)]
    planes = bool(joint)
    columns, rows = len(channels) + planes, len(strata)
    wide, head = 1.1 + 4.9 * columns + (0.5 if planes else 2.4 if columns == 1 else 0), 2.2
    high = head - 0.1 + 4.15 * rows
    page = Figure(figsize=(wide, high))
    margins = {"left": 1.1 / wide, "right": 1 - 0.75 / wide, "top": 1 - head / high, "bottom": 0.6 / high}
    outer = page.add_gridspec(rows, columns, hspace=0.42, wspace=0.32, **margins)
    shown: set[str] = set()
    for i, stratum in enumerate(strata):
        for j, channel in enumerate(channels):
            inner = outer[i, j].subgridspec(2, 1, height_ratios=[2, 1], hspace=0.06)
            upper = page.add_subplot(inner[0])
            lower = page.add_subplot(inner[1], sharex=upper)
            shown |= _cell(upper, lower, cells[stratum.name, channel], least(op, stratum.name))
            name = f"{stratum}, channel {CHANNELS[channel]}" if channel else stratum.name
            upper.set_title(name, fontsize=12, loc="left", fontweight="bold", pad=22)
            lower.set_xlabel(residual_label(h, stratum))
        if stratum in joint:
            _plane(page.add_subplot(outer[i, 2]), op, stratum.name, cells)
    handles: list[Any] = [
        Line2D([], [], color="black", linestyle=":", label="breakpoint of the gate"),
        *(
            Patch(fc=r.colour, alpha=0.3, label=f"{r.title}: {r.meaning}" + (" (restorative)" if k == BACK else ""))
            for k, r in REGIMES.items()
            if k in shown
        ),
    ]
    if "differs" in shown:
        handles.append(Patch(fc="white", ec=INK, lw=0.6, label="white: depends on what else the gate reads"))
    corner = (0.25 / wide, 1 - 0.78 / high)
    columns_of_legend = 3 if wide > 11 else 2
    page.legend(
        handles=handles, loc="upper left", bbox_to_anchor=corner, ncols=columns_of_legend, fontsize=9, frameon=False
    )
    below = ";  ".join(filter(None, (f"{an(h.rows)} of {tokens_of(op)} tokens", dealing(h), note)))
    title(page, f"{h.name}: gates, and their slopes", 0.35 / wide, 0.18, below)
    return page


BACK = "rolled_back"


def reference(op: Operator, parameters: Mapping[str, Any]) -> Sample:
    """One trajectory on policy, with two tokens, or one token per leaf if there are more than two leaves."""
    return sample(op, np.zeros((1, tokens_of(op))), [1.0] * tokens_of(op), parameters)


def tokens_of(op: Operator) -> int:
    """The number of tokens of the trajectory."""
    return max(TOKENS, len(op.hierarchy.leaves))


def cases(seen: Sample, stratum: str, channel: str) -> list[Section]:
    """The sections of a level that the figure draws: per sign of the advantage, and for three coarser drifts."""
    plain = sections(seen, stratum, channel, advantages=(1.0, -1.0))
    step = float(f"{reach(plain) / 4:.1g}")
    return sections(seen, stratum, channel, advantages=(1.0, -1.0), drifts=(0.0, step, 2 * step))


def reach(found: Sequence[Section]) -> float:
    """The largest residual on the axis: past every breakpoint, but not past 60 times the nearest one."""
    sizes = sorted(abs(b) for s in found for b in s.breaks if b)
    if not sizes:
        return 1.0
    near = [b for b in sizes if b <= 40 * sizes[0]]
    return 1.5 * near[-1]


def exact(found: Sequence[Section], low: float, high: float) -> list[Exact]:
    """Sections on one grid that contains both sides of every breakpoint."""
    sides = [x for s in found for pair in s.sides for x in pair if low < x < high]
    grid = np.unique(np.concatenate([np.linspace(low, high, POINTS), sides]))
    curves = []
    for s in found:
        seen, middles = s.at(grid), s.regime(grid[:-1] + np.diff(grid) / 2)
        curves.append(Exact(s.label, grid, seen["gated"], seen["slope"], tuple(NAMES[c] for c in middles)))
    return curves


def least(op: Operator, stratum: str) -> float:
    """A lower bound of the residual, or -inf: a root's residuals are means of |log r|, or of r − 1."""
    h = op.hierarchy
    if stratum not in [s.name for s in h.roots]:
        return -np.inf
    split = len(h.decomposition.channels) == 2 and unit(h) == "nats"
    return 0.0 if split else -1.0 if unit(h) == "r − 1" else -np.inf


def _cell(upper: Axes, lower: Axes, found: list[Section], lowest: float) -> set[str]:
    """Draw one gate above its slope. Returns the regimes that the background shows."""
    far = reach(found)
    left = max(-far, lowest - 0.06 * far if lowest == 0 else lowest)
    curves = exact(found, left, far)
    shown = shade(curves, upper, lower) | _restorative(curves, upper, lower)
    styles = ["-", "--", ":"] if len(curves) <= 2 else ["-"]
    for i, c in enumerate(curves):
        colour = "black" if len(curves) <= 2 else PALETTE[i % len(PALETTE)]
        look: dict[str, Any] = {"color": colour, "linestyle": styles[i % len(styles)], "linewidth": 1.5, "zorder": 3}
        upper.plot(c.residual, c.gated, label=c.label, **look)
        jumps = np.flatnonzero(np.diff(c.slope) != 0) + 1
        smooth = len(jumps) > 20  # a curved gate: its slope is no staircase
        x, y = (c.residual, c.slope) if smooth else (np.insert(v, jumps, np.nan) for v in (c.residual, c.slope))
        lower.plot(x, y, **look)
    marks = sorted({b for s in found for b in s.breaks if left < b < far})
    if len(marks) <= 12:
        for b in marks:
            for axes in (upper, lower):
                axes.axvline(b, color="black", linestyle=":", linewidth=1, zorder=2)
        _label(upper, marks, far - left)
    heights = np.concatenate([c.gated for c in curves])
    _margin(upper, heights)
    _margin(lower, np.concatenate([c.slope for c in curves]))
    upper.set(xlim=(left, far), ylabel="g(s)")
    lower.set_ylabel("slope g′(s)")
    lower.yaxis.set_major_formatter(FuncFormatter(lambda v, _: number(v)))
    upper.tick_params(labelbottom=False)
    outside = [b for s in found for b in s.breaks if abs(b) > far]
    if outside:
        text = f"bends again at {number(*sorted(set(outside))[:4])}"
        upper.text(0.02, 0.95, text, transform=upper.transAxes, va="top", fontsize=8.5)
    if len(curves) > 1:
        upper.legend(fontsize=8.5, loc="best")
    for axes in (upper, lower):
        axes.grid(alpha=0.2)
        axes.axhline(0, color="grey", linewidth=0.6, zorder=1)
    return shown


def _restorative(curves: Sequence[Exact], *panels: Axes) -> set[str]:
    """Hatch the residuals where some curves roll back and others do not. Returns the entries for the legend."""
    some = [BACK in names and len(set(names)) > 1 for names in zip(*(c.codes for c in curves), strict=True)]
    grid = curves[0].residual
    for i in np.flatnonzero(np.diff([0, *some]) == 1):
        stop = next((j for j in range(i, len(some)) if not some[j]), len(some))
        for axes in panels:
            look: dict[str, Any] = {"fc": "none", "ec": REGIMES[BACK].colour, "alpha": 0.5, "hatch": "//", "lw": 0}
            axes.axvspan(float(grid[i]), float(grid[stop]), **look)
    differs = any(len(set(names)) > 1 for names in zip(*(c.codes for c in curves), strict=True))
    return ({"differs"} if differs else set()) | ({BACK} if any(some) else set())


def number(*values: float) -> str:
    """Numbers for a picture, with a proper minus sign."""
    return ", ".join(dict.fromkeys(f"{v:.4g}".replace("-", "−") for v in values))


def _margin(axes: Axes, values: Vector) -> None:
    low, high = float(values.min()), float(values.max())
    room = 0.12 * (high - low) or 0.5
    axes.set_ylim(low - room, high + room)


def _label(axes: Axes, marks: Sequence[float], span: float) -> None:
    """Breakpoints as ticks above the gate; neighbours that are too close share a label."""
    groups: list[list[float]] = []
    for b in marks:
        if groups and b - groups[-1][-1] < 0.1 * span and len(groups[-1]) < 2:
            groups[-1].append(b)
        else:
            groups.append([b])
    top = axes.secondary_xaxis("top")
    top.set_xticks([sum(g) / len(g) for g in groups], [number(*g) for g in groups], fontsize=8.5)
    top.tick_params(length=0, pad=2)


def _plane(axes: Axes, op: Operator, stratum: str, cells: Mapping[tuple[str, str], list[Section]]) -> None:
    plus, minus = (cells[stratum, c][0] for c in ("+", "-"))
    far = reach(cells[stratum, "+"]), reach(cells[stratum, "-"])
    low = 0.0 if least(op, stratum) == 0 else -1.0
    mesh = plane(axes, plus, minus, low, far)
    of_units = unit(op.hierarchy)
    axes.set(xlabel=f"channel + ({of_units})", ylabel=f"channel − ({of_units})")
    word = "log weight" if of_units == "nats" else "both channels"
    of = f" ({plus.label})" if plus.label else ""
    axes.set_title(f"{stratum}: {word}, g(s⁺) − g(s⁻){of}", fontsize=10, loc="left", pad=22)
    bar = axes.figure.colorbar(mesh, cax=axes.inset_axes((1.02, 0, 0.035, 1)))
    bar.ax.tick_params(labelsize=8)
