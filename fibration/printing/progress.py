"""What long work says while it goes on: one line on stderr if that is a terminal, and nothing elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text


@contextmanager
def working(what: str) -> Iterator[Callable[[str], None]]:
    """Says `what` while the block runs, and what the function that it gives is told since; then the line goes.

    Stdout is left alone: it may be a table, JSON or a pipe.
    """
    spinner = Spinner("dots", Text(f"{what} ..."))
    # What is printed meanwhile goes above the line if both are seen at once, and where it should in any case.
    seen = sys.stdout.isatty()
    with Live(spinner, console=Console(stderr=True), transient=True, redirect_stdout=seen):
        yield lambda now: spinner.update(text=Text(f"{now} ..."))
