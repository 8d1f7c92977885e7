"""`fibration bench --words`: what is measured beside what, and what is said of it. Nothing is timed."""

from __future__ import annotations

import json

import pytest
from support import spec
from typer.testing import CliRunner

from fibration.bench import words
from fibration.bench.measure import Failed, Timing
from fibration.cli.main import app
from fibration.language.order import Ordered
from fibration.language.statistics import Aggregate
from fibration.language.traversal import atoms


def test_a_variant_is_the_loss_and_the_word_that_it_is_called_by() -> None:
    h = spec("grpo")
    found = words.variants(h)
    assert found[words.PLAIN] == h
    said = {}
    for word, variant in found.items():
        assert variant.gates == h.gates
        read = {a for f in variant.objective.formulas for a in atoms(f)}
        assert ("rollout" in variant.policies) == (word in ("third policy", "penalty"))
        assert bool(variant.penalties) == (word == "penalty")
        assert (variant.advantages is not None) == bool(variant.groups) == word.startswith("rewards")
        said[word] = {(a.kind if isinstance(a, Aggregate) else a.direction, str(a.over), str(a.of))
                      for a in read if isinstance(a, (Aggregate, Ordered))}  # fmt: skip
    assert {word: of for word, of in said.items() if of} == {
        "quantile over rows": {("quantile", "trajectory", "None")},
        "quantile over the batch": {("quantile", "batch", "None")},
        "mean over the batch": {("mean", "batch", "None")},
        "position": {("before", "trajectory", "None")},
        "sum before a token": {("before", "trajectory", "None")},
        "discounted sum after it": {("after", "trajectory", "None")},
    }


def test_a_ratio_is_to_the_same_loss_without_the_word() -> None:
    def measured(name: str, word: str, *samples: float) -> words.Measured:
        return words.Measured(spec(name), "c", word, Timing(samples))

    results = [
        measured("grpo", words.PLAIN, 2, 3, 4),
        measured("ppo", "mask", 6, 7, 8),
        measured("ppo", words.PLAIN, 5),
    ]
    results += [measured("grpo", "mask", 1, 9, 9)]
    assert [words.over_plain(r, results) for r in results] == [1, 7 / 5, 1, 3]
    failed = words.Measured(spec("ppo"), "c", "mask", Failed("why"))
    assert words.over_plain(failed, results) is None


def test_the_command_says_every_word_and_writes_what_it_measured(tmp_path) -> None:
    file = tmp_path / "words.json"
    given = ["bench", "--words", "grpo", "-b", "torch", "--tokens", "512", "--length", "16", "--repeats", "1"]
    ran = CliRunner().invoke(app, [*given, "--json", str(file)])
    assert ran.exit_code == 0, ran.output
    written = json.loads(file.read_text())
    assert [r["word"] for r in written["results"]] == list(words.variants(spec("grpo")))
    assert all(word in ran.output for word in words.variants(spec("grpo")))
    assert all(len(r["samples_s"]) == 1 for r in written["results"])
    assert written["command"][:2] == ["fibration", "bench"]
    assert "--words" in written["command"]
    plain = next(r for r in written["results"] if r["word"] == words.PLAIN)
    assert plain["over_plain"] == 1


@pytest.mark.parametrize("more", [["--sweep"], ["--plot", "x.png"], ["--tokens", "4096", "--tokens", "8192"]])
def test_what_it_cannot_do_is_refused(more) -> None:
    ran = CliRunner().invoke(app, ["bench", "--words", *more])
    assert ran.exit_code
