"""Runs the tests of the trainers that `FIBRATION_TRAINER` names, as `make test-trainers` does, and skips all others."""

import os
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ENVIRONMENTS = {"trl": "trl", "verl": "verl", "tinker": "tinker", "torchrl": "tinker"}
WANTED = os.environ.get("FIBRATION_TRAINER", "").split()


class Elsewhere(pytest.Module):
    """A file that is not imported, since what it imports need not be here."""

    def collect(self):
        name = self.path.relative_to(HERE).parts[0]
        pytest.skip(
            f"needs {name}: `make test-trainers` runs it in .venv-{ENVIRONMENTS[name]}", allow_module_level=True
        )


def pytest_configure(config):
    if WANTED:  # trainers warn of much, of which nothing is ours
        config.addinivalue_line("filterwarnings", "default")
        config.addinivalue_line("filterwarnings", "error:::fibration")
        sys.path[:0] = [str(HERE / trainer) for trainer in WANTED]  # helpers lie beside the tests


def pytest_pycollect_makemodule(module_path, parent):
    trainer = module_path.relative_to(HERE).parts[0]
    return (
        Elsewhere.from_parent(parent, path=module_path) if trainer in ENVIRONMENTS and trainer not in WANTED else None
    )
