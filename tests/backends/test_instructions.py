"""The Triton backend's sweeps: machine instructions of a token and of a row, and registers, against a table.

Instructions limit the sweeps of a GPU, not memory. The numbers of `instructions.json` only go down. After a change that
lowers them: FIBRATION_UPDATE_GOLDEN=1 python -m pytest tests/backends/test_instructions.py, with FIBRATION_TESTS=most.
"""

import json
import os
from pathlib import Path

import pytest
import triton
from machine_code import loops_and_rest
from support import triton_artifact

from fibration.backends.triton.aot import SHAPE, compile_kernels, requests
from fibration.compiler.split import SUFFIX

TABLE = Path(__file__).with_name("instructions.json")
TOKENS = SHAPE[0] * SHAPE[1] / SHAPE[2] / 32  # of a thread in one tile
ENOUGH = 64  # registers: more than the 32 warps that they leave room for gain nothing
PROGRAMS = [*((name, "objective") for name in ("ppo", "gspo", "fiberpo")), ("fiberpo_domain", "objective" + SUFFIX)]


def counted(name, program, folder):
    """Of every sweep: instructions per token, in all its passes; instructions per row, of which a program has several;
    registers of a thread, which a GPU allocates by eights."""
    made = triton_artifact(name)
    wanted = [r for r in requests(made.plans, program) if "sweep" in r.kernel]
    found = {}
    for kernel in compile_kernels(made.source, wanted, arch="sm_90"):
        loops, rest = loops_and_rest(kernel.binary, folder)
        of_tokens = [loop for loop in loops if not loop.fills]
        assert not any(loop.count("SHFL") for loop in of_tokens), f"{kernel.kernel} shuffles in a loop over tokens"
        assert all(loop.count("LDG") == loop.count("LDG.E.128") for loop in of_tokens), (
            f"{kernel.kernel} reads one by one"
        )
        token = sum(loop.count() for loop in of_tokens) / TOKENS
        registers = max(ENOUGH, -(-kernel.resources.registers // 8) * 8)
        found[kernel.kernel] = {"token": token, "row": rest.count() / SHAPE[0], "registers": registers}
    return found


def test_the_page_has_the_numbers_of_the_table():
    page = Path(__file__).parents[2] / "docs" / "benchmarks" / "gpu.md"
    _, rows = page.read_text().split("registers, before | now |\n|---|---|---|---|---|---|---|\n")
    shown = [[float(c) for c in row.split("|")[3:-1:2]] for row in rows.split("\n\n")[0].strip().splitlines()]
    sweeps = [s for of in json.loads(TABLE.read_text())["sweeps"].values() for s in of.values()]
    assert shown == [[s["token"], s["row"], s["registers"]] for s in sweeps]


@pytest.mark.sampled
@pytest.mark.thorough
@pytest.mark.parametrize(("name", "program"), PROGRAMS)
def test_a_sweep_takes_no_more_instructions_than_its_budget(name, program, tmp_path):
    table = json.loads(TABLE.read_text())
    if triton.__version__ != table["triton"]:
        pytest.skip(f"the table is of triton {table['triton']}")
    found = counted(name, program, tmp_path)
    budget = table["sweeps"].setdefault(f"{name} {program}", found)
    over = [
        f"{kernel}: {number:g} {what}, budget {budget[kernel][what]:g}"
        for kernel, numbers in found.items()
        for what, number in numbers.items()
        if number > budget[kernel][what]
    ]
    assert not over
    if os.environ.get("FIBRATION_UPDATE_GOLDEN") == "1":
        table["sweeps"][f"{name} {program}"] = found
        TABLE.write_text(json.dumps(table, indent=1) + "\n")
