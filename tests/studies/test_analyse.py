"""The study's numbers follow from its results: pairs, counts, comparisons at equal KL, and tables."""

import json
import re
from functools import cache
from types import SimpleNamespace

import analyse
import choose
import numpy as np
import pytest
import which
from cells import cells
from rl import Run
from tables import interval, number, rate, table, written
from thorough import ALL

STUDY = "docs/studies/staleness/"
SUMMARY = json.loads((analyse.RESULTS / "summary.json").read_text())
DRAW = np.random.default_rng(3)


def line(arm, seed, right, moved=0.1, condition="unequal", lr=5e-5, trust=1.0):
    run = {"part": "test", "arm": arm, "condition": condition, "seed": seed, "lr": lr, "trust": trust, "steps": 40}
    return {"run": run, "measured": {"right": right, "moved": [[moved] * 4] * len(right)}}


def flat(*right):
    return [list(right)] * 5


def cell(*lines):
    ((_, found),) = cells(lines).items()
    return found


def test_only_shared_seeds_are_paired_whatever_the_order_of_lines():
    x = cell(*(line("grpo", seed, flat(*[32 + seed] * 4)) for seed in (13, 11, 10, 12)))
    y = cell(*(line("gspo", seed, flat(*[30 - seed] * 4)) for seed in (12, 14, 10)))
    assert x.seeds == (10, 11, 12, 13)
    found = analyse.compared(x, y)
    assert found["seeds"] == 2
    assert found["score"].value == pytest.approx((22 + 26) / 2 / 64)
    assert found["score"].low == pytest.approx(22 / 64) and found["score"].high == pytest.approx(26 / 64)
    assert found["p"] == 0.5 and found["exact"] == (-np.inf, np.inf)
    assert analyse.compared(x, None) is None
    assert analyse.compared(x, cell(line("gspo", 30, flat(1, 1, 1, 1)))) is None


def test_a_domain_with_a_trick_does_not_count():
    lost = [[40, 40, 40, 60], *[[40, 40, 40, 0]] * 4]
    there, apart = (cell(line("grpo", 10, lost, condition=where)) for where in ("unequal", "apart"))
    assert apart.score == 40 / 64 == apart.final and there.worst_area == pytest.approx(5 / 64)
    assert there.collapses[0].tolist() == [False] * 3 + [True] * 2 and not apart.collapses.any()


def test_the_path_is_the_sum_of_the_steps():
    found = cell(line("grpo", 10, flat(1, 2, 3, 4), moved=0.25))
    assert found.path == [1.25]


def test_a_hull_is_the_least_concave_function_above_all_settings():
    points = [tuple(p) for p in DRAW.normal(size=(40, 2))]
    points += [(points[0][0], points[0][1] - 1)]  # two at one place
    found = analyse.hull(points)
    x, y = map(np.array, zip(*found, strict=True))
    slopes = np.diff(y) / np.diff(x)
    assert set(found) <= set(points) and (np.diff(x) > 0).all() and (np.diff(slopes) < 0).all()
    assert x[0] == min(points)[0] and x[-1] == max(points)[0]
    assert all(q <= np.interp(p, x, y) + 1e-12 for p, q in points)
    assert analyse.hull(points[::-1]) == found and analyse.hull(points[:1]) == points[:1]


@pytest.mark.parametrize("gain", [0.0, 0.03])
def test_at_equal_kl_scores_on_one_curve_do_not_differ(gain):
    """Scores that follow one curve of log KL differ by nothing there, however far apart they are."""
    curve = [(-3.0, 0.40), (-2.0, 0.48), (0.0, 0.30), (1.0, 0.0)]
    kl, score = map(np.array, zip(*curve, strict=True))
    along = {"grpo": curve, "inward_domain": [(a, b + 1) for a, b in curve]}  # how high it is says nothing
    own = {"grpo": DRAW.uniform(-2.9, -1.5, 10), "placebo_shuffled": DRAW.uniform(-1.0, 0.9, 10)}
    x, y = (
        SimpleNamespace(
            arm=arm, seeds=range(10), path=np.exp(at), score=np.interp(at, kl, score) + gain * (arm == "grpo")
        )
        for arm, at in own.items()
    )
    for one in (x, y):
        one.of = lambda name, seeds, one=one: getattr(one, name)[list(seeds)]
    found = analyse.at_equal_kl(x, y, along)
    assert abs((x.score - y.score).mean()) > 0.05
    assert found["score"] == pytest.approx([gain] * 3) and found["beyond"] == 0
    y.path = np.exp(own["placebo_shuffled"] + 1)
    assert analyse.at_equal_kl(x, y, along)["beyond"] == int((own["placebo_shuffled"] > 0).sum()) > 0
    assert analyse.at_equal_kl(x, SimpleNamespace(**{**vars(y), "arm": "cispo"}), along) is None


def test_several_settings_of_an_arm_are_refused():
    lines = [line("grpo", 10, flat(1, 1, 1, 1), lr=lr) for lr in (1e-4, 2e-4)]
    with pytest.raises(ValueError, match="'unequal'"):
        analyse.arm_cells(cells(lines), "unequal")


def test_tables_are_written_between_their_marks():
    page = "a\n<!-- x -->\nold\n<!-- /x -->\nb\n<!-- y -->\n<!-- /y -->\n"
    once = written(page, {"x": r"\1 new", "y": "more"}, "p.md")
    assert once == "a\n<!-- x -->\n\\1 new\n<!-- /x -->\nb\n<!-- y -->\nmore\n<!-- /y -->\n"
    assert written(once, {"x": r"\1 new", "y": "more"}, "p.md") == once
    with pytest.raises(ValueError, match=r"^p\.md has the marks <!-- z -->"):
        written(page, {"z": ""}, "p.md")
    assert number(-0.0004, sign=True) == "0.000" and number(-0.0126, sign=True) == "−0.013"
    assert interval({"value": 0.1, "low": -0.2, "high": 0.3}, sign=True) == "+0.100 [−0.200, +0.300]"
    assert [rate(x) for x in (5e-5, 4.5e-4, 0.00015, 1e-4)] == ["5e-5", "4.5e-4", "1.5e-4", "1e-4"]
    assert table(["a", "b"], [["1", "2"]]) == "| a | b |\n|---|---|\n| 1 | 2 |"


@pytest.mark.skipif(not ALL, reason="every number of the study anew: `make docs` asks for it")
def test_the_page_has_the_numbers_of_the_results(tmp_path, monkeypatch):
    """And a number that is another is found, in the page and in the settings that were tested."""
    monkeypatch.setattr(analyse, "analysed", cache(analyse.analysed))
    analyse.main(["--check"])
    other = tmp_path / "README.md"
    other.write_text((analyse.HERE.parent / "README.md").read_text().replace("−0.265", "−0.3").replace("+0.004 [", "+0.1 ["))
    again = f"README.md not as the results say: run `python {STUDY}analyse.py --page {other}`"
    again += "\nREADME.md says +0.1 [−0.003, +0.011], which no result says"
    with pytest.raises(SystemExit, match=f"^{re.escape(again)}$"):
        analyse.main(["--check", "--page", str(other)])
    monkeypatch.setattr(analyse, "record", lambda tuning: "")
    first = f"chosen.json not as the results say: run `python {STUDY}choose.py tune`"
    with pytest.raises(SystemExit, match=f"^{re.escape(first)}$"):
        analyse.main(["--check"])
    with pytest.raises(SystemExit, match=f"^{re.escape(first)}\n{re.escape(again)}$"):
        analyse.main(["--check", "--page", str(other)])


def test_missing_runs_are_named():
    part = [Run("test", arm, "unequal", seed, 5e-5, 1.0, 40) for arm in ("grpo", "gspo") for seed in (10, 11, 12)]
    there = [line("grpo", seed, flat(1, 1, 1, 1)) for seed in (10, 12)] + [line("gspo", 11, flat(1, 1, 1, 1), lr=1e-4)]
    lack = choose.lacking(part, there)
    assert lack == [part[1], *part[3:]]
    assert analyse.by_name(lack) == [
        "`grpo` in `unequal` at 5e-05, 1.0: 11",
        "`gspo` in `unequal` at 5e-05, 1.0: 10, 11, 12",
    ]


def test_a_base_counts_once_by_its_last_line(tmp_path):
    rows = [{"seed": seed, "right": [right] * 4} for seed, right in ((10, 0.1), (11, 0.2), (10, 0.4), (12, 0.9))]
    (tmp_path / "bases.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = analyse.bases(tmp_path, (10, 11))
    assert found["seeds"] == 2 and found["right"][0] == [0.2, pytest.approx(0.3), 0.4]


@pytest.mark.parametrize("text", ["", json.dumps(line("fiberpo", 0, flat(1, 1, 1, 1)))])
def test_tuning_without_a_loss_of_one_gate_is_refused(tmp_path, text):
    (tmp_path / "tune.jsonl").write_text(text)
    with pytest.raises(SystemExit, match=rf"run `python {STUDY}run\.py tune --results {tmp_path}`$"):
        analyse.main(["--check", "--results", str(tmp_path)])


def test_a_loss_of_accuracy_is_shown_at_larger_rates_only(tmp_path):
    def row(*there):
        """Runs of settings, by rate, budget, right answers and seeds, the first of which was chosen."""
        lines = [
            line("grpo", seed, flat(*[right] * 4), lr=lr, trust=trust)
            for lr, trust, right, seeds in there
            for seed in range(seeds)
        ]
        (tmp_path / "tune.jsonl").write_text("\n".join(map(json.dumps, lines)))
        lr, trust, right, _ = there[0]
        of = {"lr": lr, "trust": trust, "score": right / 64, "large": 1.0}
        return which.settings({"grpo": of}, tmp_path).splitlines()[-1].split(" | ")[3:5]

    best, nothing = (5e-5, 1.0, 32, 3), "0.000 (0.000 to 0.000)"
    assert row(best, (1.5e-4, 1.0, 16, 3), (5e-5, 2.0, 24, 3)) == ["0.250 (0.250 to 0.250)", "0.125 (0.125 to 0.125)"]
    assert row(best) == ["·", nothing]
    assert row(best, (1.5e-4, 1.0, 16, 2), (5e-5, 2.0, 24, 2)) == ["·", nothing]
    assert row((4.5e-4, 1.0, 32, 3), best) == ["·", nothing]


def test_differences_are_from_the_mean_of_grpo():
    found = SUMMARY["test"]["unequal"]
    own = found["grpo"]["mean_score"]
    for of in (of for of in found.values() if "difference" in of):
        assert of["mean_score"]["value"] - own["value"] == pytest.approx(of["difference"]["value"], abs=2e-4)
    assert f"| `grpo`, itself | {interval(own)} |" in which.beside({"unequal": found})


def test_sentences_say_what_the_results_say():
    test, tuned, one = SUMMARY["test"], SUMMARY["tuning"], ("inward_", "cispo", "dppo_tv", "grpo_dual", "gspo")
    for where in ("unequal", "stale", "fresh", "noisy"):
        near = [of["difference"]["value"] for arm, of in test[where].items() if arm.startswith(one)]
        assert len(near) == 10 and max(map(abs, near)) < (0.001 if where == "fresh" else 0.0075)
    own, large = ([of["mean_score"]["value"] for of in test[where].values()] for where in ("unequal", "large"))
    assert sorted(np.subtract(own, large).round(2))[:: len(own) - 1] == [0.12, 0.48]
    assert test["unequal"]["inward_domain"]["gated"]["domain"] == 0 and SUMMARY["contrasts"][0]["identical"] == 10
    assert [test["large"][arm]["collapses"] for arm in ("fiberpo_domain", "inward_domain")] == [10, 4]
    at = {arm: max(s["score"] for s in tuned[arm]["settings"] if s["lr"] == 1.5e-4) for arm in ("gspo", "grpo")}
    assert [tuned[arm]["score"] - y for arm, y in at.items()] == pytest.approx([0.006, 0.018], abs=5e-4)
    assert [c["detectable"] for c in SUMMARY["contrasts"]] == pytest.approx([0, 0.003, 0.003, 0.062], abs=5e-4)
