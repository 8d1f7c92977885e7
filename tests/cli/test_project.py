"""`fibration init`: its files pass their checks unchanged, and it overwrites nothing."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

import pytest
from support import invoke
from thorough import ALL
from typer.testing import CliRunner

import fibration
from fibration.cli.main import app
from fibration.cli.project import FILES, WORKFLOW

ROOT = Path(__file__).resolve().parents[2]


def written(folder: Path) -> dict[str, str]:
    return {p.relative_to(folder).as_posix(): p.read_text() for p in folder.rglob("*") if p.is_file()}


def test_a_new_project_verifies_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "deep" / "project"
    code, output = invoke("init", folder)
    assert code == 0
    assert written(folder) == {name: text for name, (text, _) in FILES.items()}
    assert all(name in output for name in FILES)
    assert output.splitlines()[5:7] == ["next:", f"  cd {folder}"]
    monkeypatch.chdir(folder)
    assert all(f"  {word}" in output for word in ("fibration verify specs/ ", "python -m pytest ", "fibration run "))
    code, output = invoke("verify", "specs/")
    assert (code, output.splitlines()[-1]) == (0, "1 of 1 hierarchy verified")
    tests = runpy.run_path("tests/test_my_loss.py")
    op = fibration.compile(fibration.load("specs/my_loss.py"))
    for function in TESTS:
        tests[function](op)


TESTS = re.findall(r"^def (test_\w+)\(op\):$", FILES["tests/test_my_loss.py"][0], re.MULTILINE)


OTHERS = {  # each test fails where this is written in the place of that
    "token_mean()": "trajectory_mean()",
    "pessimistic_clip_gate(low, high)}": "identity_gate()}",
    "minimum(mismatch, cap)": "mismatch",
}


@pytest.mark.sampled
@pytest.mark.parametrize(("function", "written"), list(zip(TESTS, OTHERS, strict=True)))
def test_the_projects_test_fails_for_another_loss(function: str, written: str, tmp_path: Path) -> None:
    (tmp_path / "test.py").write_text(FILES["tests/test_my_loss.py"][0])
    spec = FILES["specs/my_loss.py"][0]
    assert written in spec
    imported = "from fibration import identity_gate, trajectory_mean"
    (tmp_path / "spec.py").write_text(f"{imported}\n{spec.replace(written, OTHERS[written])}")
    with pytest.raises(AssertionError):
        runpy.run_path(str(tmp_path / "test.py"))[function](
            fibration.compile(fibration.load(tmp_path / "spec.py"), backend="torch")
        )


@pytest.mark.skipif(not ALL, reason="a process of its own, with torch")
def test_the_projects_tests_pass_under_pytest(tmp_path: Path) -> None:
    invoke("init", tmp_path)
    command = [sys.executable, "-m", "pytest", "-p", "_fibration_pytest", "-W", "error", "-v"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment, check=False)
    assert run.returncode == 0, run.stdout
    assert "specs/my_loss.py::my_loss PASSED" in run.stdout
    assert f"{len(TESTS) + 1} passed" in run.stdout


def test_if_one_file_cannot_be_written_none_is_written(tmp_path: Path) -> None:
    (tmp_path / ".github").write_text("")
    result = CliRunner().invoke(app, ["init", str(tmp_path)])
    assert result.exit_code == 2 and "is a file" in result.output
    assert [p.name for p in tmp_path.iterdir()] == [".github"]


def test_pytest_ini_names_the_specs() -> None:
    configuration = ConfigParser()
    configuration.read_string(FILES["pytest.ini"][0])
    assert dict(configuration["pytest"]) == {"fibration_specs": "specs/"}


def test_the_workflow_equals_that_of_the_page_and_runs_the_tests() -> None:
    (page,) = re.findall(r"```yaml\n(name: laws\non:.*?)```", (ROOT / "docs" / "ci.md").read_text(), re.DOTALL)
    more = "      - run: python -m pytest\n"
    assert page.replace('install "$FIBRATION"', 'install "$FIBRATION" pytest') + more == WORKFLOW


@pytest.mark.parametrize("name", [name for name in FILES if name != "pytest.ini"])
def test_an_existing_file_stops_init_before_the_first_write(name: str, tmp_path: Path) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("mine")
    code, output = invoke("init", tmp_path)
    assert code == 2
    assert f"holds {name} already" in output
    assert written(tmp_path) == {name: "mine"}


@pytest.mark.parametrize(
    ("name", "text", "is_configured"),
    [
        ("pytest.ini", "", True),
        ("pyproject.toml", "[tool.pytest.ini_options]\naddopts = '-q'\n", True),
        ("tox.ini", "[pytest]\n", True),
        ("setup.cfg", "[tool:pytest]\n", True),
        ("pyproject.toml", "[project]\nname = 'mine'\n", False),
    ],
)
def test_a_configuration_of_pytest_stays_the_only_one(
    name: str, text: str, is_configured: bool, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    code, output = invoke("init", tmp_path)
    assert code == 0
    made = written(tmp_path)
    assert made[name] == text
    assert ("pytest.ini" in made.keys() - {name}) != is_configured
    specs = '["specs/"]' if name.endswith(".toml") else "specs/"
    assert (f"{name} configures pytest: add fibration_specs = {specs} " in output) == is_configured


def test_init_in_this_folder_prints_no_cd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, output = invoke("init")
    assert code == 0
    assert "cd " not in output
    assert written(tmp_path).keys() == FILES.keys()


def test_init_below_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    code, output = invoke("init", tmp_path / "file" / "project")
    assert code == 2
    assert f"'{tmp_path / 'file'}' is a file" in output
