"""`fibration run` and `fibration.run`: verify, compile, gate a recorded batch, compare with the interpreter, and show
what every level did.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from fibration.cli.findings import findings
from fibration.errors import BackendError
from fibration.files import check_writable
from fibration.language.hierarchy import Hierarchy
from fibration.language.loading import load
from fibration.language.report import BUDGET, Fact, Report
from fibration.laws.catalogue import LAWS
from fibration.pipeline import best
from fibration.pipeline import compile as compile_operator
from fibration.printing import reports
from fibration.printing.law_table import KINDS, Kind, Overview, columns, kind
from fibration.rollouts.file import Rollouts, load_rollouts
from fibration.rollouts.replay import Gated, build_index, disagreement, gate
from fibration.runtime.index.index import Index

PER_LEAF = "log 𝒢 on "  # prefix of facts about the tokens of one leaf, if there are several leaves
AGREEMENT = 1e-9  # largest relative difference from the float64 interpreter; rounding explains about 1e-13


def run(
    hierarchy: Hierarchy | str | Path,
    rollouts: Rollouts | str | Path | None = None,
    out: str | Path | None = None,
    *,
    parameters: Mapping[str, Any] | None = None,
    by: str | None = None,
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

    Raises the errors of `compile` and `op.index`. Raises RolloutsError if the rollouts lack an input of the hierarchy,
    and BackendError if the results differ from the interpreter's.
    """
    if out is not None:
        check_writable(Path(out), "out=")
    h = hierarchy if isinstance(hierarchy, Hierarchy) else load(hierarchy)
    say = _Steps(Console(highlight=False, markup=False, emoji=False))
    spec = None if isinstance(hierarchy, Hierarchy) else str(hierarchy)
    gated, differs = _gate(say, h, spec, rollouts, parameters or {}, BUDGET, by)
    if differs:
        raise BackendError(
            f"what the {gated.op.backend} backend computes of '{h.name}' is not what its formulas say",
            required=f"a relative difference of at most {AGREEMENT:g} from the float64 interpreter",
            found=differs,
            remedy="this is a defect of fibration: please report it with the spec and the rollouts",
        )
    if out is not None:
        _draw(say, gated, Path(out))
    return gated


def command(
    console: Console,
    spec: str | Sequence[str],
    rollouts: Path | None,
    verify: Sequence[str],
    out: Path,
    parameters: Mapping[str, Any],
    timeout: float | None = BUDGET,
    by: str | None = None,
) -> int:
    """Run `fibration run`. Returns the exit code. `timeout` applies to each hierarchy that is verified."""
    say, hierarchy = _Steps(console), reports.load_quietly(spec)
    check_writable(out, "--out")  # before the work, not after it
    if rollouts is not None:
        load_rollouts(rollouts)
    if verify:
        with say.step("verify", ", ".join(verify)) as tick:
            outcomes = reports.check(verify, tick, timeout=timeout)
        if any(o.report for o in outcomes):
            say.body(Overview([o.report for o in outcomes if o.report]))
        for o in outcomes:
            if o.error:
                say.body(Text(f"error: {o.error}", "red"))
            elif o.report and not o.report.ok:
                say.body(reports.refusals(o.report))
        if reports.exit_code(outcomes):
            return reports.exit_code(outcomes)
    named = spec if isinstance(spec, str) else " ".join(spec)
    gated, differs = _gate(say, hierarchy, named, rollouts, parameters, timeout, by)
    if differs:
        return 1
    _draw(say, gated, out)
    return 0


def _gate(
    say: _Steps,
    hierarchy: Hierarchy,
    spec: str | None,
    rollouts: Rollouts | str | Path | None,
    parameters: Mapping[str, Any],
    timeout: float | None,
    by: str | None,
) -> tuple[Gated, str]:
    """Every step but the pictures. Returns the gated batch, and its differences from the interpreter if too large."""
    with say.step("compile", hierarchy.name):
        op = compile_operator(hierarchy, best(gpu=False)[0], timeout)  # a recorded batch is small and on the CPU
    say.body(_proof(op.report))
    say.line(f"every argument: {f'fibration verify {spec} --all' if spec else 'print(hierarchy.verify())'}")
    source = f"fibration compile {spec}" if spec else "fibration.compile(hierarchy).source"
    say.line(f"{len(op.source.splitlines())} lines for the {op.backend} backend: {source}")

    engine = any(policy.is_passed for policy in hierarchy.policies.values())
    shipped = "the rollouts that come with fibration" + (", sampled by an engine in bfloat16" if engine else "")
    given = isinstance(rollouts, Rollouts)
    with say.step("read", "rollouts" if given else str(rollouts or shipped)):
        recorded = rollouts if isinstance(rollouts, Rollouts) else load_rollouts(rollouts, engine=engine)
        index = build_index(op, recorded)
    say.line(_batch(recorded, index))

    with say.step("gate", "every token, in float64"):
        gated = gate(op, index, recorded, parameters, by)
    for part in findings(gated):
        say.body(part)

    with say.step("compare", "with the float64 interpreter of the IR"):
        differences = disagreement(gated)
    agrees = all(d <= AGREEMENT for d in differences.values())
    shown = ", ".join(f"{name} {d:.1e}" for name, d in differences.items())
    word, style = (f"✓ at most {AGREEMENT:g}", "green") if agrees else (f"✗ more than {AGREEMENT:g}", "bold red")
    say.line(f"largest relative difference: {shown} ({word})", style)
    return gated, "" if agrees else shown


def _draw(say: _Steps, gated: Gated, out: Path) -> None:
    with say.step("draw", str(out)) as tick:
        from fibration.plotting import recorded_batch

        pictures = recorded_batch.draw(gated, out, tick)
    for path, title in pictures:
        say.line(f"{path}: {title}")


# ---------------------------------------------------------------- what is printed


class _Steps:
    """Numbered steps: on a terminal a spinner while a step runs, otherwise one plain line per step."""

    def __init__(self, console: Console) -> None:
        self.console, self.number = console, 0

    @contextmanager
    def step(self, verb: str, what: str) -> Iterator[Any]:
        self.number += 1
        reports.emit(self.console, Text.assemble((f"{self.number} {verb}", "bold cyan"), f"  {what}"))
        with self.console.status(f"{verb} ...") as status:
            yield lambda detail: status.update(f"{verb} {detail} ...")

    def body(self, renderable: Any) -> None:
        reports.emit(self.console, Padding(renderable, (0, 0, 1, 2)))

    def line(self, text: str, style: str = "") -> None:
        reports.emit(self.console, Padding(Text(text, style), (0, 0, 0, 2)))


def _proof(report: Report) -> Table:
    """A table of the laws of a verified hierarchy, and of the facts about the whole hierarchy."""
    grid = columns(2)
    for name, shown in _laws(report):
        law = LAWS.get(name.partition(" ")[0])
        grid.add_row(Text(shown.sign, shown.style), name, Text(law.statement if law else ""))
    whole: list[Fact] = []  # the first of each kind, or one per leaf
    for fact in report.facts:
        first = all(fact.name != f.name for f in whole)
        if (first or fact.subject.startswith(PER_LEAF)) and not fact.subject.startswith("gate on"):
            whole.append(fact)
    for fact in whole:
        grid.add_row(Text("·", "dim"), fact.name, Text.assemble(f"{fact.subject}: ", (fact.value, "bold")))
    return grid


def _laws(report: Report) -> list[tuple[str, Kind]]:
    """Every law once, with the number of its subjects and the worst verdict."""
    found: dict[str, list[Kind]] = {}
    for v in report.verdicts:
        found.setdefault(v.law, []).append(kind(report, v))
    order = list(KINDS.values())
    return [(law + (f" ×{len(k)}" if len(k) > 1 else ""), max(k, key=order.index)) for law, k in found.items()]


def _batch(rollouts: Rollouts, index: Index) -> str:
    made = rollouts.provenance
    model = made.get("model", {}) if isinstance(made, Mapping) else {}
    by = f", sampled by {model['name']}" if isinstance(model, Mapping) and "name" in model else ""
    rows = reversed(index.hierarchy.shape.layers())
    used = " → ".join(", ".join(f"{index.size[s.name]} {s}" for s in row) for row in rows)
    known = ", ".join(f"{len(given.names)} {stratum}" for stratum, given in rollouts.labels.items())
    return (
        f"{rollouts.n_tokens} tokens in {rollouts.n_trajectories} trajectories{by}; labels: {known or 'none'}\n"
        f"elements: {used}"
    )
