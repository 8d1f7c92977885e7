"""`fibration bench --small`: what is measured beside what, and what is said of it. Nothing is timed."""

from __future__ import annotations

import json

import pytest
import torch
from support import spec
from typer.testing import CliRunner

from fibration.bench import small
from fibration.bench.candidates import EAGER, candidates
from fibration.bench.measure import Timing
from fibration.bench.rows import Measured, Plan, Row
from fibration.bench.shapes import Shape
from fibration.cli.main import app


def test_every_layout_and_number_of_threads_has_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, before = [], torch.get_num_threads()

    def measured(hierarchy, shape, rows, plan, alone):
        assert not alone
        seen.append((shape, torch.get_num_threads()))
        times = {EAGER: 2.0}
        return Measured(hierarchy, shape, [Row(c, Timing((times.get(c.name, 1.0),))) for c in rows])

    monkeypatch.setattr(small, "measure", measured)
    monkeypatch.setattr(small, "thread_counts", lambda: (1, 2))
    results = list(small.measure_small(spec("gspo"), ["c"], 512, 16, Plan(1)))
    assert torch.get_num_threads() == before
    shapes = [Shape(512, 16, "equal", layout) for layout in ("padded", "packed")]
    assert seen == [(shape, threads) for shape in shapes for threads in (1, 2)]
    rows = small.document(["x"], {}, results)["results"]
    assert len(rows) == 4 * len(candidates(spec("gspo"), ["c"], compiled=False)) == 4 * 5
    assert {r["over_eager"] for r in rows} == {0.5, 1.0}
    assert all((r["over_eager"] == 1) == (r["name"] == EAGER) for r in rows)


def test_the_command_shows_a_row_for_each_and_writes_it(tmp_path) -> None:
    file = tmp_path / "small.json"
    given = ["bench", "--small", "ppo", "-b", "torch", "--tokens", "256", "--length", "16", "--repeats", "1"]
    ran = CliRunner().invoke(app, [*given, "--json", str(file)])
    assert ran.exit_code == 0, ran.output
    written = json.loads(file.read_text())
    assert "--small" in written["command"]
    lines = [line for line in ran.output.splitlines() if line.startswith("ppo, ")]
    assert len(lines) == 2 * len(small.thread_counts())
    assert all(len(line.split()) == 2 + 8 for line in lines), lines
    assert len(written["results"]) == 5 * len(lines)
    assert all(r["rounds"] == 1 and r["over_eager"] > 0 for r in written["results"])


@pytest.mark.parametrize("more", [["--sweep"], ["--plot", "x.png"], ["--tokens", "4096", "--tokens", "8192"]])
def test_what_it_cannot_do_is_refused(more) -> None:
    assert CliRunner().invoke(app, ["bench", "--small", *more]).exit_code
