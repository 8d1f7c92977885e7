"""Hierarchies as pytest items: each hierarchy in a project's specs is a test that verifies it.

Plain `pytest` runs the specs in `fibration_specs = ["specs/", "losses/my_loss.py:NAME"]`; `pytest PATH` runs those of
them that PATH holds. Specs named with `--fibration` always run. `_fibration_pytest` declares both options.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from fnmatch import fnmatch
from os.path import abspath
from pathlib import Path
from typing import Any

import pytest

from fibration.errors import FibrationError, LawError
from fibration.language.hierarchy import Hierarchy
from fibration.language.loading import hierarchies, load, shipped, shipped_file, spec_files, split
from fibration.language.report import BUDGET, Report
from fibration.laws.budget import Budget
from fibration.printing.reports import heading

TIMEOUT = pytest.StashKey[float]()


class HierarchyItem(pytest.Item):
    """A test that passes if the hierarchy verifies, and otherwise fails with the causes."""

    def __init__(self, *, hierarchy: Hierarchy, **rest: Any) -> None:
        super().__init__(**rest)
        self.hierarchy = hierarchy

    def runtest(self) -> None:
        report = self.hierarchy.verify(self.config.stash[TIMEOUT])
        if not report.ok:
            error = LawError(refusal(report))
            error.report = report
            raise error

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """A FibrationError is shown as its message alone; any other exception keeps its traceback."""
        if isinstance(excinfo.value, FibrationError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, None, str]:
        return self.path, None, self.name


def refusal(report: Report) -> str:
    """The heading of a report, and the error message of every cause."""
    return "\n".join([heading(report).plain, *(str(report.error(v)) for v in report.causes)])


class SpecFile(pytest.File):
    """A spec file; its items are named as in `path.py:NAME`. An unusable spec is a collection error."""

    def __init__(self, *, specs: Specs, **rest: Any) -> None:
        super().__init__(**rest)
        self.specs = specs

    def collect(self) -> Iterable[HierarchyItem]:
        try:
            found = self.specs.read(self.path)
        except FibrationError as error:
            raise self.CollectError(str(error)) from None
        return [HierarchyItem.from_parent(self, name=name, hierarchy=h) for name, h in found.items()]


class Specs:
    """The specs that a project names, and the hooks that turn them into tests.

    Raises pytest.UsageError for a missing file, a folder without specs, and an invalid timeout.
    """

    def __init__(self, config: pytest.Config, asked: Sequence[str], listed: Sequence[str]) -> None:
        here = config.invocation_params.dir
        self.config = config
        config.stash[TIMEOUT] = _timeout(config)
        # The requested NAMEs by file; an empty set means all hierarchies of the file.
        self.asked = _files(asked, here)
        self.listed = _files(listed, config.inipath.parent if config.inipath else here)
        self._read: dict[Path, dict[str, Hierarchy] | FibrationError] = {}

    def read(self, file: Path) -> dict[str, Hierarchy]:
        """The hierarchies of a file, by NAME. The file is imported once, however often pytest collects it."""
        if file not in self._read:
            try:
                self._read[file] = self._load(file)
            except FibrationError as error:
                self._read[file] = error
        found = self._read[file]
        if isinstance(found, FibrationError):
            raise found
        return found

    def _load(self, file: Path) -> dict[str, Hierarchy]:
        shown = _shown(file)
        found = hierarchies(shown)
        mentions = [names[file] for names in (self.asked, self.listed) if file in names]
        if not all(mentions):
            return found
        wanted = {name for names in mentions for name in names}
        missing = sorted(wanted - found.keys())
        if missing:
            load(f"{shown}:{missing[0]}")  # raises, and lists the names that exist
        return {name: h for name, h in found.items() if name in wanted}

    @pytest.hookimpl(wrapper=True)
    def pytest_collect_file(
        self, file_path: Path, parent: pytest.Collector
    ) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
        """Collect a named spec wherever pytest meets it, so `pytest specs/ppo.py::ppo` and `--last-failed` work."""
        found = yield
        if file_path not in self.asked and file_path not in self.listed:
            return found
        tests = any(file_path.match(pattern) for pattern in self.config.getini("python_files"))
        others = [f for f in found if tests or not isinstance(f, pytest.Module)]
        return [*others, self._node(parent.session, file_path)]

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        """Add the specs that lie outside the paths that pytest collected."""
        everything = self.config.args_source is not pytest.Config.ArgsSource.ARGS
        wanted = {**self.asked, **(self.listed if everything else {})}
        met = {item.path for item in items if isinstance(item, HierarchyItem)}
        met |= {file for file, found in self._read.items() if isinstance(found, FibrationError)}
        for file in wanted:
            if file not in met and not self._is_ignored(file):
                items.extend(session.genitems(self._node(session, file)))

    def _node(self, session: pytest.Session, file: Path) -> SpecFile:
        # The session is the parent: a Package would import the `__init__.py` of the specs' folder.
        return SpecFile.from_parent(session, path=file, specs=self)

    def _is_ignored(self, file: Path) -> bool:
        here = self.config.invocation_params.dir
        paths = [Path(abspath(here / p)) for p in self.config.getoption("ignore") or ()]
        globs = [abspath(here / p) for p in self.config.getoption("ignore_glob") or ()]
        return any(p in paths or any(fnmatch(str(p), g) for g in globs) for p in (file, *file.parents))


def _timeout(config: pytest.Config) -> float:
    given = config.getoption("--fibration-timeout") or config.getini("fibration_timeout") or BUDGET
    try:
        return Budget(float(given)).seconds
    except ValueError:
        raise pytest.UsageError(
            f"fibration_timeout is {given!r}, which is no number of seconds: write fibration_timeout = 60, or inf"
        ) from None
    except FibrationError as error:
        raise pytest.UsageError(str(error)) from None


def _files(specs: Sequence[str], base: Path) -> dict[Path, set[str]]:
    """The files that specs and folders name, in order, each with its requested NAMEs; an empty set means all."""
    result: dict[Path, set[str]] = {}
    for spec in specs:
        text, name = split(spec)
        path = base / text
        if name is None and not path.is_dir() and text in shipped():
            path = shipped_file(text)
        try:
            files = [Path(abspath(f)) for f in spec_files(path)]
            if not path.exists():
                load(_shown(path))  # raises, and lists what can be named
        except FibrationError as error:
            raise pytest.UsageError(str(error)) from None
        for file in files:
            if name is None:
                result[file] = set()
            elif result.get(file) != set():
                result.setdefault(file, set()).add(name)
    return result


def _shown(path: Path) -> str:
    """A path for messages: relative to the working folder if it lies there."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
