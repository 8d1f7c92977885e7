"""Kept launches of compiled kernels, on a driver that notes launches: the scenarios of `oracles/kept_launches.py`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from oracles import kept_launches
from thorough import LEVEL

TESTS = Path(__file__).parents[1]
# Compiling the kernels of all scenarios takes half a minute.
NAMES = ("unaligned_tensors_take_other_kernels",) if LEVEL == "few" else kept_launches.NAMES


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """What each scenario says, in a process that compiles kernels."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TRITON_")}
    environment["TRITON_CACHE_DIR"] = str(tmp_path_factory.getbasetemp().parent / "ptx")
    environment["PYTHONPATH"] = os.pathsep.join([str(TESTS), str(TESTS.parent)])
    script = str(TESTS / "oracles" / "kept_launches.py")
    done = subprocess.run([sys.executable, script, *NAMES], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.sampled
@pytest.mark.parametrize("name", NAMES)
def test_kept_launches(name, answers):
    assert not answers[name], answers[name]
