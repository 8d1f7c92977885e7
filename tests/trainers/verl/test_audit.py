"""`audited_worker` on verl's own loss and on ours, in one process and in two: `audited.py` has what is audited."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from audited import RIGHT, WRONG
from filelock import FileLock
from torchrun_launch import torchrun

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
RAISED = {"planted: rows in another order", "planted: divided by micro-batches"}  # by our worker's own checks
every_size = pytest.mark.parametrize("ranks", [1, 2])


@pytest.fixture(scope="session")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What each rank found."""

    def of(ranks: int) -> list[dict[str, Any]]:
        base = tmp_path_factory.getbasetemp()
        folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / f"{ranks}_ranks_audited"
        with FileLock(f"{folder}.lock"):
            if not (folder / "done").exists():
                folder.mkdir(exist_ok=True)
                env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
                done = torchrun(ranks, HERE / "audited.py", folder, env=env, timeout=500)
                assert done.returncode == 0, done.stdout + done.stderr
                (folder / "done").touch()
        return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]

    return of


@every_size
@pytest.mark.parametrize("name", RIGHT)
def test_right_workers_pass(found, ranks, name):
    for one in found(ranks):
        assert "raised" not in one[name], one[name]["raised"]
        assert one[name]["ok"] and all(one[name]["ok"]), one[name]["text"]
        assert one[name]["factor"] == pytest.approx([1.0] * len(one[name]["ok"]), rel=1e-4)


@every_size
@pytest.mark.parametrize("name", WRONG)
def test_a_mistake_in_a_worker_is_found(found, ranks, name):
    for one in found(ranks):
        if name in RAISED:
            assert "TrainerError" in one[name]["raised"]
        else:
            assert "raised" not in one[name], one[name]["raised"]
            assert not any(one[name]["ok"]), one[name]["text"]


@every_size
def test_factors_are_named(found, ranks):
    for one in found(ranks):
        assert one["scaled"]["factor"] == pytest.approx([5, 5], rel=1e-4)
        # verl divides by all rows of the mini-batch, of which one has no unmasked token
        assert one["a row without tokens counts"]["factor"] == pytest.approx([0.9, 0.9], rel=1e-4)
