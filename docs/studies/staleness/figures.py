"""Pictures of the study, drawn from its summary and from the runs of tuning and test: `figures/*.png`."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from arms import THREE
from cells import Cell, Cells
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator
from measures import EVERY
from numpy.typing import NDArray
from PIL import Image
from stats import Array, curves, ends, weights
from tables import interval

from fibration.files import write_file
from fibration.plotting.canvas import INK, PALETTE, page

BLUE, ORANGE, GREEN, PINK, RED, SKY, GREY, OLIVE = PALETTE
COLOURS = {
    "grpo": GREY,
    "gspo": SKY,
    "fiberpo": ORANGE,
    "fiberpo_domain": RED,
    "inward_trajectory": GREEN,
    "inward_domain": BLUE,
    "placebo_shuffled": PINK,
}
RATE_COLOURS = (SKY, GREEN, BLUE, RED)
Test = Mapping[str, Mapping[str, Cell]]


def plain(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8, color=INK)
    axes.grid(axis="y", color="#E3E6EA", linewidth=0.6)
    axes.set_axisbelow(True)


def named(axes: Axes, words: Sequence[tuple[str, float, str]], x: float, size: float = 7.5) -> None:
    """Words at the right of a picture, each at its height or as near to it as the others let it be."""
    low, high = axes.get_ylim()
    log = axes.get_yscale() == "log"
    to = (lambda y: np.log(max(y, 1e-12))) if log else (lambda y: y)
    bottom, top = to(low), to(high)
    inches = axes.get_figure().get_figheight() * axes.get_position().height
    apart = (size * 1.15 / 72) / inches
    ordered = sorted(words, key=lambda word: to(word[1]))
    heights = np.array([(to(y) - bottom) / (top - bottom) for _, y, _ in ordered])
    for k in range(1, len(heights)):
        heights[k] = max(heights[k], heights[k - 1] + apart)
    over = max(0.0, heights[-1] - 1) if len(heights) else 0.0
    for (word, _, colour), height in zip(ordered, heights - over, strict=True):
        axes.annotate(
            word, (x, height), xycoords=axes.get_xaxis_transform(), xytext=(3, 0), textcoords="offset points",
            va="center", fontsize=size, color=colour, annotation_clip=False,
        )  # fmt: skip


def begin(wide: float, high: float, says: str, rows: int, columns: int, **grid: float) -> tuple[Figure, NDArray[Any]]:
    figure = Figure(figsize=(wide, high))
    found = figure.subplots(rows, columns, squeeze=False)
    figure.subplots_adjust(**grid)
    figure.text(0.012, 1 - 0.1 / high, says, fontsize=10, va="top", color="black")
    for axes in found.flat:
        plain(axes)
    return figure, found


def learning(test: Test) -> Figure:
    """Mean accuracy of the domains that count, by condition."""
    figure, panels = begin(
        10.5, 6.2, "Accuracy, mean of domains: interquartile mean of seeds, and its interval of 95 %", 2, 3,
        left=0.05, right=0.9, top=0.89, bottom=0.08, wspace=0.55, hspace=0.35,
    )  # fmt: skip
    for axes, (condition, by_arm) in zip(panels.flat, test.items(), strict=False):
        words = []
        for arm, colour in COLOURS.items():
            if arm in by_arm:
                y, low, high = curves(by_arm[arm].accuracy.mean(-1).T)
                x = EVERY * np.arange(len(y))
                axes.plot(x, y, color=colour, linewidth=1.4)
                axes.fill_between(x, low, high, color=colour, alpha=0.13, linewidth=0)
                words.append((arm, y[-1], colour))
        axes.set_title(condition, fontsize=9, loc="left", color=INK)
        axes.set_xlim(0, x[-1])
        axes.set_ylim(bottom=0)
        named(axes, words, x[-1], 7)
    for axes in panels[-1]:
        axes.set_xlabel("step", fontsize=8)
    for axes in panels.flat[len(test) :]:
        axes.set_visible(False)
    return figure


def forest(axes: Axes, rows: Sequence[tuple[str, Mapping | None, str]]) -> None:
    """A row for each estimate, from the top, with 0 marked."""
    axes.axvline(0, color=INK, linewidth=0.8)
    for k, (_, of, colour) in enumerate(rows):
        if of is not None:
            axes.plot([of["low"], of["high"]], [k, k], color=colour, linewidth=1.8, solid_capstyle="butt")
            axes.plot(of["value"], k, "o", color=colour, markersize=4)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_yticks(range(len(rows)), [name for name, _, _ in rows], fontsize=7.5)
    axes.grid(axis="x", color="#E3E6EA", linewidth=0.6)
    axes.grid(axis="y", visible=False)


def differences(summary: Mapping) -> Figure:
    """The four contrasts, and every arm less GRPO in each condition."""
    conditions = list(summary["test"])
    arms = list(dict.fromkeys(arm for where in conditions for arm in summary["test"][where] if arm != "grpo"))
    figure, panels = begin(
        11, 6.4, "Differences of the mean of both primary measures, paired by seed, intervals of 95 %; scales differ",
        1, len(conditions), left=0.13, right=0.99, top=0.62, bottom=0.05, wspace=0.12,
    )  # fmt: skip
    for axes, where in zip(panels[0], conditions, strict=True):
        rows = [(arm, summary["test"][where].get(arm, {}).get("difference"), COLOURS.get(arm, INK)) for arm in arms]
        forest(axes, rows)
        axes.set_title(f"{where}: arm − grpo", fontsize=8.5, loc="left", color=INK)
        if axes is not panels[0, 0]:
            axes.set_yticklabels([])
    named = [(f"{of['arm']} − {of['less']}, {of['condition']}", of["score"], BLUE) for of in summary["contrasts"]]
    for rows, bottom, high in ((named[:3], 0.8, 0.12), (named[3:], 0.72, 0.035)):  # the last is of another size
        above = figure.add_axes((0.33, bottom, 0.46, high))
        plain(above)
        forest(above, rows)
        for k, (_, of, _) in enumerate(rows):
            above.text(1.02, k, interval(of, sign=True), transform=above.get_yaxis_transform(), fontsize=8, va="center")
    figure.axes[-2].set_title("the four contrasts named beforehand", fontsize=8.5, loc="left", color=INK)
    return figure


def share(cell: Cell) -> Array:
    return cell.collapses.T.astype(float)


MADE: Mapping[str, Callable[[Cell], Array]] = {
    "largest amplification": lambda cell: cell.measured("amplification").T,
    "tokens pushed outward": lambda cell: cell.measured("outward").T,
    "against their advantage": lambda cell: cell.measured("against").T,
    "runs that collapsed": share,
}


def gates(test: Test) -> Figure:
    """What published and inward gates make of the gradient over training, beside GRPO."""
    shown = [where for where in ("unequal", "large") if where in test]
    figure, panels = begin(
        11, 2.5 * max(1, len(shown)) + 0.5, "What the losses do over training: means over seeds (of the "
        "largest amplification of ten steps: interquartile), intervals of 95 %", max(1, len(shown)), len(MADE),
        left=0.05, right=0.9, top=0.86, bottom=0.1, wspace=0.3, hspace=0.4,
    )  # fmt: skip
    for row, where in zip(panels, shown, strict=False):
        for axes, (name, values) in zip(row, MADE.items(), strict=True):
            words = []
            for arm in THREE:
                if arm not in test[where]:
                    continue
                found = values(test[where][arm])
                if name == "largest amplification":
                    y, low, high = curves(found)
                else:
                    y, (low, high) = found.mean(1), ends(weights(found.shape[1]) @ found.T)
                x = EVERY * (np.arange(len(y)) + (name != "runs that collapsed"))
                axes.plot(x, y, color=COLOURS[arm], linewidth=1.4)
                axes.fill_between(x, low, high, color=COLOURS[arm], alpha=0.15, linewidth=0)
                words.append((arm, y[-1], COLOURS[arm]))
            if name == "largest amplification":
                axes.set_yscale("log")
                axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
                axes.yaxis.set_major_formatter(lambda y, _: f"{y:g}")
                axes.yaxis.set_minor_locator(NullLocator())
            elif name == "runs that collapsed":
                axes.set_ylim(-0.02, 1.02)
            else:
                axes.set_ylim(bottom=0)
            axes.set_title(f"{where}: {name}", fontsize=8.5, loc="left", color=INK)
            if axes is row[-1]:
                named(axes, words, x[-1])
    for axes in panels[-1]:
        axes.set_xlabel("step", fontsize=8)
    return figure


def sensitivity(summary: Mapping) -> Figure:
    """The score of every arm over scales of trust, by learning rate, on tuning seeds."""
    arms = summary["tuning"]
    columns = 5
    rows = -(-len(arms) // columns)
    high = 1.75 * rows + 0.7
    figure, panels = begin(
        10.5, high, "Tuning: mean of both primary measures (3 seeds) over the scale of trust, by learning rate",
        rows, columns, left=0.05, right=0.93, top=1 - 0.62 / high, bottom=0.06, wspace=0.12, hspace=0.5,
    )  # fmt: skip
    rates = sorted({setting["lr"] for of in arms.values() for setting in of["settings"]})
    for k, (axes, (arm, of)) in enumerate(zip(panels.flat, arms.items(), strict=False)):
        words, scales = [], [setting["trust"] or 1.0 for setting in of["settings"]]
        for lr, colour in zip(rates, RATE_COLOURS[-len(rates) :], strict=True):
            points = [(setting["trust"] or 1.0, setting["score"]) for setting in of["settings"] if setting["lr"] == lr]
            if points:
                x, y = zip(*points, strict=True)
                axes.plot(x, y, "o-", color=colour, markersize=3, linewidth=1.2)
                words.append((f"{lr:.1e}".replace("e-0", "e-"), y[-1], colour))
        axes.plot(of["trust"] or 1.0, of["score"], "o", markersize=8, markerfacecolor="none", color="black")
        axes.set_xscale("log", base=2)
        axes.set_xlim(min(scales) / 1.3, max(scales) * 1.3)
        axes.set_ylim(0, 0.55)
        axes.set_title(arm, fontsize=8.5, loc="left", color=INK)
        axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
        if k % columns:
            axes.set_yticklabels([])
        if k % columns == columns - 1:
            named(axes, words, axes.get_xlim()[1])
    for axes in panels.flat[len(arms) :]:
        axes.set_visible(False)
    return figure


def frontier(summary: Mapping, tuning: Cells) -> Figure:
    """Score against how far the policy moved: every tuned setting, and what arms reach at best."""
    figure, ((axes,),) = begin(
        8, 4.6, "Tuning: mean of both primary measures by the KL of the path; lines: upper hulls of settings",
        1, 1, left=0.07, right=0.83, top=0.9, bottom=0.11,
    )  # fmt: skip
    words = []
    for (_, arm, _), cell in sorted(tuning.items(), key=str):
        at = np.exp(np.log(cell.path).mean()), cell.score.mean()
        axes.plot(*at, ".", color=COLOURS.get(arm, "#BFC5CC"), markersize=4, alpha=0.7)
    for arm, points in summary["frontiers"].items():
        if arm in COLOURS:
            kl, score = zip(*points, strict=True)
            axes.plot(np.exp(kl), score, color=COLOURS[arm], linewidth=1.4)
            words.append((arm, score[-1], COLOURS[arm]))
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("KL of the path: sum of what each ten steps moved, nats a token", fontsize=8)
    named(axes, words, axes.get_xlim()[1])
    return figure


def pictures(summary: Mapping, tuning: Cells, test: Test) -> Iterable[tuple[str, Figure]]:
    yield "sensitivity", sensitivity(summary)
    yield "frontier", frontier(summary, tuning)
    if test:
        yield "learning", learning(test)
        yield "differences", differences(summary)
        yield "gates", gates(test)


def fewer_colours(png: bytes) -> bytes:
    """The same picture in a third of the bytes."""
    reduced = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGB").quantize(96, dither=Image.Dither.NONE).save(
        reduced, "png", optimize=True
    )
    return reduced.getvalue()


def draw(folder: Path, summary: Mapping, tuning: Cells, test: Test) -> None:
    for name, figure in pictures(summary, tuning, test):
        write_file(folder / f"{name}.png", fewer_colours(page(figure, "png")))
