"""The study of levels: its toy, its arms, its runs, and what its report concludes."""

import importlib.util
import json
from pathlib import Path

import level_arms
import long_answers
import numpy as np
import pytest
import study
import torch
import training
from drift import correlation
from level_arms import EXPLORED, LEVEL_ARMS, TOKEN, TRAJECTORY, attenuated, operator, token, trajectory
from store import append
from tasks import stream
from training import Run, gumbel, learn, quantised, roll_out

# Two studies have a report.py.
SPEC = importlib.util.spec_from_file_location("levels_report", Path(study.__file__).with_name("report.py"))
report = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(report)
WEIGHTS = long_answers.SHAPE.initial([7])
POWERS = range(-2 - study.EXTENSIONS, 3 + study.EXTENSIONS)


def test_samples_have_the_log_probs_that_training_computes_and_prompts_of_training_are_not_held_out():
    weights, prompts = long_answers.SHAPE.views(WEIGHTS.repeat(2, 1)), long_answers.ask(6, stream(1)).view(2, 3, -1)
    for noise in (None, gumbel(stream(2), 2, 3)):
        answers, likely = long_answers.sample(weights, prompts, noise)
        assert answers.shape == likely.shape == (2, 3, long_answers.ANSWER)
        torch.testing.assert_close(long_answers.log_probs(weights, prompts, answers), likely, rtol=1e-4, atol=1e-4)
    sums = [long_answers.ask(50, stream(3), held_out=h)[:, 1:].sum(1) % 10 == 0 for h in (True, False)]
    assert sums[0].all() and not sums[1].any()


def test_a_token_sees_the_prompt_and_its_window_alone():
    weights, prompts = long_answers.SHAPE.views(WEIGHTS), long_answers.ask(1, stream(1))[None]
    answers = torch.randint(20, (1, 1, long_answers.ANSWER), generator=stream(2))
    reach = long_answers.SHAPE.layers * (long_answers.WINDOW - 1) + 1  # and the token before the first of a window
    before, other = long_answers.logits(weights, prompts, answers), answers.clone()
    other[..., 50] = 20 - 1 - answers[..., 50]
    moved = (long_answers.logits(weights, prompts, other) != before).any(-1)[0, 0].nonzero()[:, 0].tolist()
    assert moved[0] == 51 and moved[-1] == 51 + reach


def test_the_score_is_the_share_of_digits_that_follow_the_rule_in_either_style():
    prompts = torch.tensor([[long_answers.FIRST_SIGN + 1, 4, 0, 0, 2]])  # three times the digit before, plus 4
    right = torch.tensor([[0, 4, 6, 2] * (long_answers.ANSWER // 4)])
    assert (
        long_answers.score(prompts, right)
        == long_answers.score(prompts, right + 10 * (torch.arange(long_answers.ANSWER) % 2))
        == 1
    )
    wrong = right.clone()
    wrong[0, 1] = 5  # and what follows it is wrong by it
    assert long_answers.score(prompts, wrong) == 1 - 2 / long_answers.ANSWER
    wrong[0, 5] = long_answers.START
    assert long_answers.score(prompts, wrong) < 1 - 3 / long_answers.ANSWER
    many = long_answers.ask(400, stream(4))
    assert abs(float(long_answers.score(many, long_answers.corpus(many, stream(5))).mean()) - 0.45) < 0.03


def test_weights_are_rounded_to_their_bits_group_by_group():
    found = quantised(WEIGHTS.repeat(2, 1), torch.tensor([4, 5]))
    for name, weight in long_answers.SHAPE.views(found).items():
        if name in ("token", "position"):
            assert torch.equal(weight[0], weight[1])
            continue
        for model, levels in ((0, 15), (1, 31)):
            sizes = [len(group.unique()) for group in weight[model].T.reshape(-1, training.GROUP)]
            assert (
                max(sizes) <= min(levels, training.GROUP)
                and (weight[model] != long_answers.SHAPE.views(WEIGHTS)[name]).any()
            )


def test_the_two_levels_are_one_formula_whose_drift_alone_is_over_another_stratum():
    """Breaks if the arms differ in anything but the level."""
    one, other = (json.loads(attenuated(level).model_dump_json()) for level in (token, trajectory))
    assert one.pop("objective").replace("over=token", "over=trajectory") == other.pop("objective")
    for name, values in {
        "name": ("one_budget_token", "one_budget_trajectory"),
        "strata": (["token"], ["token", "trajectory"]),
        "gives_up": ({}, {"causal": "the drift of an answer includes its later tokens"}),
    }.items():
        assert (one.pop(name), other.pop(name)) == values
    assert one == other
    arms = LEVEL_ARMS[TOKEN], LEVEL_ARMS[TRAJECTORY]
    assert all(arms[0].parameters(s) == arms[1].parameters(s) == {"C": 0.1 * s} for s in (0.1, 1.0, 9.0))


@pytest.mark.thorough
@pytest.mark.parametrize(("arm", "level"), [(TOKEN, 1), (TRAJECTORY, long_answers.ANSWER)])
def test_a_level_attenuates_outward_tokens_by_its_mean_drift(arm, level):
    draw = torch.Generator().manual_seed(0)
    old = -torch.rand(4, long_answers.ANSWER, generator=draw)
    ratio = 0.3 * torch.randn(4, long_answers.ANSWER, generator=draw)
    a, op = torch.tensor([1.0, -1.0, 0.5, -2.0]), operator(arm)
    index = op.index(mask=torch.ones(4, long_answers.ANSWER, dtype=torch.bool))
    drift = ratio.abs().view(4, -1, level).mean(-1, keepdim=True).expand(-1, -1, level).reshape(4, -1)
    weight = torch.where(a[:, None] * ratio > 0, (0.1 / drift).clamp(max=1), 1.0)
    found = op.coefficients(old + ratio, old, a, index, LEVEL_ARMS[arm].parameters(1.0)).values
    torch.testing.assert_close(
        found, weight * ratio.exp() * a[:, None] / (4 * long_answers.ANSWER), rtol=2e-4, atol=1e-7
    )


@pytest.mark.thorough
def test_every_arm_takes_every_scale_that_tuning_may_reach():
    now = torch.full((2, long_answers.ANSWER), -1.0)
    for arm, of in (LEVEL_ARMS | EXPLORED).items():
        op = operator(arm)
        index = op.index(mask=torch.ones(2, long_answers.ANSWER, dtype=torch.bool))
        for k in POWERS:
            op.coefficients(now, now + 0.01, torch.tensor([1.0, -1.0]), index, of.parameters(study.scale(k)))
    assert level_arms.clips(0.2, 0.2)(9.0) == {"epsilon_low": 0.999, "epsilon_high": 1.8}


def test_log_ratios_that_move_together_have_the_design_effect_of_their_length():
    draw = torch.Generator().manual_seed(0)
    mask = torch.ones(200, 128, dtype=torch.bool)
    own, shared = torch.randn(200, 128, generator=draw), torch.randn(200, 1, generator=draw)
    assert abs(correlation(own, mask)["design_effect"] - 1) < 0.3
    assert correlation(shared + 0.1 * own, mask)["design_effect"] > 120


@pytest.mark.thorough
def test_a_run_is_the_same_again_and_depends_on_its_seed(monkeypatch):
    monkeypatch.setattr(training, "EPOCHS", 1)
    monkeypatch.setattr(training, "PROMPTS", 4)
    monkeypatch.setattr(training, "SAMPLES", 2)
    monkeypatch.setattr(training, "HELD_OUT", 2)
    first, again = (learn(Run("x", TRAJECTORY, 1, 1.0, 1e-3), WEIGHTS, rollouts=1) for _ in range(2))
    assert first == again
    assert [len(first[name]) for name in ("scores", "moved", "rewards", "design_effect")] == [2, 1, 1, 1]
    one, other = (roll_out([WEIGHTS], seed, 0) for seed in (1, 2))
    assert first["rewards"] == [pytest.approx(one.reward, rel=1e-3)] and not torch.equal(one.prompts, other.prompts)


def lines(folder, area, arms=LEVEL_ARMS, powers=study.GRID):
    """Tuning whose curves are flat, at `area(power)`."""
    for arm in arms:
        for k in powers:
            for seed in study.TUNING:
                run = vars(Run("tune", arm, seed, study.scale(k), study.RATE))
                append(folder / "tune.jsonl", {"run": run, "measured": {"scores": [area(k)] * 3}})


def test_a_grid_grows_where_its_best_lies_at_its_end_and_the_choice_waits_for_it(tmp_path):
    lines(tmp_path, lambda k: 0.5 - abs(k) / 10, [arm for arm in LEVEL_ARMS if arm != "gspo"])
    assert {run.arm for run in study.lacking("tune", tmp_path)} == {"gspo"}
    lines(tmp_path, lambda k: 0.5 + k / 10, ["gspo"])
    assert [run.scale for run in study.lacking("tune", tmp_path)] == [27.0] * 3
    with pytest.raises(SystemExit, match="3 runs of tuning lack"):
        study.choose(tmp_path)
    lines(tmp_path, lambda k: 0.1, ["gspo"], [3])
    study.choose(tmp_path)
    assert json.loads((tmp_path / "chosen.json").read_text()) == dict.fromkeys(LEVEL_ARMS, 1.0) | {"gspo": 9.0}
    assert len(study.test(tmp_path)) == 50 and not set(study.TEST) & set(study.TUNING)


@pytest.mark.parametrize(
    ("mean", "interval", "holm", "says"),
    [
        (0.03, (0.01, 0.05), 0.01, report.HELPS),
        (0.03, (0.01, 0.05), 0.06, report.UNKNOWN),
        (0.015, (0.005, 0.025), 0.01, report.UNKNOWN),
        (0.01, (0.005, 0.015), 0.01, report.NOTHING),
        (0.0, (-0.019, 0.019), 1.0, report.NOTHING),
        (0.0, (-0.03, 0.01), 1.0, report.LESS),
        (-0.03, (-0.05, -0.01), 0.01, report.HARMS),
        (0.0, (-0.03, 0.03), 1.0, report.UNKNOWN),
    ],
)
def test_the_verdict_is_the_plans(mean, interval, holm, says):
    assert report.verdict(mean, interval, holm) == says


def test_contrasts_are_paired_by_seed_and_corrected_together(tmp_path):
    draw = np.random.default_rng(0)
    base, own = draw.normal(0.5, 0.2, 10), draw.normal(0, 0.001, (5, 10))
    for k, arm in enumerate(LEVEL_ARMS):
        for j, seed in enumerate(study.TEST):
            scores = [base[j] + own[k, j] + 0.03 * (arm == TRAJECTORY)] * 3
            run = vars(Run("test", arm, seed, 1.0, study.RATE))
            append(tmp_path / "test.jsonl", {"run": run, "measured": {"scores": scores}})
    found = report.contrasts(report.tested(tmp_path))
    assert (found[0].arm, found[0].less) == (TRAJECTORY, TOKEN) and len(found) == 4
    assert all(abs(c.differences - 0.03).max() < 0.01 and c.holm == pytest.approx(4 * 2 / 2**10) for c in found)
    assert report.said(found, 0).startswith(f"**{report.HELPS}**: the area is +0.0")
    assert "nothing is concluded" in report.said(found, 3)
