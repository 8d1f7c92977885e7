"""The application that all commands belong to: errors become messages and exit codes."""

from __future__ import annotations

import shutil
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from fibration.errors import FibrationError, LawError
from fibration.escaping import guarded, one_line, styled
from fibration.files import standard_stream
from fibration.printing.layout import wrapped

if TYPE_CHECKING:
    from rich.console import Console

UsageError: Any = typer.BadParameter.__base__  # click's class; some releases of typer contain their own click

UNBROKEN = 1_000_000


class Commands(TyperGroup):
    """Turns errors that the library raises on purpose into a message and an exit code. A bug keeps its traceback."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except UsageError as error:
            from fibration.configs.options import is_config
            from fibration.language.loading import shipped, split

            if args[0] in shipped() or is_config(args[0]) or Path(split(args[0])[0]).exists():
                error.message += f" A command comes first, such as: fibration verify {args[0]}"
            raise

    def main(self, *args: Any, **options: Any) -> Any:
        with redirect_stdout(guarded(sys.stdout)), redirect_stderr(guarded(sys.stderr)):
            return super().main(*args, **options)

    def make_context(self, *args: Any, **options: Any) -> Any:
        try:
            return super().make_context(*args, **options)
        except UsageError as error:
            _say_within(error, error.message)
            raise

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except UsageError as error:
            _say_within(error, error.message.replace("Value error, ", ""))  # of pydantic, which typer passes on
            raise
        except LawError as error:
            fail(error, 1)
        except FibrationError as error:
            fail(error, 2)
        except OSError as error:
            if isinstance(error, BrokenPipeError) and not error.filename:  # from `| head`; typer handles it
                raise
            fail(f"cannot read or write '{error.filename}': {error.strerror}" if error.filename else error, 2)


def fail(error: object, code: int) -> NoReturn:
    say(f"error: {error if isinstance(error, FibrationError) else one_line(error)}", is_error=True)
    raise typer.Exit(code)


def say(text: str, is_error: bool = False) -> None:
    """Prints a message. Its lines break on a terminal alone, so that a search in a pipe finds its words."""
    typer.echo(wrapped(text, width(UNBROKEN)), err=is_error)


def _say_within(error: Any, message: str) -> None:
    error.message = one_line(message)
    said = wrapped(f"Error: {error.format_message()}", width(UNBROKEN)).removeprefix("Error: ")
    error.format_message = lambda: said


app = typer.Typer(
    cls=Commands,
    help="Check, compare, compile and measure losses for RL of language models.\n\n"
    "SPEC is path.py, path.py:NAME of a hierarchy or a loss function, a JSON file, or the name of a shipped loss. Or "
    "it is trl:FILE, verl:FILE, openrlhf:FILE or prime:FILE, a trainer's config; KEY=VALUE after it changes an option.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def console(output: Path | None = None) -> Console:
    """Returns a console for the present stdout. It does not colour numbers, and reads no brackets as markup.

    `output`: the file of the command's results. If it is stdout, the console is one for stderr.
    """
    from rich.console import Console

    stream = styled(sys.stderr if _is_stdout(output) else sys.stdout)
    return Console(file=stream, width=width(), highlight=False, markup=False, emoji=False)


def width(piped: int = 80) -> int:
    """Returns how wide lines may be: COLUMNS, else the width of the terminal, else `piped`."""
    return shutil.get_terminal_size((piped, 0)).columns


def tell(line: str, output: Path | None = None) -> None:
    """Prints a line about a command's results: on stdout, or on stderr if the results themselves go to stdout."""
    say(one_line(line), _is_stdout(output))


def _is_stdout(output: Path | None) -> bool:
    return output is not None and standard_stream(output) is sys.stdout


def _version(wanted: bool) -> None:
    if wanted:
        from importlib import metadata

        typer.echo(f"fibration {metadata.version('fibration')}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", "-V", callback=_version, is_eager=True, help="Print the version.", show_default=False
        ),
    ] = False,
) -> None:
    pass
