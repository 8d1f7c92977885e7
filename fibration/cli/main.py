"""The command line. Exit codes: 0 fine, 1 a law does not hold (or results disagree), 2 unusable input.

Each command imports the modules that need torch or matplotlib when it runs, so `verify` starts fast.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from importlib import metadata
from itertools import count
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from typer.core import TyperGroup

from fibration.cli.arguments import OUTPUT, Parameters, ShowFormat, Spec, Timeout, VerifyFormat, parameters
from fibration.cli.outcome import to_its_end
from fibration.configs.files import is_config
from fibration.configs.specs import as_spec, as_specs
from fibration.errors import BackendError, FibrationError, LawError
from fibration.files import check_writable, check_writable_file, write_file
from fibration.language.loading import shipped, split
from fibration.language.report import BUDGET

UsageError: Any = typer.BadParameter.__base__  # click's class; some releases of typer contain their own click


class Commands(TyperGroup):
    """Turns errors that the library raises on purpose into a message and an exit code. A bug keeps its traceback."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except UsageError as error:
            if args[0] in shipped() or is_config(args[0]) or Path(split(args[0])[0]).exists():
                error.message += f" A command comes first, such as: fibration verify {args[0]}"
            raise

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except UsageError as error:
            error.message = error.message.replace("Value error, ", "")  # of pydantic, which typer passes on
            raise
        except LawError as error:
            fail(error, 1)
        except FibrationError as error:
            fail(error, 2)
        except BrokenPipeError:  # from `| head`; typer handles it
            raise
        except OSError as error:
            fail(f"cannot read or write '{error.filename}': {error.strerror}" if error.filename else error, 2)


def fail(error: object, code: int) -> NoReturn:
    typer.echo(f"error: {error}", err=True)
    raise typer.Exit(code)


app = typer.Typer(
    cls=Commands,
    help="Check, compare, compile and measure losses for RL of language models.\n\n"
    "SPEC is path.py, path.py:NAME, a JSON file, or the name of a shipped loss. Or it is trl:FILE or verl:FILE, a "
    "config of a trainer in YAML or JSON; words KEY=VALUE after it change its options.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def console() -> Console:
    """Returns a console for the present stdout. It does not colour numbers, and reads no brackets as markup."""
    return Console(highlight=False, markup=False, emoji=False)


def _version(wanted: bool) -> None:
    if wanted:
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

    typer.echo(begin(folder))


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


@app.command()
def verify(
    specs: Annotated[
        list[str], typer.Argument(metavar="SPEC|DIR...", help="Specs, or folders with specs.", show_default=False)
    ],
    format: Annotated[
        VerifyFormat, typer.Option("--format", "-f", case_sensitive=False, help="The format of the report.")
    ] = VerifyFormat.text,
    output: Annotated[
        Path | None,
        typer.Option(*OUTPUT, metavar="FILE", help="Write the report to a file, and print a summary."),
    ] = None,
    all: Annotated[bool, typer.Option("--all", help="List every law with its proof, and all facts.")] = False,
    if_any: Annotated[bool, typer.Option("--if-any", help="Skip files and folders that declare no hierarchy.")] = False,
    timeout: Timeout = BUDGET,
) -> None:
    """Prove or refute every law, for batches of all sizes.

    It prints what fails, what is given up, and facts to act on. --all lists every law. JSON and JUnit always have all.

    Exit code 0: every law is proved, or given up as declared. 1: a law is refuted or undecided, for example because
    the time ran out. 2: an input is unusable, or declares no hierarchy (without --if-any).
    """
    from fibration.printing import reports
    from fibration.printing.progress import working

    check_writable_file(output)
    done = count()
    with working("reading specs") as tell:
        outcomes = reports.check(specs, lambda h: tell(f"laws of {h}; {next(done)} decided"), if_any, timeout)
    raise typer.Exit(say(outcomes, format, output, all))


@app.command()
def compare(
    specs: Annotated[
        list[str],
        typer.Argument(
            metavar="SPEC SPEC", help="Two losses. KEY=VALUE may come after each config.", show_default=False
        ),
    ],
    when: Annotated[
        list[str] | None,
        typer.Option(metavar="CONDITION", help="Compare only on batches that meet this. May be repeated."),
    ] = None,
    param: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=NAME|FORMULA|NUMBER", help="Match two parameters, or fix one. inf: it never binds."),
    ] = None,
    match: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=NAME", help="Two names of one parameter, stratum, policy or attribute."),
    ] = None,
    at_defaults: Annotated[
        bool, typer.Option("--at-defaults", help="Each loss has its own defaults as constants.")
    ] = False,
    ignore_advantages: Annotated[
        bool, typer.Option("--ignore-advantages", help="How advantages are made of rewards does not count.")
    ] = False,
    with_all: Annotated[
        bool, typer.Option("--with-all", help="Compare with all shipped losses, and name the nearest.")
    ] = False,
    format: Annotated[
        VerifyFormat, typer.Option("--format", "-f", case_sensitive=False, help="The format of the report.")
    ] = VerifyFormat.text,
    output: Annotated[
        Path | None, typer.Option(*OUTPUT, metavar="FILE", help="Write the report to a file, and print a summary.")
    ] = None,
    timeout: Timeout = BUDGET,
) -> None:
    """Decide whether two losses are the same, or which one a loss is.

    Two losses are the same if every token has the same coefficient on every batch of every size. The parameters of a
    config have its numbers.

    Parameters are matched by name, then by role: the report lists each match of two names. --match says which belong
    together where that is not unique.

    CONDITION is a comparison that holds at every token ('advantage >= 0'), 'equal(count(token, over=trajectory))',
    'equal(advantage, on=trajectory)' or short 'advantage=trajectory', 'one(domain)', 'same(old, rollout)', on_policy.

    FORMULA writes a parameter of one loss in parameters of the other: 'bound=1 + epsilon'.

    Exit code 0: proved. 1: refuted by a batch, the smallest found, or undecided. 2: the losses cannot be compared, or
    an input is unusable.
    """
    from fibration.cli.compare import Settings, matches, names
    from fibration.cli.compare import compare as compare_specs
    from fibration.printing.progress import working

    check_writable_file(output)
    settings = Settings(
        when or (), matches(param or (), parameters), names(match or ()), at_defaults, ignore_advantages, timeout
    )
    named = " with ".join(spec.name for spec in as_specs(specs))
    with working(f"comparing {named}{' with all shipped losses' if with_all else ''}"):
        outcomes = compare_specs(specs, with_all, settings)
    raise typer.Exit(say(outcomes, format, output))


@app.command()
def audit(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE.py:FUNCTION",
            help="A loss function of torch. KEY=VALUE may come after it for --as trl:FILE or verl:FILE.",
            show_default=False,
        ),
    ],
    like: Annotated[
        str | None,
        typer.Option("--as", metavar="SPEC", help="The loss that it should be. Default: any shipped one."),
    ] = None,
    param: Parameters = None,
    format: Annotated[
        VerifyFormat, typer.Option("--format", "-f", case_sensitive=False, help="The format of the report.")
    ] = VerifyFormat.text,
    output: Annotated[Path | None, typer.Option(*OUTPUT, metavar="FILE", help="Write the report to a file.")] = None,
    all: Annotated[bool, typer.Option("--all", help="List every property that holds.")] = False,
) -> None:
    """Find out which loss a function is, and what is wrong with it.

    The function is called on small batches, and its value and gradient are compared with those of declared losses. It
    takes (log_probs, old_log_probs, advantages, mask), or further arguments by name: ref_log_probs,
    rollout_log_probs, rewards, group_ids, cu_seqlens. It returns the loss.

    Exit code 0: nothing is wrong, and it is SPEC if --as names one. 1: something is wrong. 2: it cannot be audited.
    """
    from fibration.auditing.load import load_function
    from fibration.auditing.report import rendered
    from fibration.cli.audits import audited, expected
    from fibration.printing.configs import lines, title
    from fibration.printing.progress import working

    check_writable_file(output, in_folder=True)
    function, *overrides = words
    if overrides and like is None:
        raise UsageError(
            f"'{overrides[0]}' after {function}: KEY=VALUE changes the config of --as trl:FILE or verl:FILE."
        )
    loaded, file = load_function(function)
    loss = expected([like, *overrides] if like else [], loaded, function)
    with working(f"calling {function}"):
        found = audited(loaded, loss, function, parameters(param or ()))
    text = rendered(found, format.value, file, all)
    if format is VerifyFormat.text:
        text = "\n".join([text, *lines(f"\n  {title(loss.trainer)}", [f"  {s}" for s in loss.around])])
    if output is not None:
        write_file(output, text)
        typer.echo(f"{'fine' if found.ok else 'not fine'}; report in {output}")
    else:
        typer.echo(text)
    raise typer.Exit(0 if found.ok else 1)


def say(outcomes: Sequence[Any], format: VerifyFormat, output: Path | None, full: bool = False) -> int:
    """Prints reports, or writes them to a file. Returns the exit code. `full`: all verdicts and facts."""
    from fibration.printing import reports

    for outcome in outcomes:
        if outcome.error:
            typer.echo(f"error: {outcome.error}", err=True)
    if output is not None:
        write_file(output, reports.rendered(outcomes, format, full))
        typer.echo(f"{reports.summary(outcomes)}; report in {output}")
    elif format is VerifyFormat.text:
        reports.emit(console(), reports.as_text(outcomes, full))
    else:
        typer.echo(reports.rendered(outcomes, format, full), nl=False)
    return reports.exit_code(outcomes)


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
    from fibration.printing import configs
    from fibration.printing.latex import latex
    from fibration.printing.python import python
    from fibration.printing.reports import loss_quietly
    from fibration.printing.text import mermaid, text

    loss = loss_quietly(spec)
    hierarchy = loss.hierarchy
    if format is ShowFormat.json:
        typer.echo(hierarchy.model_dump_json(indent=2))
    elif format is ShowFormat.schema:
        typer.echo(json.dumps(hierarchy.model_json_schema(), indent=2))
    elif format is ShowFormat.python:
        beside = configs.lines(configs.title(as_spec(spec).trainer), loss.around)
        typer.echo("".join(f"# {line.strip()}\n" for line in beside) + python(hierarchy), nl=False)
    else:
        typer.echo({"text": text, "mermaid": mermaid, "latex": latex}[format](hierarchy))
        if format is ShowFormat.text:
            typer.echo(f"\nmicro-batches\n  {coupling_of(hierarchy)}")
            for line in configs.lines(f"\n{configs.title(as_spec(spec).trainer)}", loss.around):
                typer.echo(line)


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
    timeout: Timeout = BUDGET,
) -> None:
    """Verify a loss, and print its source or write standalone files.

    Without -o it prints the source. With -o it writes the module, and a certificate of what was proved.
    """
    from fibration.cli.certificate import certificate, kernel_table
    from fibration.pipeline import choose, export, generate
    from fibration.printing import reports
    from fibration.printing.progress import working

    hierarchy, chosen = reports.load_quietly(spec), choose(backend, written=True)
    if output is not None:
        check_writable(output, "--output", "what is compiled")
    with working(f"laws of {hierarchy.name}"):
        report = hierarchy.verify(timeout)
    report.raise_for_status()
    artifact = generate(hierarchy, chosen)
    if arch and chosen != "triton":
        raise BackendError(f"the {chosen} backend compiles for no architecture", remedy="leave --arch out")
    if output is None:
        if arch:
            raise BackendError("machine code is no text to print", required="a folder for it", remedy="add -o DIR")
        typer.echo(artifact.source, nl=False)
        return
    with working(f"compiling kernels for {arch}" if arch else "writing"):
        exported = export(artifact, arch)
    proof = f"{hierarchy.name}_certificate.json"
    files = {**exported.files, proof: certificate(artifact, report, exported)}
    for name, contents in files.items():
        write_file(output / name, contents)
    typer.echo("\n".join([reports.heading(report).plain, *(str(output / name) for name in files)]))
    if exported.kernels:
        reports.emit(console(), kernel_table(exported))


@app.command()
def run(
    spec: Spec,
    rollouts: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Recorded rollouts. Default: the batch that is shipped.")
    ] = None,
    verify: Annotated[
        list[str] | None, typer.Option(metavar="SPEC|DIR", help="Verify this spec or folder first. May be repeated.")
    ] = None,
    out: Annotated[Path, typer.Option(*OUTPUT, metavar="DIR", help="The folder for pictures.")] = Path("out"),
    by: Annotated[
        str | None,
        typer.Option(
            metavar="STRATUM", help="Split tables and pictures by its labels. Default: domain, or the coarsest."
        ),
    ] = None,
    param: Parameters = None,
    timeout: Timeout = BUDGET,
) -> None:
    """Gate a recorded batch, and show what every level did.

    It verifies and compiles SPEC, gates the batch, and compares the result with the float64 interpreter. Then it
    prints tables and draws pictures.
    """
    from fibration.cli.run import command

    raise typer.Exit(command(console(), spec, rollouts, verify or [], out, parameters(param or []), timeout, by))


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

    chosen = [name for name in figure or ["all"] if name != "all"] if "all" not in (figure or ["all"]) else []
    formats = [word.strip() for word in format.split(",")]
    hierarchy, values = load_quietly(spec), parameters(param or [])
    for path, shows in figures.draw(hierarchy, output, chosen or tuple(figures.FIGURES), values, formats, paper):
        typer.echo(f"{path}: {shows}")


@app.command()
def record(
    out: Annotated[
        Path, typer.Option(*OUTPUT, metavar="FILE", help="The safetensors file to write.", show_default=False)
    ],
    prompts_per_domain: Annotated[int, typer.Option(min=1, help="Prompts of each domain.")] = 8,
    samples: Annotated[int, typer.Option(min=1, help="Trajectories per prompt.")] = 8,
    updates: Annotated[int, typer.Option(min=0, help="Optimiser steps on the batch.")] = 4,
    seed: Annotated[int, typer.Option(help="Seed of questions and samples.")] = 0,
    engine: Annotated[
        str | None,
        typer.Option(metavar="bfloat16|float16", help="Sample in this dtype, as the policy 'rollout'."),
    ] = None,
) -> None:
    """Record a batch of rollouts with a small model.

    The model answers questions and gets rewards. It is then updated a few times on its answers. This takes minutes.
    """
    from fibration.printing.progress import working
    from fibration.rollouts.record import record as record_batch

    check_writable_file(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    sizes: Any = {"prompts_per_domain": prompts_per_domain, "samples_per_prompt": samples, "updates": updates}
    with working("sampling and training: minutes"):
        record_batch(out, **sizes, seed=seed, engine=engine, progress=typer.echo)
    typer.echo(f"written to {out}")


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
    sweep: Annotated[bool, typer.Option("--sweep", help="Vary tokens, lengths, raggedness and padding.")] = False,
    device: Annotated[str, typer.Option(metavar="cpu|cuda", help="The device to measure on.")] = "cpu",
    dtype: Annotated[str, typer.Option(help="The dtype of log-probs and advantages.")] = "float32",
    repeats: Annotated[
        int | None, typer.Option(metavar="R", min=1, help="Rounds. Default: 15, or 5 with --quick.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the inputs.")] = 0,
    json: Annotated[Path | None, typer.Option(metavar="FILE.json", help="Write all samples to this file.")] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Draw a picture to this file.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small batches, without memory and cold starts.")] = False,
    timeout: Timeout = BUDGET,
) -> None:
    """Time every backend beside hand-written losses.

    It also times torch.compile and a bare copy of the inputs. All run in turns on the same inputs, and their results
    are compared.
    """
    from fibration.bench import command

    settings = command.Settings(
        specs=tuple(specs or ()), backends=tuple(backend or ()), tokens=tuple(tokens or ()), length=length, sweep=sweep,
        device=device, dtype=dtype, repeats=repeats, seed=seed, json=json, plot=plot, quick=quick, timeout=timeout,
    )  # fmt: skip
    raise typer.Exit(command.bench(console(), settings))


def main() -> None:
    """The entry point. A terminal that cannot encode a character shows a replacement."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    to_its_end(app)
