"""What every picture shares: colours, titles, and files that appear whole or not at all.

Figures are made without pyplot, so nothing global changes.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fibration.files import write_file

# Okabe and Ito's colours again, in an order that keeps neighbours apart; groups beyond the last start over.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#6B6B6B", "#B8A900")
INK = "#44546A"
CODE: Mapping[str, Any] = {"fontsize": 8.5, "family": "monospace", "va": "center"}
DPI = 150


def character(size: float) -> float:
    """How wide a monospaced character is, in inches: hinting rounds it to whole pixels."""
    return math.ceil(0.602 * size * DPI / 72) / DPI


def save(figure: Figure, path: Path) -> None:
    """Write a figure, whole or not at all: as SVG where the path says so, else as PNG. Equal figures, equal bytes."""
    write_file(path, page(figure, "svg" if path.suffix == ".svg" else "png"))


def page(figure: Figure, form: str) -> bytes:
    """A figure as the contents of a PNG or SVG file."""
    FigureCanvasAgg(figure)
    contents = io.BytesIO()
    nothing: Mapping[str, Any] = {"Date": None, "Creator": None} if form == "svg" else {"Software": None}
    with rc_context({"svg.hashsalt": "fibration"}):
        figure.savefig(contents, format=form, dpi=DPI, metadata=nothing)
    return contents.getvalue()


def title(figure: Figure, text: str, left: float, inches: float, below: str = "") -> None:
    """A title at a distance from the top that does not grow with the figure, and remarks `below` it."""
    high = figure.get_figheight()
    figure.suptitle(text, x=left, y=1 - inches / high, ha="left", fontsize=14)
    if below:
        figure.text(left, 1 - 0.52 / high, below, fontsize=9, va="top", color=INK)


def plate(alpha: float, pad: float) -> dict[str, Any]:
    """The white behind words that stand on a picture, as matplotlib's `bbox`."""
    return {"facecolor": "white", "edgecolor": "none", "alpha": alpha, "pad": pad}
