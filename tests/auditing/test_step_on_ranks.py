"""`audit_step` of two ranks, under DDP and FSDP2: `steps_on_ranks.py` is what they run."""

import json
import os
from pathlib import Path

import pytest
import torch
from support import refuses
from torchrun_launch import torchrun

from fibration import AuditError, audit_step

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    paths = [str(HERE.parents[1]), str(HERE.parent)]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
    done = torchrun(2, HERE / "steps_on_ranks.py", folder, env=env, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("name", ["ddp, right", "fsdp2, right"])
def test_a_right_step_of_two_ranks_passes(found, name):
    for one in found:
        assert one[name]["ok"], one[name]["text"]
        assert one[name]["factor"] == pytest.approx(1, rel=1e-4)


@pytest.mark.parametrize("name", ["ddp, no ranks", "fsdp2, no ranks"])
def test_a_mean_over_ranks_of_a_loss_that_is_not_multiplied_by_them(found, name):
    for one in found:
        assert one[name]["factor"] == pytest.approx(1 / 2, rel=1e-4)
        assert "the ranks, 2, once too often" in one[name]["text"]


def test_ranks_that_are_not_averaged(found):
    for one in found:
        assert "this rank's rows alone" in one["ddp, not averaged"]["text"]


def test_a_model_of_several_ranks_needs_their_group(monkeypatch):
    class Wrapped(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(1))

    monkeypatch.setattr(torch.nn.parallel, "DistributedDataParallel", Wrapped)
    refuses(AuditError, lambda: audit_step(Wrapped(), print, print), what="`group` is not given")
