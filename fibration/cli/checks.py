"""The commands that judge a loss: `verify`, `compare`, `audit`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import typer

from fibration.cli.app import UsageError, app, console, tell, width
from fibration.cli.app import say as tell_error
from fibration.cli.arguments import (
    OUTPUT,
    FailOn,
    Fails,
    Format,
    Output,
    Parameters,
    Specs,
    Timeout,
    VerifyFormat,
    parameters,
)
from fibration.errors import AuditError, FibrationError
from fibration.escaping import one_line
from fibration.files import STDOUT, check_writable_file, write_file
from fibration.language.report import BUDGET
from fibration.laws.budget import Budget
from fibration.printing.layout import wrapped


@app.command()
def verify(
    specs: Specs,
    format: Format = VerifyFormat.text,
    output: Output = None,
    all: Annotated[bool, typer.Option("--all", help="List every law with its proof, and all facts.")] = False,
    if_any: Annotated[bool, typer.Option("--if-any", help="Skip files and folders that declare no hierarchy.")] = False,
    fail_on: Fails = FailOn.error,
    timeout: Timeout = BUDGET,
) -> None:
    """Prove or refute every law, for batches of all sizes.

    It prints what fails, what is given up, and facts to act on. --all lists every law. JSON and JUnit always have all.
    Of a trainer's config it prints errors, warnings and notes first, each with the line to change.

    Exit code 0: every law is proved, or given up as declared. 1: a law is refuted or undecided, for example because
    the time ran out, or a trainer's config has errors; with --fail-on warning also warnings. 2: an input is unusable,
    or declares no hierarchy (without --if-any).
    """
    from fibration.printing import reports
    from fibration.printing.progress import working

    check_writable_file(output)
    done = count()
    with working("reading specs") as tell:
        outcomes = reports.check(specs, lambda h: tell(f"laws of {h}; {next(done)} decided"), if_any, timeout, fail_on)
    raise typer.Exit(say(outcomes, format, output, all))


@app.command()
def report(
    specs: Specs,
    output: Annotated[Path, typer.Option(*OUTPUT, metavar="FILE.html", help="The file.")] = Path("report.html"),
    rollouts: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Recorded rollouts, whose elements are drawn on the gates.")
    ] = None,
    param: Parameters = None,
    fail_on: Fails = FailOn.error,
    timeout: Timeout = BUDGET,
) -> None:
    """Write one HTML file about losses, to share.

    It has their formulas, gates as curves, every law with its proof or counterexample, facts, what is off in a config,
    the generated code, and the hash of its certificate. A function has its audit, also where it has no declaration.
    The first of several losses is compared with each other one. The file loads nothing and has no script.

    Exit codes are those of `verify`, and 1 for a wrong function; a difference between losses does not count. The file
    is written in any case.
    """
    from fibration.cli.page import page
    from fibration.printing import reports
    from fibration.printing.progress import working

    check_writable_file(output, ".html")
    with working("reading specs") as step:
        text, outcomes, is_fine = page(specs, rollouts, parameters(param or ()), timeout, fail_on, step)
    _tell_errors(outcomes)
    write_file(output, text)
    tell(f"{reports.summary(outcomes)}; report in {output}", output)
    raise typer.Exit(max(reports.exit_code(outcomes), 0 if is_fine else 1))


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
    format: Format = VerifyFormat.text,
    output: Output = None,
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
    from fibration.configs.specs import as_specs
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
    format: Format = VerifyFormat.text,
    output: Output = None,
    all: Annotated[bool, typer.Option("--all", help="List every property that holds.")] = False,
    timeout: Annotated[float, typer.Option(metavar="S", help="Seconds for the audit. inf: no limit.")] = BUDGET,
) -> None:
    """Find out which loss a function is, and what is wrong with it.

    The function is called on small batches, and its value and gradient are compared with those of declared losses. It
    takes (log_probs, old_log_probs, advantages, mask), or further arguments by name: ref_log_probs,
    rollout_log_probs, rewards, group_ids, cu_seqlens. It returns the loss. What it prints goes to stderr.

    Exit code 0: nothing is wrong, and it is SPEC if --as names one. 1: something is wrong. 2: it cannot be audited, or
    the time ran out.
    """
    from fibration.language.apart import each
    from fibration.printing.progress import working

    check_writable_file(output, in_folder=True)
    function, *overrides = words
    if overrides and like is None:
        raise UsageError(
            f"'{overrides[0]}' after {function}: KEY=VALUE changes the config of --as trl:FILE or verl:FILE."
        )
    given, budget = parameters(param or ()), Budget(timeout)

    def judge(name: str) -> tuple[str, bool]:
        from fibration.auditing.report import rendered
        from fibration.cli.audits import audited, expected, load_function
        from fibration.printing.law_table import lines, title

        loaded, file = load_function(name)
        loss = expected([like, *overrides] if like else [], loaded, function)
        found = audited(loaded, loss, name, given)
        text = rendered(found, format.value, file, all)
        if format is VerifyFormat.text:
            around = map(one_line, lines(title(loss.trainer), loss.findings))
            text = "\n".join([text, *(f"  {x}" if x.startswith(" ") else f"\n  {x}" for x in around)])
        return text, found.ok

    remedy = (
        f"--timeout {10 * budget.seconds:g}, since the search for the loss takes its time on a busy machine; or call "
        "the function by itself, to see whether it returns"
    )
    with working(f"calling {function}"):
        (found,) = each(judge, [function], budget.seconds, AuditError, remedy)
    if isinstance(found, FibrationError):
        raise found
    text, fine = found
    shown = wrapped(text, 100 if output else width()) if format is VerifyFormat.text else text
    write_file(output or STDOUT, f"{shown}\n")
    if output is not None:
        tell(f"{'fine' if fine else 'not fine'}; report in {output}", output)
    raise typer.Exit(0 if fine else 1)


def say(outcomes: Sequence[Any], format: VerifyFormat, output: Path | None, full: bool = False) -> int:
    """Prints reports, or writes them to a file. Returns the exit code. `full`: all verdicts and facts."""
    from fibration.printing import reports
    from fibration.printing.formats import rendered

    _tell_errors(outcomes)
    if output is not None:
        write_file(output, rendered(outcomes, format, full))
        tell(f"{reports.summary(outcomes)}; report in {output}", output)
    elif format is VerifyFormat.text:
        reports.emit(console(), reports.as_text(outcomes, full))
    else:
        write_file(STDOUT, rendered(outcomes, format, full))
    return reports.exit_code(outcomes)


def _tell_errors(outcomes: Sequence[Any]) -> None:
    for outcome in outcomes:
        if outcome.error:
            tell_error(f"error: {outcome.error}", is_error=True)
