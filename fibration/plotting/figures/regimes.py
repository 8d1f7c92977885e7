"""Figure `regimes` (fig:fiberpo_regime_map): the regimes of a trajectory of 3 tokens, over all of its ratios.

A point of the triangle is a triple of positive ratios with mean 1, drawn at the barycentric coordinates `r / 3`. At a
corner one token has the whole ratio; the centre is the old policy. Every other stratum has one element.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from numpy.typing import NDArray

from fibration.compiler.diagnostics import REGIMES as NAMES
from fibration.errors import an
from fibration.language.atoms import Stratum
from fibration.plotting.canvas import INK, LEGEND, Vector, plate, sheet, title
from fibration.plotting.figures.gates import number
from fibration.plotting.figures.joint import CHANNEL_COLOUR, colour, joint, meaning
from fibration.plotting.figures.sample import PASSED, Sample, apart, dealing, dealt, sample
from fibration.plotting.gate_curve import reads_pull, removes, sections
from fibration.printing.text import CHANNELS, unit
from fibration.runtime.operator import Operator

TOKENS = 3
CENTRE = (0.5, np.sqrt(3) / 6)
NEAR = np.array([[1.0, -0.4, -0.6], [-0.6, 1.0, -0.4], [-0.4, -0.6, 1.0], [-1.0, 0.4, 0.6]])  # directions from there
CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(3) / 2]])
ZOOM = 0.18  # half the width of the caption's local panel
FEWEST = {"local": 0.001, "global": 0.02}  # share of a window's points that must pass, else the window is narrowed
NARROWER = 3.0
PIXELS, PROBE, ALONE = 420, 72, 60  # of a window's side; ALONE if every world needs its own call
ORDER = ("G-I", "passed", "G-II,r", "G-II", "G-III,r", "G-III")  # of joint regimes in a legend; others come after
LOCAL = ("#CFEBDD", "#9C89B8")  # from no token clipped to all tokens clipped
BELOW: Mapping[str, Any] = {**LEGEND, "bbox_to_anchor": (0.0, -0.03), "ncols": 2, "columnspacing": 1.2}


@dataclass(frozen=True)
class Window:
    """A square of the triangle's plane, and the worlds at its points inside the triangle."""

    half: float  # half its side; 0 is the whole triangle
    inside: NDArray[np.bool_]  # [pixels, pixels]
    worlds: Sample
    by_ratio: bool = False  # whether a token counts as changed by its ratio instead of its residual

    def field(self, values: Vector) -> Vector:
        """`[points]` as an image, NaN outside the triangle."""
        image = np.full(self.inside.shape, np.nan)
        image[self.inside] = values
        return image

    def clipped(self, leaf: Stratum | None = None) -> NDArray[np.int64]:
        """The number of tokens that a leaf's gate changed, each in its own sign channel: `[points]`.

        Default: the first leaf.
        """
        found = self.worlds.token_regimes(leaf or self.worlds.op.hierarchy.leaves[0], self.by_ratio)
        return (found != PASSED).sum(axis=1)  # type: ignore[no-any-return]

    def joint(self, stratum: str) -> list[str]:
        """The joint regime of a coarser stratum's element, per point."""
        channels = self.worlds.op.hierarchy.decomposition.channels
        codes = np.stack([self.worlds.regimes[stratum, c][:, 0] for c in channels], axis=1)
        names = {row: joint([NAMES[i] for i in row]) for row in {tuple(r) for r in codes.tolist()}}
        return [names[tuple(r)] for r in codes.tolist()]


def figure(op: Operator, parameters: Mapping[str, Any], note: str) -> Figure:
    """The picture of one hierarchy. `note` stands under the title."""
    h = op.hierarchy
    coarser = [s for s in h.order if s not in h.leaves]
    removed = [s for s in h.order if removes(op, s.name)]
    still = [s for s in coarser if s not in removed and not _moves(op, s.name, parameters)]
    moving = [s for s in coarser if s not in (*removed, *still)]
    leaves = [s for s in h.leaves if s not in removed and tokens_of(op, s)]
    panels = [(s, a) for s in (*leaves, *moving) for a in _signs(op, s.name)]
    width = 6.4
    columns = min(len(panels), 2) or 1
    rows = max(1, -(-len(panels) // columns))
    wide, high = 0.5 + width * columns, 1.6 + 7.2 * rows
    margins = {"left": 0.3, "right": 0.3, "top": 1.25, "bottom": 1.5, "wspace": 0.06, "hspace": 0.38}
    page, grid = sheet(wide, high, (rows, columns), **margins)
    for i, (stratum, sign) in enumerate(panels):
        axes = page.add_subplot(grid[i // columns, i % columns])
        seen = look(op, stratum, sign or 1.0, parameters)
        _panel(axes, seen, stratum, chr(ord("a") + i), {0.0: "", 1.0: ", A > 0", -1.0: ", A < 0"}[sign])
        local = stratum in h.leaves
        for level in [s for s in moving if s in h.coarser(stratum)] if local else [stratum]:
            _thresholds(axes, seen, level.name, local)
    remarks = [";  ".join(filter(None, (dealing(h), note)))]
    if still:
        above = "what it lies over"
        remarks.append(f"not drawn: {', '.join(map(str, still))}, whose one element adds nothing to {above}")
    remarks += [f"not drawn: {s}, whose gate removes the level" for s in removed]
    for leaf in (s for s in h.leaves if s not in (*leaves, *removed)):
        remarks.append(f"not drawn: {leaf}, of which {TOKENS} tokens dealt out to {len(h.leaves)} leaves are none")
    over = ", over all ratios with mean 1" if columns > 1 else ""
    heading = f"{h.name}: regimes of {an(h.rows)} of {TOKENS} tokens{over}"
    title(page, heading, 0.35 / wide, 0.18, "\n".join(remarks))
    return page


def tokens_of(op: Operator, leaf: Stratum) -> list[int]:
    """The trajectory's tokens that are elements of a leaf."""
    leaves = op.hierarchy.leaves
    return np.flatnonzero(dealt(TOKENS, 1, len(leaves)) == leaves.index(leaf)).tolist()  # type: ignore[no-any-return]


def look(op: Operator, stratum: Stratum, advantage: float, parameters: Mapping[str, Any]) -> Window:
    """The window that shows a stratum's regimes best: narrowed until enough of its points pass."""
    local = stratum in op.hierarchy.leaves
    start = half = ZOOM if local else 0.0
    by_ratio = stratum.name in sample(op, np.log1p(1e-6 * NEAR), advantage, parameters).by_ratio
    pixels = (PIXELS, PROBE) if apart(op) else (ALONE, ALONE // 2)
    for _ in range(8):
        probe = replace(window(op, half, pixels[1], advantage, parameters), by_ratio=by_ratio)
        if local:
            passes = probe.clipped(stratum) == 0
        else:
            passes = np.array([n in ("G-I", "passed") for n in probe.joint(stratum.name)])
        if passes.mean() >= FEWEST["local" if local else "global"]:
            break
        half = (half or 0.54) / NARROWER
    else:
        half = start  # no point passes in any window, so none shows more than another
    return replace(window(op, half, pixels[0], advantage, parameters), by_ratio=by_ratio)


def window(op: Operator, half: float, pixels: int, advantage: float, parameters: Mapping[str, Any]) -> Window:
    """All triples of ratios in a window, as worlds of one trajectory."""
    left, right, low, high = extent(half)
    x = left + (np.arange(pixels) + 0.5) * (right - left) / pixels
    y = low + (np.arange(pixels) + 0.5) * (high - low) / pixels
    ratios = to_ratios(*np.meshgrid(x, y))
    inside = np.asarray((ratios > 1e-6).all(axis=-1))
    return Window(half, inside, sample(op, np.log(ratios[inside]), advantage, parameters))


def extent(half: float) -> tuple[float, float, float, float]:
    """Left, right, low and high of a window."""
    if half:
        return CENTRE[0] - half, CENTRE[0] + half, CENTRE[1] - half, CENTRE[1] + half
    return -0.05, 1.05, -0.12, 0.98


def to_ratios(x: Any, y: Any) -> Vector:
    """The three ratios at a point of the plane: 3 times its barycentric coordinates, `[..., 3]`."""
    third = np.asarray(y) / CORNERS[2, 1]
    second = np.asarray(x) - third / 2
    return TOKENS * np.stack([1 - second - third, second, third], axis=-1)


def _moves(op: Operator, stratum: str, parameters: Mapping[str, Any]) -> bool:
    """Whether a coarser stratum's residual differs from 0 at one of 64 random points."""
    ratios = to_ratios(*np.random.default_rng(0).dirichlet([1.0] * 3, 64).dot(CORNERS).T)
    found = sample(op, np.log(ratios), 1.0, parameters).residual
    return any(float(np.abs(found[stratum, c]).max()) > 1e-12 for c in op.hierarchy.decomposition.channels)


def _signs(op: Operator, stratum: str) -> tuple[float, ...]:
    return (1.0, -1.0) if reads_pull(op, stratum) else (0.0,)


def _panel(axes: Axes, seen: Window, stratum: Stratum, letter: str, suffix: str) -> None:
    op = seen.worlds.op
    local = stratum in op.hierarchy.leaves
    if local:
        code, many = seen.clipped(stratum).astype(float), len(tokens_of(op, stratum))
        shades = [_mix(n / many) for n in range(many + 1)]
        what = "has its ratio changed" if seen.by_ratio else "is clipped"
        legend = [f"L-I: no {stratum} {what}", *(f"L-II: {n} of {many}" for n in range(1, many))]
        legend.append(f"L-III: all {many}" if many > 1 else f"L-III: it {what}")
    else:
        found = seen.joint(stratum.name)
        names = sorted(set(found), key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name))
        shades = [to_rgb(colour(n)) for n in names]
        code = np.array([names.index(n) for n in found], float)
        legend = [meaning(n) for n in names]
    image = seen.field(code)
    place: dict[str, Any] = {"origin": "lower", "extent": extent(seen.half)}
    shown: dict[str, Any] = {"cmap": ListedColormap(shades), "interpolation": "nearest", "alpha": 1 if local else 0.55}
    axes.imshow(image, vmin=-0.5, vmax=len(shades) - 0.5, **shown, **place)
    if local:
        for level, line in {0.5: "#007C74", many - 0.5: "#5B2A86"}.items():
            if np.nanmin(image) < level < np.nanmax(image):
                axes.contour(image, [level], colors=line, linewidths=1.4, **place)
    _frame(axes, seen)
    present = [i for i in range(len(shades)) if (code == i).any()]
    look: dict[str, Any] = {"ec": INK, "lw": 0.4, "alpha": 1 if local else 0.55}
    axes.legend(handles=[Patch(fc=shades[i], label=legend[i], **look) for i in present], **BELOW)
    kind = "local" if local else "global"
    where = f"within ±{seen.half:.2g} of the centre" if seen.half else "the whole triangle"
    axes.set_title(f"({letter}) {kind}: gate on {stratum}{suffix}; {where}", fontsize=11, loc="left", pad=8)


def _mix(share: float) -> tuple[float, float, float]:
    first, last = (np.array(to_rgb(c)) for c in LOCAL)
    r, g, b = (first * (1 - share) + last * share).tolist()
    return r, g, b


def _frame(axes: Axes, seen: Window) -> None:
    """The triangle, the names of its corners, and the old policy at its centre."""
    edges = np.vstack([CORNERS, CORNERS[:1]])
    axes.plot(*edges.T, color=INK, linewidth=1.2)
    axes.plot(*CENTRE, marker="+", color="black", markersize=9)
    axes.annotate("r = 1", CENTRE, (6, 5), textcoords="offset points", fontsize=9, bbox=plate(0.5, 0.6))
    left, right, low, high = extent(seen.half)
    axes.set(xlim=(left, right), ylim=(low, high), aspect="equal", xticks=[], yticks=[])
    axes.spines[:].set_visible(bool(seen.half))
    if not seen.half:
        leaves = seen.worlds.op.hierarchy.leaves
        names = ["token" if len(leaves) == 1 else leaves[k].name for k in dealt(TOKENS, 1, len(leaves))]
        for i, (corner, ha, dy) in enumerate(zip(CORNERS, ("left", "right", "center"), (-12, -12, 5), strict=True)):
            axes.annotate(f"{names[i]} {i}: r = 3", corner, (0, dy), textcoords="offset points", ha=ha, fontsize=9)


def _thresholds(axes: Axes, seen: Window, stratum: str, faint: bool) -> None:
    """Draw the lines where the residual of a coarser stratum reaches its gate's breakpoints."""
    op, given = seen.worlds.op, seen.worlds.advantages
    (base,) = sample(op, np.zeros((1, TOKENS)), given, seen.worlds.parameters).batches
    handles = []
    for channel in op.hierarchy.decomposition.channels:
        image = seen.field(seen.worlds.residual[stratum, channel][:, 0])
        for section in sections(base, stratum, channel, advantages=given[:1].tolist()):
            for b in section.breaks:
                if not np.nanmin(image) < b < np.nanmax(image):
                    continue
                first = b in section.ends
                if faint and not first:
                    continue
                color = CHANNEL_COLOUR[channel]
                style: Any = "dashed" if faint else "solid" if first else "dotted"
                look: dict[str, Any] = {"origin": "lower", "extent": extent(seen.half), "linewidths": 1.3}
                axes.contour(image, [b], colors=color, linestyles=style, **look)
                name = f"{stratum}{f' {CHANNELS[channel]}' if channel else ''} = {number(b)} {unit(op.hierarchy)}"
                handles.append(Line2D([], [], color=color, linestyle=style, label=name))
    legend = axes.get_legend()
    if handles and legend is not None:
        axes.legend(handles=[*legend.legend_handles, *handles], **BELOW)
