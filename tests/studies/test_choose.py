"""What the study is tested at follows from its tuning alone, and only from settings that all seeds were run with."""

import json
import shlex
from dataclasses import asdict

import choose
import plan
import pytest
import rl
import store


def line(arm, lr, trust, seed, right):
    run = {"part": "tune", "arm": arm, "condition": "unequal", "seed": seed, "lr": lr, "trust": trust, "steps": 20}
    return {"run": run, "measured": {"right": right}}


def flat(mean, worst):
    """Three looks, four domains: areas are these shares of 64 questions."""
    return [[worst, mean, mean, 2 * mean - worst]] * 3


TUNING = [
    *(line("a", 1e-4, 1.0, seed, flat(32, 16)) for seed in range(2)),  # both areas: 0.375
    *(line("a", 1e-4, 2.0, seed, flat(32, 18)) for seed in range(2)),  # the best
    *(line("a", 3e-4, 1.0, seed, flat(33, 15)) for seed in range(2)),
    *(line("a", 3e-4, 4.0, seed, flat(33, 14)) for seed in range(2)),
    line("a", 3e-4, 2.0, 0, flat(60, 50)),  # better still, but of one seed
    *(line("b", lr, None, seed, flat(20 + seed, 10)) for lr in (1e-4, 3e-4) for seed in range(2)),  # equals
]


def test_the_best_setting_is_chosen_among_those_run_with_all_seeds():
    assert choose.areas(choose.accuracy(TUNING[0])) == (0.5, 0.25)
    assert choose.scores(TUNING)["a"][1e-4, 1.0] == 0.375
    assert choose.chosen(TUNING) == {"a": (1e-4, 2.0), "b": (1e-4, None)}
    assert choose.chosen_at(TUNING, 3e-4) == {"a": (3e-4, 1.0), "b": (3e-4, None)}
    assert choose.chosen(reversed(TUNING)) == choose.chosen(TUNING)


def test_the_worst_domain_is_taken_at_each_evaluation():
    found = line("a", 1e-4, 1.0, 0, [[64, 0, 64, 64], [0, 64, 64, 64], [64, 64, 0, 64]])
    assert choose.areas(choose.accuracy(found)) == (0.75, 0.0)
    found = line("a", 1e-4, 1.0, 0, [[0, 0, 0, 0], [32, 64, 64, 64], [64, 64, 64, 64]])
    assert choose.areas(choose.accuracy(found)) == (pytest.approx((0 + 2 * 7 / 8 + 1) / 4), (0 + 2 * 0.5 + 1) / 4)


def test_results_are_read_once_and_incomplete_lines_are_skipped(tmp_path):
    whole = [json.dumps(found) for found in TUNING]
    (tmp_path / "tune.jsonl").write_text("\n".join([*whole, whole[3], whole[0][:-30]]))
    found = store.lines("tune", tmp_path)
    assert len(found) == len(TUNING) and choose.scores(found) == choose.scores(TUNING)
    assert store.lines("test", tmp_path) == []
    (tmp_path / "tune.jsonl").write_text("\n".join(reversed(whole)))
    assert store.lines("tune", tmp_path) == found


def test_settings_chosen_in_a_folder_are_run_in_it(tmp_path, monkeypatch):
    """Once all runs are there: of tuning the smallest scale at a middle rate is best, of the search the first of each kind."""

    def right(run):
        if run.part == "tune":
            return 30 + 20 * (run.lr == plan.RATES[1]) - (run.trust or 0)
        return 30 + (run.arm in ("clip_no_group", "gmpo"))

    for part in ("tune", "search"):
        runs = plan.PARTS[part](tmp_path)
        for run in runs[:-1]:
            store.append(
                tmp_path / f"{part}.jsonl", {"run": asdict(run), "measured": {"right": [[right(run)] * 4] * 2}}
            )
        monkeypatch.setattr("sys.argv", ["choose.py", part, "--results", str(tmp_path)])
        with pytest.raises(
            SystemExit,
            match=rf"^1 runs of {part} lack.*`python docs/studies/staleness/run\.py {part} --results {tmp_path}`$",
        ):
            choose.main()
        run = runs[-1]
        store.append(tmp_path / f"{part}.jsonl", {"run": asdict(run), "measured": {"right": [[right(run)] * 4] * 2}})
        assert plan.confirm(tmp_path) == []
        choose.main()
    best = {arm: [of["lr"], of["trust"]] for arm, of in store.read_chosen(tmp_path)["best"].items()}
    assert (
        best["grpo"] == [1.5e-4, 0.25] and best["clip_domains"] == [1.5e-4, 0.5] and best["reinforce"] == [1.5e-4, None]
    )
    tested = {(run.condition, run.lr) for run in plan.test(tmp_path)}
    assert tested == {(where, 4.5e-4 if where in plan.AT_LARGE_RATE else 1.5e-4) for where in rl.CONDITIONS}
    confirmed = {(run.arm, run.condition in plan.AT_LARGE_RATE, run.lr, run.trust) for run in plan.confirm(tmp_path)}
    assert confirmed == {
        *((arm, large, lr, 0.5) for arm in ("clip_no_group", "gmpo") for large, lr in enumerate(plan.BETWEEN)),
        ("gspo", False, 1.5e-4, 0.25),
        ("gspo", True, 4.5e-4, 0.25),
    }
    with pytest.raises(SystemExit, match=rf"{tmp_path / 'none'} has no chosen\.json"):
        plan.test(tmp_path / "none")


def test_an_arm_that_was_added_after_tuning_is_named(tmp_path):
    settings = store.read_chosen()
    del settings["large"]["gspo"]
    (tmp_path / store.CHOSEN).write_text(json.dumps(settings))
    again = rf"'large' setting of gspo: run `.*run\.py tune --results {tmp_path}`, then `.*choose\.py tune --results"
    with pytest.raises(SystemExit, match=again):
        plan.test(tmp_path)


def test_a_command_is_relative_to_the_root_of_the_repository(tmp_path):
    python, script, *words = shlex.split(store.command("choose.py tune", tmp_path / "a b"))
    assert python == "python" and (store.HERE.parents[2] / script).samefile(choose.__file__)
    assert words == ["tune", "--results", str(tmp_path / "a b")]
    assert store.command("choose.py tune").endswith("choose.py tune")
