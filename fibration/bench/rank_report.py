"""What `fibration bench --ranks` prints and draws: a spread batch beside one process, and beside no group at all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from fibration.bench.ranks import Measured, Paper
from fibration.bench.shapes import Shape
from fibration.plotting.canvas import INK, PALETTE, save, title

KIB, MIB = 2**10, 2**20
# A call: milliseconds, over those of one process without a group and over those of these without, what a rank sends;
# an index; the peak memory of a process.
COLUMNS = ("", "call\nms", "/one", "/alone", "KiB", "in", "index\nms", "/alone", "KiB", "in", "peak\nMiB", "alone")


def of_hierarchies(results: Sequence[Measured]) -> Iterator[tuple[str, list[Measured]]]:
    for name, found in groupby(results, key=lambda r: f"{r.hierarchy.name}, {r.backend}"):
        yield name, list(found)


def emit_tables(console: Console, results: Sequence[Measured], paper: Paper) -> None:
    """A table per hierarchy: medians, and ratios of medians; then what the last line of each means for many ranks."""
    for name, found in of_hierarchies(results):
        table = Table(box=None, padding=(0, 1, 0, 0), title=name, title_justify="left")
        for column in COLUMNS:
            table.add_column(column, justify="right", no_wrap=True)
        for r in found:
            table.add_row(*_cells(r, found[0]))
        console.print(table)
        p = paper.of(found[-1])
        console.print(
            f"on paper, {p['ranks']} ranks of {max(found[-1].tokens):,} tokens each, {1e6 * p['latency']:g} µs and "
            f"{p['bandwidth'] / 1e9:g} GB/s a step:\n{p['gatherings']} gatherings a call, each rank sends "
            f"{p['sent_bytes'] / KIB:.0f} KiB and gets {p['received_bytes'] / MIB:.1f} MiB: "
            f"{1e3 * p['call_s']:.1f} ms; an index {1e3 * p['index_s']:.1f} ms\n",
            highlight=False,
        )


def _cells(r: Measured, one: Measured) -> list[str]:
    call, alone, whole = r.timing("coefficients"), r.timing("coefficients alone"), one.timing("coefficients alone")
    index, index_alone = r.timing("index"), r.timing("index alone")
    return [
        str(r.size),
        f"{1e3 * call.median:.2f}",
        f"{call.median / whole.median:.2f}",
        f"{call.median / alone.median:.2f}",
        f"{sum(r.sent['call']) / KIB:.1f}",
        str(len(r.sent["call"])),
        f"{1e3 * index.median:.1f}",
        f"{index.median / index_alone.median:.2f}",
        f"{sum(r.sent['index']) / KIB:.1f}",
        str(len(r.sent["index"])),
        f"{r.memory['memory'] / MIB:.1f}",
        f"{r.memory['memory alone'] / MIB:.1f}",
    ]


def draw(results: Sequence[Measured], machine: Mapping[str, Any], shape: Shape, path: Path) -> None:
    save(figure(results, machine, shape), path)


def figure(results: Sequence[Measured], machine: Mapping[str, Any], shape: Shape) -> Figure:
    """A panel per hierarchy: for each number of processes, a call without a group and one with it."""
    found = list(of_hierarchies(results))
    page = Figure(figsize=(1.2 + 4.2 * len(found), 4.6))
    grid = page.add_gridspec(1, len(found), left=0.09, right=0.98, top=0.72, bottom=0.14, wspace=0.28)
    for i, (name, mine) in enumerate(found):
        axes = page.add_subplot(grid[0, i])
        _bars(axes, mine)
        axes.set_title(name, fontsize=10, loc="left")
    below = f"{machine['processor']}; {shape}; medians of {len(results[0].seconds['index'])} rounds"
    title(page, "Coefficients of a batch spread over processes", 0.02, 0.2, below=below)
    return page


def _bars(axes: Axes, results: Sequence[Measured]) -> None:
    for k, (what, label) in enumerate((("coefficients alone", "no group"), ("coefficients", "with its group"))):
        places = [i + 0.38 * (k - 0.5) for i in range(len(results))]
        high = [1e3 * r.timing(what).median for r in results]
        axes.bar(places, high, 0.36, color=PALETTE[k], label=label)
        for place, value in zip(places, high, strict=True):
            axes.annotate(f"{value:.3g}", (place, value), (0, 2), textcoords="offset points", ha="center", fontsize=8)
    axes.set_xticks(range(len(results)), [str(r.size) for r in results])
    axes.set_xlabel("processes", fontsize=9)
    axes.set_ylabel("ms", fontsize=9)
    axes.legend(fontsize=8, frameon=False)
    axes.tick_params(labelsize=8.5, colors=INK)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
