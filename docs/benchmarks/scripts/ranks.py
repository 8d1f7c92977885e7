"""Time a batch that is spread over processes with gloo, beside one process that has all of it.

    python docs/benchmarks/scripts/ranks.py [SPEC...] [--tokens 4Mi] [--json FILE.json]

The processes of all groups are started once and take turns, so that what disturbs the machine disturbs all alike. Each
has its share of the threads. Beside every call with a group stands the same call without, on the same processes at the
same time: each rank then takes its part for a batch of its own, which is wrong, and is what the work costs alone.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rank_process import Task
from rich.console import Console
from rich.table import Table

from fibration import pipeline
from fibration.bench.batches import DTYPES, Shape, parse_count
from fibration.bench.measure import describe_machine, record
from fibration.errors import BackendError
from fibration.files import write_file
from fibration.language.hierarchy import Hierarchy
from fibration.printing.reports import load_quietly

SIZES = (1, 2, 4)  # processes
KIB, MIB = 2**10, 2**20
# A call: milliseconds, over those of one process without a group and over those of these without, what a rank sends;
# an index; the peak memory of a process.
COLUMNS = ("", "call\nms", "/one", "/alone", "KiB", "in", "index\nms", "/alone", "KiB", "in", "peak\nMiB", "alone")
TIMED = ("coefficients alone", "coefficients", "index alone", "index")
TRIMMED = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}  # what is freed is given back


@dataclass
class Measured:
    """One hierarchy over so many processes. Seconds are those of the rank that took longest."""

    hierarchy: Hierarchy
    backend: str
    size: int
    threads: int  # of each process
    seconds: dict[str, list[float]] = field(default_factory=lambda: {what: [] for what in TIMED})
    sent: dict[str, list[int]] = field(default_factory=dict)  # by the rank that sends most: bytes of each gathering
    tokens: list[int] = field(default_factory=list)  # of each rank
    memory: dict[str, int] = field(default_factory=dict)  # peak of the rank with the highest, beyond its part, in bytes

    def median(self, what: str) -> float:
        return median(self.seconds[what])


@dataclass(frozen=True)
class Paper:
    """What is assumed of a larger machine: a ring of ranks, in which a gathering takes `ranks - 1` steps."""

    ranks: int = 512
    latency: float = 5e-6  # seconds a step
    bandwidth: float = 25e9  # bytes a second into each rank

    def seconds(self, sent: Sequence[int]) -> float:
        """Of the gatherings in which each rank sends so many bytes: `Σ (ranks - 1)·(latency + bytes / bandwidth)`."""
        return sum((self.ranks - 1) * (self.latency + n / self.bandwidth) for n in sent)

    def of(self, measured: Measured) -> dict[str, Any]:
        """If every rank had as much as the fullest had here: a batch that grows with the ranks."""
        return {
            **asdict(self),
            "tokens": max(measured.tokens) * self.ranks,
            "gatherings": len(measured.sent["call"]),
            "sent_bytes": sum(measured.sent["call"]),
            "received_bytes": sum(measured.sent["call"]) * self.ranks,
            "call_s": self.seconds(measured.sent["call"]),
            "index_s": self.seconds(measured.sent["index"]),
        }


class World:
    """The processes of one group, which do the same thing at the same time."""

    def __init__(self, processes: Sequence[subprocess.Popen[str]]) -> None:
        self.processes = processes

    def do(self, what: str) -> list[dict[str, Any]]:
        """The ranks' answers."""
        self.tell(what)
        return [self._answer(p) for p in self.processes]

    def tell(self, line: str) -> None:
        for p in self.processes:
            assert p.stdin is not None
            p.stdin.write(f"{line}\n")
            p.stdin.flush()

    def _answer(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        assert process.stdout is not None
        line = process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": f"it ended with {process.wait()}"}
        if "error" in answer:
            raise BackendError("a rank could not be measured", found=answer["error"])
        return answer


@contextmanager
def world(task: Callable[[int, str], Task], size: int, environment: Mapping[str, str]) -> Iterator[World]:
    """Start so many processes, each on the task of its rank; end them."""
    with tempfile.TemporaryDirectory(prefix="fibration-bench-") as folder, ExitStack() as started:
        meeting = str(Path(folder) / "meeting")
        processes = []
        for rank in range(size):
            p = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("rank_process.py"))],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                env={**os.environ, **environment},
            )  # fmt: skip
            started.enter_context(p)
            started.callback(p.kill)
            processes.append(p)
            assert p.stdin is not None
            p.stdin.write(json.dumps(asdict(task(rank, meeting))) + "\n")
        yield World(processes)


def measure(
    hierarchy: Hierarchy,
    backend: str,
    shape: Shape,
    rounds: int,
    sizes: Sequence[int] = SIZES,
    dtype: str = "float32",
    seed: int = 0,
    say: Callable[[str], None] = lambda what: None,
) -> list[Measured]:
    """All groups in turns, then the memory of each by itself."""
    threads = torch.get_num_threads()
    results = [Measured(hierarchy, backend, n, max(1, threads // n)) for n in sizes]

    def task_of(r: Measured) -> Callable[[int, str], Task]:
        spec = hierarchy.model_dump_json()
        return lambda rank, meeting: Task(spec, backend, shape, dtype, seed, rank, r.size, r.threads, meeting)

    with ExitStack() as stack:
        worlds = [stack.enter_context(world(task_of(r), r.size, {})) for r in results]
        for r, w in zip(results, worlds, strict=True):
            say(f"{r.size} processes start")
            answers = w.do("sent")
            r.tokens = [a["tokens"] for a in answers]
            r.sent = {what: max((a[what] for a in answers), key=sum) for what in ("index", "call")}
        for turn in range(-1, rounds):  # the first warms up
            say(f"round {turn + 1} of {rounds}")
            for r, w in zip(results, worlds, strict=True):
                for what in TIMED:
                    slowest = max(a["seconds"] for a in w.do(what))
                    r.seconds[what] += [slowest] if turn >= 0 else []
    for r in results:
        say(f"memory of {r.size} processes")
        with world(task_of(r), r.size, TRIMMED) as w:
            w.do("coefficients alone"), w.do("coefficients")  # what is loaded once is no part of it
            r.memory = {what: max(a["bytes"] for a in w.do(what)) for what in ("memory alone", "memory")}
    return results


def emit_table(console: Console, results: Sequence[Measured], paper: Paper) -> None:
    """Medians and ratios of medians of one hierarchy, and what the last line means for many ranks."""
    table = Table(box=None, padding=(0, 1, 0, 0), title=results[0].hierarchy.name, title_justify="left")
    for column in COLUMNS:
        table.add_column(column, justify="right", no_wrap=True)
    for r in results:
        table.add_row(*_cells(r, results[0]))
    console.print(table)
    p = paper.of(results[-1])
    console.print(
        f"on paper, {p['ranks']} ranks: {p['gatherings']} gatherings a call, each rank sends "
        f"{p['sent_bytes'] / KIB:.0f} KiB and gets {p['received_bytes'] / MIB:.1f} MiB: {1e3 * p['call_s']:.1f} ms; "
        f"an index {1e3 * p['index_s']:.1f} ms\n",
        highlight=False,
    )


def _cells(r: Measured, one: Measured) -> list[str]:
    call, alone, whole = r.median("coefficients"), r.median("coefficients alone"), one.median("coefficients alone")
    index, index_alone = r.median("index"), r.median("index alone")
    return [
        str(r.size),
        f"{1e3 * call:.2f}",
        f"{call / whole:.2f}",
        f"{call / alone:.2f}",
        f"{sum(r.sent['call']) / KIB:.1f}",
        str(len(r.sent["call"])),
        f"{1e3 * index:.1f}",
        f"{index / index_alone:.2f}",
        f"{sum(r.sent['index']) / KIB:.1f}",
        str(len(r.sent["index"])),
        f"{r.memory['memory'] / MIB:.1f}",
        f"{r.memory['memory alone'] / MIB:.1f}",
    ]


def document(shape: Shape, paper: Paper, results: Sequence[Measured]) -> dict[str, Any]:
    """Everything that was measured, in seconds and bytes."""
    return {
        "format": "fibration.bench.ranks/1",
        "command": sys.argv,
        "machine": describe_machine(torch.device("cpu")),
        "tokens": shape.tokens,
        "length": shape.length,
        "results": [
            {
                "hierarchy": r.hierarchy.name,
                "backend": r.backend,
                "processes": r.size,
                "threads_each": r.threads,
                "tokens": r.tokens,
                **{what.replace(" ", "_"): record(r.seconds[what]) for what in TIMED},
                "sent_bytes": r.sent,
                "peak_extra_bytes": {"alone": r.memory["memory alone"], "group": r.memory["memory"]},
                "on_paper": paper.of(r),
            }
            for r in results
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("specs", nargs="*", default=["fiberpo", "fiberpo_domain"])
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--tokens", default="4Mi")
    parser.add_argument("--length", default="512")
    parser.add_argument("--dtype", default="float32", choices=DTYPES)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    shape, backend = Shape(parse_count(given.tokens), parse_count(given.length)), pipeline.choose(given.backend)
    results: list[Measured] = []
    for spec in given.specs:
        found = measure(load_quietly(spec), backend, shape, given.repeats, SIZES, given.dtype)
        emit_table(Console(), found, Paper())
        results += found
    if given.json:
        write_file(given.json, json.dumps(document(shape, Paper(), results), indent=2) + "\n")


if __name__ == "__main__":
    main()
