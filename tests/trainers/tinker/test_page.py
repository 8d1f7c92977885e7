"""The scripts of docs/trainers/tinker.md run in an empty folder, beside the stand-in of the service."""

import re
import subprocess
import sys
import threading
from pathlib import Path

import example_loops
import pytest
import torch

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "trainers" / "tinker.md").read_text()
_, CHECK = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
SCRIPT = (ROOT / "docs" / "examples" / "learn_tinker.py").read_text()
(SHOWN,) = re.findall(r"and prints\n\n((?:    .*\n)+)", PAGE)
stand_in = example_loops.example("tinker_stand_in")


def divided_by_the_weights(log_probs, weights):
    """As SkyRL 0.3.0's JAX back end does."""
    rows = [-(w * row).sum() / w.sum().clamp(min=1e-9) for row, w in zip(log_probs, weights, strict=True)]
    return torch.stack(rows).sum()


@pytest.mark.parametrize("loss", [stand_in.cross_entropy, divided_by_the_weights])
def test_the_script_trains_and_the_check_finds_a_service_that_rescales(loss, tmp_path, monkeypatch):
    service = stand_in.Service(loss=loss)
    threading.Thread(target=service.serve_forever, daemon=True).start()
    for name, value in {"TINKER_BASE_URL": service.url, "TINKER_API_KEY": "tml-none", "TINKER_TELEMETRY": "0"}.items():
        monkeypatch.setenv(name, value)
    is_right = loss is stand_in.cross_entropy
    script = SCRIPT if is_right else SCRIPT.replace("range(6)", "range(1)").replace("range(2)", "range(0)")
    (tmp_path / "learn.py").write_text(f"{script}\n{CHECK}")
    made = subprocess.run([sys.executable, "learn.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    service.shutdown()
    service.server_close()
    assert made.returncode == 0, made.stderr
    *lines, ratio = made.stdout.splitlines()
    if not is_right:
        assert float(ratio) > 1e6
        return
    assert ratio == "2.000"
    table = [dict(re.findall(r"([\w/-]+) (-?\d\.\d+)", line)) for line in lines]
    assert len(table) == 12 and all(re.match(r"    (\d  [01]  reward |\.\.\.$)", line) for line in SHOWN.splitlines())
    assert float(table[-1]["reward"]) > float(table[0]["reward"]) + 0.1
    assert {row["token/clipped"] for row in table[::2]} == {"0.000"} and min(
        float(row["token/clipped"]) for row in table[1::2]
    ) > 0.1
