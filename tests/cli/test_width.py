"""No command writes a line that is wider than the terminal."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from thorough import some
from typer.testing import CliRunner

from fibration.cli.main import app
from fibration.language.loading import shipped

WRONG = """
from fibration import Fibration, MarkovKernel, count, load, strata
token, trajectory = strata("token trajectory")
first = Fibration(token, trajectory, kernel=MarkovKernel(1 / (count(token, over=trajectory) + 1)))
h = load("fiberpo_domain")
wrong = h.replace(name="wrong", gives_up={}, fibrations=[first, *h.fibrations[1:]])
"""
LOSS = "def loss(log_probs, old_log_probs, advantages):\n    return -(log_probs * advantages[:, None]).mean()"
CASES = [
    *("verify grpo", "verify wrong.py", "verify --all fiberpo_domain", "verify gspo fiberpo wrong.py", "show wrong.py"),
    *("compile grpo -o out", "compare grpo dapo", "audit loss.py:loss --all --as grpo", "run grpo"),
    *("init new", "doctor", "verify no_such_spec", "show grpo -f yaml", "frobnicate", "run fiberpo_tis --all"),
]


def too_wide(output: str, columns: int) -> list[str]:
    """Lines beyond the last column, but for those to paste, and those with a path or another word that cannot break."""
    lines = re.sub(r"\x1b\[[\d;]*m", "", output).splitlines()
    wide = [line for line in lines if len(line) > columns and max(map(len, line.split())) < columns / 2]
    return [line for line in wide if not line.startswith(("      fix: ", "      write: "))]


@pytest.mark.parametrize("case", CASES)
def test_no_line_is_wider_than_the_terminal(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("wrong.py").write_text(WRONG)
    Path("loss.py").write_text(LOSS)
    shown = CliRunner().invoke(app, case.split(), env={"COLUMNS": "80"}).output
    assert shown and too_wide(shown, 80) == [] and (case != "run grpo" or len(shown.splitlines()) <= 50)  # a screen
    assert ("  refused  " in shown) == (case.startswith("verify") and "wrong.py" in case)
    fixes = [line for line in shown.splitlines() if line.startswith("      fix: ")]
    assert all(fix.count("(") == fix.count(")") for fix in fixes) and (case != "verify wrong.py" or fixes)  # to paste


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_no_shown_loss_is_wider_than_the_terminal(columns: int) -> None:
    for name in some(shipped(), 4):
        shown = CliRunner().invoke(app, ["show", name], env={"COLUMNS": str(columns), "FORCE_COLOR": "1"}).output
        assert shown.startswith(f"{name}\n  J = ") and too_wide(shown, columns) == []
