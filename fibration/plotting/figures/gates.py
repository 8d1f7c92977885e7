"""Figure `gates` (fig:fiber_weight): every gate along its residual, its slope, and the sum of both channels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from fibration.errors import an
from fibration.plotting.canvas import INK, LEGEND, PALETTE, Vector, sheet, title
from fibration.plotting.figures.joint import plane
from fibration.plotting.figures.sample import dealing, sample
from fibration.plotting.gate_curve import Curve, Section, curves, removes, sections
from fibration.plotting.recorded_batch import levels, shade, swatches
from fibration.printing.text import REGIMES, unit
from fibration.rollouts.replay import Replay
from fibration.runtime.operator import Operator

TOKENS = 2  # tokens of the drawn trajectory: the caption's k = T_τ = 2
POINTS = 801


BACK = "rolled_back"


def figure(op: Operator, parameters: Mapping[str, Any], note: str) -> Figure:
    """The picture of one hierarchy. `note` stands under the title."""
    h, seen = op.hierarchy, reference(op, parameters)
    strata, channels = h.order, h.decomposition.channels
    cells = {(s.name, c): cases(seen, s.name, c) for s in strata for c in channels}
    # levels with a panel for the sum of both channels: those that add something
    joint = [s for s in strata if len(channels) == 2 and s not in h.leaves and not removes(op, s.name)]
    columns, head = len(channels) + bool(joint), 2.2
    wide = 1.1 + 4.9 * columns + (0.5 if joint else 2.4 if columns == 1 else 0)
    high = head - 0.1 + 4.15 * len(strata)
    margins = {"left": 1.1, "right": 0.75, "top": head, "bottom": 0.6, "hspace": 0.42, "wspace": 0.32}
    page, outer = sheet(wide, high, (len(strata), columns), **margins)
    shown: set[str] = set()
    for stratum, channel, upper, lower in levels(page, h, outer, pad=22, height_ratios=[2, 1], hspace=0.06):
        shown |= _cell(upper, lower, cells[stratum.name, channel], least(op, stratum.name))
    for stratum in joint:
        _plane(page.add_subplot(outer[strata.index(stratum), 2]), op, stratum.name, cells)
    handles = [
        Line2D([], [], color="black", linestyle=":", label="breakpoint of the gate"),
        *swatches(shown, alpha=0.3, notes={BACK: " (restorative)"}),
    ]
    if "differs" in shown:
        handles.append(Patch(fc="white", ec=INK, lw=0.6, label="white: depends on what else the gate reads"))
    corner = (0.25 / wide, 1 - 0.78 / high)
    page.legend(handles=handles, **LEGEND, bbox_to_anchor=corner, ncols=3 if wide > 11 else 2)
    below = ";  ".join(filter(None, (f"{an(h.rows)} of {tokens_of(op)} tokens", dealing(h), note)))
    title(page, f"{h.name}: gates, and their slopes", 0.35 / wide, 0.18, below)
    return page


def reference(op: Operator, parameters: Mapping[str, Any]) -> Replay:
    """One trajectory on policy, with two tokens, or one token per leaf if there are more than two leaves."""
    return sample(op, np.zeros((1, tokens_of(op))), 1.0, parameters).batches[0]


def tokens_of(op: Operator) -> int:
    """The number of tokens of the trajectory."""
    return max(TOKENS, len(op.hierarchy.leaves))


def cases(seen: Replay, stratum: str, channel: str) -> list[Section]:
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


def least(op: Operator, stratum: str) -> float:
    """A lower bound of the residual, or -inf: a root's residuals are means of |log r|, or of r − 1."""
    h = op.hierarchy
    if stratum not in [s.name for s in h.roots] or unit(h) not in ("nats", "r − 1"):
        return -np.inf
    return -1.0 if unit(h) == "r − 1" else 0.0 if len(h.decomposition.channels) == 2 else -np.inf


def _cell(upper: Axes, lower: Axes, found: list[Section], lowest: float) -> set[str]:
    """Draw one gate above its slope. Returns the regimes that the background shows."""
    far = reach(found)
    left = max(-far, lowest - 0.06 * far if lowest == 0 else lowest)
    lines = curves(found, left, far, POINTS)
    shown = shade(lines, upper, lower) | _restorative(lines, upper, lower)
    styles = ["-", "--", ":"] if len(lines) <= 2 else ["-"]
    for i, c in enumerate(lines):
        colour = "black" if len(lines) <= 2 else PALETTE[i % len(PALETTE)]
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
    upper.set(xlim=(left, far), ylim=_span([c.gated for c in lines]), ylabel="g(s)")
    lower.set(ylim=_span([c.slope for c in lines]), ylabel="slope g′(s)")
    lower.yaxis.set_major_formatter(FuncFormatter(lambda v, _: number(v)))
    outside = sorted({b for s in found for b in s.breaks if abs(b) > far})
    if outside:
        text = f"bends again at {number(*outside[:4])}"
        upper.text(0.02, 0.95, text, transform=upper.transAxes, va="top", fontsize=8.5)
    if len(lines) > 1:
        upper.legend(fontsize=8.5, loc="best")
    for axes in (upper, lower):
        axes.axhline(0, color="grey", linewidth=0.6, zorder=1)
    return shown


def _restorative(lines: Sequence[Curve], *panels: Axes) -> set[str]:
    """Hatch the residuals where some curves roll back and others do not. Returns the entries for the legend."""
    cells = [set(names) for names in zip(*(c.regimes for c in lines), strict=True)]
    some = np.array([0, *(BACK in names and len(names) > 1 for names in cells), 0])
    grid = lines[0].residual
    for start, stop in zip(np.flatnonzero(np.diff(some) == 1), np.flatnonzero(np.diff(some) == -1), strict=True):
        for axes in panels:
            look: dict[str, Any] = {"fc": "none", "ec": REGIMES[BACK].colour, "alpha": 0.5, "hatch": "//", "lw": 0}
            axes.axvspan(float(grid[start]), float(grid[stop]), **look)
    differs = {"differs"} if any(len(names) > 1 for names in cells) else set()
    return differs | ({BACK} if some.any() else set())


def number(*values: float) -> str:
    """Numbers for a picture, with a proper minus sign."""
    return ", ".join(dict.fromkeys(f"{v:.4g}".replace("-", "−") for v in values))


def _span(values: Sequence[Vector]) -> tuple[float, float]:
    low, high = float(np.min(values)), float(np.max(values))
    room = 0.12 * (high - low) or 0.5
    return low - room, high + room


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
