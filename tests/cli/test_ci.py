"""Verification in CI: the pre-commit hook, the examples of docs/ci.md, and the table of all verdicts."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

import pytest
import yaml
from typer.testing import CliRunner

from fibration import NoHierarchy, SpecError, load
from fibration.cli.main import app
from fibration.language.loading import hierarchies, load_all
from fibration.printing.formats import FORMATS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "ci.md").read_text()
GOOD = load("ppo").model_dump_json()
WRONG = load("ppo").replace(gives_up={"positivity": "no reason"}).model_dump_json()


def verify(*arguments: object) -> tuple[int, str]:
    """Exit code, and stdout with stderr."""
    result = CliRunner().invoke(app, ["verify", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    return result.exit_code, result.output


# ---------------------------------------------------------------- files without a hierarchy

HELPER = "WIDTH = 3\n"
NOTHING = {
    "helper.py": HELPER,
    "empty.py": "",
    "private.py": "from fibration import load\n_mine = load('ppo')\n",
    "list.json": "[]",
    "settings.json": '{"name": "something", "width": 3}',
}
BROKEN = {
    "raises.py": "1 / 0",
    "half.json": '{"name": "half", "gates": {"token": "clip_gate(1)"}}',
    "garbage.json": "{",
    "deep.json": "[" * 100_000,
    "bytes.json": "\x00",
}


@pytest.mark.sampled
@pytest.mark.parametrize("name", NOTHING)
def test_a_file_without_a_hierarchy_is_unusable_without_if_any(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = Path(name)
    file.write_text(NOTHING[name])
    with pytest.raises(NoHierarchy, match=re.escape(name)):
        hierarchies(file)
    assert verify(file)[0] == 2
    assert verify(file, "--if-any") == (0, f"0 of 0 hierarchies verified; no hierarchy in: {file}\n")


@pytest.mark.sampled
@pytest.mark.parametrize("name", BROKEN)
def test_a_file_that_cannot_be_read_is_an_error_with_if_any(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = Path(name)
    file.write_text(BROKEN[name])
    with pytest.raises(SpecError) as caught:
        hierarchies(file)
    assert not isinstance(caught.value, NoHierarchy)
    code, output = verify(file, "--if-any")
    assert code == 2
    assert output.startswith("error: ")
    assert f"unusable: {file}" in output


def test_unknown_names_and_paths_are_errors_with_if_any(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text(HELPER)
    for spec in (f"{tmp_path / 'helper.py'}:missing", tmp_path / "nothing.py", "no_such_name"):
        assert verify(spec, "--if-any")[0] == 2
    assert verify(tmp_path / "helper.py", "ppo", "--if-any")[0] == 0


def test_an_empty_folder_is_accepted_with_if_any(tmp_path: Path) -> None:
    assert verify(tmp_path)[0] == 2
    assert verify(tmp_path, "--if-any")[0] == 0


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_takes_files_without_a_hierarchy(form: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(GOOD)
    (tmp_path / "helper.py").write_text(HELPER)
    file = tmp_path / "report"
    code, output = verify(tmp_path, "--if-any", "--format", form, "--output", file)
    assert code == 0
    assert output.startswith(f"1 of 1 hierarchy verified; no hierarchy in: {tmp_path / 'helper.py'}; report in ")
    text = file.read_text()
    assert text.endswith("\n") and "\x1b" not in text
    assert sorted(p.name for p in tmp_path.iterdir() if p.name != "__pycache__") == ["a.json", "helper.py", "report"]
    if form == "json":
        assert [r["hierarchy"] for r in json.loads(text)] == ["ppo"]
    if form == "junit":
        assert [s.get("name") for s in Xml.fromstring(text)] == ["ppo"]


def test_a_file_with_several_hierarchies_is_verified_by_name(tmp_path: Path) -> None:
    file = tmp_path / "two.py"
    file.write_text("from fibration import load\nb = load('ppo')\na = load('gspo')\nagain = b\n")
    assert hierarchies(file) == {"b": load("ppo"), "a": load("gspo")}
    assert hierarchies(f"{file}:a") == {"a": load("gspo")}
    assert hierarchies("gspo") == {"gspo": load("gspo")}
    with pytest.raises(SpecError, match="holds 2 hierarchies") as caught:
        load(file)
    assert not isinstance(caught.value, NoHierarchy)
    assert load_all(tmp_path) == [load("ppo"), load("gspo")]


# ---------------------------------------------------------------- YAML


def read(text: str) -> Any:
    return yaml.load(text, Loader=yaml.BaseLoader)  # strings stay strings, and `on` is no truth value


def examples(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


ACTIONS, GITLAB, HOSTED, LOCAL = (read(text) for text in examples("yaml"))
HOOK: dict[str, Any] = read((ROOT / ".pre-commit-hooks.yaml").read_text())[0]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with specs, and `fibration` on the path as an installation would put it there."""
    command = tmp_path / "bin" / "fibration"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m fibration "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(command.parent), prepend=os.pathsep)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name, text in {"good.json": GOOD, "wrong.json": WRONG, "helper.py": HELPER}.items():
        for folder in ("specs", "losses"):
            (tmp_path / folder).mkdir(exist_ok=True)
            (tmp_path / folder / name).write_text(text)
    (tmp_path / "setup.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def shell(line: str, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **more}
    return subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, encoding="utf-8", env=environment, check=False
    )


# ---------------------------------------------------------------- pre-commit


def chosen(hook: dict[str, Any], names: list[str]) -> list[str]:
    """The files that pre-commit gives to a hook: it searches with `files` and `exclude`."""
    return [n for n in names if re.search(hook["files"], n) and not re.search(hook.get("exclude", "^$"), n)]


def test_the_hook_has_the_fields_that_pre_commit_requires() -> None:
    assert {"id", "name", "entry", "language"} <= HOOK.keys()
    assert HOOK["id"] == "fibration-verify"
    assert HOOK["language"] == "python"
    assert HOOK["types_or"] == ["python", "json"]
    script = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert HOOK["entry"].split()[0] in script


def test_the_hook_matches_specs_and_nothing_else() -> None:
    good = ["specs/ppo.py", "specs/deep/mine.json", "src/mine/specs/loss.py"]
    bad = ["setup.py", "specs.py", "my_specs/a.py", "specs/__init__.py", "specs/_shared.py", "specs/.hidden.json"]
    assert chosen(HOOK, [*good, *bad]) == good


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("files", "code", "words"),
    [
        (["specs/good.json"], 0, "1 of 1 hierarchy verified"),
        (["specs/helper.py"], 0, "no hierarchy in: specs/helper.py"),
        (["specs/good.json", "specs/helper.py"], 0, "1 of 1 hierarchy verified; no hierarchy in: specs/helper.py"),
        (["specs/good.json", "specs/wrong.json"], 1, "refused: ppo"),
        (["specs/good.json", "setup.py"], 2, "'setup.py' does not import"),
    ],
)
def test_the_hooks_entry_on_changed_files(project: Path, files: list[str], code: int, words: str) -> None:
    command, *arguments = shlex.split(HOOK["entry"])
    result = CliRunner().invoke(app, [*arguments, *files])
    assert (command, result.exit_code) == ("fibration", code), result.output
    assert words in " ".join(result.output.split())


@pytest.mark.thorough
def test_the_pre_commit_examples_of_the_page_run(project: Path) -> None:
    assert shell(f"{HOOK['entry']} specs/good.json specs/wrong.json").returncode == 1
    assert [hook["id"] for repo in HOSTED["repos"] for hook in repo["hooks"]] == [HOOK["id"]]
    mine = {**HOOK, **HOSTED["repos"][0]["hooks"][0]}
    assert chosen(mine, ["losses/a.py", "specs/a.py", "losses/_a.py"]) == ["losses/a.py"]
    (local,) = LOCAL["repos"][0]["hooks"]
    assert local["pass_filenames"] == "false"
    (project / "losses" / "helper.py").rename(project / "losses" / "_helper.py")
    assert shell(local["entry"]).returncode == 1
    (project / "losses" / "wrong.json").unlink()
    assert shell(local["entry"]).returncode == 0


# ---------------------------------------------------------------- GitHub, GitLab, pytest


@pytest.mark.thorough
def test_the_github_workflow_of_the_page_runs(project: Path) -> None:
    (job,) = ACTIONS["jobs"].values()
    uses = [s["uses"].split("@")[0] for s in job["steps"] if "uses" in s]
    assert uses == ["actions/checkout", "actions/setup-python", "actions/upload-artifact"]
    supported = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert tuple(map(int, job["steps"][1]["with"]["python-version"].split("."))) >= tuple(
        map(int, supported.removeprefix(">=").split("."))
    )
    annotate, summarise, report = (s["run"] for s in job["steps"] if s.get("run", "").startswith("fibration "))
    (project / "specs" / "helper.py").unlink()
    made = shell(annotate)
    assert made.returncode == 1
    assert made.stdout.startswith("::error file=specs/wrong.json,title=ppo%3A given_up::")
    assert shell(summarise, GITHUB_STEP_SUMMARY=str(project / "summary.md")).returncode == 1
    assert (project / "summary.md").read_text().startswith("|  | hierarchy | outcome |\n")
    assert shell(report).returncode == 1 and "ppo" in (project / job["steps"][-1]["with"]["path"]).read_text()
    (project / "specs" / "wrong.json").unlink()
    made = shell(annotate)
    assert (made.returncode, made.stdout) == (0, "1 of 1 hierarchy verified\n")


@pytest.mark.thorough
def test_the_gitlab_job_of_the_page_runs(project: Path) -> None:
    job = GITLAB["laws"]
    (line,) = (s for s in job["script"] if s.startswith("fibration "))
    (project / "specs" / "helper.py").unlink()
    assert shell(line).returncode == 1
    root = Xml.parse(project / job["artifacts"]["reports"]["junit"]).getroot()
    assert (root.get("failures"), root.get("errors")) == ("1", "0")
    assert job["artifacts"]["when"] == "always"  # a refusal is what the report is for


def test_the_pytest_configuration_of_the_page_is_valid() -> None:
    from _fibration_pytest import pytest_addoption

    options = {}
    for example in examples("toml"):
        options |= tomllib.loads(example)["tool"]["pytest"]["ini_options"]
    parser = pytest.Parser(_ispytest=True)
    pytest_addoption(parser)
    assert options.keys() == parser._inidict.keys()
    assert all(isinstance(spec, str) for spec in options["fibration_specs"])


def test_the_page_names_every_format() -> None:
    assert [form for form in FORMATS if form not in ("text", "json") and f"--format {form}" not in PAGE] == []
    readme = (ROOT / "README.md").read_text()
    assert ", ".join(FORMATS) in readme


# ---------------------------------------------------------------- the table of laws


@pytest.mark.thorough
def test_the_table_has_a_row_for_every_shipped_hierarchy() -> None:
    from fibration.language.loading import shipped
    from fibration.laws import LAWS

    code, table = verify(ROOT / "specs", "--all", "--format", "markdown")
    assert code == 0
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("|")
    ]
    assert rows[0] == ["hierarchy", *LAWS]
    assert sorted(row[0] for row in rows[2:]) == list(shipped())
    assert {len(row) for row in rows} == {1 + len(LAWS)}
