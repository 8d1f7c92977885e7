"""The picture of token weights and dropped tokens, against the log-probs of the sampling policies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from fibration.plotting.canvas import INK, title
from fibration.plotting.drifts import Colours, colours
from fibration.plotting.hierarchy import wrapped
from fibration.runtime.weights import effective

if TYPE_CHECKING:
    from fibration.rollouts.replay import Gated

Vector = NDArray[np.float64]
WIDTH = 150  # characters of a formula in a line


def weights(gated: Gated) -> Figure:
    """Tokens with their weights, over the distance of the policies; beside them, the kept share of every domain."""
    h, who, found = gated.op.hierarchy, colours(gated), gated.weights
    said = [f"weigh: {f}" for f in h.objective.weighed] + [f"keep: {k.condition}" for k in h.objective.kept]
    words = "\n".join(wrapped(line, WIDTH) for line in said)
    against = _against(gated)
    head = 0.95 + 0.17 * (words.count("\n") + 1)
    panel = 3.6
    high = head + (panel + 0.75) * len(against) + 0.1
    figure = Figure(figsize=(12.5, high))
    margins = {"left": 0.065, "right": 0.985, "top": 1 - head / high, "bottom": 0.62 / high}
    grid = figure.add_gridspec(len(against), 2, width_ratios=[2.6, 1], hspace=0.75 / panel, wspace=0.16, **margins)
    for i, (name, x) in enumerate(against.items()):
        _tokens(figure.add_subplot(grid[i, 0]), who, x, found.product, found.kept, name)
    _domains(figure.add_subplot(grid[:, 1]), who, found.product, found.kept)
    title(figure, f"{h.name}: what every token's term is multiplied by", 0.03, 0.18, words)
    return figure


def _against(gated: Gated) -> dict[str, Vector]:
    """The x-axes, in nats: the old log-prob less that of each further policy, or the log ratio without one."""
    places = gated.index.positions.numpy()
    old = gated.rollouts.old_log_probs.astype(np.float64)
    found = {f"log π_old − log π_{name}": (old - given.numpy())[places] for name, given in gated.policies.items()}
    return found or {"log r": gated.log_ratio.numpy()[places]}


def _tokens(axes: Axes, who: Colours, x: Vector, w: Vector, kept: NDArray[np.bool_], name: str) -> None:
    colour, named = np.empty(len(x), object), who.leading()
    for numbers, _, one in named:
        colour[np.isin(who.tokens, numbers)] = one
    size = 12 if len(x) < 2000 else 4
    axes.scatter(x[kept], w[kept], s=size, c=colour[kept], alpha=0.55, linewidths=0, zorder=3)
    dropped = Line2D([], [], linestyle="", marker="x", color=INK, label=f"{int((~kept).sum())} of {len(x)} dropped")
    look: dict[str, Any] = {"linestyle": "", "marker": "o"}
    handles = [Line2D([], [], **look, color=c, label=label) for _, label, c in named if len(named) > 1]
    if not kept.all():
        axes.scatter(x[~kept], w[~kept], s=2 * size, c=colour[~kept], marker="x", linewidths=0.8, zorder=2)
        handles.append(dropped)
    axes.axhline(1, color="grey", linewidth=0.6)
    axes.axvline(0, color="grey", linewidth=0.6)
    axes.set(xlabel=f"{name} (nats)", ylabel="w" if kept.all() else "w, and 0 where a token is dropped")
    top = max(float(w.max()), 1.0)
    axes.set_ylim(-0.06 * top, 1.3 * top)
    axes.grid(alpha=0.2)
    axes.legend(
        handles=handles, loc="upper left", fontsize=9, ncols=5, frameon=False, columnspacing=1.2, handlelength=1
    )


def _domains(axes: Axes, who: Colours, w: Vector, kept: NDArray[np.bool_]) -> None:
    """Bars per domain and for all tokens: the kept share, the effective share of the kept tokens, their mean weight."""
    each = range(len(who.names)) if len(who.names) > 1 else ()
    names = [*(who.names[i] for i in each), "all"]
    masks = [who.tokens == i for i in each] + [np.ones(len(w), bool)]
    place = np.arange(len(names))
    bars = {
        "kept": [float(kept[m].mean()) if m.any() else 0.0 for m in masks],
        "effective": [effective(w[m & kept]) if (m & kept).any() else 0.0 for m in masks],
        "mean w": [float(w[m & kept].mean()) if (m & kept).any() else 0.0 for m in masks],
    }
    for k, (label, values) in enumerate(bars.items()):
        at = place + 0.26 * (k - 1)
        axes.barh(at, values, 0.24, label=label, color=("#44546A", "#8FA6BF", "#E69F00")[k])
        for y, value in zip(at, values, strict=True):
            axes.text(value + 0.01, y, f"{value:.3g}", va="center", fontsize=min(7.5, 130 / len(names)))
    axes.set_yticks(place, names, fontsize=min(9, 180 / len(names)))
    axes.set(ylim=(len(names) - 0.5, -0.5), xlim=(0, 1.18 * max(1.0, *bars["mean w"])))
    axes.axvline(1, color="grey", linewidth=0.6)
    axes.legend(loc="lower center", bbox_to_anchor=(0.45, 1.0), fontsize=8.5, frameon=False, ncols=3, columnspacing=1)
    axes.grid(axis="x", alpha=0.2)
