"""`fibration bench --ranks`: the parts of a batch, what a process counts, and what is said of it. Nothing is timed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import operator, spec
from thorough import ALL
from typer.testing import CliRunner

from fibration import BackendError
from fibration.bench import rank_report, ranks
from fibration.bench.rank_process import Counted, Rank, Task, answers, part
from fibration.bench.shapes import Shape, make_problem
from fibration.cli.main import app

SHAPE = Shape(2**12, 64)


@pytest.mark.parametrize("name", ["fiberpo_domain", "fiberpo_modal", "ppo"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_parts_make_up_the_batch(name: str, size: int) -> None:
    whole = make_problem(spec(name), SHAPE)
    parts = [part(whole, rank, size) for rank in range(size)]
    for field in ("log_probs", "old_log_probs", "advantages"):
        assert torch.equal(torch.cat([getattr(p, field) for p in parts]), getattr(whole, field))
    for k, labels in whole.labels.items():
        assert np.array_equal(np.concatenate([p.labels[k] for p in parts]), labels)
    for p in parts:
        assert np.array_equal(p.offsets.diff().numpy(), p.lengths)
        assert int(p.offsets[0]) == 0
        assert abs(p.tokens - whole.tokens / size) <= whole.lengths.max()


class Both:
    """A group whose other rank says the same: the same rows twice."""

    rank, size = 0, 2

    def all_gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        return [tensor, tensor]

    def all_gather_object(self, obj: Any) -> list[Any]:
        return [obj, obj]


def test_a_rank_counts_what_it_sends_and_knows_no_rank_by_itself() -> None:
    met: list[None] = []
    problem = make_problem(spec("fiberpo_domain"), SHAPE)
    does = answers(Rank(operator(spec("fiberpo_domain")), problem, Both(), lambda: met.append(None)))
    sent = does["sent"]()
    assert sent["tokens"] == problem.tokens
    assert (len(sent["index"]), len(sent["call"])) == (2, 3)  # a word first, then labels; then values of two stages
    assert sent["index"][0] == sent["call"][0] == 16
    assert max(sent["call"]) < 8 * (1 + 32 * len(problem.lengths))  # some numbers per row, and none per token
    for what in ranks.TIMED:
        assert does[what]()["seconds"] >= 0
    assert len(met) == len(ranks.TIMED)
    assert does["memory"]()["bytes"] >= 0


def test_bytes_are_counted() -> None:
    counted = Counted(Both())
    counted.all_gather(torch.zeros(5, dtype=torch.float64))
    counted.all_gather_object("x" * 1000)
    assert counted.sent[0] == 40
    assert 1000 < counted.sent[1] < 1100


def test_many_ranks_on_paper() -> None:
    paper = ranks.Paper(ranks=5, latency=1e-3, bandwidth=1e6)
    assert paper.seconds([16, 4000]) == pytest.approx(4 * (1e-3 + 16e-6) + 4 * (1e-3 + 4e-3))
    measured = ranks.Measured(spec("ppo"), "c", 2, 1, sent={"index": [10], "call": [16, 4000]}, tokens=[90, 100])
    found = paper.of(measured)
    assert (found["tokens"], found["gatherings"], found["received_bytes"]) == (500, 2, 5 * 4016)
    assert found["call_s"] == paper.seconds([16, 4000])
    assert found["index_s"] == paper.seconds([10])


class Told:
    """Processes that answer by heart: a rank is slower the higher it is, and slower with its group."""

    def __init__(self, size: int) -> None:
        self.size, self.told = size, list[str]()

    def do(self, what: str) -> list[dict[str, Any]]:
        self.told.append(what)
        first = self.told.count(what) == 1
        each = {"seconds": 9.0 if first else 0.25 if "alone" in what else 0.5, "bytes": 2**20, "tokens": 100}
        sent = {"index": [100, 200], "call": [16, 1008]}
        return [{**each, **sent, "seconds": each["seconds"] * (1 + rank)} for rank in range(self.size)]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[Told]:
    found: list[Told] = []

    @contextmanager
    def world(task: Any, size: int, environment: Mapping[str, str]) -> Iterator[Told]:
        assert task(0, "").size == size
        found.append(Told(size))
        yield found[-1]

    monkeypatch.setattr(ranks, "world", world)
    return found


def bench(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["bench", "--ranks", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    return result.exit_code, result.output


def test_rounds_and_what_is_written(told: list[Told], tmp_path: Path) -> None:
    written = tmp_path / "a.json", tmp_path / "a.png"
    code, output = bench("ppo", "--repeats", 3, "--json", written[0], "--plot", written[1], "-b", "torch")
    assert code == 0, output
    document = json.loads(written[0].read_text())
    assert [r["processes"] for r in document["results"]] == [1, 2, 4]
    for r in document["results"]:  # the first round is not counted, and the slowest rank is
        assert r["coefficients"]["samples_s"] == [0.5 * r["processes"]] * 3
        assert r["coefficients_alone"]["samples_s"] == [0.25 * r["processes"]] * 3
        assert r["sent_bytes"] == {"index": [100, 200], "call": [16, 1008]}
        assert r["on_paper"]["ranks"] == 512
    assert [w.size for w in told] == [1, 2, 4, 1, 2, 4]  # the memory of each in processes of its own
    assert all(("memory" in w.told) == (i > 2) for i, w in enumerate(told))
    rows = [line.split() for line in output.splitlines()]
    assert next(r for r in rows if r[:1] == ["4"])[1:7] == ["2000.00", "8.00", "2.00", "1.0", "2", "2000.0"]
    assert max(map(len, output.splitlines())) <= 80 or str(tmp_path) in output
    assert "on paper, 512 ranks of 100 tokens each" in output
    assert written[1].read_bytes().startswith(b"\x89PNG")
    assert document["command"][:3] == ["fibration", "bench", "ppo"]
    assert "--ranks" in document["command"]


def test_a_quick_one_is_small(told: list[Told]) -> None:
    code, output = bench("--quick")
    assert code == 0
    assert "64 Ki tokens" in output
    assert {w.size for w in told} == {1, 2}


@pytest.mark.parametrize("more", [["--sweep"], ["--tokens", "1Ki", "--tokens", "2Ki"]])
def test_what_is_not_measured(more: list[str], told: list[Told]) -> None:
    code, output = bench(*more)
    assert code == 2
    assert "--ranks measures one batch" in output
    assert told == []


def test_bars_stand_for_medians() -> None:
    found = [ranks.Measured(spec("ppo"), "c", n, 1, {w: [n / 1e3] * 3 for w in ranks.TIMED}) for n in (1, 2)]
    (axes,) = rank_report.figure(found, {"processor": "a machine"}, SHAPE).axes
    assert [p.get_height() for p in axes.patches] == pytest.approx([1, 2, 1, 2])


@pytest.mark.parametrize("size", [1, pytest.param(3, marks=pytest.mark.skipif(not ALL, reason="more processes"))])
def test_real_processes(size: int) -> None:
    h = spec("fiberpo_domain")
    text = h.model_dump_json()
    with ranks.world(lambda rank, at: Task(text, "torch", SHAPE, "float32", 0, rank, size, 1, at), size, {}) as w:
        found = w.do("sent")
        assert len(found) == size
        assert sum(a["tokens"] for a in found) == make_problem(h, SHAPE).tokens
        assert {len(a["call"]) for a in found} == {len(found[0]["call"])}
        assert len(w.do("coefficients")) == size
        with pytest.raises(BackendError, match="a rank could not be measured"):
            w.do("nothing that is known")
