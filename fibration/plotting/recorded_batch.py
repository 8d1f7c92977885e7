"""Pictures of a recorded batch under a hierarchy: the hierarchy, its regimes, the ratios, and token weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from numpy.typing import NDArray

from fibration.language.atoms import Stratum
from fibration.language.hierarchy import Hierarchy
from fibration.plotting.canvas import plate, save, title
from fibration.plotting.drifts import Colours, colours
from fibration.plotting.gate_curve import sections
from fibration.plotting.hierarchy import hierarchy
from fibration.plotting.token_weights import weights
from fibration.printing.regimes import CHANNELS, REGIMES, unit

if TYPE_CHECKING:
    from fibration.rollouts.replay import Gated

Vector = NDArray[np.float64]
TITLES = {
    "hierarchy": "the hierarchy, and the drift of the batch at every level",
    "regimes": "every gate as a curve, with the elements of the batch on it",
    "ratios": "ratios before and after gating",
    "weights": "the weights of tokens, and the dropped tokens",
}


def draw(gated: Gated, out: Path, step: Callable[[str], None] = lambda name: None) -> list[tuple[Path, str]]:
    """Write all pictures of a batch to `out`. Returns their paths and titles."""
    make = {"hierarchy": lambda g: hierarchy(g.op.hierarchy, g), "regimes": regimes, "ratios": ratios}
    if gated.op.hierarchy.objective.formulas:
        make["weights"] = weights
    for name, picture in make.items():
        step(name)
        save(picture(gated), out / f"{name}.png")
    return [(out / f"{name}.png", TITLES[name]) for name in make]


# ---------------------------------------------------------------- regimes


@dataclass(frozen=True)
class Curve:
    """A gate as a function of its residual, at an element with median counts and parameters."""

    label: str
    residual: Vector
    gated: Vector

    @property
    def passes(self) -> tuple[float, float]:
        """The largest interval around 0 on which the gate changes nothing."""
        same = np.abs(self.gated - self.residual) <= 1e-12
        middle = int(np.argmin(np.abs(self.residual)))
        if not same[middle]:
            return 0.0, 0.0
        breaks = np.flatnonzero(~same)
        low, high = breaks[breaks < middle], breaks[breaks > middle]
        start = float(self.residual[low[-1] + 1]) if len(low) else -np.inf
        return start, float(self.residual[high[0] - 1]) if len(high) else np.inf

    def regime(self) -> list[str]:
        """The regime between each grid point and the next."""
        same, slope = np.abs(self.gated - self.residual) <= 1e-12, np.diff(self.gated)
        flat = np.abs(slope) <= 1e-12
        tests = [same[1:] & same[:-1], flat & (self.gated[:-1] == 0), flat, slope < 0]
        found = np.select(tests, ["passed", "zeroed", "limited", "rolled_back"], "attenuated").tolist()
        # A cell in which the gate bends mixes two regimes, so it takes that of its neighbour.
        for name, start, stop in _runs(found):
            if name == "attenuated" and stop - start == 1:
                found[start] = found[start - 1] if start else found[min(stop, len(found) - 1)]
        return found


def curves(gated: Gated, stratum: str, channel: str, grid: Vector) -> list[Curve]:
    """The gate of a level on a grid of residuals: one curve, or one per sign if it reads the advantage."""
    return [Curve(s.label, grid, s.gated(grid)) for s in sections(gated, stratum, channel)]


def regimes(gated: Gated) -> Figure:
    """Per level, the gate with every element of the batch on it, and below it the residuals domain by domain."""
    h, who = gated.op.hierarchy, colours(gated)
    channels, rows = h.decomposition.channels, len(h.order)
    most = max(len(who.rows(s.name)) for s in h.order)
    each = 0.18 if most <= 16 else 0.13
    panel, gap = 1.7 + each * most, 0.9  # inches
    high = (panel + gap) * rows + 1.6
    side = max(1.0, 0.3 + 0.078 * max(map(len, who.names)))  # for names
    broad = 5.0 if len(channels) > 1 else 7.8
    wide = (side + broad) * len(channels) + 0.45
    figure = Figure(figsize=(wide, high))
    margins = {"left": (side + 0.25) / wide, "right": 1 - 0.2 / wide, "top": 1 - 1.6 / high, "bottom": 0.55 / high}
    outer = figure.add_gridspec(rows, len(channels), hspace=gap / panel, wspace=side / broad, **margins)
    seen: set[str] = set()
    for i, stratum in enumerate(h.order):
        for j, channel in enumerate(channels):
            inner = outer[i, j].subgridspec(2, 1, height_ratios=[2, 1.22 * each * most + 0.7], hspace=0.05)
            upper = figure.add_subplot(inner[0])
            lower = figure.add_subplot(inner[1], sharex=upper)
            seen |= _level(gated, who, stratum.name, channel, upper, lower)
            name = f"{stratum}, channel {CHANNELS[channel]}" if channel else stratum.name
            upper.set_title(name, fontsize=12, loc="left", fontweight="bold")
            lower.set_xlabel(residual_label(h, stratum))
    handles: list[Any] = [
        Line2D([], [], color="black", label="gate (median element)"),
        Line2D([], [], color="black", linestyle=":", label="end of the pass-through interval"),
        *(Patch(fc=r.colour, alpha=0.25, label=f"{r.title}: {r.meaning}") for k, r in REGIMES.items() if k in seen),
    ]
    corner = (0.03, 1 - 0.45 / high)
    figure.legend(handles=handles, loc="upper left", bbox_to_anchor=corner, ncols=2, fontsize=9.5, frameon=False)
    title(figure, f"{h.name}: every element of the batch on its gate", 0.035, 0.18)
    return figure


def residual_label(h: Hierarchy, stratum: Stratum) -> str:
    """The axis label of a stratum's residual."""
    if not h.shape.below(stratum):
        return f"drift ({unit(h)})"
    above = "what it lies over"
    return f"residual drift beyond {above} ({unit(h)})"


def _level(gated: Gated, who: Colours, stratum: str, channel: str, upper: Axes, lower: Axes) -> set[str]:
    """Draw one level. Returns the regimes that its background shows."""
    residual = gated.levels.residual[stratum, channel].numpy()
    after = gated.levels.gated[stratum, channel].numpy()
    widest = float(np.abs(residual).max())
    widest = widest if widest > 1e-6 else 1.0  # on-policy: nothing to see but the gate
    magnitudes = widest * np.geomspace(1e-4, 1e4, 2001)
    bound = _budget(curves(gated, stratum, channel, np.concatenate([-magnitudes[::-1], [0.0], magnitudes])), widest)
    # The axis shows all elements and the budget if both are legible on it; else most elements.
    most = max(5 * bound, 1.08 * float(np.quantile(np.abs(residual), 0.9)))
    limit = min(max(1.08 * widest, 1.3 * bound), most) if bound < 12 * widest else 1.08 * widest
    lines = curves(gated, stratum, channel, np.linspace(-limit, limit, 4001))
    shown = shade(lines, upper, lower)
    for line, style in zip(lines, ("-", "--"), strict=False):
        upper.plot(line.residual, line.gated, style, color="black", linewidth=1.3, zorder=2, label=line.label)
        for end in line.passes:
            if 0 < abs(end) < limit:
                upper.axvline(end, color="black", linestyle=":", linewidth=1.1)
                lower.axvline(end, color="black", linestyle=":", linewidth=1.1)
    if len(lines) > 1:
        upper.legend(fontsize=9, loc="lower right")
    names = who.rows(stratum)
    jitter = np.random.default_rng(0).uniform(-0.3, 0.3, len(residual)) * (len(residual) > len(names))
    size, alpha = (26, 0.9) if len(residual) < 100 else (9, 0.6) if len(residual) < 1500 else (3, 0.3)
    colour = [who.colour(i) for i in who.of[stratum]]
    dots: dict[str, Any] = {"s": size, "c": colour, "alpha": alpha, "linewidths": 0, "zorder": 3}
    upper.scatter(residual, after, **dots)
    lower.scatter(residual, who.of[stratum] + jitter, **dots)
    outside = int((np.abs(residual) > limit).sum())
    note = f"budget: ±{bound:.3g}" if bound > limit else ""
    note = f"{outside} of {len(residual)} elements lie further out" if outside else note
    if note:
        upper.text(0.015, 0.94, note, transform=upper.transAxes, va="top", fontsize=9, bbox=plate(0.8, 1.5))
    lowest = min([float(residual.min()), *(line.passes[0] for line in lines if np.isfinite(line.passes[0]))])
    left = max(-limit, 1.3 * lowest) if residual.min() < 0 else -0.06 * limit
    heights = [v for line in lines for v in line.gated[line.residual >= left]] or list(after)
    margin = 0.08 * (max(heights) - min(heights)) or 1.0
    upper.set(xlim=(left, limit), ylim=(min(heights) - margin, max(heights) + margin), ylabel="gated drift")
    upper.tick_params(labelbottom=False)
    lower.set(ylim=(len(names) - 0.4, -0.6), yticks=range(len(names)))
    lower.set_yticklabels(names, fontsize=9 if len(names) <= 16 else 7.5)
    for axes in (upper, lower):
        axes.grid(alpha=0.2)
    return shown


def shade(lines: Sequence[Curve], *panels: Axes) -> set[str]:
    """Colour the background where all curves are in one regime. Returns the names of these regimes."""
    each = [line.regime() for line in lines]
    agreed = [names[0] if len(set(names)) == 1 else "" for names in zip(*each, strict=True)]
    for name, start, stop in _runs(agreed):
        for axes in panels if name else ():
            ends = lines[0].residual[start], lines[0].residual[stop]
            axes.axvspan(*ends, color=REGIMES[name].colour, alpha=0.13, linewidth=0)
    return set(agreed)


def _budget(lines: Sequence[Curve], widest: float) -> float:
    ends = [abs(e) for line in lines for e in line.passes if np.isfinite(e) and e]
    return max(ends) if ends else widest


def _runs(names: Sequence[str]) -> list[tuple[str, int, int]]:
    """Consecutive equal names as (name, start, stop)."""
    cuts = [0, *(i for i in range(1, len(names)) if names[i] != names[i - 1]), len(names)]
    return [(names[a], a, b) for a, b in pairwise(cuts) if a < b]


# ---------------------------------------------------------------- ratios


def ratios(gated: Gated) -> Figure:
    """log r against log 𝒢 for every token, with marginal histograms per domain."""
    h, who = gated.op.hierarchy, colours(gated)
    keep = gated.index.positions.numpy()
    x, after = gated.log_ratio.numpy()[keep], gated.ratio.numpy()[keep]
    positive = after > 0  # a loss may give up positivity; other ratios have no logarithm
    x, y, domain = x[positive], np.log(after[positive]), who.tokens[positive]
    figure = Figure(figsize=(9.2, 8.2))
    margins = {"left": 0.09, "right": 0.97, "top": 0.92, "bottom": 0.08, "hspace": 0.05, "wspace": 0.05}
    grid = figure.add_gridspec(2, 2, width_ratios=[3.4, 1.25], height_ratios=[1.25, 3.4], **margins)
    main = figure.add_subplot(grid[1, 0])
    top = figure.add_subplot(grid[0, 0], sharex=main)
    right = figure.add_subplot(grid[1, 1], sharey=main)
    limit = 1.05 * max(float(np.quantile(np.abs(x), 0.995)), 1e-6)
    reach = max(1.1 * float(np.abs(y).max(initial=0)), 0.05 * limit)  # where 𝒢 is 1, no rounding is to be seen
    bins_x, bins_y = np.linspace(-limit, limit, 141), np.linspace(-reach, reach, 141)
    counts, *_, mesh = main.hist2d(x, y, bins=[bins_x, bins_y], norm=LogNorm(), cmap="viridis", rasterized=True)
    mesh.set_clim(1, max(10, counts.max()))
    main.plot([-limit, limit], [-limit, limit], color="#D55E00", linewidth=1.2, label=r"$\mathcal{G}(r) = r$")
    main.axhline(0, color="grey", linewidth=0.6)
    main.axvline(0, color="grey", linewidth=0.6)
    main.set(xlim=(-limit, limit), ylim=(-reach, reach), xlabel="log r, before gating (nats)")
    main.set_ylabel(r"log $\mathcal{G}(r)$, after gating (nats)")
    main.legend(loc="upper left")
    named = who.leading()
    for numbers, _, colour in named:
        mine = np.isin(domain, numbers)
        if not mine.any():
            continue
        line: dict[str, Any] = {"histtype": "step", "color": colour, "linewidth": 1.4}
        top.hist(x[mine], bins=list(bins_x[::4]), **line)
        right.hist(y[mine], bins=list(bins_y[::4]), orientation="horizontal", **line)
    for axes, which in ((top, "y"), (right, "x")):
        most = max(20.0, *getattr(axes, f"get_{which}lim")())
        axes.set(**{f"{which}scale": "log", f"{which}label": "tokens", f"{which}lim": (0.8, most)})
        axes.grid(alpha=0.2)
    top.tick_params(labelbottom=False)
    right.tick_params(labelleft=False)
    corner = figure.add_subplot(grid[0, 1])
    corner.axis("off")
    if len(named) > 1:
        names = [Line2D([], [], color=colour, label=name) for _, name, colour in named]
        corner.legend(handles=names, loc="upper left", frameon=False, handlelength=1.5, labelspacing=0.3, fontsize=9)
    bar = figure.colorbar(mesh, cax=corner.inset_axes((0.08, 0.2, 0.85, 0.08)), orientation="horizontal")
    bar.set_label("tokens per cell")
    outside = int((np.abs(x) > limit).sum())
    note = f"{outside} of {len(x)} tokens lie further out" if outside else ""
    if not positive.all():
        note = "; ".join(filter(None, (note, f"{int((~positive).sum())} gated ratios are not above 0")))
    main.text(0.985, 0.02, note, transform=main.transAxes, ha="right", fontsize=9.5)
    title(figure, f"{h.name}: ratios of {len(after)} tokens, before and after gating", 0.09, 0.18)
    return figure
