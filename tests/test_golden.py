"""Generated sources, kept in the repository so that a change in the compiler shows in its diff.

To renew them after an intended change: FIBRATION_UPDATE_GOLDEN=1 make test
"""

import os
from pathlib import Path

import pytest

import fibration
from fibration.compiler import generate

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("name", ["fiberpo", "gspo", "ppo"])
def test_generated_torch_source_is_as_it_was(name):
    source = generate(fibration.load(name), "torch").source
    path = GOLDEN / f"{name}_torch.txt"
    if os.environ.get("FIBRATION_UPDATE_GOLDEN") == "1":
        path.write_text(source)
    assert source == path.read_text(), f"{path.name} is out of date; read the difference, then renew it"


def test_generation_is_deterministic():
    hierarchy = fibration.load("fiberpo_domain")
    assert generate(hierarchy, "torch").source == generate(hierarchy.replace(), "torch").source
