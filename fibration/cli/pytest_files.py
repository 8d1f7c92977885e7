"""Files that a project names for pytest, each with tests of its own kind. Specs and audited functions are two kinds."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from fnmatch import fnmatch
from os.path import abspath
from pathlib import Path
from typing import Any

import pytest

from fibration.errors import FibrationError
from fibration.language.report import BUDGET
from fibration.laws.budget import Budget


class Item(pytest.Item):
    """A test that shows a FibrationError as its message alone; any other exception keeps its traceback."""

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, FibrationError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, None, str]:
        return self.path, None, self.name


class NamedFile(pytest.File):
    """A file whose items are named as in `path.py:NAME`. An unusable file is a collection error."""

    def __init__(self, *, of: NamedFiles, **rest: Any) -> None:
        super().__init__(**rest)
        self.of = of

    def collect(self) -> Iterable[pytest.Item]:
        try:
            return list(self.of.items(self))
        except FibrationError as error:
            self.of.failed.add(self.path)
            raise self.CollectError(str(error)) from None


class NamedFiles:
    """The files that a project names, and the hooks that turn them into tests.

    `asked`: files that always run. `listed`: files that run unless paths are given to pytest. `kind`: the class of
    their items.
    """

    kind: type[Item]

    def __init__(self, config: pytest.Config, asked: Mapping[Path, Any], listed: Mapping[Path, Any]) -> None:
        self.config, self.asked, self.listed = config, asked, listed
        self.failed: set[Path] = set()

    def items(self, file: NamedFile) -> Iterable[pytest.Item]:
        """The tests of a file. Raises FibrationError for an unusable one."""
        raise NotImplementedError

    @pytest.hookimpl(wrapper=True)
    def pytest_collect_file(
        self, file_path: Path, parent: pytest.Collector
    ) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
        """Collect a named file wherever pytest meets it, so `pytest specs/tokens.py::ppo` and `--last-failed` work."""
        found = yield
        if file_path not in self.asked and file_path not in self.listed:
            return found
        tests = any(file_path.match(pattern) for pattern in self.config.getini("python_files"))
        others = [f for f in found if tests or not isinstance(f, pytest.Module)]
        return [*others, self._node(parent.session, file_path)]

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        """Add the files that lie outside the paths that pytest collected."""
        everything = self.config.args_source is not pytest.Config.ArgsSource.ARGS
        wanted = {**self.asked, **(self.listed if everything else {})}
        met = {item.path for item in items if isinstance(item, self.kind)} | self.failed
        for file in wanted:
            if file not in met and not self._is_ignored(file):
                items.extend(session.genitems(self._node(session, file)))

    def _node(self, session: pytest.Session, file: Path) -> NamedFile:
        # The session is the parent: a Package would import the `__init__.py` of the files' folder.
        return NamedFile.from_parent(session, path=file, of=self)

    def _is_ignored(self, file: Path) -> bool:
        here = self.config.invocation_params.dir
        paths = [Path(abspath(here / p)) for p in self.config.getoption("ignore") or ()]
        globs = [abspath(here / p) for p in self.config.getoption("ignore_glob") or ()]
        return any(p in paths or any(fnmatch(str(p), g) for g in globs) for p in (file, *file.parents))


def base_of(config: pytest.Config) -> Path:
    """The folder to which paths in the configuration are relative."""
    return config.inipath.parent if config.inipath else config.invocation_params.dir


def shown(path: Path) -> str:
    """A path for messages: relative to the working folder if it lies there."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def timeout_of(config: pytest.Config) -> float:
    """The seconds for each item. Raises pytest.UsageError for what is no time."""
    given = config.getoption("--fibration-timeout") or config.getini("fibration_timeout") or BUDGET
    try:
        return Budget(float(given)).seconds
    except ValueError:
        raise pytest.UsageError(
            f"fibration_timeout is {given!r}, which is no number of seconds: write fibration_timeout = 60, or inf"
        ) from None
    except FibrationError as error:
        raise pytest.UsageError(str(error)) from None
