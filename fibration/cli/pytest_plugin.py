"""Hierarchies as pytest items: each hierarchy in a project's specs is a test that verifies it.

Plain `pytest` runs the specs in `fibration_specs = ["specs/", "losses/my_loss.py:NAME"]`; `pytest PATH` runs those of
them that PATH holds. `"trl:FILE KEY=VALUE"` is a trainer's config. Specs named with `--fibration` always run.
`_fibration_pytest` declares both options.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from os.path import abspath
from pathlib import Path
from typing import Any

import pytest

from fibration.cli.pytest_files import Item, NamedFile, NamedFiles, base_of, shown, timeout_of
from fibration.configs.files import load_config
from fibration.configs.findings import ConfigReport
from fibration.configs.options import TrainerLoss, is_config
from fibration.errors import FibrationError, LawError
from fibration.escaping import one_line
from fibration.language.hierarchy import Hierarchy
from fibration.language.loading import hierarchies, load, shipped, shipped_file, spec_files, split
from fibration.language.report import Report
from fibration.printing.reports import heading

TIMEOUT = pytest.StashKey[float]()


class HierarchyItem(Item):
    """A test that passes if the hierarchy verifies, and otherwise fails with the causes; or the loss of a config."""

    def __init__(self, *, hierarchy: Hierarchy | TrainerLoss, **rest: Any) -> None:
        super().__init__(**rest)
        self.hierarchy = hierarchy

    def runtest(self) -> None:
        self.hierarchy.verify(self.config.stash[TIMEOUT]).raise_for_status()

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        error = excinfo.value
        return refusal(error.report) if isinstance(error, LawError) else super().repr_failure(excinfo, style)


def refusal(report: Report) -> str:
    """The heading of a report, what is off in a config and counts, and the error message of every cause."""
    off = map(str, report.failing) if isinstance(report, ConfigReport) else ()
    return "\n".join([one_line(heading(report).plain), *off, *(str(report.error(v)) for v in report.causes)])


class Specs(NamedFiles):
    """The specs that a project names.

    Raises pytest.UsageError for a missing file, a folder without specs, and an invalid timeout.
    """

    kind = HierarchyItem

    def __init__(self, config: pytest.Config, asked: Sequence[str], listed: Sequence[str]) -> None:
        config.stash[TIMEOUT] = timeout_of(config)
        # The requested NAMEs by file; an empty set means all hierarchies of the file.
        super().__init__(config, _files(asked, config.invocation_params.dir), _files(listed, base_of(config)))
        self._read: dict[Path, dict[str, Hierarchy | TrainerLoss] | FibrationError] = {}

    def items(self, file: NamedFile) -> Iterable[HierarchyItem]:
        for name, hierarchy in self.read(file.path).items():
            yield HierarchyItem.from_parent(file, name=name, hierarchy=hierarchy)

    def read(self, file: Path) -> dict[str, Hierarchy | TrainerLoss]:
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

    def _load(self, file: Path) -> dict[str, Hierarchy | TrainerLoss]:
        text = shown(file)
        mentions = [names[file] for names in (self.asked, self.listed) if file in names]
        words = [name.split() for names in mentions for name in names if is_config(name)]
        if words:
            return {" ".join(each): load_config(f"{each[0]}{text}", each[1:]) for each in words}
        found: dict[str, Hierarchy | TrainerLoss] = {**hierarchies(text)}
        if not all(mentions):
            return found
        wanted = {name for names in mentions for name in names}
        missing = sorted(wanted - found.keys())
        if missing:
            load(f"{text}:{missing[0]}")  # raises, and lists the names that exist
        return {name: h for name, h in found.items() if name in wanted}


def _files(specs: Sequence[str], base: Path) -> dict[Path, set[str]]:
    """The files that specs and folders name, in order, each with its requested NAMEs; an empty set means all.

    For `trl:FILE KEY=VALUE`, a trainer's config, the NAME is `trl: KEY=VALUE`.
    """
    result: dict[Path, set[str]] = {}
    for spec in specs:
        if is_config(spec):
            trainer, _, rest = spec.partition(":")
            config, *overrides = rest.split() or [""]
            result.setdefault(Path(abspath(base / config)), set()).add(" ".join([f"{trainer}:", *overrides]))
            continue
        text, name = split(spec)
        path = base / text
        if name is None and not path.is_dir() and text in shipped():
            path, name = shipped_file(text), text
        try:
            files = [Path(abspath(f)) for f in spec_files(path)]
            if not path.exists():
                load(shown(path))  # raises, and lists what can be named
        except FibrationError as error:
            raise pytest.UsageError(str(error)) from None
        for file in files:
            if name is None:
                result[file] = set()
            elif result.get(file) != set():
                result.setdefault(file, set()).add(name)
    return result
