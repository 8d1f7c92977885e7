"""Watching a run does not change it, and signs are computed as the page of losses states."""

import json
import os
import subprocess
import sys
from dataclasses import asdict

import numpy as np
import pytest
import watch
from model import Shape
from rl import Run, learn

from fibration.files import write_file


@pytest.mark.filterwarnings("ignore:grad and param do not obey")
def test_watching_a_run_does_not_change_it(monkeypatch):
    """Of random weights, whose answers are rewarded by chance alone."""
    run, small = Run("x", "grpo", "noisy", 3, 1e-2, 0.5, 10), Shape(16, 1, 2)
    first = small.initial([3])
    monkeypatch.setattr(watch, "base", lambda shape, seed, results: first[0])
    monkeypatch.setattr(watch, "Shape", lambda: small)
    (seen,), (own,) = watch.watch([run]), learn(small, [run], first)
    log = seen["log"]
    assert seen["run"] == asdict(run)
    assert seen["looks"] == {name: own[name] for name in ("right", "entropy")}
    assert {len(column) for column in log.values()} == {10}
    assert max(log["amplification"]) == own["amplification"][0] > 1
    assert np.mean(log["reward"], 0) == pytest.approx(own["reward"][0], rel=0.01)
    assert 1 - np.mean(log["token/passed"]) == pytest.approx(own["gated/token"][0], rel=0.1) and log["kl"][-1] > 0


def test_means_of_the_last_steps_begin_with_fewer():
    column = np.arange(25.0) ** 2
    wanted = [column[max(0, k - watch.SMOOTH + 1) : k + 1].mean() for k in range(25)]
    assert watch.smooth(column) == pytest.approx(wanted)


def test_a_sign_counts_from_the_step_in_which_its_mean_is_above():
    """Steps count from 1, looks at fixed questions from 0."""
    found = watch.watched()["healthy"]
    found["log"]["kl"] = [0.0] * 29 + [1.0 + watch.KL] * 121
    found["looks"]["right"][4] = [0, 0, 0, 0]
    shown = watch.signs(found)
    assert shown.pop(f"kl > {watch.KL}") == 30
    assert shown.pop(f"held-out accuracy {watch.FALL} below its start") == 40
    assert set(shown.values()) == {None}


def test_told_apart_is_the_share_of_pairs_in_which_a_sick_run_is_higher():
    values, sick = np.array([3.0, 1.0, 2.0, 2.0, 0.0]), np.array([True, False, False, True, False])
    assert watch.told_apart(values, sick) == 5.5 / 6


def test_runs_to_look_at_are_of_the_folder_that_is_asked_for(tmp_path):
    """And what has not been trained yet is named, with what trains it."""
    runs = watch.watched()
    for name, run in runs.items():
        run["log"]["kl"] = [1.0 + watch.KL] * 150
        if name != "healthy":
            write_file(watch.file(name, tmp_path), json.dumps(run))
    with pytest.raises(SystemExit, match=rf" healthy: run `.*watch\.py train --results {tmp_path}` first$"):
        watch.shown(tmp_path)
    write_file(watch.file("healthy", tmp_path), json.dumps(runs["healthy"]))
    assert f"| kl > {watch.KL} | 1 | 1 | 1 | 1 | 1 |" in watch.shown(tmp_path)


@pytest.mark.parametrize(
    ("given", "said"), [("score WRONG", "invalid choice: 'WRONG'"), ("train test", "unrecognized")]
)
def test_unused_arguments_are_refused(capsys, given, said):
    with pytest.raises(SystemExit, match="2"):
        watch.main(given.split())
    assert said in capsys.readouterr().err


@pytest.mark.thorough
def test_checking_numbers_imports_no_plotting():
    code = "import analyse, sys; print({'matplotlib', 'PIL'} & {*sys.modules})"
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", code], env=paths, capture_output=True).stdout == b"set()\n"


def test_runs_that_end_worse_are_those_below_their_base_at_the_last_looks(tmp_path, monkeypatch):
    """In three seeds of four runs, of which the one that moved farthest is sick; where a trick is rewarded none counts."""
    lines = []
    for seed in range(3):
        for k, right in enumerate([[9, 9, 3, 8, 8], [9, 1, 1, 9, 9], [9, 9, 9, 9, 10], [8, 9, 9, 9, 9]]):
            measured = {
                "right": [[x] * 4 for x in right],
                "divergence": [[(0.03, 0.015, 0.021, 0.012)[k]] * 4] * 4,
                **{name: [1.0] * 4 for name in ("amplification", "grad_norm", "gated/token", "gated/domain")},
                "reward": [[0.5] * 4] * 4,
            }
            for condition in ("unequal", "large", "apart") if k else ("unequal", "large"):
                run = asdict(Run("test", "grpo", condition, seed, k, 1.0, 40))
                lines.append(json.dumps({"run": run, "measured": measured}))
    (tmp_path / "test.jsonl").write_text("\n".join(lines))
    found = watch.Outcomes.of("test", tmp_path)
    assert sorted(found.runs) == [0, 1, 2]
    assert all(sorted(x) == [False] * 4 + [True] * 4 for x in found.sick.values())
    assert all(len(runs) == 4 for runs in watch.Outcomes.of("test", tmp_path, "large").runs.values())
    first, second = (row.split(" | ")[1:] for row in watch.alarm("test", tmp_path).splitlines()[2:])
    assert first == second == ["12", "0.50 [0.50, 0.50] |"]
    monkeypatch.setattr(watch, "FAR", 1.0)  # which none is above: the mean is over no runs
    first, second = (row.split(" | ")[1:] for row in watch.alarm("test", tmp_path).splitlines()[2:])
    assert first == ["0", "· |"] and second == ["24", "0.50 [0.50, 0.50] |"]
    said = watch.score("test", tmp_path).splitlines()
    assert said[2] == "| runs that end worse | 12 of 24 | 6 of 12 | 6 of 12 |"
    assert said[3] == f"| {watch.MOVED}" + 3 * " | 0.75 [0.75, 0.75]" + " |"
