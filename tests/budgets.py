"""The seconds of each folder of tests beside its budget, printed at the end of every run.

`make test` uses two processes and takes about six minutes on a quiet machine, start and lint included. That is 620
seconds of tests. The budgets are those of the level `few`.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest
from thorough import LEVEL

HERE = Path(__file__).parent
BUDGETS = {
    "auditing": 50,
    "backends": 140,
    "bench": 3,
    "cli": 60,
    "compiler": 30,
    "configs": 16,
    "corpus": 5,
    "fuzz": 4,
    "head": 14,
    "language": 25,
    "laws": 125,
    "mutants": 15,
    "packaging": 3,
    "plotting": 28,
    "printing": 9,
    "processes": 1,
    "ptx": 1,
    "rollouts": 3,
    "runtime": 45,
    "specs": 5,
    "studies": 5,
    "trainers": 10,
    "trust_region": 3,
    ".": 20,
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
            over = "  OVER" if seconds > budget and LEVEL == "few" else ""
            terminalreporter.line(f"{folder:14} {seconds:6.0f} of {budget:4}{over}")
        spent, allowed = sum(self.folders.values()), sum(BUDGETS.values())
        terminalreporter.line(f"{'together':14} {spent:6.0f} of {allowed:4}")
        longest = sorted(self.files.items(), key=lambda item: -item[1])[:12]
        terminalreporter.line("longest files: " + ", ".join(f"{file} {seconds:.0f}" for file, seconds in longest))
