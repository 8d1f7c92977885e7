"""torchrun is started again only if PyTorch's Gloo aborted after all work was done."""

import subprocess

import pytest
import torchrun_launch


@pytest.mark.parametrize(
    ("ends", "starts", "last"),
    [
        ([(0, "")], 1, 0),
        ([(0, torchrun_launch.AT_EXIT)], 1, 0),
        ([(1, "a fault of ours")], 1, 1),
        ([(1, f"... {torchrun_launch.AT_EXIT}\n"), (0, "")], 2, 0),
        ([(1, torchrun_launch.AT_EXIT), (1, torchrun_launch.AT_EXIT)], 2, 1),
        ([(1, torchrun_launch.AT_EXIT), (1, "a fault of ours")], 2, 1),
    ],
)
def test_torchrun_is_started_again_after_a_gloo_failure_at_exit(monkeypatch, ends, starts, last):
    made = []

    def run(command, **given):
        made.append(command)
        code, said = ends[len(made) - 1]
        return subprocess.CompletedProcess(command, code, "", said)

    monkeypatch.setattr(subprocess, "run", run)
    assert torchrun_launch.torchrun(2, "worker.py", env={}, timeout=1).returncode == last
    assert len(made) == starts and made[0][-2:] == ["2", "worker.py"]
