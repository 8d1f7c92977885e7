"""`fibration bench`: checks its settings, measures loss by loss, and writes a table and JSON."""

from __future__ import annotations

import json as format_json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fibration import pipeline
from fibration.bench.batches import DTYPES, LAYOUTS, Shape, parse_count
from fibration.bench.measure import describe_machine, measure, names
from fibration.configs.specs import as_specs
from fibration.errors import BackendError
from fibration.files import check_writable_file, write_file
from fibration.printing.progress import working
from fibration.printing.reports import emit, load_quietly

DEFAULT = ("ppo", "gspo", "fiberpo", "fiberpo_domain", "fiberpo_modal", "fiberpo_crossed")
HEADING = (
    "{processor}, {cores} cores, {vector_unit}, load {load_before} before the start; measured on {device}; "
    "{torch_threads} threads for all; torch {torch}; medians of {rounds} rounds, in which all take turns\n"
)
NOTE = (
    "/eager: over eager torch's loss and backward. /copy: over the fastest copy of the bytes that must move (inputs "
    "read once, coefficients written once). ±: half the distance of the quartiles. + index: with the index of a new "
    "batch. differs: mean error of the coefficients against float64."
)


def bench(
    console: Console,
    specs: Sequence[str],
    backends: Sequence[str],
    tokens: Sequence[str],
    length: str,
    rounds: int,
    json: Path | None,
    timeout: float,
    **batch_of: Any,
) -> None:
    """Run `fibration bench`. Unusable settings raise before the first measurement. `batch_of`: of `make_batch`."""
    device, dtype = batch_of["device"], batch_of["dtype"]
    if dtype not in DTYPES:
        raise BackendError(f"no dtype '{dtype}'", required=f"one of {', '.join(DTYPES)}")
    if device.partition(":")[0] not in ("cpu", "cuda"):
        raise BackendError(f"no device '{device}'", required="cpu or cuda")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise BackendError(
            f"device '{device}' is not there",
            required="a GPU that this torch can use",
            found=f"torch {torch.__version__}",
            remedy="measure with --device cpu",
        )
    # Triton's interpreter is for debugging, so the CPU leaves triton out.
    usual = [b for b in pipeline.BACKENDS if b == "torch" or (b == "triton") == device.startswith("cuda")]
    chosen = list(dict.fromkeys(pipeline.choose(b) for b in backends)) or usual
    shapes = [Shape(parse_count(n), parse_count(length), layout=layout) for n in tokens for layout in LAYOUTS]
    check_writable_file(json, ".json")
    hierarchies = [load_quietly(spec) for spec in as_specs(specs or DEFAULT)]
    with working("laws"):
        for hierarchy in hierarchies:
            hierarchy.verify(timeout).raise_for_status()
    machine, results = describe_machine(torch.device(device)), []
    emit(console, Text(HEADING.format(rounds=rounds, **machine)))
    for hierarchy, shape in [(h, s) for h in hierarchies for s in shapes]:
        with working(f"{hierarchy.name}: {shape}"):
            results.append(measure(hierarchy, shape, names(hierarchy, chosen), rounds, **batch_of))
        emit_table(console, f"{hierarchy.name}: {shape}", results[-1]["rows"])
    emit(console, Text(NOTE, "dim"))
    if json is not None:
        command = shlex.join(["fibration", *sys.argv[1:]])
        found = {"format": "fibration bench 2", "command": command, **batch_of, "machine": machine, "results": results}
        write_file(json, format_json.dumps(found, indent=1, allow_nan=False) + "\n")
        console.print(f"written to {json}")


def emit_table(console: Console, title: str, rows: Sequence[dict[str, Any]]) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, title=title, title_justify="left", title_style="bold")
    for column in ("", "ms", "best", "±", "/eager", "/copy", "differs"):
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    for row in rows:
        if "error" in row:
            table.add_row(row["name"], Text("failed", "red"))
            continue
        first, third = row["quartiles_s"]
        spread = f"{(third - first) / 2 / row['median_s']:.0%}"
        ratios = [number(row[key]) if key in row else "" for key in ("over_eager", "over_copy")]
        differs = f"{row['differs']:.0e}" if "differs" in row else ""
        table.add_row(row["name"], number(row["median_s"] * 1e3), number(row["best_s"] * 1e3), spread, *ratios, differs)
    emit(console, table)
    reasons = {row["error"]: row["name"] for row in reversed(rows) if "error" in row}  # rows of a backend share one
    emit(console, Text("".join(f"{name}: {why}\n" for why, name in reasons.items()), "red"))


def number(value: float) -> str:
    """A number with three digits, or with all digits before the point."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}" if value >= 1e-3 else f"{value:.0e}"
