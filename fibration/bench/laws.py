"""`fibration bench --laws`: how long laws and facts take, against what grows. Every case in a process of its own."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fibration.bench.law_cases import FAMILIES
from fibration.bench.measure import Timing
from fibration.errors import BackendError
from fibration.language.hierarchy import Hierarchy
from fibration.language.loading import shipped
from fibration.laws.budget import Budget
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
    def total(self) -> Timing:
        return Timing(tuple(v + f for v, f in zip(self.verify, self.facts, strict=True)))


def cases(specs: Sequence[str], quick: bool) -> Iterator[Case]:
    """Every member of every family, then the specs; where specs are named, these alone. `quick`: the small ones."""
    for family in () if specs else FAMILIES:
        for size in family.sizes[: 2 if quick else None]:
            yield Case(family.name, family.axis, size, family.make(size))
    for spec in specs or ("ppo", "gspo", "fiberpo") if quick else specs or shipped():
        yield Case(SHIPPED, SHIPPED, 0, load_quietly(spec))


def measure(
    found: Sequence[Case], rounds: int, timeout: float, say: Callable[[str], None] = lambda what: None
) -> list[Measured]:
    """Round by round, so that what disturbs the machine disturbs all alike; out of time once is enough."""
    Budget(timeout)  # raises for what is no time
    if timeout == math.inf:
        raise BackendError("--timeout inf cannot be measured", required="a budget that is drawn as a line")
    results = [Measured(case) for case in found]
    for i in range(rounds):
        for r in results:
            if r.out_of_time:
                continue
            say(f"round {i + 1} of {rounds}: {r.case.family} {r.case.size or r.case.hierarchy.name}")
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
            [sys.executable, "-m", "fibration.bench.law_process"],
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


def document(
    command: Sequence[str], machine: Mapping[str, Any], timeout: float, results: Sequence[Measured]
) -> dict[str, Any]:
    """Everything that was measured, for `--json`. Seconds throughout."""
    return {
        "format": "fibration.bench.laws/1",
        "command": list(command),
        "machine": dict(machine),
        "timeout_s": timeout,
        "results": [
            {
                "family": r.case.family,
                "axis": r.case.axis,
                "size": r.case.size,
                "hierarchy": r.case.hierarchy.name,
                "verify": Timing(tuple(r.verify)).record(),
                "facts": Timing(tuple(r.facts)).record(),
                "total": r.total.record(),
                "outcome": r.outcome,
                "out_of_time": r.out_of_time,
            }
            for r in results
        ],
    }
