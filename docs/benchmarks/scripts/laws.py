"""Time laws and facts against what grows, every case in a process of its own.

python docs/benchmarks/scripts/laws.py [SPEC...] [--quick] [--timeout 60] [--json FILE.json]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
from law_cases import FAMILIES
from rich.console import Console
from rich.table import Table

from fibration.bench.measure import describe_machine, record
from fibration.errors import BackendError
from fibration.files import write_file
from fibration.language.hierarchy import Hierarchy
from fibration.language.loading import shipped
from fibration.printing.reports import load_quietly

SHIPPED = "shipped"
START = 60.0  # seconds that a process may need to begin, and to stop what is out of time


@dataclass(frozen=True)
class Case:
    """A hierarchy and where it stands: the member of a family of some size, or a spec."""

    family: str
    axis: str
    size: int
    hierarchy: Hierarchy


@dataclass
class Measured:
    """What the rounds of one case took, in seconds, and what became of it in the last."""

    case: Case
    verify: list[float] = field(default_factory=list)
    facts: list[float] = field(default_factory=list)
    outcome: str = ""  # verified, refused, or out of time
    out_of_time: str = ""  # the law, or `facts`; '' where all is decided

    @property
    def total(self) -> list[float]:
        return [v + f for v, f in zip(self.verify, self.facts, strict=True)]


def cases(specs: Sequence[str], quick: bool) -> Iterator[Case]:
    """Every member of every family, then the specs; where specs are named, these alone. `quick`: the small ones."""
    for family in () if specs else FAMILIES:
        for size in family.sizes[: 2 if quick else None]:
            yield Case(family.name, family.axis, size, family.make(size))
    for spec in specs or ("ppo", "gspo", "fiberpo") if quick else specs or shipped():
        yield Case(SHIPPED, SHIPPED, 0, load_quietly(spec))


def measure(found: Sequence[Case], rounds: int, timeout: float) -> list[Measured]:
    """Round by round, so that what disturbs the machine disturbs all alike; out of time once is enough."""
    results = [Measured(case) for case in found]
    for _ in range(rounds):
        for r in (r for r in results if not r.out_of_time):
            answer = ask(r.case.hierarchy, timeout)
            r.verify.append(answer["verify"])
            r.facts.append(answer["facts"])
            r.outcome, r.out_of_time = answer["outcome"], answer["out_of_time"]
    return results


def ask(hierarchy: Hierarchy, timeout: float) -> dict[str, Any]:
    """Let a fresh process decide it, with an empty cache."""
    task = {"hierarchy": hierarchy.model_dump_json(), "timeout": timeout}
    with tempfile.TemporaryDirectory(prefix="fibration-bench-") as folder:
        done = subprocess.run(
            [sys.executable, str(Path(__file__).with_name("law_process.py"))],
            input=json.dumps(task), capture_output=True, text=True, timeout=timeout + START,
            env={**os.environ, "FIBRATION_CACHE": folder},
        )  # fmt: skip
    if done.returncode:
        raise BackendError(
            f"'{hierarchy.name}' could not be decided in a process of its own",
            found=(done.stderr.strip().splitlines() or ["it said nothing"])[-1][:300],
        )
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def emit_table(console: Console, results: Sequence[Measured]) -> None:
    """A line per case: medians in seconds."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("", "laws s", "facts s", "total s", ""):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    for r in results:
        name = f"{r.case.family}, {r.case.size}" if r.case.size else r.case.hierarchy.name
        numbers = [f"{median(seconds):.2f}" for seconds in (r.verify, r.facts, r.total)]
        table.add_row(name, *numbers, f"out of time: {r.out_of_time}" if r.out_of_time else r.outcome)
    console.print(table)


def document(timeout: float, results: Sequence[Measured]) -> dict[str, Any]:
    """Everything that was measured, in seconds."""
    return {
        "format": "fibration.bench.laws/1",
        "command": sys.argv,
        "machine": describe_machine(torch.device("cpu")),
        "timeout_s": timeout,
        "results": [
            {
                "family": r.case.family,
                "axis": r.case.axis,
                "size": r.case.size,
                "hierarchy": r.case.hierarchy.name,
                "verify": record(r.verify),
                "facts": record(r.facts),
                "total": record(r.total),
                "outcome": r.outcome,
                "out_of_time": r.out_of_time,
            }
            for r in results
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("specs", nargs="*")
    parser.add_argument("--quick", action="store_true", help="the small cases, once")
    parser.add_argument("--timeout", type=float, default=60.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    results = measure(list(cases(given.specs, given.quick)), 1 if given.quick else given.repeats, given.timeout)
    emit_table(Console(), results)
    if given.json:
        write_file(given.json, json.dumps(document(given.timeout, results), indent=2) + "\n")


if __name__ == "__main__":
    main()
