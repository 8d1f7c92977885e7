"""The report on SmolLM2: counts, pairs, and intervals."""

import json

import numpy as np
import pytest
import report
import train

QUARTERS = (0.4, 0.8, 0.7, 0.39)


def line(step, reward=None, plus=1.0, minus=1.0):
    new = {} if reward is None else {"reward": reward}
    sides = {"fibration/domain/+/passed": plus, "fibration/domain/-/passed": minus, "fibration/token/passed": 0.75}
    return {"step": step, "loss": 0.0, **new, **sides, "fibration/tv": 0.1, "fibration/kl": 0.2}


def run(loss="grpo", seed=1, quarters=QUARTERS):
    rewards = np.repeat(quarters, report.QUARTER) + np.tile([-0.1, 0.1], report.STEPS // 4)
    steps = [made for k, r in enumerate(rewards) for made in (line(2 * k + 1, r), line(2 * k + 2, plus=0.5))]
    return report.Trained(loss, seed, steps)


def test_a_run_collapsed_if_its_last_quarter_is_below_half_of_its_best():
    fell = run()
    assert fell.whole and fell.quarters == pytest.approx(QUARTERS) and fell.collapsed
    assert not run(quarters=(0.4, 0.8, 0.7, 0.41)).collapsed
    assert not report.Trained("grpo", 1, fell.steps[:-1]).whole


def test_gates_count_off_policy_and_on_both_sides():
    assert run().gated("domain") == pytest.approx([0.25] * 16)  # half of the elements of one side of two
    assert run().gated("token") == pytest.approx([0.25] * 16)
    assert not len(run().gated("trajectory"))


@pytest.mark.parametrize(("seeds", "within"), [(1, "·"), (4, "[+0.004, +0.046]"), (6, "[+0.015, +0.055]")])
def test_differences_are_of_seeds_that_both_have(seeds, within):
    gains = {seed: 0.01 * seed for seed in range(1, seeds + 1)}
    right = {"arithmetic": 0.2, "logic": 0.6}
    found = {
        s: {"grpo": right, "fiberpo_domain": right, "fiberpo_domain_inward": {**right, "logic": 0.6 + 2 * d}}
        for s, d in gains.items()
    }
    runs = {(loss, seed): run(loss, seed) for loss in report.LOSSES for seed in gains}
    runs["grpo", 1] = run(quarters=(0.1, 0.1, 0.1, 0.1))
    rows = [row.split(" | ") for row in report.contrasts(found, runs).splitlines()[2:]]
    right, without, reward = rows[3:]
    assert without[2].startswith("0.000 ")
    assert right[2:] == [f"+{np.mean([*gains.values()]):.3f} {within}", f"0 of {seeds} |"]
    assert reward[2].startswith(f"+{0.29 / seeds + 1e-9:.3f} ") and rows[2][3] == f"0 of {seeds} |"


def test_a_run_that_was_broken_off_is_named(tmp_path):
    for loss in ("grpo", "fiberpo_domain"):
        kept = run(loss).steps[: None if loss == "grpo" else 7]
        (tmp_path / f"{loss}_1.jsonl").write_text("".join(json.dumps(step) + "\n" for step in kept))
    said = report.listed(report.trained(tmp_path), report.held_out(tmp_path))
    assert "1 runs of 32 steps are whole; 1 collapsed." in said and "`fiberpo_domain` of seed 1 (7 steps)" in said
    assert "Without an evaluation: seeds 1, 2, 3, 4, 5, 6." in said


@pytest.mark.parametrize(("given", "said"), [("2/2", "the last of 2 is 1"), ("2", "not K/N"), ("a/b", "not K/N")])
def test_workers_are_numbered_from_0(monkeypatch, capsys, given, said):
    monkeypatch.setattr("sys.argv", ["train.py", "--worker", given])
    with pytest.raises(SystemExit):
        train.main()
    assert said in capsys.readouterr().err


def test_a_broken_run_continues_from_its_last_complete_checkpoint(monkeypatch, tmp_path):
    monkeypatch.setattr(train, "RESULTS", tmp_path)
    out, asked = tmp_path / "runs" / "1" / "grpo", []
    for step, whole in ((10, True), (20, False)):
        (out / f"checkpoint-{step}").mkdir(parents=True)
        if whole:
            (out / f"checkpoint-{step}" / "trainer_state.json").touch()

    def breaks_off(script, *arguments):
        asked.append(arguments)
        (out / "log.jsonl").write_text(json.dumps(line(1, 0.5)) + "\n" + json.dumps(line(2))[:20])
        raise KeyboardInterrupt

    monkeypatch.setattr(train, "python", breaks_off)
    with pytest.raises(KeyboardInterrupt):
        train.train("grpo", 1, tmp_path / "runs")
    assert asked[0][-1] == "--resume" and not (out / "checkpoint-20").exists()
    assert [json.loads(text)["step"] for text in (tmp_path / "grpo_1.jsonl").read_text().splitlines()] == [1]


def test_the_page_says_what_the_results_say(monkeypatch, tmp_path):
    report.main(["--check"])
    stale = tmp_path / "README.md"
    stale.write_text(report.PAGE.read_text().replace("| −0.", "| −1."))
    monkeypatch.setattr(report, "PAGE", stale)
    with pytest.raises(SystemExit, match=r"^README\.md is not"):
        report.main(["--check"])
