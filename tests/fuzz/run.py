"""Run judges: `python -m fuzz.run objective agreement --cases 20000 --workers 2`, in the folder `tests`.

A case is one verdict, on one subject of a random hierarchy. A failure is a proof or a refutation that brute force
contradicts, an exception, or a call that does not end in time. Each failure is printed with its seed and a shrunk
hierarchy.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from fuzz.judges import JUDGES
from fuzz.judges.judge import Case, Judge, NothingDrawn

PIECE = 50  # hierarchies of one job
HANGS = 10  # times the seconds that a judge allows: other work on the same cores may double a process's own time


@dataclass
class Outcome:
    """How many cases had which verdict, and what failed."""

    cases: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, other: Outcome) -> None:
        self.cases += other.cases
        self.failures += other.failures
        self.seconds += other.seconds


def one(name: str, seed: int, shrink: bool = True) -> Outcome:
    """The cases of one seed."""
    found, judge, began = Outcome(), JUDGES[name], time.monotonic()
    try:
        case = judge.draw(random.Random(f"{name} {seed}"))
    except NothingDrawn:
        found.cases["nothing drawn"] += 1
        return found
    verdicts, complaint = judged(judge, case, seed)
    found.cases.update(verdicts)
    if complaint:
        smaller = shrunk(judge, case, seed, complaint) if shrink and not complaint.startswith("time") else case
        found.failures.append(f"{name}, seed {seed}: {judged(judge, smaller, seed)[1] or complaint}\n{smaller}")
    found.seconds = time.monotonic() - began
    return found


def judged(judge: Judge, case: Case, seed: int) -> tuple[list[str], str]:
    """The status of every verdict, and what is wrong with one of them; '' if nothing is."""
    began = time.process_time()  # of this process, so that a busy machine is no reason
    try:
        statuses, complaint = judge.judge(case, random.Random(f"judge {seed}"))
    except Exception as error:  # a crash is what is looked for
        where = traceback.extract_tb(error.__traceback__)[-1]
        return [], f"crash: {type(error).__name__}: {error} at {where.filename.rsplit('/', 2)[-1]}:{where.lineno}"
    if not complaint and time.process_time() - began > HANGS * judge.timeout:
        complaint = f"time: {time.process_time() - began:.1f} s, of {judge.timeout} allowed"
    return statuses, complaint


def shrunk(judge: Judge, case: Case, seed: int, complaint: str, most: int = 300) -> Case:
    """The smallest case found that fails in the same way, by its first word."""
    kind, tries = complaint.partition(":")[0], 0
    again = True
    while again and tries < most:
        again = False
        for smaller in case.simpler():
            tries += 1
            if tries >= most:
                break
            if judged(judge, smaller, seed)[1].partition(":")[0] == kind:
                case, again = smaller, True
                break
    return case


def _piece(job: tuple[str, int, int]) -> tuple[str, Outcome]:
    name, start, n = job
    found = Outcome()
    for seed in range(start, start + n):
        found.add(one(name, seed))
    return name, found


def run(
    names: list[str], cases: int, seed: int, workers: int, most_seconds: float = float("inf")
) -> dict[str, Outcome]:
    """Draw hierarchies until every judge has had so many cases."""
    found = {n: Outcome() for n in names}
    began = time.monotonic()

    def is_done(n: str) -> bool:
        decided = sum(v for k, v in found[n].cases.items() if k != "nothing drawn")
        return decided >= cases or time.monotonic() - began > most_seconds

    def jobs() -> Iterator[tuple[str, int, int]]:
        start = {n: seed * 10**7 for n in names}
        while left := [n for n in names if not is_done(n)]:
            for n in left:
                yield n, start[n], PIECE
                start[n] += PIECE

    with contextlib.ExitStack() as stack:
        if workers == 1:
            results: Any = map(_piece, jobs())
        else:
            pool = stack.enter_context(multiprocessing.get_context("spawn").Pool(workers, maxtasksperchild=20))
            results = _few_at_once(pool, jobs(), workers)
        for name, outcome in results:
            found[name].add(outcome)
            for failure in outcome.failures:
                print(failure, end="\n\n", flush=True)
    return found


def _few_at_once(pool: Any, jobs: Iterator[tuple[str, int, int]], workers: int) -> Iterator[tuple[str, Outcome]]:
    """Results as they come, with no more jobs waiting than workers: how many there are depends on the results."""
    waiting: list[Any] = []
    for job in jobs:
        waiting.append(pool.apply_async(_piece, (job,)))
        while len(waiting) > 2 * workers:
            yield waiting.pop(0).get()
    for result in waiting:
        yield result.get()


def table(found: dict[str, Outcome]) -> str:
    """A line per judge."""
    lines = [f"{'':16} {'cases':>8} {'proved':>8} {'refuted':>8} {'undecided':>9} {'failures':>8} {'ms/case':>8}"]
    for name, o in found.items():
        n = sum(v for k, v in o.cases.items() if k != "nothing drawn")
        counts = " ".join(f"{o.cases[k]:>{w}}" for k, w in (("proved", 8), ("refuted", 8), ("undecided", 9)))
        lines.append(f"{name:16} {n:>8} {counts} {len(o.failures):>8} {1000 * o.seconds / max(n, 1):>8.1f}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("judges", nargs="*", default=list(JUDGES), help=f"of {', '.join(JUDGES)}")
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="end then, with as many cases as there are")
    parser.add_argument("--one", type=int, help="judge this seed alone, and print its case")
    given = parser.parse_args()
    if given.one is not None:
        for name in given.judges:
            print(JUDGES[name].draw(random.Random(f"{name} {given.one}")))
            print(one(name, given.one))
        return 0
    found = run(given.judges, given.cases, given.seed, given.workers, 60 * given.minutes)
    print(table(found))
    return int(any(o.failures for o in found.values()))


if __name__ == "__main__":
    sys.exit(main())
