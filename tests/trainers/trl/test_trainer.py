"""`FibrationGRPOTrainer` in processes of its own, under torchrun with gloo: the gradient of every optimizer step beside
that of `op.loss` on all of its rows, on all ranks, in one backward pass. What is done there is in `worker.py`.
"""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from cases import CASES
from refused_options import ALLOWED, REFUSED
from torchrun_launch import environment, run_once, torchrun

from fibration.trainers.trl import numbers

HERE = Path(__file__).parent
RANKS = (1, 2)
RUNS = [(ranks, name) for ranks in RANKS for name, case in CASES.items() if ranks in case.ranks]
LEVELS = ("domain", "prompt_group", "trajectory")
UNMOVED = ("nothing at all", "equal rewards, of every prompt")  # weights stay, and every ratio is 1 but for rounding
REGIMES = ("passed", "rolled_back", "zeroed")
every_run = pytest.mark.parametrize(("ranks", "name"), RUNS, ids=lambda given: str(given).replace(" ", "_"))
every_size = pytest.mark.parametrize("ranks", RANKS)


@pytest.fixture(scope="session")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What each rank found, by what was run."""

    def of(ranks: int, name: str) -> list[dict[str, Any]]:
        run = partial(torchrun, ranks, HERE / "worker.py", env=environment(*path()), timeout=1500)
        folder = run_once(tmp_path_factory, f"trl_{ranks}", run)
        said = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]
        assert all(name in one for one in said), (folder / "done").read_text()[-4000:]
        return [one[name] for one in said]

    return of


def path() -> list[str]:
    return [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]


@pytest.fixture
def updates(found: Any) -> Any:
    """Of every rank, one optimizer step after the other."""

    def of(ranks: int, name: str) -> list[dict[str, Any]]:
        for one in found(ranks, name):
            assert "raised" not in one, one["traceback"]
            assert [update["fresh"] for update in one["updates"]] == list(CASES[name].fresh)
        return [update for one in found(ranks, name) for update in one["updates"]]

    return of


def is_half(name: str) -> bool:
    return "bf16" in CASES[name].config


def bound(name: str) -> float:
    """Processors without bfloat16 sum the same row differently in another batch: 1 in 256 of logits of size 1 and more."""
    return 1e-12 if CASES[name].exact else 1e-3 if is_half(name) else 1e-6


@every_run
def test_the_gradient_of_an_optimizer_step_is_that_of_the_whole_window(updates, ranks, name):
    alike = 0.05 if is_half(name) else 1e-5
    for update in updates(ranks, name):
        assert update["error"] <= (1e-2 if is_half(name) else bound(name))  # the backward pass rounds to 1 in 256
        kept = CASES[name].noise and CASES[name].iterations > 1  # old log-probs then have other noise
        assert name in UNMOVED or kept or update["fresh"] == (update["differs"] < alike)


@every_run
def test_the_compared_steps_have_elements_of_every_regime(updates, ranks, name):
    """On both channels of every level, off policy; a test on policy would find nothing."""
    if not CASES[name].every_regime:
        pytest.skip("all of it is on policy, or has other levels")
    off = [update["metrics"] for update in updates(ranks, name) if not update["fresh"]]
    wanted = [f"{level}/{channel}/{regime}" for level in LEVELS for channel in "+-" for regime in REGIMES]
    assert [metric for metric in wanted if not any(one[metric] > 0 for one in off)] == []


@every_run
def test_a_step_takes_no_more_forward_passes_than_needed(updates, ranks, name):
    """None where the weights that sampled train, or rows are independent. Else all but that of the first micro-batch."""
    case = CASES[name]
    for update in updates(ranks, name):
        whole = case.trainer.get("window") == "generation"
        slices = case.slices if whole else min(case.slices, update["micro_batches"])  # each slice once
        first = 0 if not whole and update["micro_batches"] > slices else 1  # it comes again in another place
        if case.before is not None:
            assert update["forwards"] == (0 if update["fresh"] else case.before)
        elif case.is_row_local or (update["fresh"] and not case.asks) or name == "nothing at all":
            assert update["forwards"] == 0
        else:
            assert update["forwards"] == (slices if update["fresh"] else slices - first)
        assert update["logged"]["fibration/extra_forwards"] == update["forwards"]


# Loss and metrics are those of the rows that a step trains on.
OF_THE_STEP = (
    "rows alone, window of a generation",
    "equal rewards, window of a generation",
    "two rewards, a window of a generation",
)


@every_run
def test_the_loss_is_that_of_the_whole_window(updates, ranks, name):
    if name in OF_THE_STEP:
        pytest.skip("of the step's rows")
    for update in updates(ranks, name):
        assert update["value_error"] <= bound(name)
        if not {"beta", "entropy_coef"} & set(CASES[name].config):
            assert update["logged"]["fibration/objective"] == pytest.approx(-update["value"], abs=bound(name))


@every_run
def test_metrics_are_those_of_the_whole_window_and_replace_clip_ratios(updates, ranks, name):
    if name in OF_THE_STEP:
        pytest.skip("of the step's rows")
    for update in updates(ranks, name):
        assert name in UNMOVED or update["metrics_error"] <= (
            1e-9 if CASES[name].exact else 0.05 if is_half(name) else 1e-5
        )
        of_elements = CASES[name].trainer.get("metrics") == "all"
        assert [metric for metric in update["missing"] if of_elements or "[" not in metric] == []
        assert [metric for metric in update["logged"] if "clip_ratio" in metric] == []


@every_run
def test_both_passes_have_the_same_log_probs(updates, ranks, name):
    """Up to what a product of matrices makes of where they lie in memory."""
    for update in updates(ranks, name):
        apart = {key: value for key, value in update["logged"].items() if key.startswith("fibration/pass/")}
        one_pass = update["forwards"] == 0
        assert one_pass or name == "nothing at all" or "fibration/pass/log_prob_difference" in apart
        assert max((value for key, value in apart.items() if "log_prob" in key), default=0.0) <= bound(name) / 10
        assert not any(value for key, value in apart.items() if "changed" in key)


@every_run
def test_dead_rows_are_left_out_of_trained_passes(updates, ranks, name):
    """They have no advantage or no token; each pass has one row at least. All rows where something else reads them."""
    case = CASES[name]
    for update in updates(ranks, name):
        passed, live, given = update["rows"]
        known = update["fresh"] and not update["forwards"]
        if known and any(word in name for word in ("sampled", "attributes", "entropies")):
            assert passed <= live  # the loss drops tokens by what sampled them
        elif known or case.is_row_local:
            trained, filled = update["trained"]
            assert passed == live
            assert update["logged"]["fibration/rows_trained"] == pytest.approx(trained / filled if filled else 1.0)
            if "dropout" not in name:  # noise moves ratios from 1
                assert update["is_part"] == (not known and 0 < trained < filled)  # such metrics have names of their own
            assert not case.equal or "entropy" in name or passed <= (0.7 if case.equal == "half" else 0.1) * given


@every_size
def test_weights_are_the_same_after_ten_steps_on_all_rows(found, ranks):
    for one in found(ranks, "ten steps"):
        assert one["apart"] <= 1e-12 < 1e-3 < one["moved"]
        without, every = one["rows"]
        assert all(passed == live < 0.8 * given for passed, live, given in without) and len(without) == 10
        assert all(passed == given for passed, _, given in every)


def test_a_router_with_a_loss_of_its_own_keeps_all_rows(found):
    (one,) = found(1, "experts")
    assert one["logged"]["aux_loss"] > 0
    assert all(passed == given > live for passed, live, given in one["rows"])


@every_size
@pytest.mark.parametrize("name", ["evaluation between updates", "what sampled, not of every token"])
def test_evaluation_is_on_policy_and_leaves_training_alone(found, ranks, name):
    for one in found(ranks, name):
        assert len(one["evaluations"]) >= 4
        assert max(abs(wanted) for _, wanted in one["evaluations"]) > 0.01
        for value, wanted in one["evaluations"]:
            assert value == pytest.approx(wanted, abs=1e-12)


@every_size
def test_a_loss_with_another_scale_stops_the_training(found, ranks):
    for one in found(ranks, "a loss that is scaled otherwise"):
        assert one["raised"].startswith("TrainerError") and "1/3" in one["raised"]


@every_size
def test_a_loss_that_ignores_the_advantages_stops_the_training(found, ranks):
    for one in found(ranks, "advantages that are not used"):
        assert one["raised"].startswith("TrainerError") and "no gradient" in one["raised"]


@every_size
def test_a_column_that_one_rank_lacks_is_an_error_on_all_ranks(found, ranks):
    for one in found(ranks, "a column that one rank lacks"):
        who = f"rank {ranks - 1}: " if ranks > 1 else ""
        assert one["raised"].startswith(f"TrainerError: {who}a row of the dataset has no column 'domain'")


@every_size
def test_passes_that_differ_are_measured_and_warned_about(found, ranks):
    for one in found(ranks, "two passes that differ"):
        for update in one["updates"]:
            apart = update["logged"].get("fibration/pass/log_prob_difference", 0.0)
            assert update["fresh"] == (apart == 0.0) and apart < 0.05
            assert update["fresh"] == (update["logged"].get("fibration/pass/changed", 0.0) == 0.0)
        assert len([said for said in one["warnings"] if "pass" in said]) == 1


# Which windows a mistake that is planted shows itself in; on policy, only those that scale.
PLANTED = {
    "aggregates per micro-batch": (False, True, False, True),
    "weights behind the loss": (False, True, False, True),
    "coefficients divided by accumulation": (True, True, True, True),
    "advantages overwritten": (False, True, False, True),
    "coefficients of an earlier iteration": (False, True, False, True),
    "aggregates per rank": (False, True, False, True),
    "groups of a rank": (False, True, False, True),
    "advantages of TRL's": (True, True, True, True),
    "two divergences": (False, True, True, True),
    "numbers of other rows": (True, True, True, True),
    "a teacher of other rows": (True, True, True, True),
}
OF_RANKS = ("aggregates per rank", "groups of a rank")
PLANTS = [(ranks, name) for ranks in RANKS for name in PLANTED if ranks > 1 or name not in OF_RANKS]


@pytest.mark.parametrize(("ranks", "name"), PLANTS)
def test_a_mistake_put_into_the_trainer_changes_the_gradient(found, ranks, name):
    for one in found(ranks, name):
        assert "raised" not in one, one["traceback"]
        for update, shows in zip(one["updates"], PLANTED[name], strict=True):
            assert not shows or update["error"] > 1e-3


@pytest.mark.parametrize("name", ALLOWED)
def test_options_that_train_the_same_are_not_refused(found, name):
    (one,) = found(1, name)
    assert one["raised"] == "nothing", one["traceback"]


@pytest.mark.parametrize("name", REFUSED)
def test_options_that_train_another_loss_are_refused(found, name):
    (one,) = found(1, name)
    assert "Error: " in one["raised"] and [word for word in REFUSED[name].words if word not in one["raised"]] == []


def test_every_rank_refuses_a_teacher_that_one_rank_has_no_weights_of(found):
    for one in found(2, "a teacher without weights on a rank"):
        assert "Error: rank 1: the model of the policy 'teacher' has no weights here" in one["raised"]
        assert "cpu_ram_efficient_loading=False" in one["raised"]


def test_deepspeed_gets_the_frozen_model_of_a_policy():
    """As TRL's own reference model. DeepSpeed itself needs GPUs."""
    given, trainer = object(), SimpleNamespace(is_deepspeed_enabled=True, accelerator=object())
    with patch("fibration.trainers.trl.numbers.prepare_deepspeed", lambda *given: given):
        assert numbers._placed(trainer, "teacher", given) == (given, trainer.accelerator)
