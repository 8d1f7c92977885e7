"""Optimizer steps of verl's own worker under gloo, in one process and in two, beside `op.loss` on the whole mini-batch.

Always off policy: elements of every level and channel pass, are rolled back and zeroed. verl knows float32 as its widest
type; with float64 in its place (`on_cpu.of`) gradients are compared to their last bits.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cases import CASES, MISTAKES, OTHERWISE
from refusals import REFUSALS, TOGETHER
from rollouts import LEVELS
from token_baselines import ESTIMATORS
from torchrun_launch import rank_results

HERE = Path(__file__).parent
RANKS = (1, 2)
LEVELLED = [name for name, case in CASES.items() if not case.terms.loss and not case.dead]  # a gate at every level
WHOLE = [name for name, case in CASES.items() if "mini_batch_size" not in case.said and case.terms.temperature == 1]
WHOLE = [name for name in WHOLE if name in LEVELLED]


def has_no_bound(name: str) -> bool:
    """Whether the loss neither gates nor drops tokens."""
    return CASES[name].terms.loss in ("opd", "opo", "remax")


@pytest.fixture(scope="session")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What each rank wrote, by the number of ranks."""
    return lambda ranks: rank_results(tmp_path_factory, ranks, HERE / "worker.py")


def steps(found: Any, ranks: int, name: str) -> list[dict[str, Any]]:
    (first, *others) = (one["cases"][name] for one in found(ranks))
    assert "raised" not in first, first["raised"]
    for other in others:
        assert "raised" not in other, other["raised"]
        for mine, theirs in zip(first, other, strict=True):
            assert {**mine, "layout": None, "passed": None} == {**theirs, "layout": None, "passed": None}
    return first


every_case = pytest.mark.parametrize(("ranks", "name"), [(ranks, name) for name in CASES for ranks in RANKS])


@every_case
def test_gradients_are_those_of_the_whole_mini_batch(found, ranks, name):
    for step in steps(found, ranks, name):
        if "distance" in step:
            assert step["distance"] <= (1e-6 if "float32" in name else 1e-14)
        else:
            assert step["largest"] == 0  # of padding alone


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", WHOLE)
def test_the_compared_steps_have_elements_of_every_regime(found, ranks, name):
    assert steps(found, ranks, name)[0]["missing"] == []


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", [name for name in LEVELLED if name not in WHOLE])
def test_micro_batches_have_zeroed_and_passed_elements(found, ranks, name):
    made = steps(found, ranks, name)
    for level in LEVELS:
        for regime in ("passed", "zeroed"):
            assert any(step["metrics"][f"{level}/{channel}/{regime}"] > 0 for step in made for channel in "+-"), level
    assert all({word for word in step["missing"] if word.startswith("token/")} == set() for step in made)


@every_case
def test_the_logged_loss_is_minus_j_plus_verls_own_terms(found, ranks, name):
    near = 1e-6 if "float32" in name else 1e-14
    for step in steps(found, ranks, name):
        wanted = step.get("wanted", {"pg_loss": 0.0, "loss": 0.0})
        assert step["pg_loss"] == pytest.approx(wanted["pg_loss"], abs=near)
        assert step["objective"] == pytest.approx(-wanted["pg_loss"], abs=near)
        rounded = 1e-6 if "no ratio" in name else 2e-8  # verl rounds the parts of micro-batches, here of size log π
        assert step["loss"] == pytest.approx(wanted["loss"], rel=2e-7, abs=max(near, rounded))
    if "KL" in name:
        assert abs(wanted["loss"] - wanted["pg_loss"]) > 0.1


@every_case
def test_metrics_are_those_of_the_whole_mini_batch(found, ranks, name):
    every = CASES[name].changes.get("actor.policy_loss.metrics") == "all"
    for step in steps(found, ranks, name):
        wanted = {key: v for key, v in step.get("metrics", {}).items() if every or "[" not in key}
        assert set(step["logged"]) == set(wanted)
        assert "[domain=math]" in str(wanted) or not every
        for key, value in wanted.items():
            assert step["logged"][key] == pytest.approx(value, rel=1e-5 if "float32" in name else 1e-13, abs=1e-13), key


@every_case
def test_a_step_takes_no_more_forward_passes_than_needed_in_verls_packing(found, ranks, name):
    """The passes before have micro-batches and log-probs of the trained ones. Data are left as given."""
    case = CASES[name]
    for step in steps(found, ranks, name):
        assert step["kept"]
        assert step["forwards"] == step["extra_forwards"] == step["fewest"] < len(step["layout"])
        assert set(step["passes"].values()) <= {0.0}
        assert bool(step["passes"]) == bool(step["fewest"])
        numbers = [number for rows in step["layout"] for number in rows]
        assert len(step["layout"]) > 1 or "mini_batch_size" in case.said
        if "actor.use_dynamic_bsz" in case.changes:
            assert sorted(numbers) != numbers, "rows in their order"
    if case.terms.loss:
        assert any(step["fewest"] for step in steps(found, ranks, name)) == case.couples_tokens


@every_case
def test_dead_rows_are_left_out_of_trained_passes(found, ranks, name):
    """They have no advantage or no token; each pass has one row at least. All rows where something else reads them."""
    case, on = CASES[name], [one["cases"][name] for one in found(ranks)]
    for of_ranks in zip(*on, strict=True):
        layout, passed = ([m for step in of_ranks for m in step[key]] for key in ("layout", "passed"))
        for step in of_ranks:
            trained = pytest.approx(step.get("trained", step["rows_trained"]))
            coupled = not case.terms.loss or case.couples_tokens  # there one dead row may be read by others
            assert step["rows_trained"] == trained or (coupled and step["rows_trained"] > step["trained"])
            assert step.get("is_part") == step.get("is_part_wanted")  # metrics of trained rows have names of their own
        for rows, took in zip(layout, passed, strict=True):
            assert took and set(took) <= set(rows)
            if case.terms.kl or case.every_row:
                assert took == rows
            elif case.terms.loss and not case.couples_tokens:
                rounded = of_ranks[0].get("nearly", [])  # with ranks, a mean that is 0 is summed in another order
                took = [number for number in took if number not in rounded]
                live = [n for n in rows if n in of_ranks[0].get("live", []) and n not in rounded]
                assert took == live or (not live and len(took) == 1)
        if case.dead and not (case.every_row or case.terms.kl):
            assert sum(map(len, passed)) <= (0.8 if not case.terms.loss else 0.65) * sum(map(len, layout))


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", [name for name in CASES if name not in LEVELLED and not has_no_bound(name)])
def test_row_local_losses_are_compared_off_policy(found, ranks, name):
    """Where gates or masks change coefficients."""
    words = ("limited", "zeroed", "kept")
    made = [step["metrics"] for step in steps(found, ranks, name) if "metrics" in step]
    assert any(0 < value < 1 for one in made for key, value in one.items() if key.endswith(words))


@pytest.mark.parametrize("ranks", RANKS)
def test_each_mini_batch_and_epoch_has_its_own_coefficients(found, ranks):
    made = steps(found, ranks, "mini-batches and epochs")
    assert [step["rows"] for step in made] == [10] * 4
    assert len({step["pg_loss"] for step in made}) == 4


# Mistakes that the plugin finds itself; gradients show the others.
SAID = {
    "ranks of another number": "gradients are averaged over 1 ranks, and the mini-batch is on 2",
    "divided by micro-batches": "1/4 of it on every token",
    "rows in another order": "as planned",
    "not times the ranks": "1/2 of it on every token",
}


@pytest.mark.parametrize(
    ("ranks", "name"), [(ranks, name) for name, (_, _, least) in MISTAKES.items() for ranks in RANKS if ranks >= least]
)
def test_a_mistake_put_into_the_worker_changes_the_gradient(found, ranks, name):
    for one in found(ranks):
        mistake = one["mistakes"][name]
        if name in SAID:
            assert SAID[name] in mistake["error"]
        else:
            assert mistake["distance"] > 0.1


@pytest.mark.parametrize("ranks", RANKS)
def test_passes_that_differ_are_measured_and_warned_about_once(found, ranks):
    for rank, one in enumerate(found(ranks)):
        passes = one["beside"]["two_passes"]
        assert passes["logged"] == {name: pytest.approx(value, rel=1e-12) for name, value in passes["wanted"].items()}
        assert passes["wanted"]["changed"] > 0.1 and passes["wanted"]["log_prob_difference"] > 0.1
        assert len(passes["warnings"]) == 1, rank
        shares = {name: share for name, share in passes["wanted"].items() if name.startswith("changed/")}
        worst = max(shares, key=shares.__getitem__).removeprefix("changed/")
        assert f"of the elements of {worst} are in another regime" in passes["warnings"][0]


@pytest.mark.parametrize("ranks", RANKS)
def test_a_row_local_loss_trains_with_dropout_on_the_noise_of_its_own_pass(found, ranks):
    for one in found(ranks):
        made = one["beside"]["dropping"]
        assert made["noise"] > 0.01 and made["forwards"] == 0 and made["error"] <= 1e-13


@pytest.mark.parametrize("ranks", RANKS)
def test_old_log_probs_of_the_current_weights_need_no_forward_pass(found, ranks):
    """And those of weights before an update do: three of the four mini-batches."""
    for one in found(ranks):
        made = one["beside"]["sampled_now"]
        assert made[0]["forwards"] == 0 and all(step["fewest"] for step in made)
        assert all(step["forwards"] == step["extra_forwards"] == step["fewest"] for step in made[1:])
        for step in made:
            assert step["distance"] <= 1e-14
            assert step["passes"]["pass/log_prob_difference_max"] <= 1e-14
        assert any(v < 1 for step in made for key, v in step["metrics"].items() if key.endswith("/passed"))


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("how", OTHERWISE)
def test_other_old_log_probs_need_the_forward_pass_on_every_rank(found, ranks, how):
    for one in found(ranks):
        assert all(forwards == fewest > 0 for forwards, fewest in one["beside"]["sampled_otherwise"][how])


@pytest.mark.parametrize("ranks", RANKS)
def test_other_policy_losses_train_in_our_worker_as_in_verls(found, ranks):
    for one in found(ranks):
        plain = one["beside"]["other_losses"]
        assert plain["workers"] == ["FibrationTrainingWorker", "TrainingWorker"]
        assert (plain["forwards"], plain["equal"]) == ([0, 0], True)
        assert plain["largest"] > 0


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_advantages_with_verls_optimal_token_baseline_are_trained_on_as_they_are(found, ranks, estimator):
    for one in found(ranks):
        made = one["beside"]["token_baselines"]
        assert "raised" not in made, made["raised"]
        made = made[estimator]
        assert made["advantages"] <= 1e-12 and len(made["steps"]) == 4
        assert all(step["distance"] <= 1e-12 for step in made["steps"])
        assert all(apart > 0.1 for apart in made["without"])  # the baseline matters
        assert any(0 < step["metrics"]["token/clipped"] < 1 for step in made["steps"])


def test_verls_trainer_logs_the_mean_of_mini_batches(found):
    log = found(2)[0]["beside"]["in_verls_log"]
    ours = {key: values for key, values in log["given"].items() if key.startswith("fibration/")}
    assert len(ours) > 50 and all(len(values) == 2 for values in ours.values())
    for key, values in ours.items():
        expected = max(values) if "max" in key else min(values) if "/min" in key else sum(values) / 2
        assert log["logged"][f"actor/{key}"] == pytest.approx(expected), key


def test_sampling_with_the_old_policy_is_warned_about_once(found):
    said = found(1)[0]["beside"]["bypassed"]
    assert len(said["bypassed"]) == 1 and "no mismatch to correct" in said["bypassed"][0]
    assert said["one row differs"] == []


@pytest.mark.parametrize("name", REFUSALS)
def test_each_refusal_names_the_mistake(found, name):
    error = found(1)[0]["refusals"][name]["error"]
    assert error is not None
    for words in REFUSALS[name][1]:
        assert words in error


@pytest.mark.parametrize("name", TOGETHER)
def test_every_rank_raises_what_ranks_find_together(found, name):
    for one in found(2):
        assert all(words in one["refusals"][name]["error"] for words in TOGETHER[name])
