"""What the study is tested at follows from its tuning alone, and only from settings that all seeds were run with."""

import json

import choose
import pytest


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


def test_the_best_setting_of_both_areas_among_those_of_all_seeds():
    assert choose.areas(choose.accuracy(TUNING[0])) == (0.5, 0.25)
    assert choose.scores(TUNING)["a"][1e-4, 1.0] == 0.375
    assert choose.chosen(TUNING) == {"a": (1e-4, 2.0), "b": (1e-4, None)}
    assert choose.chosen_at(TUNING, 3e-4) == {"a": (3e-4, 1.0), "b": (3e-4, None)}
    assert choose.chosen(reversed(TUNING)) == choose.chosen(TUNING)


def test_the_worst_domain_is_that_of_each_look():
    found = line("a", 1e-4, 1.0, 0, [[64, 0, 64, 64], [0, 64, 64, 64], [64, 64, 0, 64]])
    assert choose.areas(choose.accuracy(found)) == (0.75, 0.0)
    found = line("a", 1e-4, 1.0, 0, [[0, 0, 0, 0], [32, 64, 64, 64], [64, 64, 64, 64]])
    assert choose.areas(choose.accuracy(found)) == (pytest.approx((0 + 2 * 7 / 8 + 1) / 4), (0 + 2 * 0.5 + 1) / 4)


def test_results_are_read_once_each_and_cut_off_lines_not_at_all(tmp_path):
    whole = [json.dumps(found) for found in TUNING]
    (tmp_path / "tune.jsonl").write_text("\n".join([*whole, whole[3], whole[0][:-30]]))
    found = choose.lines("tune", tmp_path)
    assert len(found) == len(TUNING) and choose.scores(found) == choose.scores(TUNING)
    assert choose.lines("test", tmp_path) == []
    (tmp_path / "tune.jsonl").write_text("\n".join(reversed(whole)))
    assert choose.lines("tune", tmp_path) == found


def test_what_is_recorded_is_what_is_read(tmp_path):
    (tmp_path / "chosen.json").write_text(choose.record(TUNING))
    assert choose.settings("best", tmp_path / "chosen.json") == choose.chosen(TUNING)
    assert choose.settings("large", tmp_path / "chosen.json") == choose.chosen_at(TUNING, choose.LARGE) == {}
