"""sdist → wheel → install: everything that the package needs is in it, under one name, and pytest finds its plugin."""

import configparser
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SKIP = shutil.ignore_patterns(
    ".git", ".venv*", ".*_cache", ".hypothesis", "__pycache__", "build", "dist", "out", "*.egg-info"
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    work = tmp_path_factory.mktemp("packaging")
    shutil.copytree(ROOT, work / "source", symlinks=True, ignore=SKIP)
    build = "import setuptools.build_meta as b, sys; print(getattr(b, sys.argv[1])(sys.argv[2]))"

    def run(hook, cwd):
        made = subprocess.run(
            [sys.executable, "-c", build, hook, str(work)], cwd=cwd, capture_output=True, text=True, check=False
        )
        assert made.returncode == 0, made.stdout + made.stderr
        return work / made.stdout.split()[-1]

    with tarfile.open(run("build_sdist", work / "source")) as sdist:
        sdist.extractall(work / "unpacked", filter="data")
    return run("build_wheel", next((work / "unpacked").iterdir()))


@pytest.mark.thorough
def test_the_wheel_holds_the_linked_folders_once_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    tops = {n.split("/")[0] for n in names}
    assert {t for t in tops if not t.endswith(".dist-info")} == {"fibration", "_fibration_pytest.py"}
    expected = {"_fibration_pytest.py"} | {
        f"fibration/{p.relative_to(base)}"
        if base.name == "fibration"
        else f"fibration/{base.name}/{p.relative_to(base)}"
        for base in (ROOT / "fibration", ROOT / "backends", ROOT / "specs")
        for p in base.rglob("*.py")
        if not {"backends", "specs"} & set(p.relative_to(base).parts[:1]) or base.name != "fibration"
    }
    assert {n for n in names if n.endswith(".py")} == expected
    assert {"fibration/py.typed", "fibration/data/rollouts.safetensors"} <= set(names)
    assert any(n.endswith("licenses/LICENSE") for n in names)


@pytest.mark.thorough
def test_the_unpacked_wheel_works_without_the_checkout(wheel, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path)
    code = (
        "import fibration, sys; assert sys.argv[1] in fibration.__file__, fibration.__file__\n"
        "op = fibration.compile(fibration.load('fiberpo_domain'))\n"
        "assert op.report.ok and len(fibration.load_rollouts().offsets) > 256"
    )
    clean = {"PYTHONPATH": str(tmp_path), "PATH": "", "PYTHONDONTWRITEBYTECODE": "1"}
    made = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=tmp_path,
        env=clean,
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr


def test_the_metadata_names_the_command_and_the_plugins(wheel):
    with zipfile.ZipFile(wheel) as content:
        name = next(n for n in content.namelist() if n.endswith(".dist-info/entry_points.txt"))
        points = configparser.ConfigParser(delimiters="=")
        points.read_string(content.read(name).decode())
    assert {s: dict(points[s]) for s in points.sections()} == {
        "console_scripts": {"fibration": "fibration.cli.main:main"},
        "pytest11": {"fibration": "_fibration_pytest"},
        "verl.plugins": {"fibration": "fibration.trainers.verl.plugin"},
    }


@pytest.mark.thorough
def test_pytest_loads_the_plugin_of_the_unpacked_wheel(wheel, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    (tmp_path / "project").mkdir()
    clean = {"PYTHONPATH": str(tmp_path / "site"), "PATH": "", "PYTHONDONTWRITEBYTECODE": "1"}
    made = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "-W", "error", "--fibration", "gspo"],
        cwd=tmp_path / "project",
        env=clean,
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    assert "sequences.py::gspo PASSED" in made.stdout
    assert "1 passed" in made.stdout


@pytest.mark.parametrize("folder", ["specs", "backends", "backends/torch"])
def test_linked_folders_cannot_be_imported_by_their_bare_name(folder):
    parent, name = ROOT / Path(folder).parent, Path(folder).name
    made = subprocess.run(
        [sys.executable, "-S", "-c", f"import {name}"], cwd=parent, capture_output=True, text=True, check=False
    )
    assert made.returncode == 1
    assert "ImportError: import fibration." in made.stderr
