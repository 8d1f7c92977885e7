"""Importing the library needs no trainer, and the extras allow the tested releases."""

import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
NEEDED = (
    "accelerate",
    "datasets",
    "omegaconf",
    "ray",
    "tensordict",
    "tinker",
    "torchrl",
    "transformers",
    "trl",
    "verl",
)


@pytest.mark.thorough
def test_importing_the_library_imports_no_trainer():
    """Nor does any of its names, or the command line."""
    program = (
        "import sys, fibration; [getattr(fibration, name) for name in fibration.__all__]; import fibration.cli.main\n"
        f"print(*{{m.split('.')[0] for m in sys.modules}} & {set(NEEDED)}, 'fibration.trainers' in sys.modules)"
    )
    made = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=ROOT)
    assert (made.stdout, made.stderr) == ("False\n", "")


@pytest.mark.parametrize(
    ("trainer", "environment"), [("trl", "trl"), ("verl", "verl"), ("tinker", "tinker"), ("torchrl", "tinker")]
)
def test_an_extra_allows_the_tested_release_and_not_the_next_series(trainer, environment):
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (allowed,) = map(Requirement, extras[trainer])
    pins = (ROOT / f"constraints-{environment}.txt").read_text()
    tested = re.search(rf"^{trainer}==(.*)$", pins, re.MULTILINE).group(1)
    major, minor, *_ = map(int, tested.split("."))
    assert (allowed.name, allowed.specifier.contains(tested)) == (trainer, True)
    assert not allowed.specifier.contains(f"{major}.{minor + 1}.0")
    if trainer in os.environ.get("FIBRATION_TRAINER", "").split():
        assert version(trainer) == tested
