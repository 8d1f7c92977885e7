"""Runs the tests of the trainer that `FIBRATION_TRAINER` names, as `make test-trainers` does, and skips all others."""

import os
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TRAINERS = ("trl", "verl")
WANTED = os.environ.get("FIBRATION_TRAINER")


class Elsewhere(pytest.Module):
    """A file that is not imported, since what it imports need not be here."""

    def collect(self):
        name = self.path.relative_to(HERE).parts[0]
        pytest.skip(f"needs {name}: `make test-trainers` runs it in .venv-{name}", allow_module_level=True)


def pytest_configure(config):
    if WANTED is not None:  # trainers warn of much, of which nothing is ours
        config.addinivalue_line("filterwarnings", "default")
        config.addinivalue_line("filterwarnings", "error:::fibration")
        sys.path.insert(0, str(HERE / WANTED))  # helpers lie beside the tests


def pytest_pycollect_makemodule(module_path, parent):
    trainer = module_path.relative_to(HERE).parts[0]
    return Elsewhere.from_parent(parent, path=module_path) if trainer in TRAINERS and trainer != WANTED else None
