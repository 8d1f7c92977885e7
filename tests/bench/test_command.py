"""`fibration bench`: its rows, ratios, table, JSON and refusals. Nothing here is timed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support import spec
from typer.testing import CliRunner

from fibration.bench import measure as bench_module
from fibration.bench.batches import Shape, make_batch
from fibration.bench.measure import COMPILED, COPY, EAGER, disagreement, interleave, names, reason, record, reference
from fibration.cli.main import app

SMALL = Shape(600, 20)

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
    """No clock and no compiler. Every call takes half a second."""
    monkeypatch.setattr(bench_module, "seconds", lambda call, device: (call(), 0.5)[1])
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)


def bench(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["bench", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    return result.exit_code, result.output


# ---------------------------------------------------------------- rows


def test_every_backend_has_five_rows_and_an_unshipped_loss_has_no_baseline() -> None:
    ours = ["fibration c" + more for more in ("", " + metrics", " + index", " loss", " loss + metrics")]
    assert names(spec("ppo"), ["c"]) == [*ours, EAGER, COMPILED, COPY]
    assert names(spec("ppo").model_copy(update={"name": "mine"}), ["c"]) == [*ours, COPY]


def test_all_rows_compute_the_same() -> None:
    h = spec("fiberpo_domain")
    batch = make_batch(h, SMALL)
    expected = reference(h, batch)
    for name in (n for n in names(h, ["torch"]) if n not in (COPY, COMPILED)):
        result = bench_module.start(h, batch, name)()
        assert disagreement(name, result, expected) < 1e-5, name
        assert disagreement(name, -result, expected) == pytest.approx(2, rel=1e-4), name


def test_candidates_take_turns_after_two_rounds_of_warm_up() -> None:
    ticks = {"a": iter([9, 9, 1, 3, 2]), "b": iter([9, 9, 4, 6, 5]), "c": iter([9, 9, 7, 9, 8])}
    called: list[str] = []

    def clock(call: Callable[[], str]) -> float:
        called.append(call())
        return next(ticks[called[-1]])

    timed = interleave({n: (lambda n=n: n) for n in "abc"}, 3, clock)  # type: ignore[misc]
    assert "".join(called) == "abc" * 5
    assert timed == {"a": [1, 3, 2], "b": [4, 6, 5], "c": [7, 9, 8]}


def test_a_candidate_that_fails_does_not_stop_the_others() -> None:
    turns = iter([0, 0, 1])

    def falter() -> None:
        if next(turns):
            raise RuntimeError("out of\n\nmemory")

    timed = interleave({"a": lambda: None, "b": falter}, 3, lambda call: (call(), 1.0)[1])
    assert timed == {"a": [1, 1, 1], "b": "RuntimeError: out of memory"}
    assert len(reason(ValueError("x" * 1000))) == 300


def test_the_median_and_quartiles_of_times_are_right() -> None:
    times = [5.0, 1.0, 2.0, 4.0, 3.0]
    assert record(times) == {"median_s": 3, "quartiles_s": [2, 4], "best_s": 1, "samples_s": times}
    assert record([7.0])["quartiles_s"] == [7, 7]


def test_ratios_are_of_medians_and_of_the_fastest_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = {"fibration torch": [3.0, 4.0, 9.0], EAGER: [7.0, 8.0, 9.0], COPY: [1.0, 2.0, 3.0]}
    monkeypatch.setattr(bench_module, "interleave", lambda calls, rounds, clock: {name: taken[name] for name in calls})
    result = bench_module.measure(spec("fiberpo"), SMALL, list(taken), 3)
    found = {r["name"]: (r["over_eager"], r["over_copy"]) for r in result["rows"]}
    assert found == {"fibration torch": (0.5, 4), EAGER: (1, 8), COPY: (0.25, 2)}


def test_a_row_that_cannot_start_or_fails_later_has_a_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def no_compiler(function: Any, **options: Any) -> Any:
        raise RuntimeError("no C++ compiler")

    quietly(monkeypatch)
    monkeypatch.setattr(torch, "compile", no_compiler)
    out = tmp_path / "bench.json"
    code, said = bench("fiberpo", "-b", "torch", "--tokens", 600, "--length", 20, "--repeats", 1, "--json", out)
    assert code == 0 and said.count("torch.compile: RuntimeError: no C++ compiler") == 2
    rows = {row["name"]: row for row in json.loads(out.read_text())["results"][0]["rows"]}
    assert rows[COMPILED] == {"name": COMPILED, "error": "RuntimeError: no C++ compiler"}
    assert rows[EAGER]["samples_s"] == [0.5]


def test_a_batch_without_memory_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    make = bench_module.make_batch

    def short(h: Any, shape: Shape, **given: Any) -> Any:
        if shape.tokens > 600:
            raise MemoryError("too many tokens")
        return make(h, shape, **given)

    quietly(monkeypatch)
    monkeypatch.setattr(bench_module, "make_batch", short)
    code, said = bench("gspo", "-b", "torch", "--tokens", 700, "--tokens", 600, "--length", 20, "--repeats", 1)
    assert code == 0 and said.count("the batch: MemoryError: too many tokens") == 2
    assert said.count(EAGER) >= 2


# ---------------------------------------------------------------- the command


def test_the_command_writes_a_table_and_json(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Everything but the clock."""
    quietly(monkeypatch)
    own, out = tmp_path / "own.py", tmp_path / "new" / "bench.json"
    own.write_text(OWN)
    options = "--backend torch --tokens 600 --length 20 --repeats 2 --seed 7".split()
    monkeypatch.setattr(sys, "argv", ["python", "bench", "fiberpo", "my own.py"])
    code, said = bench("fiberpo", own, *options, "--json", out)
    assert code == 0, said
    assert "fiberpo: 600 tokens, packed" in said and "own: 600 tokens, padded" in said and "…" not in said
    assert f"{torch.get_num_threads()} threads for all" in said and "written to" in said
    lines = [" ".join(line.split()) for line in said.splitlines() if line.startswith(f"{EAGER}  ")]
    assert len(lines) == 2 and all(line.startswith("eager torch 500 500 0% 1 1 ") for line in lines)
    document = json.loads(out.read_text())
    assert document["format"] == "fibration bench 2" and document["command"] == "fibration bench fiberpo 'my own.py'"
    assert (document["seed"], document["dtype"], document["device"]) == (7, "float32", "cpu")
    assert document["machine"]["processor"] and document["machine"]["torch"] == torch.__version__
    expected = [("fiberpo", 8), ("fiberpo", 8), ("own", 6), ("own", 6)]
    assert [(r["hierarchy"], len(r["rows"])) for r in document["results"]] == expected
    assert [r["shape"]["layout"] for r in document["results"]] == ["packed", "padded"] * 2
    for result in document["results"]:
        assert result["positions"] >= result["tokens"] and result["bytes_moved"] > 12 * result["tokens"]
        for row in result["rows"]:
            assert row["samples_s"] == [0.5, 0.5] and row["over_copy"] == 1 and "error" not in row
            assert row.get("over_eager") == (1 if result["hierarchy"] == "fiberpo" else None)
            assert row["name"] == COPY or row["differs"] < 1e-5


def test_json_on_stdout_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    quietly(monkeypatch)
    result = CliRunner().invoke(app, "bench gspo -b torch --tokens 600 --repeats 1 --json -".split())
    assert result.exit_code == 0 and len(json.loads(result.stdout)["results"]) == 2


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
    ],
)
def test_unusable_input_is_refused_before_any_measurement(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.setattr(bench_module, "start", lambda *a: pytest.fail("something was measured"))
    code, said = bench(*arguments)
    assert code == 2
    assert message in said


def test_a_file_that_cannot_be_written_is_refused_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bench_module, "start", lambda *a: pytest.fail("something was measured"))
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
