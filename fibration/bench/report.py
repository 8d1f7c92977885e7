"""The report of a benchmark: tables for people, JSON for programs."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from fibration.bench.baselines import baseline
from fibration.bench.candidates import COMPILED, EAGER, ROWS, Candidate
from fibration.bench.measure import LARGE, Failed, Timing, ratio
from fibration.bench.rows import Measured, Row
from fibration.printing.reports import emit

FORMAT = "fibration bench 1"
BUSY = 0.25  # load per core above which the report warns of noise
MIB = 2**20
COLUMNS = ("ms", "best\nms", "±", "time/\neager", "time/\ncopy", "extra\nMiB", "index\nms", "cold\ns", "differs")


def emit_heading(
    console: Console, command: Sequence[str], machine: dict[str, Any], stream: Timing, repeats: int
) -> None:
    lines = [
        shlex.join(command),
        f"{machine['processor']}, {machine['cores']} cores, caches {machine['caches']}; {machine['vector_unit']}",
        f"measured on {machine['device']}, {machine['torch_threads']} threads for all; torch {machine['torch']}, "
        f"python {machine['python']}, C++ compiler: {machine['cpp_compiler']}",
        f"memory copies {2 * LARGE / stream.median / 1e9:.1f} GB/s, read and written bytes together "
        f"(buffers of {LARGE // MIB} MiB)",
        f"medians of {repeats} rounds, in which all candidates take turns",
    ]
    emit(console, Text("\n".join(lines)))
    if machine["load_before"] > BUSY * machine["cores"]:
        busy = f"others use this machine: load {machine['load_before']} on {machine['cores']} cores before the start"
        emit(console, Text(f"{busy}; expect noise", "yellow"))
    emit(console, Text())


# ---------------------------------------------------------------- tables


def label(candidate: Candidate) -> str:
    """The label of a row. Rows of a backend stand together, so only the first has the backend's name."""
    said = {"metrics": "  with metrics", "backward": "  loss, backward", "backward, metrics": "    with metrics"}
    return said.get(candidate.what if candidate.ours else "", candidate.name)


def emit_table(console: Console, result: Measured) -> None:
    """Print the table of one hierarchy on one shape, a row per candidate."""
    title = f"{result.hierarchy.name}: {result.shape}"
    emit(console, Text.assemble((title, "bold"), f"; {result.bytes_moved / 1e6:.1f} MB must move"))
    if result.failed:
        emit(console, Padding(Text(result.failed.reason, "red"), (0, 0, 1, 2)))
        return
    table = _table("", *COLUMNS)
    eager, failures = result.row(EAGER), []
    eager_time = eager.timing if eager else None
    for row in result.rows:
        if isinstance(row.timing, Failed):
            table.add_row(label(row.candidate), Text("failed", "red"))
            failures.append((row.candidate.name, row.timing.reason))
            continue
        table.add_row(label(row.candidate), *_cells(row, eager_time, result))
        for kind, value in (("memory", row.memory), ("cold start", row.cold)):
            if isinstance(value, Failed):
                failures.append((f"{row.candidate.name}, {kind}", value.reason))
    if isinstance(result.floor, Timing):
        row = Row(Candidate("copy"), result.floor)
        table.add_row(Text(row.candidate.name, "dim"), *_cells(row, eager_time, result))
    emit(console, Padding(table, (0, 0, 0, 2)))
    for name, why in failures:
        emit(console, Padding(Text(f"{name}: {why}", "red"), (0, 0, 0, 2)))
    emit(console, Text())


def _cells(row: Row, eager: Timing | Failed | None, result: Measured) -> Iterator[str]:
    if not isinstance(row.timing, Timing):
        return
    yield number(row.timing.median * 1e3)
    yield number(min(row.timing.samples) * 1e3)
    yield _spread(row.timing)
    yield _times(ratio(row.timing, eager))
    yield _times(ratio(row.timing, result.lowest))
    yield number(row.memory / MIB) if isinstance(row.memory, float) else ""
    yield number(index_seconds(row) * 1e3) if row.index is not None else ""
    yield number(row.cold[0]["seconds"]) if isinstance(row.cold, list) else ""
    yield f"{row.differs[0]:.0e}" if row.differs else ""


def number(value: float) -> str:
    """A number with three digits, or with all digits before the point."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}" if value >= 1e-3 else f"{value:.0e}"


def index_seconds(row: Row) -> float:
    """Seconds to build an index, and the extra seconds of its first use."""
    built = row.index.median if row.index else 0.0
    beyond = row.first_use - row.timing.median if row.first_use is not None and isinstance(row.timing, Timing) else 0.0
    return built + max(0.0, beyond)


def _spread(timing: Timing) -> str:
    first, third = timing.quartiles
    return f"{(third - first) / 2 / timing.median:.0%}"


def _times(value: float | None) -> str:
    return "" if value is None else number(value) if value < 0.005 or value >= 10 else f"{value:.2f}"


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    for i, name in enumerate(columns):
        table.add_column(name, vertical="bottom", justify="right" if i else "left", no_wrap=True)
    return table


def emit_sweep(console: Console, results: Sequence[Measured]) -> None:
    """Print one hierarchy over all shapes: times as multiples of the copy, and the shapes on which fibration loses."""
    hierarchy = results[0].hierarchy
    shown = [r.candidate for r in results[0].rows if not r.candidate.ours or not r.candidate.what]
    depth = f"{len(hierarchy.strata)} strata" if len(hierarchy.strata) > 1 else "1 stratum"
    depth += "" if hierarchy.shape.is_chain else " in a tree" if hierarchy.shape.is_tree else " in a quiver"
    what = f" ({depth}): time as a multiple of a copy of the same bytes"
    emit(console, Text.assemble((hierarchy.name, "bold"), what))
    titles = [c.name.replace(" ", "\n", 1).replace(".", "\n.", 1) for c in shown]
    table = _table("tokens", "length", "lengths", "layout", *titles, "copy\nms")
    reasons: dict[str, str] = {}
    for r in results:
        words = str(r.shape).split(", ")
        length, _, spread = words[2].removeprefix("length ").partition(" (")
        place = [words[0].removesuffix(" tokens"), length, spread.rstrip(")"), r.shape.layout]
        cells = []
        for c in shown:
            row = r.row(c.name)
            failed = r.failed or (row.timing if row and isinstance(row.timing, Failed) else None)
            if failed:
                reasons.setdefault(failed.reason, str(r.shape) if r.failed else c.name)
            cells.append("failed" if failed else _times(ratio(row.timing if row else None, r.lowest)))
        table.add_row(*place, *cells, number(r.lowest.median * 1e3) if r.lowest else "")
    emit(console, Padding(table, (0, 0, 0, 2)))
    for why, where in reasons.items():
        emit(console, Padding(Text(f"{where}: {why}", "red"), (0, 0, 0, 2)))
    for line in losses(results):
        emit(console, Padding(Text(line, "yellow"), (0, 0, 0, 2)))
    emit(console, Text())


def losses(results: Sequence[Measured]) -> list[str]:
    """The shapes on which every backend is slower than a baseline, worst first."""
    lines = []
    for name in (EAGER, COMPILED):
        lost = []
        for r in results:
            ours = [x.timing for x in r.rows if x.candidate.ours and not x.candidate.what]
            other = r.row(name)
            factors = [f for t in ours if (f := ratio(t, other.timing if other else None)) is not None]
            if factors and min(factors) > 1:
                lost.append((min(factors), r.shape))
        if lost:
            worst = "; ".join(f"{shape} ({factor:.1f} ×)" for factor, shape in sorted(lost, key=lambda x: -x[0]))
            lines.append(f"slower than {name} on {len(lost)} of {len(results)} shapes: {worst}")
    return lines


def emit_notes(console: Console, results: Sequence[Measured], quick: bool) -> None:
    """Print what the columns mean, and what the benchmark left out."""
    notes = [
        "time / copy: how often the bytes that must move (inputs read once, coefficients written once) could have been "
        "copied; 1 is the floor. ±: half the distance of the quartiles. index: what a new batch costs once. cold: from "
        "compiling to the first result, caches empty. differs: mean error of the coefficients against float64.",
    ]
    without = list(dict.fromkeys(r.hierarchy.name for r in results if baseline(r.hierarchy) is None))
    if without:
        names = ", ".join(without)
        notes.append(f"no hand-written loss to compare with: {names}. Only backends and the floor are shown.")
    if quick:
        notes.append("--quick leaves out peak memory and cold starts, and torch.compile where it sweeps.")
    for note in notes:
        emit(console, Text(note, "dim"))


# ---------------------------------------------------------------- JSON


def document(
    command: Sequence[str], seed: int, dtype: str, machine: dict[str, Any], stream: Timing, results: Sequence[Measured]
) -> str:
    """All measurements as JSON, samples included, in seconds and bytes. docs/bench.md lists the fields."""
    whole = {
        "format": FORMAT,
        "command": shlex.join(command),
        "seed": seed,
        "dtype": dtype,
        "machine": machine,
        "stream": {"bytes": 2 * LARGE, "bytes_per_s": 2 * LARGE / stream.median, **stream.record()},
        "results": [_result(r, 2 * LARGE / stream.median) for r in results],
    }
    return json.dumps(whole, indent=1, allow_nan=False) + "\n"


def _result(r: Measured, bandwidth: float) -> dict[str, Any]:
    eager = r.row(EAGER)
    shape = {"tokens": r.shape.tokens, "length": r.shape.length, "spread": r.shape.spread, "layout": r.shape.layout}
    return {
        "hierarchy": r.hierarchy.name,
        "strata": [s.name for s in r.hierarchy.order],
        "baseline": baseline(r.hierarchy) is not None,
        "shape": shape,
        "tokens": r.tokens,
        "positions": r.positions,
        "bytes_moved": r.bytes_moved,
        "floor": _timing(r.floor),
        "error": r.failed.reason if r.failed else None,
        "rows": [] if r.failed else [_row(x, r, eager.timing if eager else None, bandwidth) for x in r.rows],
    }


def _timing(timing: Timing | Failed | None) -> dict[str, Any] | None:
    return timing.record() if isinstance(timing, Timing) else None


def _row(row: Row, r: Measured, eager: Timing | Failed | None, bandwidth: float) -> dict[str, Any]:
    c, t = row.candidate, row.timing
    errors = {"time": t, "memory": row.memory, "cold_start": row.cold}
    return {
        "name": c.name,
        "backend": c.backend or None,
        "computes": ROWS[c.what],
        "time": _timing(t),
        "over_eager": ratio(t, eager),
        "over_floor": ratio(t, r.lowest),
        "over_stream": t.median * bandwidth / r.bytes_moved if isinstance(t, Timing) else None,
        "differs_mean": row.differs[0] if row.differs else None,
        "differs_max": row.differs[1] if row.differs else None,
        "index": _timing(row.index),
        "first_use_s": row.first_use,
        "peak_extra_bytes": row.memory if isinstance(row.memory, float) else None,
        "cold_start": row.cold if isinstance(row.cold, list) else None,
        "errors": {k: v.reason for k, v in errors.items() if isinstance(v, Failed)},
    }
