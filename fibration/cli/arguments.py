"""Arguments and options that several commands share."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from fibration.errors import ParameterError, shown

VerifyFormat = StrEnum("VerifyFormat", "text json junit github markdown")
FailOn = StrEnum("FailOn", "error warning never")  # as in `configs.findings`
ShowFormat = StrEnum("ShowFormat", "text python mermaid latex json schema")
HELP = (
    "path.py, path.py:NAME of a hierarchy or a loss function, a JSON file, a shipped loss; or trl:FILE, verl:FILE, "
    "openrlhf:FILE or prime:FILE, a trainer's config, and KEY=VALUE"
)
OUTPUT = ("--output", "--out", "-o")  # of every command that writes a file or a folder
Spec = Annotated[
    list[str],
    typer.Argument(metavar="SPEC", help=f"{HELP}.", show_default=False),
]
Timeout = Annotated[float, typer.Option(metavar="S", help="Seconds for the proofs of a hierarchy. inf: no limit.")]
Specs = Annotated[
    list[str], typer.Argument(metavar="SPEC|DIR...", help="Specs, or folders with specs.", show_default=False)
]
Format = Annotated[VerifyFormat, typer.Option("--format", "-f", case_sensitive=False, help="The format of the report.")]
Fails = Annotated[
    FailOn, typer.Option("--fail-on", case_sensitive=False, help="What in a trainer's config makes exit code 1.")
]
Output = Annotated[
    Path | None, typer.Option(*OUTPUT, metavar="FILE", help="Write the report to a file, and print a summary.")
]
Parameters = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help="A parameter's value: a number, or JSON. May be repeated."),
]


def parameters(given: Sequence[str]) -> dict[str, Any]:
    """Reads `NAME=VALUE` pairs. The operator checks later that names and values fit."""
    result: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        wrong = f"--param {shown(text)} cannot be read"
        with suppress(ValueError):  # Python's float comes first: `.1` is a float but not JSON
            result[name.strip()] = float(value)
            continue
        try:
            result[name.strip()] = json.loads(value, object_pairs_hook=partial(_once, wrong))
        except (ValueError, RecursionError):
            raise ParameterError(
                wrong,
                required="NAME=VALUE, where VALUE is a number or JSON",
                found=f"the value {shown(value)}" if equals else "no '='",
                remedy="""for example --param epsilon=0.05, or --param 'C_domain={"+": 0.3, "-": 0.2}'""",
            ) from None
    return result


def _once(wrong: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    from fibration.language.document import GivenTwice, marked

    found = marked(pairs)
    if isinstance(found, GivenTwice):
        given = f"the key {shown(found.key)} is given twice"
        raise ParameterError(wrong, required="every key once", found=given, remedy="leave all but one of them out")
    return found
