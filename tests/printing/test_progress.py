"""Progress of long work shows on a terminal, and nowhere else."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from fibration.cli.main import app
from fibration.printing import progress
from fibration.printing.formats import FORMATS

# The module needs nothing of the package, which would take a second to import.
ALONE = """
import importlib.util, sys
found = importlib.util.spec_from_file_location("progress", sys.argv[1])
progress = importlib.util.module_from_spec(found)
found.loader.exec_module(progress)
with progress.working("reading [b]names[/b]") as tell:
    print("result")
    tell("laws of [a]")
"""


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_shows_on_a_terminal_and_not_on_stdout(terminal: bool) -> None:
    watched, stderr = os.openpty() if terminal else os.pipe()
    environment = {**os.environ, "TERM": "xterm"}
    command = [sys.executable, "-c", ALONE, progress.__file__]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, env=environment) as process:
        os.close(stderr)
        seen = b""
        try:
            while part := os.read(watched, 4096):
                seen += part
        except OSError:  # how a terminal ends
            pass
        assert process.stdout is not None
        assert process.stdout.read() == b"result\n"
    os.close(watched)
    if terminal:
        assert all(word in seen.decode() for word in ("reading [b]names[/b] ...", "laws of [a] ..."))
    else:
        assert seen == b""


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What a terminal on stderr would show."""
    page = io.StringIO()
    monkeypatch.setattr(progress, "Console", lambda file: Console(file=page, force_terminal=True, width=100))
    return page


@pytest.mark.parametrize("form", FORMATS)
def test_verify_shows_progress_and_prints_the_same_report(form: str, line: io.StringIO) -> None:
    arguments = ["verify", "ppo", "gspo", "-f", form]
    with_terminal = CliRunner().invoke(app, arguments).stdout
    said = line.getvalue()
    assert "laws of gspo; 1 decided ..." in said
    progress.Console = Console  # type: ignore[misc]
    assert with_terminal == CliRunner().invoke(app, arguments).stdout
    if form == "json":
        assert [r["hierarchy"] for r in json.loads(with_terminal)] == ["ppo", "gspo"]


def test_compare_and_compile_show_progress(line: io.StringIO, tmp_path: Path) -> None:
    assert CliRunner().invoke(app, ["compare", "ppo", "ppo"]).exit_code == 0
    assert CliRunner().invoke(app, ["compile", "ppo", "-b", "torch", "-o", str(tmp_path)]).exit_code == 0
    assert "comparing ppo with ppo ..." in line.getvalue()
    assert "laws of ppo ..." in line.getvalue()
