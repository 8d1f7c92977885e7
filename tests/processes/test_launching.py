"""A script under torchrun succeeds or fails by its own end: what comes after that cannot abort it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torchrun_launch

SCRIPT = "import atexit, os, sys, beside\nprint(beside.WORD, sys.argv[1:], __name__)\n"
ENDS = {"atexit.register(os.abort)": 0, "raise ValueError('no such rank')": 1, "sys.exit(3)": 1}


@pytest.mark.thorough  # starts processes
@pytest.mark.parametrize("end", ENDS)
def test_a_script_is_judged_by_its_own_end(tmp_path: Path, end: str) -> None:
    (tmp_path / "beside.py").write_text("WORD = 'beside'")
    (tmp_path / "script.py").write_text(SCRIPT + end)
    done = torchrun_launch.torchrun(1, tmp_path / "script.py", "a b", env=dict(os.environ), timeout=60)
    assert done.returncode == ENDS[end], done.stdout + done.stderr
    assert "beside ['a b'] __main__" in done.stdout
