"""`audit_first_steps` on TRL's own trainer and on ours, in one process and in two: `audited.py` has what is audited."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from audited import RIGHT, WRONG, theirs
from test_trainer import path
from torchrun_launch import environment, run_once, torchrun

from fibration import TrainerError
from fibration.trainers.trl import audit_first_steps

HERE = Path(__file__).parent
ON_RANKS = ("no average over ranks", "planted: aggregates per rank", "planted: groups of a rank")
RAISED = {  # by our trainer's own checks, before the audit
    "planted: a loss that is scaled otherwise",
    "planted: advantages that are not used",
    "planted: a column that one rank lacks",
}
UNSEEN = {
    "planted: advantages of TRL's",  # the audit takes the trainer's advantages as given
    "planted: a teacher of other rows",  # the same
    "planted: two passes that differ",  # its gradient is as wanted; metrics tell
}
every_size = pytest.mark.parametrize("ranks", [1, 2])


@pytest.fixture(scope="session")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What the first rank found."""

    def of(ranks: int) -> dict[str, Any]:
        def start(folder: Path) -> subprocess.CompletedProcess[str]:
            if ranks > 1:
                return torchrun(ranks, HERE / "audited.py", folder, env=environment(*path()), timeout=900)
            command = [sys.executable, HERE / "audited.py", folder]  # without DDP
            return subprocess.run(command, env=environment(*path()), capture_output=True, text=True, timeout=900)

        folder = run_once(tmp_path_factory, f"audits_{ranks}", start)
        result: dict[str, Any] = json.loads((folder / "0.json").read_text())
        return result

    return of


@every_size
@pytest.mark.parametrize("name", RIGHT)
def test_right_trainers_pass_on_and_off_policy(found, ranks, name):
    one = found(ranks)[name]
    assert "raised" not in one, one["traceback"]
    assert one["ok"] == [True, True], one["text"]
    assert one["factor"] == pytest.approx([1, 1], rel=1e-4) and one["passes"] == [3, 3]


@every_size
@pytest.mark.parametrize("name", [*dict.fromkeys([*WRONG, *ON_RANKS])])
def test_a_mistake_in_a_trainer_is_found_in_two_steps(found, ranks, name):
    if name in ON_RANKS and ranks == 1:
        pytest.skip("is a mistake on several ranks alone")
    one = found(ranks)[name]
    if name in RAISED:
        assert one["raised"].startswith("TrainerError")
        return
    assert "raised" not in one, one["traceback"]
    assert all(one["ok"]) == (name in UNSEEN), one["text"]


SAYS = {
    "no division": "3 times the declared one: it is not divided by the accumulation steps, 3",
    "a division too many": "1/3 times the declared one: it is divided by the accumulation steps, 3, once too often",
    "a micro-batch left out": "micro-batch 1 of 3 of the declared loss is left out",
    "overwritten": "of the last of 3 backward passes alone",
    "a parameter without gradient": "lm_head.weight has no gradient",
    "trl bnpo": "each has a normaliser of its own",
    "advantages of other rows": "other rows, labels, advantages",
    "planted: coefficients divided by accumulation": "divided by the accumulation steps, 3, once too often",
}


@pytest.mark.parametrize("name", SAYS)
def test_a_mistake_is_named(found, name):
    assert all(SAYS[name] in text for text in found(1)[name]["text"])


def test_ranks_that_are_not_averaged_are_named(found):
    assert all("this rank's rows alone" in text for text in found(2)["no average over ranks"]["text"])


@every_size
def test_audited_steps_train_as_others_do(found, ranks):
    one = found(ranks)["weights"]
    assert "raised" not in one, one["traceback"]
    assert one["apart"] < 1e-6 < 1e-3 < one["moved"]


@pytest.mark.parametrize(
    ("config", "like", "words"),
    [
        ({}, None, "no loss to compare with"),
        ({}, "rloo", "advantages made of rewards"),
        ({}, "fiberpo_domain", "labels of domain"),
        ({}, "entropy_mask", "which reads entropy"),
        ({"entropy_coef": 0.1}, "grpo", "an entropy bonus"),
    ],
)
def test_what_cannot_be_audited_is_refused(tmp_path, config, like, words):
    with pytest.raises(TrainerError, match=words):
        audit_first_steps(theirs(tmp_path, **config), like)
