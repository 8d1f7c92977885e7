"""Progress of long work: one line on stderr if stderr is a terminal, else no output."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from fibration.escaping import one_line, styled


@contextmanager
def working(what: str) -> Iterator[Callable[[str], None]]:
    """Shows `what` while the block runs, then removes the line. The yielded function replaces the text.

    Nothing is written to stdout, which may be a table, JSON or a pipe.
    """
    spinner = Spinner("dots", Text(one_line(f"{what} ...")))
    # If stdout is a terminal, text that the block prints appears above the line. Else stdout is not redirected.
    seen = sys.stdout.isatty()
    with Live(spinner, console=Console(file=styled(sys.stderr)), transient=True, redirect_stdout=seen):
        yield lambda now: spinner.update(text=Text(one_line(f"{now} ...")))
