"""Training in processes of their own, under torchrun with gloo: the loops of `docs/examples/` as they stand, and errors.

Two ranks in an everyday run; one and three too with `make test-ranks`.
"""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import Any

import pytest
import torchrun_launch
from example_loops import EXAMPLES
from filelock import FileLock
from thorough import ALL

from fibration.backends.c.build import compiler

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
RANKS = (1, 2, 3) if ALL else (2,)
several = pytest.mark.parametrize("ranks", [n for n in RANKS if n > 1])


def torchrun(ranks: int, *command: Any) -> str:
    """What all ranks print; PYTHONHASHSEED is theirs."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    env.pop("PYTHONHASHSEED", None)
    env |= {} if ALL else {"CC": f"{shlex.join(compiler())} -O0"}  # which takes a quarter of the time to build
    done = torchrun_launch.torchrun(ranks, *command, env=env, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Warning" not in done.stderr, done.stderr
    return done.stdout


pytestmark = pytest.mark.thorough  # each start of processes takes seconds


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What each rank wrote, by the number of ranks."""

    def of(ranks: int) -> list[dict[str, Any]]:
        base = tmp_path_factory.getbasetemp()
        folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / f"{ranks}_ranks"
        with FileLock(f"{folder}.lock"):  # one run for all processes of the tests
            if not (folder / "done").exists():
                folder.mkdir(exist_ok=True)
                torchrun(ranks, HERE / "worker.py", folder)
                (folder / "done").touch()
        return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]

    return of


@pytest.mark.parametrize("ranks", RANKS)
def test_gradients_of_ddp_and_fsdp_are_those_of_one_process(found, ranks):
    """Off policy, with elements rolled back and zeroed at every level, which `worker.py` asserts."""
    for one in found(ranks):
        assert len(one["distances"]) == (1 if ranks == 1 else 2) * (4 if ALL else 2)
        for case, distance in one["distances"].items():
            assert distance <= (1e-13 if "float64" in case else 1e-6), case


@pytest.mark.parametrize("ranks", RANKS)
def test_gradients_of_the_head_under_ddp_and_fsdp_are_those_of_one_process(found, ranks):
    """Of the trunk and of the head's weight, tied to the embedding or not, sharded or gathered when it is passed."""
    for one in found(ranks):
        assert len(one["heads"]) == 14
        for case, distance in one["heads"].items():
            assert distance <= 1e-12, case


@pytest.mark.parametrize("ranks", RANKS)
def test_the_examples_print_the_results_of_one_process(found, ranks):
    first, *others = (one["printed"] for one in found(ranks))
    assert first["micro_batches"].count("update") == 4
    assert set(first.values()) == {first["micro_batches"]}
    assert all(other == {**first, "ddp": "", "fsdp2": ""} for other in others)


@pytest.mark.parametrize("ranks", RANKS)
def test_the_page_of_micro_batches_has_the_gradient_of_one_process(found, ranks):
    for rank, one in enumerate(found(ranks)):
        assert one["page"]["distance"] <= 1e-6
        assert one["page"]["printed"].count("update") == (0 if rank else 4)


@pytest.mark.skipif(not ALL, reason="each start takes seconds; `make test-ranks` does it")
@pytest.mark.parametrize("name", ["micro_batches", "ddp", "fsdp2", "twins"])
def test_the_examples_run_as_they_stand(found, name):
    printed = torchrun(1 if name == "micro_batches" else 2, EXAMPLES / f"{name}.py")
    expected = found(2)[0]
    if name == "twins":
        twins = expected["twins"]["torch.float64"]
        assert f"of 2400 elements {twins['changed']} change their regime, {twins['differ']} differ in it" in printed
    else:
        assert printed == expected["printed"][name]


ERRORS = {
    "a label that is None": ("HierarchyIndexError", "None"),
    "a label too few": ("HierarchyIndexError", "domain"),
    "a label without a stable hash": ("HierarchyIndexError", "object"),
    "a group over two domains": ("HierarchyIndexError", "elsewhere"),
    "another hierarchy": ("RanksError", "ranks differ in the hierarchy"),
    "NaN": ("BatchError", "nan"),
    "other parameters": ("RanksError", "epsilon"),
    "a parameter out of bounds": ("ParameterError", "epsilon"),
    "too few log-probs": ("BatchError", "log_probs"),
    "no metrics": ("RanksError", "metrics"),
    "another call": ("RanksError", "levels"),
}


@several
def test_an_error_on_one_rank_is_raised_on_all_with_its_rank(found, ranks):
    everywhere = found(ranks)
    for case, (kind, word) in ERRORS.items():
        said = {one["errors"][case] for one in everywhere}
        assert len(said) == 1, (case, said)  # the same words on all ranks
        (message,) = said
        assert message.startswith(f"{kind}: " if kind else "") and word in message, (case, message)
        assert f"rank {ranks - 1}" in message, (case, message)
    assert all(one["errors"].keys() == ERRORS.keys() | {"after all of these"} for one in everywhere)
    assert all(one["errors"]["after all of these"] == "" for one in everywhere)


@several
def test_a_rank_whose_peers_do_not_call_raises(found, ranks):
    """By a rank that does not call, after the group's own timeout; by one that has ended, at once."""
    *others, gone = found(ranks)
    assert "left_alone" not in gone
    for one in others:
        for message in one["left_alone"].values():
            assert message.startswith("RanksError: ") and "could not gather" in message


@pytest.mark.parametrize("ranks", RANKS)
def test_training_on_ranks_equals_one_process(found, ranks):
    """Twenty updates, in one process and on all ranks, while elements of every level go from one regime to another."""
    for one in found(ranks):
        assert one["twins"]
        for dtype, twins in one["twins"].items():
            assert twins["apart"] <= (1e-13 if dtype == "torch.float64" else 2e-6)
            assert twins["changed"] > 200 and min(twins["met"]) > 20
            assert twins["elements"] == 20 * 2 * (4 + 8 + 48)
            assert twins["differ"] == 0 or dtype == "torch.float32"
