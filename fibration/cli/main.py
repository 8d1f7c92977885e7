"""The command line. Exit codes: 0 fine, 1 a law does not hold (or results disagree), 2 unusable input.

Each command imports the modules that need torch or matplotlib when it runs, so `verify` starts fast.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from fibration.cli import checks as checks  # its commands come first
from fibration.cli.app import app, console, say, tell, width
from fibration.cli.arguments import OUTPUT, Parameters, ShowFormat, Spec, Timeout, parameters
from fibration.errors import BackendError
from fibration.escaping import escaped_literals, guarded, one_line
from fibration.files import check_writable, write_file
from fibration.language.apart import turn_on
from fibration.language.report import BUDGET
from fibration.printing.layout import wrapped

UNUSABLE = 2  # the exit code


@app.command()
def show(
    spec: Spec,
    format: Annotated[
        ShowFormat, typer.Option("--format", "-f", case_sensitive=False, help="The format.")
    ] = ShowFormat.text,
) -> None:
    """Print a hierarchy as text, Python, mermaid, LaTeX or JSON.

    `python` is a module that declares it, to be saved and edited. `schema` is the JSON Schema of all hierarchies. The
    command proves nothing.
    """
    from fibration.compiler.coupling import coupling_of
    from fibration.configs.specs import as_spec
    from fibration.printing import law_table
    from fibration.printing.latex import latex
    from fibration.printing.layout import folded
    from fibration.printing.python import python
    from fibration.printing.reports import loss_quietly
    from fibration.printing.text import mermaid, text

    loss = loss_quietly(spec)
    hierarchy = loss.hierarchy
    if format is ShowFormat.json:
        typer.echo(escaped_literals(hierarchy.model_dump_json(indent=2)))
    elif format is ShowFormat.schema:
        typer.echo(json.dumps(hierarchy.model_json_schema(), indent=2))
    elif format is ShowFormat.python:
        beside = law_table.lines(law_table.title(as_spec(spec).trainer), law_table.without_law_notes(loss))
        comments = "".join(f"# {one_line(line.strip())}\n" for line in beside)
        typer.echo(comments + escaped_literals(python(hierarchy)), nl=False)
    else:
        shown = {"text": text, "mermaid": mermaid, "latex": latex}[format](hierarchy)
        typer.echo(folded(shown, width()) if format is ShowFormat.text else shown)
        if format is ShowFormat.text:
            typer.echo(f"\nmicro-batches\n  {coupling_of(hierarchy)}")
            for line in law_table.lines(law_table.title(as_spec(spec).trainer), law_table.without_law_notes(loss)):
                typer.echo(wrapped(line if line.startswith(" ") else f"\n{line}", width()))


@app.command()
def compile(
    spec: Spec,
    backend: Annotated[str, typer.Option("--backend", "-b", help="torch, c, triton, jax or auto.")] = "auto",
    output: Annotated[
        Path | None,
        typer.Option(*OUTPUT, metavar="DIR", help="Write NAME_BACKEND.py and NAME_certificate.json here."),
    ] = None,
    arch: Annotated[
        str | None, typer.Option(metavar="sm_90", help="Triton: also write machine code for this chip. Needs -o.")
    ] = None,
    functions: Annotated[
        bool, typer.Option("--functions", help="Also write gate, its transpose, and levels, which no training needs.")
    ] = False,
    timeout: Timeout = BUDGET,
) -> None:
    """Verify a loss, and print its source or write standalone files.

    Without -o it prints the source. With -o it writes the module, and a certificate of what was proved.
    """
    from fibration.cli.certificate import certificate, kernel_table, source_of
    from fibration.pipeline import choose, export
    from fibration.printing import reports
    from fibration.printing.progress import working

    hierarchy, chosen = reports.load_quietly(spec), choose(backend, written=True)
    if arch and chosen != "triton":
        raise BackendError(f"the {chosen} backend compiles for no architecture", remedy="leave --arch out")
    if arch and output is None:
        raise BackendError("machine code is no text to print", required="a folder for it", remedy="add -o DIR")
    if output is not None:
        check_writable(output, "--output", "what is compiled")
    with working(f"laws of {hierarchy.name}"):
        report = hierarchy.verify(timeout)
    report.raise_for_status()
    artifact = source_of(hierarchy, chosen, functions)
    if output is None:
        typer.echo(artifact.source, nl=False)
        return
    with working(f"compiling kernels for {arch}" if arch else "writing"):
        exported = export(artifact, arch)
    files = {**exported.files, f"{hierarchy.name}_certificate.json": certificate(artifact, report, exported)}
    for name, contents in files.items():
        write_file(output / name, contents)
    reports.emit(console(), reports.warned(report))
    typer.echo("\n".join(one_line(output / name) for name in files))
    if exported.kernels:
        reports.emit(console(), kernel_table(exported))


@app.command()
def run(
    spec: Spec,
    rollouts: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Recorded rollouts. Default: the batch that is shipped.")
    ] = None,
    out: Annotated[Path, typer.Option(*OUTPUT, metavar="DIR", help="The folder for pictures.")] = Path("out"),
    by: Annotated[
        str | None,
        typer.Option(
            metavar="STRATUM", help="Split tables and pictures by its labels. Default: domain, or the coarsest."
        ),
    ] = None,
    param: Parameters = None,
    all: Annotated[bool, typer.Option("--all", help="Split levels by these labels; print all numbers.")] = False,
    timeout: Timeout = BUDGET,
) -> None:
    """Gate a recorded batch, and show what every level did.

    It verifies and compiles SPEC, gates the batch, and compares the result with the float64 interpreter. Then it
    prints tables and draws pictures.
    """
    from fibration.cli.run import command

    raise typer.Exit(command(console(), spec, rollouts, out, parameters(param or []), timeout, by, all))


@app.command()
def plot(
    spec: Spec,
    figure: Annotated[
        list[str] | None, typer.Option(metavar="gates|regimes|objective|all", help="Default: all. May be repeated.")
    ] = None,
    param: Parameters = None,
    paper: Annotated[bool, typer.Option("--paper", help="Use the parameters in the paper's captions.")] = False,
    output: Annotated[Path, typer.Option(*OUTPUT, metavar="DIR", help="The folder for figures.")] = Path("out"),
    format: Annotated[str, typer.Option("--format", "-f", metavar="png,svg", help="One format, or both.")] = "png",
) -> None:
    """Draw the paper's figures of a hierarchy.

    They show its gates, its regimes for three tokens, and its objective under drift.
    """
    from fibration.plotting import figures
    from fibration.printing.reports import load_quietly

    chosen = () if not figure or "all" in figure else figure
    formats = [word.strip() for word in format.split(",")]
    hierarchy, values = load_quietly(spec), parameters(param or [])
    for path, shows in figures.draw(hierarchy, output, chosen or tuple(figures.FIGURES), values, formats, paper):
        tell(f"{path}: {shows}")


@app.command()
def bench(
    specs: Annotated[
        list[str] | None, typer.Argument(metavar="SPEC", help="Specs. Default: some shipped losses.")
    ] = None,
    backend: Annotated[
        list[str] | None, typer.Option("--backend", "-b", help="Default: all backends. May be repeated.")
    ] = None,
    tokens: Annotated[
        list[str] | None,
        typer.Option(metavar="N", help="Tokens of a batch, such as 65536, 64Ki, 4Mi. May be repeated."),
    ] = None,
    length: Annotated[str, typer.Option(metavar="N", help="Mean number of tokens of a trajectory.")] = "512",
    device: Annotated[str, typer.Option(metavar="cpu|cuda", help="The device to measure on.")] = "cpu",
    dtype: Annotated[str, typer.Option(help="The dtype of log-probs and advantages.")] = "float32",
    repeats: Annotated[
        int | None, typer.Option(metavar="R", min=1, help="Rounds. Default: 15, or 5 with --quick.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the inputs.")] = 0,
    json: Annotated[Path | None, typer.Option(metavar="FILE.json", help="Write all samples to this file.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="64 Ki tokens and 5 rounds.")] = False,
    timeout: Timeout = BUDGET,
) -> None:
    """Time every backend beside hand-written losses.

    It also times torch.compile and a bare copy of the inputs. All run in turns on the same inputs, and their results
    are compared.
    """
    from fibration.bench import command

    sizes, rounds = tokens or ["64Ki" if quick else "1Mi"], repeats or (5 if quick else 15)
    given = console(json), specs or [], backend or [], sizes, length, rounds, json, timeout
    command.bench(*given, device=device, dtype=dtype, seed=seed)


@app.command()
def init(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A folder. Default: this folder.", show_default=False)
    ] = Path("."),
) -> None:
    """Start a project: a loss of your own, a test of it, and CI.

    All files pass their checks unchanged. Existing files are not overwritten.
    """
    from fibration.cli.project import init as begin

    say(begin(folder))


@app.command()
def doctor(
    spec: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SPEC]", help="The loss on which backends are tried. Default: fiberpo."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Report what works on this machine, and which backend runs.

    It checks versions, processor, threads, GPU, C compiler and the cache folder. It builds, runs and compares every
    backend that this machine supports. Exit code 0: usable. 1: something is broken, or SPEC breaks a law.
    """
    from fibration.cli.doctor import doctor as examine

    raise typer.Exit(examine(console(), spec, json))


def main() -> None:
    """The entry point. A terminal that cannot encode a character shows a replacement."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    sys.stdout, sys.stderr = guarded(sys.stdout), guarded(sys.stderr)  # for tracebacks too
    turn_on()
    end = SystemExit(0)
    try:
        try:
            app()
        except SystemExit as error:
            end = error
        sys.stdout.flush()
    except OSError as error:
        with suppress(OSError):
            sys.stdout.close()
        print(f"error: cannot write the output: {error.strerror}", file=sys.stderr)
        end = SystemExit(UNUSABLE)
    raise end
