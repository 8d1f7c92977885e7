"""docs/trainers/trl.md does what it says: its script, in an empty folder."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "trainers" / "trl.md").read_text()


def test_the_script_trains_a_step_that_is_fresh_and_one_that_is_not(tmp_path):
    (script,) = (b for b in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "GRPOConfig" in b)
    (tmp_path / "learn.py").write_text(script)
    made = subprocess.run([sys.executable, "learn.py", "2"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    shown = [
        dict(re.findall(r"(\S+) (-?\d\.\d+)", line)) for line in made.stdout.splitlines() if re.match(r"\d+  ", line)
    ]
    fresh, moved = shown[:2]
    assert (fresh["extra_forwards"], fresh["token/clipped"], fresh["pass/changed"]) == ("0.000", "0.000", "0.000")
    assert (moved["extra_forwards"], moved["pass/changed"]) == ("3.000", "0.000")
    assert float(moved["token/clipped"]) > 0.1
    assert (tmp_path / "out").is_dir()
