"""Pictures of a recorded batch under a hierarchy: the hierarchy, its regimes, the ratios, and token weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from fibration.language.atoms import Stratum
from fibration.language.hierarchy import Hierarchy
from fibration.plotting.canvas import INK, LEGEND, Vector, panel, plate, save, sheet, title
from fibration.plotting.gate_curve import Curve, curves, sections
from fibration.plotting.hierarchy import Colours, colours, hierarchy, wrapped
from fibration.printing.text import CHANNELS, REGIMES, unit
from fibration.rollouts.replay import Gated
from fibration.runtime.weights import Weights, effective

WIDTH = 150  # characters of a formula in a line
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


def regimes(gated: Gated) -> Figure:
    """Per level, the gate with every element of the batch on it, and below it the residuals domain by domain."""
    h, who = gated.op.hierarchy, colours(gated)
    rows, columns = len(h.order), len(h.decomposition.channels)
    most = max(len(who.rows(s.name)) for s in h.order)
    each = 0.18 if most <= 16 else 0.13
    height, gap = 1.7 + each * most, 0.9  # inches
    high = (height + gap) * rows + 1.6
    side = max(1.0, 0.3 + 0.078 * max(map(len, who.names)))  # for names
    broad = 5.0 if columns > 1 else 7.8
    wide = (side + broad) * columns + 0.45
    gaps = {"hspace": gap / height, "wspace": side / broad}
    figure, outer = sheet(wide, high, (rows, columns), left=side + 0.25, right=0.2, top=1.6, bottom=0.55, **gaps)
    seen: set[str] = set()
    ratio: dict[str, Any] = {"height_ratios": [2, 1.22 * each * most + 0.7], "hspace": 0.05}
    for stratum, channel, upper, lower in levels(figure, h, outer, **ratio):
        seen |= _level(gated, who, stratum.name, channel, upper, lower)
    handles = [
        Line2D([], [], color="black", label="gate (median element)"),
        Line2D([], [], color="black", linestyle=":", label="end of the pass-through interval"),
        *swatches(seen, alpha=0.25),
    ]
    look = {**LEGEND, "bbox_to_anchor": (0.03, 1 - 0.45 / high), "ncols": 2, "fontsize": 9.5}
    figure.legend(handles=handles, **look)
    title(figure, f"{h.name}: every element of the batch on its gate", 0.035, 0.18)
    return figure


def levels(
    figure: Figure, h: Hierarchy, outer: GridSpec, pad: float | None = None, **ratio: Any
) -> Iterator[tuple[Stratum, str, Axes, Axes]]:
    """Makes two panels, one above the other, for each gate on each channel: a row per stratum, with its name."""
    above = "what it lies over"
    for i, stratum in enumerate(h.order):
        for j, channel in enumerate(h.decomposition.channels):
            inner = outer[i, j].subgridspec(2, 1, **ratio)
            upper = figure.add_subplot(inner[0])
            lower = figure.add_subplot(inner[1], sharex=upper)
            name = f"{stratum}, channel {CHANNELS[channel]}" if channel else stratum.name
            upper.set_title(name, fontsize=12, loc="left", fontweight="bold", pad=pad)
            upper.tick_params(labelbottom=False)
            beyond = f"residual drift beyond {above}" if h.shape.below(stratum) else "drift"
            lower.set_xlabel(f"{beyond} ({unit(h)})")
            for axes in (upper, lower):
                axes.grid(alpha=0.2)
            yield stratum, channel, upper, lower


def swatches(seen: set[str], alpha: float, notes: Mapping[str, str] = MappingProxyType({})) -> list[Patch]:
    """The entries of a legend for the regimes that a page shows. `notes` are added to their meanings."""
    shown = {k: r for k, r in REGIMES.items() if k in seen}
    return [
        Patch(fc=r.colour, alpha=alpha, label=f"{r.title}: {r.meaning}{notes.get(k, '')}") for k, r in shown.items()
    ]


def _level(gated: Gated, who: Colours, stratum: str, channel: str, upper: Axes, lower: Axes) -> set[str]:
    """Draw one level. Returns the regimes that its background shows."""
    residual = gated.levels.residual[stratum, channel].numpy()
    after = gated.levels.gated[stratum, channel].numpy()
    widest = float(np.abs(residual).max())
    widest = widest if widest > 1e-6 else 1.0  # on-policy: nothing to see but the gate
    gates = sections(gated, stratum, channel)
    ends = [b for s in gates for b in s.ends]
    bound = max(map(abs, ends), default=0.0) or widest
    # The axis shows all elements and the budget if both are legible on it; else most elements.
    most = max(5 * bound, 1.08 * float(np.quantile(np.abs(residual), 0.9)))
    limit = min(max(1.08 * widest, 1.3 * bound), most) if bound < 12 * widest else 1.08 * widest
    lines = curves(gates, -limit, limit, 4001)
    shown = shade(lines, upper, lower)
    for line, style in zip(lines, ("-", "--"), strict=False):
        upper.plot(line.residual, line.gated, style, color="black", linewidth=1.3, zorder=2, label=line.label)
    for end in ends:
        for axes in (upper, lower) if 0 < abs(end) < limit else ():
            axes.axvline(end, color="black", linestyle=":", linewidth=1.1)
    if len(lines) > 1:
        upper.legend(fontsize=9, loc="lower right")
    names = who.rows(stratum)
    jitter = np.random.default_rng(0).uniform(-0.3, 0.3, len(residual)) * (len(residual) > len(names))
    size, alpha = (26, 0.9) if len(residual) < 100 else (9, 0.6) if len(residual) < 1500 else (3, 0.3)
    colour = [who.colour(i) for i in who.of[stratum]]
    dots: dict[str, Any] = {"s": size, "c": colour, "alpha": alpha, "linewidths": 0, "zorder": 3}
    dots["rasterized"] = len(residual) >= 1500  # of SVG: a shape for each dot makes megabytes
    upper.scatter(residual, after, **dots)
    lower.scatter(residual, who.of[stratum] + jitter, **dots)
    outside = int((np.abs(residual) > limit).sum())
    note = f"budget: ±{bound:.3g}" if bound > limit else ""
    note = f"{outside} of {len(residual)} elements lie further out" if outside else note
    if note:
        upper.text(0.015, 0.94, note, transform=upper.transAxes, va="top", fontsize=9, bbox=plate(0.8, 1.5))
    left = max(-limit, 1.3 * min(float(residual.min()), *ends, 0.0)) if residual.min() < 0 else -0.06 * limit
    heights = np.concatenate([line.gated[line.residual >= left] for line in lines])
    margin = 0.08 * float(np.ptp(heights)) or 1.0
    upper.set(xlim=(left, limit), ylim=(heights.min() - margin, heights.max() + margin), ylabel="gated drift")
    lower.set(ylim=(len(names) - 0.4, -0.6), yticks=range(len(names)))
    lower.set_yticklabels(names, fontsize=9 if len(names) <= 16 else 7.5)
    return shown


def shade(lines: Sequence[Curve], *panels: Axes) -> set[str]:
    """Colour the background where all curves are in one regime. Returns the names of these regimes."""
    each = zip(*(line.regimes for line in lines), strict=True)
    agreed = np.array([names[0] if len(set(names)) == 1 else "" for names in each])
    cuts = [0, *(np.flatnonzero(agreed[1:] != agreed[:-1]) + 1), len(agreed)]
    for start, stop in pairwise(cuts):
        for axes in panels if agreed[start] else ():
            ends = lines[0].residual[start], lines[0].residual[stop]
            axes.axvspan(*ends, color=REGIMES[agreed[start]].colour, alpha=0.13, linewidth=0)
    return set(agreed.tolist())


# ---------------------------------------------------------------- ratios


def ratios(gated: Gated) -> Figure:
    """log r against log 𝒢 for every token, with marginal histograms per domain."""
    h, who = gated.op.hierarchy, colours(gated)
    keep = gated.index.positions.numpy()
    x, after = gated.log_ratio.numpy()[keep], gated.ratio.numpy()[keep]
    positive = after > 0  # a loss may give up positivity; other ratios have no logarithm
    x, y, domain = x[positive], np.log(after[positive]), who.tokens[positive]
    margins = {"left": 0.828, "right": 0.276, "top": 0.656, "bottom": 0.656, "hspace": 0.05, "wspace": 0.05}
    figure, grid = sheet(9.2, 8.2, (2, 2), width_ratios=[3.4, 1.25], height_ratios=[1.25, 3.4], **margins)
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


# ---------------------------------------------------------------- weights


def weights(gated: Gated) -> Figure:
    """Tokens with their weights, over the distance of the policies; beside them, the kept share of every domain."""
    h, who, found = gated.op.hierarchy, colours(gated), gated.weights
    said = [f"weigh: {f}" for f in h.objective.weighed] + [f"keep: {k.condition}" for k in h.objective.kept]
    words = "\n".join(wrapped(line, WIDTH) for line in said)
    old, places = gated.old_log_probs, gated.index.positions
    against = {f"log π_old − log π_{name}": old - given for name, given in gated.policies.items()}
    against = against or {"log r": gated.log_ratio}
    rows, head, height = len(against), 0.95 + 0.17 * (words.count("\n") + 1), 3.6
    margins = {"left": 0.8125, "right": 0.1875, "top": head, "bottom": 0.62}
    gaps: dict[str, Any] = {"width_ratios": [2.6, 1], "hspace": 0.75 / height, "wspace": 0.16}
    figure, grid = sheet(12.5, head + (height + 0.75) * rows + 0.1, (rows, 2), **margins, **gaps)
    for i, (name, x) in enumerate(against.items()):
        _tokens(figure.add_subplot(grid[i, 0]), who, x[places].numpy(), found, name)
    _domains(figure.add_subplot(grid[:, 1]), who, found)
    title(figure, f"{h.name}: what every token's term is multiplied by", 0.03, 0.18, words)
    return figure


def _tokens(axes: Axes, who: Colours, x: Vector, found: Weights, name: str) -> None:
    w, kept = found.product, found.kept
    colour, named = np.empty(len(x), object), who.leading()
    for numbers, _, one in named:
        colour[np.isin(who.tokens, numbers)] = one
    size = 12 if len(x) < 2000 else 4
    axes.scatter(x[kept], w[kept], s=size, c=colour[kept], alpha=0.55, linewidths=0, zorder=3)
    look: dict[str, Any] = {"linestyle": "", "marker": "o"}
    handles = [Line2D([], [], **look, color=c, label=label) for _, label, c in named if len(named) > 1]
    if not kept.all():
        axes.scatter(x[~kept], w[~kept], s=2 * size, c=colour[~kept], marker="x", linewidths=0.8, zorder=2)
        label = f"{int((~kept).sum())} of {len(x)} dropped"
        handles.append(Line2D([], [], linestyle="", marker="x", color=INK, label=label))
    axes.axhline(1, color="grey", linewidth=0.6)
    axes.axvline(0, color="grey", linewidth=0.6)
    top = max(float(w.max()), 1.0)
    words = "w" if kept.all() else "w, and 0 where a token is dropped"
    panel(axes, xlabel=f"{name} (nats)", ylabel=words, ylim=(-0.06 * top, 1.3 * top))
    axes.legend(handles=handles, **LEGEND, ncols=5, columnspacing=1.2, handlelength=1)


def _domains(axes: Axes, who: Colours, found: Weights) -> None:
    """Bars per domain and for all tokens: the kept share, the effective share of the kept tokens, their mean weight."""
    w, kept = found.product, found.kept
    names = [*who.names, "all"] if len(who.names) > 1 else ["all"]
    values = np.zeros((3, len(names)))
    for i, column in enumerate(values.T):
        tokens = who.tokens == i if i < len(names) - 1 else np.ones(len(w), bool)
        if (tokens & kept).any():
            some = w[tokens & kept]
            column[:] = kept[tokens].mean(), effective(some), some.mean()
    looks = {"kept": "#44546A", "effective": "#8FA6BF", "mean w": "#E69F00"}
    for k, ((label, colour), row) in enumerate(zip(looks.items(), values, strict=True)):
        at = np.arange(len(names)) + 0.26 * (k - 1)
        axes.barh(at, row, 0.24, label=label, color=colour)
        for y, value in zip(at, row, strict=True):
            axes.text(value + 0.01, y, f"{value:.3g}", va="center", fontsize=min(7.5, 130 / len(names)))
    axes.set_yticks(range(len(names)), names, fontsize=min(9, 180 / len(names)))
    panel(axes, grid="x", ylim=(len(names) - 0.5, -0.5), xlim=(0, 1.18 * max(1.0, *values[2])))
    axes.axvline(1, color="grey", linewidth=0.6)
    axes.legend(loc="lower center", bbox_to_anchor=(0.45, 1.0), fontsize=8.5, frameon=False, ncols=3, columnspacing=1)
