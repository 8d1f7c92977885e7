"""What the tests of pictures share."""

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure


def inside(*figures: Figure) -> None:
    """Nothing that is drawn, labels least of all, reaches over the edge of its picture."""
    for figure in figures:
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        box = figure.get_tightbbox(canvas.get_renderer())
        assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= figure.get_figwidth() and box.y1 <= figure.get_figheight()


def words(figure: Figure) -> str:
    """What stands on the page itself: its title and the remarks below."""
    return " ".join(" ".join(text.get_text() for text in figure.texts).split())
