"""Calls that must end: `verify` with its facts, and `equivalent`, on hierarchies with any part of the language.

An internal error is a failure, although a user would get a report. A call that far exceeds its time limit is one too.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from unittest import mock

from fibration import Hierarchy, equivalent
from fibration.errors import FibrationError
from fibration.language.report import Report
from fibration.laws import kept
from fuzz.judges.judge import NothingDrawn, OfHierarchy
from fuzz.random_hierarchies import changed, whole

CONDITIONS = (
    None, None, None, "on_policy", "advantage >= 0", "equal(advantage, on=trajectory)", "same(old, rollout)",
    "equal(count(token, over=trajectory))",
)  # fmt: skip


def drawn(rng: random.Random) -> Hierarchy:
    for _ in range(20):
        try:
            return whole(rng)
        except FibrationError:
            continue
    raise NothingDrawn


def complaint(report: Report, seconds: float, timeout: float) -> str:
    """What is wrong with a report that took so many seconds of the processor's time."""
    report.to_dict()
    broken = [f"{v.law}: {v.found}" for v in report.verdicts if v.internal_error]
    broken += [f"{f.name}: {f.argument}" for f in report.facts if "internal error" in f.value]
    if broken:
        return f"crash: {broken[0]}"
    return f"time: {seconds:.1f} s of {timeout}, {report.verdicts[-1].law}" if seconds > 10 * timeout else ""


@dataclass(frozen=True)
class Crash:
    """`verify` and its facts."""

    name: str = "crash"
    timeout: float = 1.0

    def draw(self, rng: random.Random) -> OfHierarchy:
        return OfHierarchy(drawn(rng))

    def judge(self, case: OfHierarchy, rng: random.Random) -> tuple[list[str], str]:
        began = time.process_time()
        with mock.patch.object(kept, "SOURCES", ""):
            report = case.h.verify(timeout=self.timeout)
            str(report)
        said = complaint(report, time.process_time() - began, self.timeout)
        return ["proved" if report.ok else "refuted" if _is_refuted(report) else "undecided"], said


def _is_refuted(report: Report) -> bool:
    return any(v.status == "refuted" and not v.given_up for v in report.verdicts)


@dataclass(frozen=True)
class OfPair:
    """Two hierarchies as a case."""

    first: Hierarchy
    second: Hierarchy
    when: str | None

    def __str__(self) -> str:
        return f"{self.first!r}\n{self.second!r}\nwhen {self.when}"

    def simpler(self) -> Iterator[OfPair]:
        yield from (OfPair(f.h, self.second, self.when) for f in OfHierarchy(self.first).simpler())
        yield from (OfPair(self.first, s.h, self.when) for s in OfHierarchy(self.second).simpler())


@dataclass(frozen=True)
class CrashOfPair:
    """`equivalent`, of a hierarchy and the same with one place changed."""

    name: str = "crash of a pair"
    timeout: float = 1.0

    def draw(self, rng: random.Random) -> OfPair:
        h = drawn(rng)
        return OfPair(h, changed(h, rng), rng.choice(CONDITIONS))

    def judge(self, case: OfPair, rng: random.Random) -> tuple[list[str], str]:
        began = time.process_time()
        try:
            report = equivalent(case.first, case.second, case.when, timeout=self.timeout)
        except FibrationError:  # they do not match, or a foundation fails
            return ["not compared"], ""
        str(report)
        return [report.verdicts[0].status], complaint(report, time.process_time() - began, self.timeout)


JUDGES = (Crash(), CrashOfPair())
