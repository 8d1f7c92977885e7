"""Shared by all pictures: colours, pages, panels, titles, and atomic writing of files.

Figures are made without pyplot, so no global state changes.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec
from numpy.typing import NDArray

from fibration.files import write_file

Vector = NDArray[np.float64]
# The colours of Okabe and Ito, ordered so that neighbours differ. Groups beyond the last colour start over.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#6B6B6B", "#B8A900")
INK = "#44546A"
CODE: Mapping[str, Any] = {"fontsize": 8.5, "family": "monospace", "va": "center"}
LEGEND: Mapping[str, Any] = {"loc": "upper left", "frameon": False, "fontsize": 9}
DPI = 150


def character(size: float) -> float:
    """The width of a monospaced character, in inches: hinting rounds it to whole pixels."""
    return math.ceil(0.602 * size * DPI / 72) / DPI


def save(figure: Figure, path: Path) -> None:
    """Write a figure atomically: as SVG if the path ends in `.svg`, else as PNG. Equal figures give equal bytes."""
    write_file(path, page(figure, "svg" if path.suffix == ".svg" else "png"))


def page(figure: Figure, form: str) -> bytes:
    """A figure as the contents of a PNG or SVG file."""
    FigureCanvasAgg(figure)
    contents = io.BytesIO()
    nothing: Mapping[str, Any] = {"Date": None, "Creator": None} if form == "svg" else {"Software": None}
    with rc_context({"svg.hashsalt": "fibration"}):
        figure.savefig(contents, format=form, dpi=DPI, metadata=nothing)
    return contents.getvalue()


def inline(figure: Figure, prefix: str) -> str:
    """A figure as SVG inside HTML. `prefix`: of its ids, which are unique on a page."""
    _, _, drawn = page(figure, "svg").decode().partition("<svg")
    drawn = re.sub(r"<metadata>.*?</metadata>", "", drawn, flags=re.DOTALL)
    return "<svg" + re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{prefix}", drawn)


def sheet(
    wide: float, high: float, shape: tuple[int, int], left: float, right: float, top: float, bottom: float, **more: Any
) -> tuple[Figure, GridSpec]:
    """A page with a grid of panels: its size and margins in inches, and the grid's `shape` in rows and columns."""
    figure = Figure(figsize=(wide, high))
    more |= {"left": left / wide, "right": 1 - right / wide, "top": 1 - top / high, "bottom": bottom / high}
    return figure, figure.add_gridspec(shape[0], shape[1], **more)


def panel(axes: Axes, text: str = "", grid: Any = "both", **settings: Any) -> None:
    """Give a panel its heading, its grid lines and its settings, such as `xlabel`."""
    axes.set(**settings)
    if text:
        axes.set_title(text, fontsize=11, loc="left")
    axes.grid(alpha=0.2, axis=grid)


def title(figure: Figure, text: str, left: float, inches: float, below: str = "") -> None:
    """Draw a title at a fixed distance from the top, in inches, and remarks `below` it."""
    high = figure.get_figheight()
    figure.suptitle(text, x=left, y=1 - inches / high, ha="left", fontsize=14)
    if below:
        figure.text(left, 1 - 0.52 / high, below, fontsize=9, va="top", color=INK)


def plate(alpha: float, pad: float) -> dict[str, Any]:
    """The white background of words on a picture, as matplotlib's `bbox`."""
    return {"facecolor": "white", "edgecolor": "none", "alpha": alpha, "pad": pad}
