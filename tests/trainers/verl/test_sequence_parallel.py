"""Optimizer steps of verl's worker whose rows are in pieces on two ranks each, beside `op.loss` on the mini-batch."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from sequence_parallel import CASES, COUPLED, SHARING
from torchrun_launch import torchrun

HERE = Path(__file__).parent
RANKS = 4


@pytest.fixture(scope="session")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank wrote."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "rows_in_pieces_of_verl"
    with FileLock(f"{folder}.lock"):  # one run for all processes of the tests
        if not (folder / "done").exists():
            folder.mkdir(exist_ok=True)
            env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parent.parent.parent)}
            done = torchrun(RANKS, HERE / "sequence_parallel.py", folder, env=env, timeout=500)
            assert done.returncode == 0, done.stdout + done.stderr
            (folder / "done").touch()
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_the_whole_mini_batch(found, name):
    """The mean over all ranks counts each row once, although every rank has the loss of whole rows."""
    for one in found:
        assert one[name]["shared"]
        assert one[name]["distance"] <= 1e-14


@pytest.mark.parametrize("name", CASES)
def test_the_first_rank_of_each_row_logs_the_objective(found, name):
    for rank, one in enumerate(found):
        logged = one[name]["objective"]
        assert (logged is None) == (rank % SHARING > 0)
        assert logged is None or logged == pytest.approx(one[name]["wanted"], abs=1e-14)


@pytest.mark.parametrize("name", CASES)
def test_ranks_that_share_rows_run_the_same_passes(found, name):
    for first, second in zip(found[::SHARING], found[1::SHARING], strict=True):
        for what in ("layout", "passed", "forwards"):
            assert first[name][what] == second[name][what]
        assert (first[name]["forwards"] > 0) == (name in COUPLED)
    rows = [{row for rows in one[name]["layout"] for row in rows} for one in found[::SHARING]]
    assert rows[0].isdisjoint(rows[1])


def test_a_group_of_every_rank_would_count_rows_twice_and_is_refused(found):
    for one in found:
        assert "gradients are averaged over 2 ranks, and the mini-batch is on 4" in one["every rank"]
