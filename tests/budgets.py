"""Seconds of testing per folder and the folder's budget, printed at the end of every run.

`make test` has two processes and four minutes: 420 seconds in all. The seconds are those of a quiet machine.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

HERE = Path(__file__).parent
BUDGETS = {
    "backends": 90,
    "bench": 10,
    "cli": 20,
    "compiler": 15,
    "fuzz": 15,
    "language": 15,
    "laws": 120,
    "packaging": 5,
    "plotting": 10,
    "printing": 15,
    "processes": 10,
    "rollouts": 10,
    "runtime": 40,
    "specs": 15,
    "studies": 5,
    "trainers": 15,
    "trust_region": 5,
    ".": 10,
}


class Seconds:
    """A pytest plugin that adds up how long the tests of each folder took, in all processes."""

    def __init__(self) -> None:
        self.folders: dict[str, float] = defaultdict(float)
        self.files: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = report.nodeid.partition("::")[0].removeprefix("tests/")
        self.files[file] += report.duration
        self.folders[file.partition("/")[0] if "/" in file else "."] += report.duration

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("seconds per folder, of its budget")
        for folder, seconds in sorted(self.folders.items(), key=lambda item: -item[1]):
            budget = BUDGETS.get(folder, 0)
            over = "  OVER" if seconds > budget else ""
            terminalreporter.line(f"{folder:14} {seconds:6.0f} of {budget:4}{over}")
        spent, allowed = sum(self.folders.values()), sum(BUDGETS.values())
        terminalreporter.line(f"{'together':14} {spent:6.0f} of {allowed:4}")
        longest = sorted(self.files.items(), key=lambda item: -item[1])[:12]
        terminalreporter.line("longest files: " + ", ".join(f"{file} {seconds:.0f}" for file, seconds in longest))
