"""Pictures of a hierarchy and of what it did to a batch. Figures are made without pyplot, so nothing global changes."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Patch
from numpy.typing import NDArray

from fibration.formats import write_file
from fibration.interpret import Sizes, interpret
from fibration.ir import Const, Input, Map, Program
from fibration.lower import CHANNEL_WORD
from fibration.metrics import levels
from fibration.show import CHANNELS, REGIMES, graph, layers, unit
from fibration.spec import Hierarchy

if TYPE_CHECKING:
    from fibration.run import Gated

Vector = NDArray[np.float64]
# Okabe and Ito's colours again, in an order that keeps neighbours apart; groups beyond the last start over.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#6B6B6B", "#B8A900")
DPI = 150


def draw(gated: Gated, out: Path, step: Callable[[str], None] = lambda name: None) -> list[tuple[Path, str]]:
    """Write all pictures of a batch to `out`; their paths and titles."""
    written = []
    for name, make, title in (
        ("hierarchy", hierarchy_of_batch, "the hierarchy, and the batch's drift at every level of it"),
        ("regimes", regimes, "every element on its gate"),
        ("ratios", ratios, "ratios before and after gating"),
    ):
        step(name)
        path = out / f"{name}.png"
        save(make(gated), path)
        written.append((path, title))
    return written


def save(figure: Figure, path: Path) -> None:
    """Write a figure as PNG, whole or not at all."""
    FigureCanvasAgg(figure)
    page = io.BytesIO()
    figure.savefig(page, format="png", dpi=DPI, metadata={"Software": None})
    write_file(path, page.getvalue())


# ---------------------------------------------------------------- who is whose


@dataclass(frozen=True)
class Colours:
    """One colour per domain of the rollouts, for the elements of every stratum."""

    names: tuple[str, ...]
    of: dict[str, NDArray[np.int64]]  # per stratum, the domain of each element

    def colour(self, i: int) -> str:
        return PALETTE[i % len(PALETTE)]


def colours(gated: Gated) -> Colours:
    r, index = gated.rollouts, gated.index
    leaf = gated.op.hierarchy.leaf.name
    per_row = r.domain_of_group[r.prompt_group].astype(np.int64)
    of = {leaf: per_row[index.row_numbers][index.row_of_token.numpy()]}
    for stratum in gated.op.hierarchy.chain[:-1]:
        of[stratum.name] = np.empty(index.size[stratum.name], np.int64)
        of[stratum.name][index.parent(leaf, stratum.name).numpy()] = of[leaf]
    return Colours(r.domains, of)


# ---------------------------------------------------------------- the hierarchy


def hierarchy_of_batch(gated: Gated) -> Figure:
    return hierarchy(gated.op.hierarchy, gated)


def hierarchy(h: Hierarchy, gated: Gated | None = None) -> Figure:
    """Strata with their gates as boxes, fibrations with their kernels as arrows; beside a chain, a batch's drift."""
    rows = layers(graph(h))
    figure = Figure(figsize=(13 if gated else 6.5, 1.2 + 1.75 * len(rows)))
    grid = figure.add_gridspec(1, 2 if gated else 1, width_ratios=[1, 1.15] if gated else [1], left=0.015, right=0.92 if gated else 0.985, top=1 - 0.75 / figure.get_figheight(), bottom=0.09, wspace=0.05)
    axes = figure.add_subplot(grid[0, 0])
    axes.set(xlim=(0, 1), ylim=(len(rows), 0))
    axes.axis("off")
    place = {s: ((i + 0.5) / len(row), depth + 0.5) for depth, row in enumerate(rows) for i, s in enumerate(row)}
    for depth, row in enumerate(rows):
        width = 0.94 / len(row)
        for s in row:
            x, _ = place[s]
            axes.add_patch(FancyBboxPatch((x - width / 2 + 0.02, depth + 0.16), width - 0.04, 0.62, boxstyle="round,pad=0.015,rounding_size=0.03", facecolor="#F2F5F8", edgecolor="#44546A", linewidth=1.2, mutation_aspect=2.2))
            count = f"   {gated.index.size[s.name]:,} in this batch".replace(",", "\u202f") if gated else ""
            axes.text(x - width / 2 + 0.04, depth + 0.30, s.name, fontsize=13, fontweight="bold", va="center")
            axes.text(x + width / 2 - 0.04, depth + 0.30, count, fontsize=10, va="center", ha="right", color="#44546A")
            gate = textwrap.fill(str(h.gates[s]), max(18, int(58 * width / 0.94)), break_long_words=False)
            axes.text(x - width / 2 + 0.04, depth + 0.58, gate, fontsize=8.5, family="monospace", va="center")
    for f in h.fibrations:
        (x, y), (to_x, to_y) = place[f.source], place[f.target]
        axes.add_patch(FancyArrowPatch((x, y - 0.36), (to_x, to_y + 0.29), arrowstyle="-|>", mutation_scale=14, color="#44546A", linewidth=1.2, shrinkA=1, shrinkB=1))
        axes.text((x + to_x) / 2 + 0.02, (y - 0.36 + to_y + 0.29) / 2, f"kernel {f.kernel}", fontsize=8.5, family="monospace", va="center", color="#44546A")
    figure.suptitle(f"{h.name}: gates on strata, kernels on fibrations", x=0.03, ha="left", fontsize=14, y=1 - 0.22 / figure.get_figheight())
    if gated is not None:
        _icicle(figure, figure.add_subplot(grid[0, 1]), gated)
    return figure


def _icicle(figure: Figure, axes: Axes, gated: Gated) -> None:
    """The batch to scale, a band per stratum, each element as wide as its tokens, coloured by its mean log ratio."""
    h, index = gated.op.hierarchy, gated.index
    chain = [s.name for s in h.chain]
    leaf = chain[-1]
    x = gated.log_ratio.numpy()[index.positions.numpy()]
    who = colours(gated)
    parents = [index.parent(leaf, s).numpy() for s in chain[:-1]]
    order = np.lexsort((np.arange(len(x)), *reversed(parents), who.of[leaf]))
    means = [(np.bincount(p, x) / np.bincount(p))[p] for p in parents] + [x]
    limit = max(float(np.quantile(np.abs(x), 0.9)), 1e-9)
    norm = Normalize(-limit, limit)
    for depth, values in enumerate(means):
        band = [0, len(x), depth + 0.81, depth + 0.13]
        axes.imshow(values[order][None, :], aspect="auto", cmap="RdBu_r", norm=norm, extent=band, interpolation="nearest")
        edges = np.flatnonzero(np.diff(parents[depth][order])) + 1 if depth < len(parents) else np.array([], int)
        if len(edges) <= 400:
            axes.vlines(edges, depth + 0.13, depth + 0.81, color="white", linewidth=0.9 if len(edges) < 60 else 0.25)
    bounds = np.searchsorted(who.of[leaf][order], np.arange(len(who.names) + 1))
    for i, name in enumerate(who.names):
        if bounds[i] < bounds[i + 1]:
            axes.text((bounds[i] + bounds[i + 1]) / 2, 0.06, name, ha="center", va="center", fontsize=9.5, color=who.colour(i), fontweight="bold")
    axes.set(xlim=(0, len(x)), ylim=(len(chain), 0), yticks=[], xlabel="tokens, ordered by the element that they lie over")
    axes.spines[:].set_visible(False)
    axes.set_title("the batch: mean log ratio of every element", fontsize=11, loc="left", pad=8)
    bar = figure.colorbar(ScalarMappable(norm, "RdBu_r"), cax=axes.inset_axes((1.02, 0.1, 0.02, 0.8)), extend="both")
    bar.set_label("mean log ratio (nats)", fontsize=10)


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
        return (float(self.residual[low[-1] + 1]) if len(low) else -np.inf, float(self.residual[high[0] - 1]) if len(high) else np.inf)

    def regime(self) -> list[str]:
        """The regime between each grid point and the next."""
        rho, g = self.residual, self.gated
        slope = np.diff(g)
        same = np.abs(g - rho) <= 1e-12
        flat = np.abs(slope) <= 1e-12
        found = [
            "passed" if same[i] and same[i + 1]
            else "zeroed" if flat[i] and g[i] == 0
            else "limited" if flat[i]
            else "rolled_back" if slope[i] < 0
            else "attenuated"
            for i in range(len(slope))
        ]  # fmt: skip
        # The cell in which a gate bends is neither what lies before nor what lies after it.
        for k, start, stop in _runs(found):
            if k == "attenuated" and stop - start == 1:
                found[start] = found[start - 1] if start else found[min(stop, len(found) - 1)]
        return found


def curves(gated: Gated, stratum: str, channel: str, grid: Vector) -> list[Curve]:
    """The gate of a level on a grid of residuals: one curve, or one per sign where it reads the advantage."""
    program = gated.op.programs["levels"]
    word = stratum + CHANNEL_WORD[channel]
    residual, node = program.outputs[f"residual_{word}"], program.outputs[f"gated_{word}"]
    if node is residual:
        return [Curve("", grid, grid)]
    if isinstance(node, Const):
        return [Curve("", grid, np.full_like(grid, node.value))]
    if not isinstance(node, Map) or residual not in node.inputs:
        return []
    read = Program(program.name, program.leaf, {f"operand_{i}": o for i, o in enumerate(node.inputs)}, {})
    values = list(interpret(read, gated.inputs("levels"), gated.index.sizes(read.edges)).values())
    advantage = next((v for o, v in zip(node.inputs, values, strict=True) if isinstance(o, Input) and o.kind == "advantage"), None)
    cases = [("", np.ones(len(values[0]), bool))]
    if advantage is not None:
        cases = [("A > 0", advantage > 0), ("A < 0", advantage < 0)]
    places = tuple(Input(f"operand_{i}", "grid", "operand") for i in range(len(values)))
    one = Program("curve", "grid", {"gated": Map(node.body, places)}, {})
    found = []
    for label, chosen in cases:
        if chosen.any():
            inputs = {p.name: grid if o is residual else np.median(v[chosen]) for p, o, v in zip(places, node.inputs, values, strict=True)}
            found.append(Curve(label, grid, interpret(one, inputs, Sizes({}, {"grid": len(grid)}))["gated"]))
    return found


def regimes(gated: Gated) -> Figure:
    """Per level, the gate with every element of the batch on it, and below it the residuals domain by domain."""
    h, who = gated.op.hierarchy, colours(gated)
    strata, channels = [s.name for s in h.chain], h.decomposition.channels
    n = len(who.names)
    figure = Figure(figsize=(6.2 * len(channels) + (0.6 if len(channels) > 1 else 3.2), 3.5 * len(strata) + 1.6))
    height = figure.get_figheight()
    outer = figure.add_gridspec(len(strata), len(channels), left=0.115, right=0.985, top=1 - 1.6 / height, bottom=0.55 / height, hspace=0.34, wspace=0.27)
    seen: set[str] = set()
    for i, stratum in enumerate(strata):
        for j, channel in enumerate(channels):
            inner = outer[i, j].subgridspec(2, 1, height_ratios=[2, 0.3 * n + 0.3], hspace=0.05)
            upper = figure.add_subplot(inner[0])
            lower = figure.add_subplot(inner[1], sharex=upper)
            seen |= _level(gated, who, stratum, channel, upper, lower)
            upper.set_title(f"{stratum}{f', channel {CHANNELS[channel]}' if channel else ''}", fontsize=12, loc="left", fontweight="bold")
            lower.set_xlabel(f"residual drift beyond the level above ({unit(h)})" if i else f"drift ({unit(h)})", fontsize=10)
    handles: list[Any] = [Line2D([], [], color="black", label="gate (median element)"), Line2D([], [], color="black", linestyle=":", label="end of the pass-through interval")]
    # Columns are filled from the top, so that the regimes stand beside the lines.
    handles += [Patch(facecolor=r.colour, alpha=0.25, label=f"{r.title}: {r.meaning}") for k, r in REGIMES.items() if k in seen]
    figure.legend(handles=handles, loc="upper left", bbox_to_anchor=(0.03, 1 - 0.45 / height), ncols=2, fontsize=9.5, frameon=False)
    figure.suptitle(f"{h.name}: every element of the batch on its gate", x=0.035, ha="left", fontsize=14, y=1 - 0.18 / height)
    return figure


def _level(gated: Gated, who: Colours, stratum: str, channel: str, upper: Axes, lower: Axes) -> set[str]:
    """Draw one level; the regimes that its background shows."""
    residual = gated.levels.residual[stratum, channel].numpy()
    after = gated.levels.gated[stratum, channel].numpy()
    widest = max(float(np.abs(residual).max()), 1e-9)
    magnitudes = widest * np.geomspace(1e-4, 1e2, 2001)
    bound = _budget(curves(gated, stratum, channel, np.concatenate([-magnitudes[::-1], [0.0], magnitudes])), widest)
    # All elements and the budget if both can be read on one axis; else the smaller of the two decides.
    limit = min(max(1.08 * widest, 1.3 * bound), 5 * bound) if bound < 12 * widest else 1.08 * widest
    lines = curves(gated, stratum, channel, np.linspace(-limit, limit, 4001))
    shown = lines[0].regime() if len(lines) == 1 else []
    for k, start, stop in _runs(shown):
        for axes in (upper, lower):
            axes.axvspan(lines[0].residual[start], lines[0].residual[stop], color=REGIMES[k].colour, alpha=0.13, linewidth=0)
    for line, style in zip(lines, ("-", "--"), strict=False):
        upper.plot(line.residual, line.gated, style, color="black", linewidth=1.3, zorder=2, label=line.label)
        for end in line.passes:
            if np.isfinite(end) and 0 < abs(end) < limit:
                upper.axvline(end, color="black", linestyle=":", linewidth=1.1)
                lower.axvline(end, color="black", linestyle=":", linewidth=1.1)
    if len(lines) > 1:
        upper.legend(fontsize=9, loc="upper left")
    shuffle = np.random.default_rng(0)
    size, alpha = (26, 0.9) if len(residual) < 100 else (9, 0.6) if len(residual) < 1500 else (3, 0.3)
    for i in range(len(who.names)):
        mine = who.of[stratum] == i
        upper.scatter(residual[mine], after[mine], s=size, color=who.colour(i), alpha=alpha, linewidths=0, zorder=3, rasterized=True)
        y = i + shuffle.uniform(-0.3, 0.3, int(mine.sum())) * (mine.sum() > 1)
        lower.scatter(residual[mine], y, s=size, color=who.colour(i), alpha=alpha, linewidths=0, rasterized=True)
    outside = int((np.abs(residual) > limit).sum())
    note = f"{outside} of {len(residual)} elements lie further out" if outside else f"budget: ±{bound:.3g}" if bound > limit else ""
    upper.text(0.985, 0.04, note, transform=upper.transAxes, ha="right", fontsize=9)
    upper.set(xlim=(-limit if residual.min() < 0 else -0.06 * limit, limit))
    upper.set_ylabel("gated drift", fontsize=10)
    upper.tick_params(labelbottom=False)
    lower.set(ylim=(len(who.names) - 0.4, -0.6), yticks=range(len(who.names)))
    lower.set_yticklabels(who.names, fontsize=9)
    for axes in (upper, lower):
        axes.grid(alpha=0.2)
    return set(shown)


def _budget(lines: Sequence[Curve], widest: float) -> float:
    ends = [abs(e) for line in lines for e in line.passes if np.isfinite(e) and e]
    return max(ends) if ends else widest


def _runs(names: Sequence[str]) -> list[tuple[str, int, int]]:
    """Consecutive equal names as (name, start, stop)."""
    cuts = [0, *(i for i in range(1, len(names)) if names[i] != names[i - 1]), len(names)]
    return [(names[a], a, b) for a, b in zip(cuts, cuts[1:], strict=False) if a < b]


# ---------------------------------------------------------------- ratios


def ratios(gated: Gated) -> Figure:
    """log r against log 𝒢 for every token, with marginal histograms per domain."""
    h, who = gated.op.hierarchy, colours(gated)
    keep = gated.index.positions.numpy()
    x, y = gated.log_ratio.numpy()[keep], np.log(gated.ratio.numpy()[keep])
    figure = Figure(figsize=(9.2, 8.2))
    grid = figure.add_gridspec(2, 2, width_ratios=[3.4, 1.25], height_ratios=[1.25, 3.4], left=0.09, right=0.97, top=0.92, bottom=0.08, hspace=0.05, wspace=0.05)
    main = figure.add_subplot(grid[1, 0])
    top = figure.add_subplot(grid[0, 0], sharex=main)
    right = figure.add_subplot(grid[1, 1], sharey=main)
    limit = 1.05 * max(float(np.quantile(np.abs(x), 0.995)), 1e-6)
    reach = 1.1 * max(float(np.abs(y).max()), 1e-6)
    bins_x, bins_y = np.linspace(-limit, limit, 141), np.linspace(-reach, reach, 141)
    *_, mesh = main.hist2d(x, y, bins=[bins_x, bins_y], norm=LogNorm(), cmap="viridis", rasterized=True)
    main.plot([-limit, limit], [-limit, limit], color="#D55E00", linewidth=1.2, label=r"$\mathcal{G}(r) = r$")
    main.axhline(0, color="grey", linewidth=0.6)
    main.axvline(0, color="grey", linewidth=0.6)
    main.set(xlim=(-limit, limit), ylim=(-reach, reach), xlabel="log r, before gating (nats)", ylabel=r"log $\mathcal{G}(r)$, after gating (nats)")
    main.legend(loc="upper left", fontsize=10)
    for i, name in enumerate(who.names):
        mine = who.of[h.leaf.name] == i
        if mine.any():
            top.hist(x[mine], bins=bins_x[::4], histtype="step", color=who.colour(i), linewidth=1.4, label=name)
            right.hist(y[mine], bins=bins_y[::4], histtype="step", color=who.colour(i), linewidth=1.4, orientation="horizontal")
    for axes, which in ((top, "y"), (right, "x")):
        axes.set(**{f"{which}scale": "log", f"{which}label": "tokens"})
        axes.grid(alpha=0.2)
    top.tick_params(labelbottom=False)
    right.tick_params(labelleft=False)
    corner = figure.add_subplot(grid[0, 1])
    corner.axis("off")
    corner.legend(handles=[Line2D([], [], color=who.colour(i), label=name) for i, name in enumerate(who.names)], loc="upper left", fontsize=10, frameon=False)
    bar = figure.colorbar(mesh, cax=corner.inset_axes((0.08, 0.2, 0.85, 0.08)), orientation="horizontal")
    bar.set_label("tokens per cell", fontsize=9.5)
    outside = int((np.abs(x) > limit).sum())
    if outside:
        main.text(0.985, 0.02, f"{outside} of {len(x)} tokens lie further out", transform=main.transAxes, ha="right", fontsize=9.5)
    figure.suptitle(f"{h.name}: ratios of {len(x)} tokens, before and after gating", x=0.09, ha="left", fontsize=14)
    return figure
