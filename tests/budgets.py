"""The seconds of each folder of tests beside its budget, printed at the end of every run.

`make test` uses two processes and takes at most four minutes on a quiet machine, start and lint included. That is 430
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
    "backends": 135,
    "bench": 4,
    "cli": 45,
    "compiler": 16,
    "configs": 20,
    "corpus": 20,
    "fuzz": 4,
    "head": 25,
    "language": 15,
    "laws": 150,
    "mutants": 55,
    "packaging": 4,
    "plotting": 30,
    "printing": 10,
    "processes": 1,
    "ptx": 1,
    "rollouts": 8,
    "runtime": 50,
    "specs": 6,
    "studies": 13,
    "trainers": 10,
    "trust_region": 6,
    ".": 32,
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
