"""The picture of a benchmark: time as a multiple of the copy, over tokens and over the length of trajectories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from fibration.bench.candidates import COMPILED, EAGER, Candidate
from fibration.bench.measure import ratio
from fibration.bench.rows import Measured
from fibration.bench.shapes import Shape, count
from fibration.plotting.canvas import INK, PALETTE, save, title

STYLES: Mapping[str, Mapping[str, Any]] = {
    "fibration torch": {"color": PALETTE[0], "marker": "o"},
    "fibration c": {"color": PALETTE[2], "marker": "o"},
    "fibration triton": {"color": PALETTE[3], "marker": "o"},
    EAGER: {"color": PALETTE[1], "marker": "s", "linestyle": "--"},
    COMPILED: {"color": PALETTE[4], "marker": "^", "linestyle": "--"},
}


WORDS = {"tokens": "tokens of the batch", "length": "tokens per trajectory, mean"}


def draw(results: Sequence[Measured], machine: Mapping[str, Any], path: Path) -> None:
    """Write the picture as PNG."""
    save(figure(results, machine), path)


def figure(results: Sequence[Measured], machine: Mapping[str, Any]) -> Figure:
    """A row of panels per hierarchy: over tokens, over length, over the other shapes. 1 is the floor.

    There is no panel over tokens, or over length, if all results have the same value of it.
    """
    by_name: dict[str, list[Measured]] = {}
    for r in results:
        by_name.setdefault(r.hierarchy.name, []).append(r)
    along = [a for a in WORDS if any(len(_along(mine, _centre(mine), a)) > 1 for mine in by_name.values())]
    high, columns = 1.5 + 3.2 * len(by_name), len(along) + 1
    page = Figure(figsize=(max(8.5, 13 * columns / 3), high))
    left = 0.91 / page.get_figwidth()
    grid = page.add_gridspec(
        len(by_name), columns, left=left, right=0.985, top=1 - 0.95 / high, bottom=0.85 / high, hspace=0.42, wspace=0.16
    )
    axes: list[list[Axes]] = []
    for i, (name, mine) in enumerate(by_name.items()):
        line = [page.add_subplot(grid[i, 0])]
        line += [page.add_subplot(grid[i, j], sharey=line[0]) for j in range(1, columns)]
        centre = _centre(mine)
        fixed = {
            "tokens": f"over tokens (length {count(centre.length)}, {centre.spread}, {centre.layout})",
            "length": f"over the mean length ({count(centre.tokens)} tokens)",
        }
        for panel, axis in zip(line, along, strict=False):
            _lines(panel, _along(mine, centre, axis), axis)
            panel.set_title(fixed[axis], fontsize=9)
        _bars(line[-1], _others(mine, centre))
        alone = f"{count(centre.tokens)} tokens, length {count(centre.length)}"
        line[-1].set_title("other shapes" if along else alone, fontsize=9)
        line[0].set_ylabel(f"{name}\ntime / copy", fontsize=10)
        axes.append(line)
    for panel, axis in zip(axes[-1], along, strict=False):
        panel.set_xlabel(WORDS[axis])
    handles: dict[str, Any] = {}
    for panel in (p for line in axes for p in line):
        for handle, text in zip(*panel.get_legend_handles_labels(), strict=True):
            handles.setdefault(text, handle)
    low_left: Any = {"loc": "lower left", "bbox_to_anchor": (0.06, 0)}
    page.legend(handles.values(), handles.keys(), ncols=6 if columns == 3 else 3, frameon=False, fontsize=9, **low_left)
    on_cpu = machine["device"] == "the processor"
    where = f"{machine['processor' if on_cpu else 'device']}, {machine['torch_threads']} threads"
    what = "Value and gradient of a loss: time as a multiple of copying the bytes that must move"
    title(page, what, 0.02, 0.18, below=f"{where}, torch {machine['torch']}; lower is better")
    return page


def _centre(results: Sequence[Measured]) -> Shape:
    """The shape from which the most shapes differ in at most one field."""

    def near(a: Shape) -> int:
        return sum(_distance(a, r.shape) <= 1 for r in results)

    return max((r.shape for r in results), key=near)


def _distance(a: Shape, b: Shape) -> int:
    return sum(getattr(a, f) != getattr(b, f) for f in ("tokens", "length", "spread", "layout"))


def _along(results: Sequence[Measured], centre: Shape, axis: str) -> list[Measured]:
    others = [f for f in ("tokens", "length", "spread", "layout") if f != axis]
    found = [r for r in results if all(getattr(r.shape, f) == getattr(centre, f) for f in others)]
    return sorted(found, key=lambda r: getattr(r.shape, axis))


def _others(results: Sequence[Measured], centre: Shape) -> list[Measured]:
    fields = ("spread", "layout")
    return [r for r in results if r.shape == centre or any(getattr(r.shape, f) != getattr(centre, f) for f in fields)]


def _shown(results: Sequence[Measured]) -> list[Candidate]:
    """The candidates that compute coefficients alone, and the baselines."""
    rows = {r.candidate.name: r.candidate for m in results for r in m.rows}
    return [c for c in rows.values() if not c.ours or not c.what]


def _value(result: Measured, candidate: Candidate) -> float | None:
    row = result.row(candidate.name)
    return ratio(row.timing if row else None, result.lowest)


def _lines(axes: Axes, results: Sequence[Measured], axis: str) -> None:
    for candidate in _shown(results):
        points = [(getattr(r.shape, axis), v) for r in results if (v := _value(r, candidate)) is not None]
        if points:
            style = {"marker": "o", **STYLES.get(candidate.name, {"color": INK})}
            axes.plot(*zip(*points, strict=True), label=candidate.name, linewidth=1.6, markersize=5, **style)
    axes.set_xscale("log", base=2)
    ticks = [getattr(r.shape, axis) for r in results]
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda n, _: count(round(n))))
    _frame(axes)


def _bars(axes: Axes, results: Sequence[Measured]) -> None:
    """Bars for the shapes that lie on no line, with the centre for comparison."""
    shown = _shown(results)
    width = 0.8 / max(1, len(shown))
    for i, candidate in enumerate(shown):
        style = STYLES.get(candidate.name, {"color": INK})
        places, values = [], []
        for place, r in enumerate(results):
            value = _value(r, candidate)
            here = place - 0.4 + (i + 0.5) * width
            if value is None:
                axes.annotate("×", (here, 1.1), ha="center", color=style["color"], fontsize=11)
            else:
                places.append(here)
                values.append(value)
        if places:
            axes.bar(places, values, width * 0.9, color=style["color"], alpha=0.85, label=candidate.name)
    axes.xaxis.set_major_locator(FixedLocator(list(range(len(results)))))
    words = {"equal": "equal\nlengths", "lognormal": "lognormal\nlengths", "giant": "short,\none giant"}
    axes.set_xticklabels([f"{words[r.shape.spread]}\n{r.shape.layout}" for r in results], fontsize=8)
    _frame(axes)


def _frame(axes: Axes) -> None:
    axes.set_yscale("log")
    axes.axhline(1, color=INK, linewidth=1.2, label="copy of the same bytes")
    axes.yaxis.set_major_locator(FixedLocator([1, 2, 5, 10, 20, 50, 100, 200, 500, 1000]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g} ×"))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.grid(axis="y", color="#E5E7EB", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
