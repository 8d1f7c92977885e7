"""The script of docs/trainers/torchrl.md trains, in an empty folder."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "trainers" / "torchrl.md").read_text()
_, PIECES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
SCRIPT = (ROOT / "docs" / "examples" / "learn_torchrl.py").read_text()


def test_the_script_trains_and_pieces_of_a_step_have_the_gradient_of_the_step(tmp_path):
    gradients = "[p.grad.clone() for p in model.parameters()]"
    whole = f"loss(batch).loss_objective.backward()\nwhole = {gradients}\nmodel.zero_grad()\n"
    compared = f"pieces = {gradients}\nprint(max(float((a - b).norm() / a.norm()) for a, b in zip(whole, pieces)))\n"
    (tmp_path / "learn.py").write_text(SCRIPT + whole + PIECES + compared)
    made = subprocess.run([sys.executable, "learn.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    *lines, apart = made.stdout.splitlines()
    table = [dict(re.findall(r"([\w/-]+) (-?\d\.\d+)", line)) for line in lines]
    assert len(table) == 12
    assert float(table[-1]["reward"]) > float(table[0]["reward"]) + 0.1
    assert {row["token/clipped"] for row in table[::2]} == {"0.000"}
    assert min(float(row["token/clipped"]) for row in table[1::2]) > 0
    assert float(apart) < 1e-4  # float32, and rows of a piece have other padding
