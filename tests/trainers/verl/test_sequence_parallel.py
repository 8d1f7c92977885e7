"""Optimizer steps of verl's worker whose rows are in pieces on two ranks each, beside `op.loss` on the mini-batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sequence_parallel import CASES, COUPLED, SHARING
from torchrun_launch import rank_results

HERE = Path(__file__).parent
RANKS = 4


@pytest.fixture(scope="session")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank wrote."""
    return rank_results(tmp_path_factory, RANKS, HERE / "sequence_parallel.py")


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
