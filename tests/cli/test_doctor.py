"""`fibration doctor` reports the state of each part, and its exit code says whether a part is broken."""

from __future__ import annotations

import json
import os
import shutil
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from fibration import cache
from fibration.cli import doctor
from fibration.cli.main import app

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="needs a C compiler")


def invoke(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["doctor", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    return result.exit_code, result.output


def found(*arguments: str) -> tuple[int, dict[str, Any], dict[str, Any]]:
    """The exit code, what is said of all, and the findings by name."""
    code, output = invoke(*arguments, "--json")
    said = json.loads(output)
    return code, said, {f["name"]: f for f in said["findings"]}


def test_a_working_machine_is_usable() -> None:
    code, said, by_name = found()
    assert (code, said["usable"]) == (0, True)
    assert {f["state"] for f in said["findings"]} <= {"fine", "note", "look"}
    assert by_name["torch"]["value"] == metadata.version("torch")
    assert by_name["cache"]["value"].startswith(str(cache.folder()))
    assert f"{torch.get_num_threads()} in torch and C" in by_name["threads"]["value"]
    assert (
        by_name["backend torch"]["state"] == by_name["backend c"]["state"] == by_name["C compiler"]["state"] == "fine"
    )
    assert "agrees with torch to " in by_name["backend c"]["value"]
    if not torch.cuda.is_available():
        assert said["backend"] == "c" and said["why"].startswith("compiled by /")


def test_the_table_has_every_finding_and_ends_with_the_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    code, output = invoke("gspo")
    assert code == 1
    words = " ".join(output.split())
    assert "✗ broken C compiler there is no C compiler: CC=no-such-compiler required: cc, gcc or clang" in words
    assert "· backend c not tried without a compiler" in words
    taken = "triton" if torch.cuda.is_available() else "torch"
    assert "broken: C compiler" in words and f"; fibration.compile takes the {taken} backend: " in words


@pytest.mark.skipif(torch.cuda.is_available(), reason="Triton too needs a C compiler, for what starts its kernels")
def test_a_machine_without_a_compiler_is_slow_and_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", "")
    code, said, by_name = found("ppo")
    assert (code, said["usable"]) == (0, True)
    assert by_name["C compiler"]["state"] == "look"
    assert said["backend"] == "torch"


def test_a_cache_that_others_may_write_is_broken_if_it_was_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fibration").mkdir()
    (tmp_path / "fibration").chmod(0o777)
    monkeypatch.setenv("FIBRATION_CACHE", str(tmp_path / "fibration"))
    code, said, by_name = found("ppo")
    assert (code, said["usable"]) == (1, False)
    assert by_name["cache"]["state"] == by_name["backend c"]["state"] == "broken"
    assert "can be written by everybody" in by_name["cache"]["value"]
    assert by_name["cache"]["remedy"].startswith(f"chmod go-w '{tmp_path / 'fibration'}', or set FIBRATION_CACHE")
    monkeypatch.delenv("FIBRATION_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    code, said, by_name = found("ppo")
    assert (code, said["usable"]) == (0, True)
    assert by_name["cache"]["state"] == "look" and "temporary folder" in by_name["cache"]["remedy"]
    assert by_name["backend c"]["state"] == "fine"


@pytest.mark.parametrize(("chosen", "state"), [(True, "broken"), (False, "look")])
def test_a_cache_that_cannot_be_written_is_reported(
    chosen: bool, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FIBRATION_CACHE", raising=False)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FIBRATION_CACHE" if chosen else "XDG_CACHE_HOME", str(tmp_path / "file" / "cache"))
    finding = doctor._cache()
    assert finding.state == state
    assert "cannot be written: Not a directory" in finding.value and "set FIBRATION_CACHE" in finding.remedy
    monkeypatch.setenv("FIBRATION_CACHE", str(tmp_path / "new"))
    assert doctor._cache().state == "fine" and list((tmp_path / "new").iterdir()) == []


@pytest.mark.parametrize("going", ["workshop", "file"])
def test_files_that_disappear_while_counting_are_ignored(
    going: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They build there: a folder may go after it was listed, and a file before it was looked at."""
    monkeypatch.setenv("FIBRATION_CACHE", str(tmp_path))
    tmp_path.chmod(0o700)
    (tmp_path / "kept").write_bytes(b"." * 2**20)
    (tmp_path / "workshop").mkdir()
    (tmp_path / "workshop" / "file").write_bytes(b"." * 2**21)
    scandir, lstat, stat = os.scandir, os.lstat, os.stat

    def taken(call: Any) -> Any:
        def meanwhile(path: Any, *rest: Any, **named: Any) -> Any:
            if str(path).endswith(f"/{going}"):
                shutil.rmtree(tmp_path / "workshop", ignore_errors=True)
            return call(path, *rest, **named)

        return meanwhile

    for name, call in (("scandir", scandir), ("lstat", lstat), ("stat", stat)):
        monkeypatch.setattr(os, name, taken(call))
    finding = doctor._cache()
    assert finding.state == "fine" and " 1.0 MiB" in finding.value


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("way", "said"),
    [
        ("differs", "differs from torch by 1e-03"),
        ("raises", "ZeroDivisionError: division by zero"),
        ("not a number", "differs from torch by nan"),
    ],
)
def test_a_backend_with_wrong_results_is_broken(way: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = doctor._coefficients

    def wrong(hierarchy: Any, backend: str, device: str) -> torch.Tensor:
        values = right(hierarchy, "torch", device)
        if backend == "torch":
            return values
        if way == "raises":
            raise ZeroDivisionError("division by zero")
        values[values.abs().argmax()] *= 1.001 if way == "differs" else float("nan")
        return values

    monkeypatch.setattr(doctor, "_coefficients", wrong)
    code, _, by_name = found("ppo")
    assert code == 1
    assert by_name["backend c"]["state"] == "broken" and said in by_name["backend c"]["value"]
    assert by_name["backend torch"]["state"] == "fine"


def test_versions_are_compared_with_the_required_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    real = metadata.version
    versions = {"trl": "1.99.0", "verl": "0.9.2", "numpy": "1.0", "transformers": "5.0"}

    def version(name: str) -> str:
        if name in ("networkx", "triton"):
            raise metadata.PackageNotFoundError(name)
        return versions.get(name) or real(name)

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = (f"{r} ; extra == {e!r}" for e, rs in project["optional-dependencies"].items() for r in rs if ";" not in r)
    monkeypatch.setattr(doctor.metadata, "requires", lambda name: [*project["dependencies"], *extras])
    monkeypatch.setattr(doctor.metadata, "version", version)
    by_name = {f.name: f for f in doctor._software()}
    assert by_name["trl"].state == "look" and by_name["trl"].remedy.startswith("pip install 'trl")
    assert by_name["verl"].state == "fine" and "series that is supported" in by_name["verl"].value
    assert by_name["numpy"].state == by_name["networkx"].state == "broken"
    assert by_name["transformers"].state == "fine"
    assert "triton" not in by_name and "hypothesis" not in by_name


def test_more_threads_than_cores_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "usable_cores", lambda: torch.get_num_threads() - 1)
    threads = next(f for f in doctor._hardware() if f.name == "threads")
    assert threads.state == "look" and "OMP_NUM_THREADS=" in threads.remedy


def test_a_driver_without_a_device_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(doctor, "DRIVERS", {"NVIDIA": Path(__file__)})
    gpu = doctor._gpu()
    assert gpu.state == "look" and gpu.value.startswith("NVIDIA has a driver here") and gpu.remedy


def test_a_spec_that_needs_other_rollouts_leaves_the_machine_usable() -> None:
    code, _, by_name = found("fiberpo_crossed")
    assert code == 0
    for name in ("backend torch", "backend c"):
        assert by_name[name]["state"] == "note" and by_name[name]["value"].startswith(
            "not tried: the rollouts say nothing"
        )


def test_a_wrong_or_unknown_spec_is_an_error(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text("from fibration import load\nwrong = load('ppo').replace(gives_up={'positivity': 'no reason'})\n")
    code, output = invoke(str(wrong))
    assert code == 1 and "gives up" in output
    assert invoke(str(tmp_path / "nothing.py"))[0] == 2
