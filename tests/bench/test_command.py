"""`fibration bench`: rows, tables, JSON, pictures, fresh processes, refusals. Nothing here is timed."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from support import spec
from typer.testing import CliRunner

from fibration.bench import candidates as candidates_module
from fibration.bench import command, fresh, picture, report, rows
from fibration.bench.candidates import COMPILED, EAGER, FLOOR, Candidate, candidates, of_backend
from fibration.bench.machine import describe_machine
from fibration.bench.measure import Failed, Timing
from fibration.bench.shapes import KI, LAYOUTS, MI, Shape, make_problem, sweep
from fibration.cli.main import app

SMALL = Shape(600, 20)
CPU = torch.device("cpu")

OWN = """
from fibration import Attribute, Fibration, Hierarchy, clip_gate, log_ratio, strata, token_mean, uniform

token, turn, trajectory, prompt = strata("token turn trajectory prompt")
own = Hierarchy(
    name="own",
    fibrations=[
        Fibration(token, turn, kernel=uniform()),
        Fibration(turn, trajectory, kernel=uniform()),
        Fibration(trajectory, prompt, kernel=uniform()),
    ],
    gates={s: clip_gate(1) for s in (token, turn, trajectory, prompt)},
    decomposition=log_ratio(),
    objective=token_mean(),
)
"""


def quietly(monkeypatch: pytest.MonkeyPatch) -> None:
    """No real clock, no compiler, no large buffers, no other process."""
    monkeypatch.setattr(rows, "clock", lambda device: lambda call: (call(), 0.5)[1])
    monkeypatch.setattr(command, "bandwidth", lambda device, clock: Timing((0.25,)))
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    monkeypatch.setattr(fresh, "ask", lambda task, environment: {"bytes": 3e6, "seconds": 1.5, "index_s": 0.1})


def bench(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["bench", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    return result.exit_code, result.output


# ---------------------------------------------------------------- rows


def test_every_backend_has_four_rows_and_an_unshipped_loss_has_no_baseline() -> None:
    names = [c.name for c in candidates(spec("ppo"), ["torch"])]
    ours = ["fibration torch" + more for more in ("", " + metrics", " loss", " loss + metrics")]
    assert names == [*ours, EAGER, COMPILED]
    assert [c.name for c in candidates(spec("ppo"), ["torch"], compiled=False)][-1] == EAGER
    assert all(c.ours for c in candidates(spec("ppo").model_copy(update={"name": "mine"}), ["torch"]))


def test_all_rows_of_a_backend_compute_the_same() -> None:
    h = spec("fiberpo_domain")
    p = make_problem(h, SMALL)
    expected = candidates_module.reference(h, p)
    for c in candidates(h, ["torch"], compiled=False):
        result = candidates_module.start(c, h, p)()
        assert candidates_module.disagreement(c, result, expected)[0] < 1e-5, c.name
        assert candidates_module.disagreement(c, -result, expected)[0] == pytest.approx(2, rel=1e-4), c.name


def test_a_row_that_cannot_start_has_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_compiler(function: Any, **options: Any) -> Any:
        raise RuntimeError("no C++ compiler")

    quietly(monkeypatch)
    monkeypatch.setattr(torch, "compile", no_compiler)
    h = spec("fiberpo")
    chosen = [*candidates(h, ["torch"]), of_backend("none")]
    measured = rows.measure(h, SMALL, chosen, rows.Plan(3), alone=True)
    by_name = {r.candidate.name: r for r in measured.rows}
    assert by_name[COMPILED].timing == Failed("RuntimeError: no C++ compiler")
    assert isinstance(by_name["fibration none"].timing, Failed)
    assert by_name["fibration none"].memory is None and by_name["fibration none"].cold is None
    for name in ("fibration torch", EAGER):
        assert by_name[name].timing == Timing((0.5,) * 3)
        assert by_name[name].memory == 3e6
    assert measured.floor == Timing((0.5,) * 3)
    assert by_name["fibration torch"].first_use == 0.5
    assert len(by_name["fibration torch"].cold) == 2  # type: ignore[arg-type]
    assert by_name["fibration torch loss"].cold is None, "a backend starts once, whatever it then computes"


def test_a_shape_that_cannot_be_made_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    quietly(monkeypatch)
    h = spec("ppo")
    shape = Shape(64 * KI, 8, "giant", "padded")
    measured = rows.measure(h, shape, candidates(h, ["torch"]), rows.Plan(1), alone=False)
    assert measured.failed is not None and "would be padded" in measured.failed.reason
    record = json.loads(report.document(["x"], 0, "float32", describe_machine(CPU), Timing((1.0,)), [measured]))
    assert "would be padded" in record["results"][0]["error"]
    assert record["results"][0]["rows"] == []
    console = Console(width=100)
    report.emit_sweep(console, [measured])
    text = capsys.readouterr().out
    assert "failed" in text and "would be padded" in text


def measured(**times: float) -> rows.Measured:
    """One shape with made-up times, in seconds; a negative one fails."""
    names = {"torch": of_backend("torch"), "eager": Candidate(EAGER), "compiled": Candidate(COMPILED)}
    made = [rows.Row(names[k], Timing((t,)) if t > 0 else Failed("it broke")) for k, t in times.items() if k in names]
    floor = Timing((times.get("floor", 0.001),))
    return rows.Measured(spec("fiberpo"), SMALL, made, bytes_moved=10**6, tokens=600, positions=600, floor=floor)


def test_lost_shapes_are_named_worst_first() -> None:
    won, lost = measured(torch=1, eager=2, compiled=1.5), measured(torch=3, eager=2, compiled=-1)
    worse = replace(measured(torch=8, eager=2), shape=Shape(5, 5))
    assert report.losses([won]) == []
    (line,) = report.losses([won, lost, worse])
    assert line.startswith(f"slower than {EAGER} on 2 of 3 shapes: {worse.shape} (4.0 ×); {SMALL} (1.5 ×)")


def test_an_index_costs_its_making_and_its_first_use() -> None:
    row = rows.Row(of_backend("torch"), Timing((1.0,)), index=Timing((0.25,)), first_use=1.5)
    assert report.index_seconds(row) == 0.75
    assert report.index_seconds(replace(row, first_use=0.5)) == 0.25  # noise is no gain


# ---------------------------------------------------------------- what is said


def test_tables_show_failures_and_ratios(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(width=100)
    report.emit_table(console, measured(torch=0.004, eager=0.002, compiled=-1))
    lines = {line.strip().split("  ")[0]: line.split() for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert lines["fibration torch"][2:] == ["4", "4", "0%", "2.00", "4.00"]
    assert lines[EAGER][2:] == ["2", "2", "0%", "1.00", "2.00"]
    assert lines[COMPILED][1] == "failed"
    assert lines["copy"][1:] == ["1", "1", "0%", "0.50", "1.00"]
    assert "torch.compile: it broke" in " ".join(" ".join(words) for words in lines.values())


def test_tables_fit_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(width=80)
    one = measured(torch=1.2344, eager=0.71234, compiled=0.51234, floor=0.0012)
    for row in one.rows:
        row.memory, row.differs, row.index = 123456789.0, (1e-7, 1e-6), Timing((0.1234,))
        row.cold = [{"seconds": 12.345, "index_s": 0.1}] * 2
    report.emit_table(console, one)
    assert "…" not in capsys.readouterr().out


def test_the_command_writes_tables_json_and_a_picture(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Everything but the clock: the tables, the JSON, the picture."""
    quietly(monkeypatch)
    own = tmp_path / "own.py"
    own.write_text(OWN)
    out, drawn = tmp_path / "new" / "bench.json", tmp_path / "bench.png"
    options = ("--backend", "torch", "--tokens", "600", "--length", "20", "--repeats", "2", "--seed", "7")
    code, said = bench("fiberpo", own, *options, "--json", out, "--plot", drawn)
    assert code == 0, said
    assert "fiberpo: 600 tokens, packed" in said and "own: 600 tokens, padded" in said
    assert "no hand-written loss to compare with: own" in " ".join(said.split())
    assert f"{torch.get_num_threads()} threads" in said
    document = json.loads(out.read_text())
    assert document["format"] == report.FORMAT
    assert document["command"].startswith(f"fibration bench fiberpo {own} --backend torch --tokens 600")
    assert document["seed"] == 7
    assert document["machine"]["torch_threads"] == torch.get_num_threads()
    assert document["machine"]["processor"] and document["machine"]["torch"] == torch.__version__
    assert document["stream"]["bytes_per_s"] > 0
    assert [(r["hierarchy"], r["baseline"], len(r["rows"])) for r in document["results"]] == [
        ("fiberpo", True, 6),
        ("fiberpo", True, 6),
        ("own", False, 4),
        ("own", False, 4),
    ]
    for result in document["results"]:
        assert len(result["floor"]["samples_s"]) == 2
        for row in result["rows"]:
            assert row["errors"] == {}, row
            assert row["time"]["samples_s"] == [0.5, 0.5]
            assert row["over_floor"] == 1
            assert row["over_eager"] == (1 if result["baseline"] else None)
            assert row["differs_mean"] < 1e-5
            assert row["peak_extra_bytes"] == (3e6 if result["shape"]["layout"] == "packed" else None)
    assert drawn.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


@pytest.mark.thorough
def test_a_quick_sweep_writes_its_results(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    quietly(monkeypatch)
    out = tmp_path / "sweep.json"
    tokens = ("--tokens", "500", "--tokens", "1000", "--tokens", "2000")
    code, said = bench("ppo", "fiberpo", "-b", "torch", "--sweep", "--quick", *tokens, "--length", 50, "--json", out)
    assert code == 0, said
    assert "ppo (1 stratum)" in said and "fiberpo (2 strata)" in said
    assert COMPILED not in said.split("time / copy")[0]
    document = json.loads(out.read_text())
    shapes = [tuple(r["shape"].values()) for r in document["results"] if r["hierarchy"] == "ppo"]
    assert {s[0] for s in shapes} == {500, 1000, 2000} and {s[3] for s in shapes} == set(LAYOUTS)
    assert all(len(r["floor"]["samples_s"]) == 5 for r in document["results"])
    assert all(row["peak_extra_bytes"] is None for r in document["results"] for row in r["rows"])


def test_a_picture_shows_every_candidate_and_every_failure() -> None:
    shapes = sweep([1000, 2000], 20, quick=True).shapes()
    results = [replace(measured(torch=0.01, eager=0.005, compiled=-1), shape=s) for s in shapes]
    page = picture.figure(results, describe_machine(CPU))
    assert {t.get_text() for t in page.legends[0].get_texts()} == {"fibration torch", EAGER, FLOOR}
    lines = {line.get_label(): line.get_xdata() for line in page.axes[0].get_lines()}
    assert list(lines["fibration torch"]) == [1000, 2000]
    assert "×" in [t.get_text() for t in page.axes[2].texts]
    assert picture.figure([replace(results[0], failed=Failed("x"), floor=None)], describe_machine(CPU)).axes


def test_a_picture_of_one_size_has_no_lines() -> None:
    """As of `--quick` without a sweep: packed and padded stand side by side, with a legend of their own."""
    shapes = [Shape(1000, 20, layout=layout) for layout in ("packed", "padded")]
    results = [replace(measured(torch=0.01, eager=0.005, compiled=0.004), shape=s) for s in shapes]
    page = picture.figure(results, describe_machine(CPU))
    (panel,) = page.axes
    assert len(panel.patches) == 2 * 3
    assert {t.get_text() for t in page.legends[0].get_texts()} == {"fibration torch", EAGER, COMPILED, FLOOR}
    assert [t.get_text().split()[-1] for t in panel.get_xticklabels()] == ["packed", "padded"]
    over_length = [replace(results[0], shape=Shape(1000, n)) for n in (10, 20)]
    page = picture.figure(over_length, describe_machine(CPU))
    assert [a.get_xlabel() for a in page.axes] == ["tokens per trajectory, mean", ""]


# ---------------------------------------------------------------- unusable input


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["there_is_none"], "cannot load 'there_is_none'"),
        (["ppo", "--backend", "fortran"], "no backend 'fortran'"),
        (["ppo", "--tokens", "few"], "'few' is not a number of tokens"),
        (["ppo", "--length", "0"], "'0' is not a number of tokens"),
        (["ppo", "--device", "abacus"], "no device 'abacus'"),
        (["ppo", "--dtype", "int8"], "no dtype 'int8'"),
        (["ppo", "--repeats", "0"], "--repeats"),
        (["ppo", "--json", "bench.txt"], "a file that ends in .json"),
        (["ppo", "--plot", "bench.jpg"], "a file that ends in .png"),
    ],
)
def test_unusable_input_is_refused_before_any_measurement(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.setattr(command, "bandwidth", lambda *a: pytest.fail("something was measured"))
    code, said = bench(*arguments)
    assert code == 2
    assert message in said


def test_a_file_that_cannot_be_written_is_refused_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(command, "bandwidth", lambda *a: pytest.fail("something was measured"))
    (tmp_path / "file").write_text("")
    (tmp_path / "folder.json").mkdir()
    for place, found in (("file/bench.json", "file' is a file"), ("folder.json", "folder.json' is a folder")):
        code, said = bench("ppo", "--json", tmp_path / place)
        assert code == 2 and "cannot be written" in said and found in said


def test_a_missing_gpu_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    code, said = bench("ppo", "--device", "cuda")
    assert code == 2 and "device 'cuda' is not there" in said and "--device cpu" in said


def test_a_hierarchy_that_breaks_a_law_is_not_measured(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text(
        OWN.replace(
            "Fibration(token, turn, kernel=uniform())", "Fibration(token, turn, kernel=MarkovKernel(2))"
        ).replace("uniform\n", "uniform, MarkovKernel\n", 1)
    )
    code, said = bench(wrong, "--quick")
    assert code == 1 and "breaks the law" in said


# ---------------------------------------------------------------- fresh processes


def task(kind: str, **changes: Any) -> fresh.Task:
    h = spec("ppo")
    return replace(fresh.Task(kind, h.model_dump_json(), of_backend("torch"), SMALL, "float32", "cpu", 0, 1), **changes)


@pytest.mark.thorough
def test_a_fresh_process_answers() -> None:
    answer = fresh.ask(task("memory", shape=Shape(MI, 64)), {"MALLOC_MMAP_THRESHOLD_": "65536"})
    assert not isinstance(answer, Failed), answer
    assert answer["bytes"] > 4 * MI, "the coefficients alone need as much"


@pytest.mark.parametrize(
    ("done", "expected"),
    [
        ((0, 'noise\n{"error": "BackendError: none"}\n', ""), "BackendError: none"),
        ((-9, "", ""), "ended with -9: it said nothing"),
        ((1, "", "Traceback\nKeyError: 3\n"), "ended with 1: KeyError: 3"),
        ((0, "no JSON\n", ""), "ended with 0"),
    ],
)
def test_a_fresh_process_that_fails_says_why(
    monkeypatch: pytest.MonkeyPatch, done: tuple[int, str, str], expected: str
) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: subprocess.CompletedProcess([], *done))
    answer = fresh.ask(task("cold"), {})
    assert isinstance(answer, Failed) and expected in answer.reason
    assert isinstance(fresh.cold(task("cold")), Failed) and isinstance(fresh.memory(task("memory")), Failed)


def test_a_fresh_process_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*a: Any, **k: Any) -> Any:
        raise subprocess.TimeoutExpired("x", 1)

    monkeypatch.setattr(subprocess, "run", hang)
    assert isinstance(fresh.ask(task("cold"), {}), Failed)


def test_cold_starts_begin_with_empty_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def ask(given: fresh.Task, environment: Any) -> dict[str, float]:
        folder = Path(environment["FIBRATION_CACHE"])
        seen.append((str(folder), folder.exists()))
        folder.mkdir(exist_ok=True)
        return {"seconds": 1.0, "index_s": 0.0}

    monkeypatch.setattr(fresh, "ask", ask)
    assert fresh.cold(task("cold")) == [{"seconds": 1.0, "index_s": 0.0}] * 2
    assert seen[0][0] == seen[1][0] and [there for _, there in seen] == [False, True]
    assert not Path(seen[0][0]).parent.exists()
