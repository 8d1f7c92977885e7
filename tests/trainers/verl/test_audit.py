"""`audited_worker` on verl's own loss and on ours, in one process and in two: `audited.py` has what is audited."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from audited import RIGHT, WRONG
from torchrun_launch import rank_results

HERE = Path(__file__).parent
RAISED = {"planted: rows in another order", "planted: divided by micro-batches"}  # by our worker's own checks
every_size = pytest.mark.parametrize("ranks", [1, 2])


@pytest.fixture(scope="session")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What each rank found."""
    return lambda ranks: rank_results(tmp_path_factory, ranks, HERE / "audited.py")


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
