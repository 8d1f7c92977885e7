"""`fibration run` and `fibration.run`: verify, compile, gate a recorded batch, compare with the interpreter, and show
what every level did, on one screen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from fibration.cli.findings import findings
from fibration.errors import BackendError
from fibration.files import check_writable
from fibration.language.hierarchy import Hierarchy
from fibration.language.loading import load
from fibration.language.report import BUDGET
from fibration.pipeline import best
from fibration.pipeline import compile as compile_operator
from fibration.printing import reports
from fibration.printing.progress import working
from fibration.rollouts.file import Rollouts, load_rollouts
from fibration.rollouts.replay import Gated, build_index, disagreement, gate

AGREEMENT = 1e-9  # largest relative difference from the float64 interpreter; rounding explains about 1e-13


def run(
    hierarchy: Hierarchy | str | Path,
    rollouts: Rollouts | str | Path | None = None,
    out: str | Path | None = None,
    *,
    parameters: Mapping[str, Any] | None = None,
    by: str | None = None,
    full: bool = False,
) -> Gated:
    """Gates a recorded batch and prints what every level did, as `fibration run` does. Returns the gated batch.

    It verifies and compiles the hierarchy, and compares the results with the float64 interpreter. The returned batch
    has `op`, `index`, `ratio`, `levels` and `result`.

    - `hierarchy`: a Hierarchy, a file, or the name of a shipped loss.
    - `rollouts`: Rollouts or a file. Default: the batch that is shipped.
    - `out`: the folder for pictures. Default: no pictures.
    - `parameters`: values of parameters, as in `op.loss`.
    - `by`: the stratum by whose labels tables and pictures are split. Default: `domain`, or the coarsest stratum with
      few labels.
    - `full`: whether every level is split by these labels too, and every number of the batch is printed.

    Raises the errors of `compile` and `op.index`. Raises RolloutsError if the rollouts lack an input of the hierarchy,
    and BackendError if the results differ from the interpreter's.
    """
    if out is not None:
        check_writable(Path(out), "out=")
    h = hierarchy if isinstance(hierarchy, Hierarchy) else load(hierarchy)
    console = Console(highlight=False, markup=False, emoji=False)
    gated, differs = _gate(console, h, rollouts, parameters or {}, BUDGET, by, full)
    if differs:
        raise BackendError(
            f"what the {gated.op.backend} backend computes of '{h.name}' is not what its formulas say",
            required=f"a relative difference of at most {AGREEMENT:g} from the float64 interpreter",
            found=differs,
            remedy="this is a defect of fibration: please report it with the spec and the rollouts",
        )
    if out is not None:
        _draw(console, gated, Path(out))
    return gated


def command(
    console: Console,
    spec: str | Sequence[str],
    rollouts: Path | None,
    out: Path,
    parameters: Mapping[str, Any],
    timeout: float | None = BUDGET,
    by: str | None = None,
    full: bool = False,
) -> int:
    """Run `fibration run`. Returns the exit code. `timeout` applies to the verification."""
    hierarchy = reports.load_quietly(spec)
    check_writable(out, "--out")  # before the work, not after it
    if rollouts is not None:
        load_rollouts(rollouts)
    _, differs = gated = _gate(console, hierarchy, rollouts, parameters, timeout, by, full)
    if differs:
        return 1
    _draw(console, gated[0], out)
    named = spec if isinstance(spec, str) else " ".join(spec)
    reports.emit(console, Text("\nnext", "bold cyan"))
    for words, meaning in (
        (f"fibration run {named} --all", "every level by its labels"),
        (f"fibration run {named} --rollouts FILE", "your rollouts, saved"),
        ("fibration verify my_spec.py", "your loss (begin: fibration init)"),
        ("fibration audit my_file.py:loss", "your loss, a function of torch"),
    ):
        line = Text.assemble("  ", (f"{words:<44}", "bold"), f" {meaning}", no_wrap=True, overflow="ignore")
        reports.emit(console, line)  # a command never breaks, so that it can be pasted
    return 0


def _gate(
    console: Console,
    hierarchy: Hierarchy,
    rollouts: Rollouts | str | Path | None,
    parameters: Mapping[str, Any],
    timeout: float | None,
    by: str | None,
    full: bool,
) -> tuple[Gated, str]:
    """Every step but the pictures. Returns the gated batch, and its differences from the interpreter if too large."""
    with working(f"laws of {hierarchy.name}"):
        op = compile_operator(hierarchy, best(gpu=False)[0], timeout)  # a recorded batch is small and on the CPU
        verified = reports.warned(op.report)
    reports.emit(console, verified)

    engine = any(policy.is_passed for policy in hierarchy.policies.values())
    shipped = "the rollouts that come with fibration" + " (an engine's, in bfloat16)" * engine
    recorded = rollouts if isinstance(rollouts, Rollouts) else load_rollouts(rollouts, engine=engine)
    index = build_index(op, recorded)
    source = "the rollouts" if recorded is rollouts else str(rollouts or shipped)
    reports.emit(console, Text(f"\n{source}: {_batch(recorded)}"))

    with working("gating every token, in float64"):
        gated = gate(op, index, recorded, parameters, by)
        parts = list(findings(gated, full))
        differences = disagreement(gated)
    for part in parts:
        reports.emit(console, Padding(part, (1, 0, 0, 0)) if isinstance(part, Text) else part)

    agrees = all(d <= AGREEMENT for d in differences.values())
    shown = ", ".join(f"{name} {d:.1e}" for name, d in differences.items())
    word, style = (f"✓ at most {AGREEMENT:g}", "green") if agrees else (f"✗ more than {AGREEMENT:g}", "bold red")
    said = f"largest relative difference of the {op.backend} backend from the float64 interpreter"
    reports.emit(console, Text(f"\n{said}: {shown} ({word})", style))
    return gated, "" if agrees else shown


def _draw(console: Console, gated: Gated, out: Path) -> None:
    from fibration.plotting import recorded_batch

    with working(f"drawing {out}") as tick:
        pictures = recorded_batch.draw(gated, out, lambda name: tick(f"drawing {name}"))
    reports.emit(console, Text("\npictures", "bold cyan"))
    for path, title in pictures:
        reports.emit(console, Padding(f"{path}: {title}", (0, 0, 0, 2)))


def _batch(rollouts: Rollouts) -> str:
    made = rollouts.provenance
    model = made.get("model") if isinstance(made, Mapping) else None
    name = model.get("name") if isinstance(model, Mapping) else model
    by = f", sampled by {name.partition(',')[0]}" if isinstance(name, str) else ""
    known = ", ".join(f"{len(given.names)} {stratum}" for stratum, given in rollouts.labels.items())
    return f"{rollouts.n_tokens} tokens in {rollouts.n_trajectories} trajectories{by}; labels: {known or 'none'}"
