"""Loss functions as pytest items: each function in `fibration_audits` is a test that audits it.

    fibration_audits = {"my_loss.py:loss": "grpo", "my_loss.py:other": ""}

A function's value is the loss that it should be, `grpo epsilon_low=0.2`, or a trainer's config, `trl:FILE KEY=VALUE`.
"" asks for no loss, and reports what is wrong with any.
"""

from __future__ import annotations

import ast
import os
import shlex
import subprocess
import sys
from collections.abc import Iterable
from os.path import abspath
from pathlib import Path
from typing import Any

import pytest

from fibration.cli.pytest_files import Item, NamedFile, NamedFiles, base_of, shown, timeout_of
from fibration.configs.options import is_config
from fibration.configs.specs import as_spec
from fibration.errors import FibrationError
from fibration.language.loading import shipped, split

EXAMPLE = 'fibration_audits = {"my_loss.py:loss" = "grpo"} in pyproject.toml, {"my_loss.py:loss": "grpo"} elsewhere'


class AuditItem(Item):
    """A test that passes if the function is sound, and the loss that it should be; else it fails with the report."""

    def __init__(self, *, function: str, like: str, **rest: Any) -> None:
        super().__init__(**rest)
        self.function, self.like = function, like

    def runtest(self) -> None:
        """Run `fibration audit`, in a process that imports as this one: a fork of this one may not run autograd."""
        like, *overrides = shlex.split(self.like) or [""]
        options = ["--timeout", str(timeout_of(self.config)), *(["--as", like] if like else [])]
        command = [sys.executable, "-m", "fibration", "audit", *options, "--", self.function, *overrides]
        paths = os.pathsep.join(path for path in sys.path if path)
        done = subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True)
        lines = done.stderr.splitlines()
        print(*(line for line in lines if line.startswith("| ")), sep="\n", file=sys.stderr)
        if done.returncode:
            error = "\n".join(line for line in lines if not line.startswith("| "))
            pytest.fail(done.stdout or error.removeprefix("error: "), pytrace=False)


class Audits(NamedFiles):
    """The functions that a project audits. Raises pytest.UsageError for a missing file, and for an unknown loss."""

    kind = AuditItem

    def __init__(self, config: pytest.Config, listed: object) -> None:
        base, files = base_of(config), dict[Path, dict[str, str]]()
        for function, like in _read(listed).items():
            text, name = split(function)
            path = Path(abspath(base / text))
            if path.suffix != ".py" or not path.is_file() or not name:
                found = "no such file" if path.suffix == ".py" and not path.is_file() else "no FILE.py:FUNCTION"
                raise pytest.UsageError(f"fibration_audits names {function!r}, {found}: write {EXAMPLE}")
            files.setdefault(path, {})[name] = _loss(base, like)
        super().__init__(config, {}, files)

    def items(self, file: NamedFile) -> Iterable[AuditItem]:
        for name, like in self.listed[file.path].items():
            function = f"{shown(file.path)}:{name}"
            yield AuditItem.from_parent(file, name=name, function=function, like=like)


def _loss(base: Path, like: str) -> str:
    """The words of a SPEC for a shell; paths are relative to the configuration."""
    if not like or like.split()[0] in shipped():
        return like
    words = [like]
    if is_config(like):
        trainer, _, rest = like.partition(":")
        file, *overrides = rest.split() or [""]
        words = [f"{trainer}:{base / file}", *overrides]
    elif (path := base / split(like)[0]).exists():
        name = split(like)[1]
        words = [f"{path}:{name}" if name else str(path)]
    try:
        as_spec(words).load()
    except FibrationError as error:
        raise pytest.UsageError(f"fibration_audits: {error}") from None
    return shlex.join(words)


def _read(listed: object) -> dict[str, str]:
    try:
        found = ast.literal_eval(str(listed).strip())
    except (ValueError, SyntaxError):
        found = None
    if not isinstance(found, dict) or not all(isinstance(v, str) for pair in found.items() for v in pair):
        raise pytest.UsageError(f"fibration_audits is {listed!r}, which names no functions and losses: write {EXAMPLE}")
    return found
