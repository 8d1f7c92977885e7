"""Mutation tests of the source: each slip of `slips.py` changes one line, and the tests that should fail are run.

    python tests/mutations.py [--only NAME] [--limit SECONDS]

Prints a Markdown table: the first test that fails, or SURVIVED. It works on a copy of the tree. A slip whose text does
not occur exactly once is an error in the list. At the end, the failed tests must pass on the unchanged tree. Mistakes in
programs and plans are made by rule, in `mutants`.
"""

from __future__ import annotations

import argparse
import ast
import fnmatch
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from slips import SLIPS, Slip

HERE = Path(__file__).resolve().parent.parent
LIBRARY = ("fibration", "backends", "specs")
NO_END, CRASH = "no end within", "a crash by"  # beginnings of a failure that is no name of a test
CRASHES = (-signal.SIGSEGV, -signal.SIGBUS, -signal.SIGFPE, -signal.SIGILL, -signal.SIGABRT)
LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "build", "*.egg-info")


class NotApplicable(Exception):
    """A slip of the list does not fit the tree."""


class Copy:
    """A copy of the tree, with its own folders for built code and for pytest's cache."""

    def __init__(self, tree: Path, folder: Path) -> None:
        self.root, self.built, self.noted = (folder / word for word in ("tree", "built", "noted"))
        shutil.copytree(tree, self.root, symlinks=True, ignore=LEFT_OUT)
        files = (p for part in LIBRARY for p in sorted((self.root / part).rglob("*")) if p.suffix in (".py", ".h"))
        self.sources = {p.resolve(): p.read_text() for p in files}
        self.tests = sorted(p.relative_to(self.root).as_posix() for p in (self.root / "tests").rglob("test_*.py"))

    def place(self, slip: Slip) -> tuple[Path, str]:
        """The one file that contains the slip's text, and the file's changed text."""
        found = [path for path, text in self.sources.items() for _ in range(text.count(slip.old))]
        if len(found) != 1:
            raise NotApplicable(f"its text is found {len(found)} times")
        path, text = found[0], self.sources[found[0]].replace(slip.old, slip.new)
        if path.suffix == ".py":
            ast.parse(text)
        return path, text

    def likely(self, slip: Slip) -> list[str]:
        """The test files that should fail, in the order of the patterns."""
        found: dict[str, None] = {}
        for pattern in slip.likely:
            found |= {t: None for t in self.tests if fnmatch.fnmatch(t.removeprefix("tests/"), f"*{pattern}*")}
        if not found:
            raise NotApplicable(f"no test file fits {' or '.join(slip.likely)}")
        return list(found)

    def failures(self, tests: Iterable[str], limit: float, *options: str) -> list[str]:
        """Run tests. Returns the names of the failures."""
        shutil.rmtree(self.noted, ignore_errors=True)
        command = [sys.executable, "-m", "pytest", *options, "-q", "-n", "0", "--no-header", "--tb=no", "-rN"]
        command += ["-o", f"cache_dir={self.noted}", *tests]
        env = {**os.environ, "PYTHONPATH": str(self.root), "PYTHONDONTWRITEBYTECODE": "1"}
        env |= {"FIBRATION_CACHE": str(self.built)}
        try:
            done = subprocess.run(command, cwd=self.root, env=env, capture_output=True, text=True, timeout=limit)
        except subprocess.TimeoutExpired:
            return [f"{NO_END} {limit:.0f} s"]
        if done.returncode in CRASHES:
            return [f"{CRASH} {signal.Signals(-done.returncode).name}"]
        last = self.noted / "v" / "cache" / "lastfailed"
        failed = list(json.loads(last.read_text())) if last.exists() else []
        if bool(failed) != bool(done.returncode):
            raise NotApplicable(f"pytest ended with {done.returncode}: {(done.stdout + done.stderr)[-300:]}")
        return failed

    def killer(self, slip: Slip, limit: float) -> str:
        """The first test that fails with the slip, or '' if all pass."""
        path, text = self.place(slip)
        tests, own_build = (
            self.likely(slip),
            path.name in ("build.py", "cache.py"),
        )  # a build that no other slip may use
        path.write_text(text)
        if own_build:
            shutil.rmtree(self.built, ignore_errors=True)
        try:
            failed = self.failures(tests, limit, "-x")
        finally:
            path.write_text(self.sources[path])
            if own_build:
                shutil.rmtree(self.built, ignore_errors=True)
        return failed[0] if failed else ""


def main() -> int:
    parser = argparse.ArgumentParser(description="Change one line of the library at a time, and run the tests.")
    parser.add_argument("--only", default="", metavar="NAME", help="slips whose name contains this")
    parser.add_argument("--limit", type=float, default=300, metavar="SECONDS", help="of one run of the tests")
    chosen = parser.parse_args()
    slips = [s for s in SLIPS if chosen.only in s.name]
    if not slips:
        parser.error(f"no slip is called {chosen.only}")
    wrong, killers = 0, dict[str, str]()
    with tempfile.TemporaryDirectory() as folder:
        copy = Copy(HERE, Path(folder))
        print("| slip | killed by | seconds |\n|---|---|---|", flush=True)
        for slip in slips:
            since = time.monotonic()
            try:
                killer = copy.killer(slip, chosen.limit) or "SURVIVED"
                if not killer.startswith(("SURVIVED", NO_END, CRASH)):
                    killers[killer] = slip.name
            except (NotApplicable, SyntaxError) as error:
                killer = f"NOT APPLICABLE: {error}"
            wrong += killer.startswith(("SURVIVED", "NOT APPLICABLE"))
            seconds, cell = time.monotonic() - since, killer.replace("|", "\\|")
            print(f"| {slip.name} | {cell} | {seconds:.0f} |", flush=True)
        for test in copy.failures(killers, chosen.limit) if killers else ():
            print(f"\n{test} fails without '{killers.get(test, 'any slip')}' too")
            wrong += 1
    print(f"\n{len(slips) - wrong} of {len(slips)} noticed")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
