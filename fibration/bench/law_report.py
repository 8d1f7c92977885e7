"""What `fibration bench --laws` prints and draws: seconds against size, with the budget as the line that ends it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fibration.bench.laws import Measured
from fibration.bench.measure import Timing
from fibration.plotting.canvas import INK, PALETTE, plate, save, title

LEAST = 0.01  # seconds at the foot of a panel


def emit_table(console: Console, results: Sequence[Measured]) -> None:
    """A line per case: medians in seconds."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("", "laws s", "facts s", "total s", ""):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    for r in results:
        name = f"{r.case.family}, {r.case.size}" if r.case.size else r.case.hierarchy.name
        numbers = [f"{t.median:.2f}" for t in (Timing(tuple(r.verify)), Timing(tuple(r.facts)), r.total)]
        said = f"out of time: {r.out_of_time}" if r.out_of_time else r.outcome
        table.add_row(name, *numbers, Text(said, "bold red" if r.out_of_time else ""))
    console.print(table)


def draw(results: Sequence[Measured], machine: Mapping[str, Any], timeout: float, path: Path) -> None:
    save(figure(results, machine, timeout), path)


def figure(results: Sequence[Measured], machine: Mapping[str, Any], timeout: float) -> Figure:
    """A panel per thing that grows, and a line per spec."""
    axes = list(dict.fromkeys(r.case.axis for r in results if r.case.size))
    specs = [r for r in results if not r.case.size]
    rows = (len(axes) + 1) // 2
    high = 1.3 + 3.6 * rows + (0.6 + 0.24 * len(specs) if specs else 0)
    page = Figure(figsize=(12, high))
    top = 1 - 0.95 / high
    for i, axis in enumerate(axes):
        bottom = top - (3.6 * (i // 2 + 1) - 0.75) / high
        panel = page.add_axes((0.07 + 0.49 * (i % 2), bottom, 0.335, 2.75 / high))
        _lines(panel, [r for r in results if r.case.axis == axis], axis, timeout)
    if specs:
        panel = page.add_axes((0.2, 0.55 / high, 0.72, 0.24 * len(specs) / high))
        _specs(panel, specs, timeout)
    what = "Seconds until every law is decided and every fact certified"
    rounds = max(len(r.verify) for r in results)
    below = f"{machine['processor']}; medians of {rounds} fresh processes, nothing kept; dashed: laws alone"
    title(page, what, 0.02, 0.2, below=below)
    return page


def _lines(axes: Axes, results: Sequence[Measured], axis: str, timeout: float) -> None:
    ends: list[tuple[float, str, str]] = []
    for colour, family in zip(PALETTE, dict.fromkeys(r.case.family for r in results), strict=False):
        mine = sorted((r for r in results if r.case.family == family), key=lambda r: r.case.size)
        sizes = [r.case.size for r in mine]
        total = [timeout if r.out_of_time else max(LEAST, r.total.median) for r in mine]
        laws = [min(timeout, max(LEAST, Timing(tuple(r.verify)).median)) for r in mine]
        axes.plot(sizes, total, color=colour, linewidth=1.8, marker="o", markersize=4.5)
        axes.plot(sizes, laws, color=colour, linewidth=1, linestyle=(0, (3, 2)))
        for r in mine:
            if r.out_of_time:
                axes.plot([r.case.size], [timeout], color=colour, marker="X", markersize=10, markeredgecolor="white")
        ends.append((total[-1], family, colour))
    _frame(axes, timeout)
    axes.set_xscale("log")
    ticks = sorted({r.case.size for r in results})
    shown = [t for i, t in enumerate(ticks) if i == len(ticks) - 1 or ticks[i + 1] / t > 1.15]
    axes.xaxis.set_major_locator(FixedLocator(shown))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda n, _: f"{n:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(axis, fontsize=10)
    axes.set_ylabel("seconds", fontsize=9)
    for place, (_, family, colour) in zip(_apart([e[0] for e in ends], timeout), ends, strict=True):
        axes.annotate(
            family, (1, place), (6, 0), xycoords=("axes fraction", "data"), textcoords="offset points", va="center",
            fontsize=9, color=colour, annotation_clip=False,
        )  # fmt: skip


def _apart(values: Sequence[float], timeout: float, factor: float = 1.75) -> list[float]:
    """Heights for words beside the ends of lines, on a log axis: as near as they go without touching."""
    order = sorted(range(len(values)), key=lambda i: values[i])
    places = list(values)
    for below, above in pairwise(order):
        places[above] = max(places[above], places[below] * factor)
    for above, below in pairwise(order[::-1]):
        places[above] = min(places[above], timeout * 1.5)
        places[below] = min(places[below], places[above] / factor)
    return places


def _specs(axes: Axes, results: Sequence[Measured], timeout: float) -> None:
    ordered = sorted(results, key=lambda r: r.total.median)
    for place, r in enumerate(ordered):
        laws, total = Timing(tuple(r.verify)).median, r.total.median
        axes.plot([laws, total], [place, place], color=PALETTE[5], linewidth=2)
        axes.plot(total, place, color=PALETTE[5], marker="o", markersize=6)
        axes.plot(laws, place, color=PALETTE[0], marker="o", markersize=6)
        said = f"out of time: {r.out_of_time}" if r.out_of_time else f"{total:.2g} s"
        axes.annotate(said, (total, place), (7, 0), textcoords="offset points", va="center", fontsize=8, color=INK)
    axes.set_yticks(range(len(ordered)), [r.case.hierarchy.name for r in ordered], fontsize=8.5)
    axes.set_ylim(-0.6, len(ordered) - 0.4)
    axes.set_xscale("log")
    axes.set_xlim(LEAST, timeout * 2)
    axes.axvline(timeout, color=INK, linewidth=1.2, linestyle=":")
    axes.annotate(
        f"budget {timeout:g} s", (timeout, 0), (-4, 0), textcoords="offset points", ha="right", va="center",
        fontsize=8.5, color=INK, bbox=plate(0.8, 1),
    )  # fmt: skip
    axes.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g} s"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_title("specs: laws alone (dark), with facts (light)", fontsize=10, loc="left")
    _clean(axes, "x")


def _frame(axes: Axes, timeout: float) -> None:
    axes.set_yscale("log")
    axes.set_ylim(LEAST, timeout * 2)
    axes.axhline(timeout, color=INK, linewidth=1.2, linestyle=":")
    axes.annotate(
        f"budget {timeout:g} s", (0.01, timeout), (0, 4), xycoords=("axes fraction", "data"),
        textcoords="offset points", fontsize=8.5, color=INK,
    )  # fmt: skip
    axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    _clean(axes, "y")


def _clean(axes: Axes, lines: Literal["x", "y"]) -> None:
    axes.grid(axis=lines, color="#E5E7EB", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8.5)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
