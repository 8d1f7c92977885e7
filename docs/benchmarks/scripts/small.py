"""Time calls of a few thousand tokens, where the host's work is most of it, beside eager torch.

OMP_NUM_THREADS=2 python docs/benchmarks/scripts/small.py [SPEC...] [--tokens 8Ki] [--json FILE.json]
OMP_NUM_THREADS=1 python docs/benchmarks/scripts/small.py [SPEC...] --alone

`--alone` times each call in a loop of its own, on warm caches, and first calls on a new index.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import timeit
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from fibration import pipeline
from fibration.bench.batches import LAYOUTS, Shape, parse_count
from fibration.bench.command import number
from fibration.bench.measure import COMPILED, EAGER, ROWS, describe_machine, measure, names, usable_cores
from fibration.files import write_file
from fibration.language.hierarchy import Hierarchy
from fibration.printing.reports import load_quietly


def thread_counts() -> tuple[int, ...]:
    """One, and as many as there are cores, at most two: small batches gain nothing from more."""
    return tuple(range(1, min(usable_cores(), 2) + 1))


@contextmanager
def on_threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def measure_small(
    hierarchy: Hierarchy, backends: Sequence[str], tokens: int, length: int, rounds: int
) -> Iterator[dict[str, Any]]:
    """Results of equal rows, padded and packed: every row of a backend and eager torch in turns."""
    rows = [name for name in names(hierarchy, backends) if name != COMPILED]
    for layout in reversed(LAYOUTS):
        for threads in thread_counts():
            with on_threads(threads):
                shape = Shape(tokens, length, "equal", layout)
                yield {"threads": threads, **measure(hierarchy, shape, rows, rounds)}


def emit_tables(console: Console, results: Sequence[dict[str, Any]], backends: Sequence[str]) -> None:
    """Per backend: milliseconds of what an optimizer step may ask for, and of its losses how that is to eager torch."""
    for backend in backends:
        table = Table(box=None, padding=(0, 1, 0, 0), title=f"{backend}, ms", title_justify="left")
        columns = ["", "threads", "coef", "metrics", "index", "loss", "/eager", "metrics", "/eager", "eager"]
        for i, column in enumerate(columns):
            table.add_column(column, justify="right" if i else "left", no_wrap=True)
        for r in results:
            table.add_row(f"{r['hierarchy']}, {r['shape']['layout']}", str(r["threads"]), *_cells(r, backend))
        console.print(table)
    for why in dict.fromkeys(row["error"] for r in results for row in r["rows"] if "error" in row):
        console.print(why)


def _cells(result: dict[str, Any], backend: str) -> Iterator[str]:
    rows = {row["name"]: row for row in result["rows"]}
    for name in (*(f"fibration {backend}{row}" for row in ROWS), EAGER):
        row = rows.get(name, {})
        yield number(row["median_s"] * 1e3) if "median_s" in row else "failed" if row else ""
        if " loss" in name:
            yield f"{row['over_eager']:.2f}" if "over_eager" in row else ""


def alone(hierarchy: Hierarchy, tokens: int, length: int) -> Iterator[tuple[str, float]]:
    """Seconds of every kind of call in a loop of its own, on the CPU: the median of 25 loops."""
    op, make = pipeline.compile(hierarchy, backend="c"), torch.Generator().manual_seed(0)
    rows, labelled = tokens // length, {s.name for s in hierarchy.order}
    old = -torch.rand(rows, length, generator=make)
    log_probs = old + 0.1 * torch.randn(rows, length, generator=make)
    advantages, mask = torch.randn(rows, generator=make), torch.ones(rows, length, dtype=torch.bool)
    named = {"prompt_group": [i // 8 for i in range(rows)], "domain": [2 * i // rows for i in range(rows)]}
    labels = {name: of for name, of in named.items() if name in labelled}
    moving = log_probs.clone().requires_grad_()
    index = op.index(mask=mask, **labels)

    def first(metrics: bool) -> None:
        op.coefficients(log_probs, old, advantages, op.index(mask=mask, **labels), metrics=metrics)

    def step(metrics: bool) -> None:
        moving.grad = None
        op.loss(moving, old, advantages, index, metrics=metrics).loss.backward()

    calls: dict[str, Callable[[], object]] = {
        "coefficients": lambda: op.coefficients(log_probs, old, advantages, index, metrics=False),
        "coefficients with metrics": lambda: op.coefficients(log_probs, old, advantages, index),
        "loss and backward": lambda: step(False),
        "loss and backward with metrics": lambda: step(True),
        "index and first call": lambda: first(False),
        "index and first call with metrics": lambda: first(True),
    }
    for what, call in calls.items():
        times = timeit.repeat(call, number=100, repeat=26)
        yield what, statistics.median(times[1:]) / 100


def document(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Everything that was measured, in seconds."""
    machine = describe_machine(torch.device("cpu"))
    return {"format": "fibration.bench.small/2", "command": sys.argv, "machine": machine, "results": list(results)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("specs", nargs="*", default=["ppo", "grpo", "gspo", "fiberpo", "fiberpo_domain"])
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--tokens", default="8Ki")
    parser.add_argument("--length", default="128")
    parser.add_argument("--repeats", type=int, default=301)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--alone", action="store_true", help="each call in a loop of its own, one thread, CPU")
    given = parser.parse_args()
    tokens, length = parse_count(given.tokens), parse_count(given.length)
    if given.alone:
        for spec in given.specs:
            print(spec, *(f"{what} {t * 1e6:.0f}" for what, t in alone(load_quietly(spec), tokens, length)), sep=", ")
        return
    backends, rounds = [pipeline.choose(given.backend)], given.repeats
    results = [r for spec in given.specs for r in measure_small(load_quietly(spec), backends, tokens, length, rounds)]
    emit_tables(Console(), results, backends)
    if given.json:
        write_file(given.json, json.dumps(document(results), indent=1) + "\n")


if __name__ == "__main__":
    main()
