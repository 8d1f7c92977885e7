"""Generated sources, kept in the repository so that a change in the compiler shows in its diff.

To renew them after an intended change: FIBRATION_UPDATE_GOLDEN=1 make test
"""

import os
from importlib import import_module
from pathlib import Path

import pytest

import fibration
from fibration.pipeline import BACKENDS, TITLES, WRITTEN, generate, header

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.mark.parametrize(("name", "backend"), [("gspo", "torch"), ("grpo_k3", "jax")])
def test_generated_modules_equal_the_recorded_files(name, backend):
    compare(GOLDEN / f"{name}_{backend}.txt", generate(fibration.load(name), backend).source)


@pytest.mark.parametrize("backend", ["c", "triton"])
def test_kernels_equal_the_recorded_files(backend):
    """The other programs are made of the same parts."""
    made = generate(fibration.load("fiberpo"), backend)
    plans = {name: made.plans[name] for name in ("evaluate", "objective")}
    emit = import_module(f"fibration.backends.{backend}.emit").emit
    compare(GOLDEN / f"fiberpo_{backend}.txt", emit(header(made.hierarchy, backend, made.programs), plans, TITLES))


def compare(path, source):
    if os.environ.get("FIBRATION_UPDATE_GOLDEN") == "1":
        path.write_text(source)
    assert source == path.read_text(), f"{path.name} is out of date; read the difference, then renew it"


@pytest.mark.sampled
@pytest.mark.parametrize("backend", [*BACKENDS, WRITTEN])
def test_generation_is_deterministic(backend):
    hierarchy = fibration.load("fiberpo_domain")
    assert generate(hierarchy, backend).source == generate(hierarchy.replace(), backend).source
