"""The Triton backend: machine code for chips that this machine lacks, and the resources of its kernels."""

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from hierarchies.random_chains import chain
from support import triton_artifact
from thorough import ALL

from fibration import BackendError
from fibration.backends.triton import aot
from fibration.backends.triton.aot import SCAN, compile_all, requests
from fibration.backends.triton.language import HELPERS
from fibration.compiler.split import SUFFIX
from fibration.pipeline import generate

# What a module asks of torch when it is imported. Its kernels ask nothing, and importing it takes as long as they do.
TORCH = "import types\ntorch = types.SimpleNamespace(version=types.SimpleNamespace(hip=None))\n"


def together(names, programs, arch):
    """The kernels of several modules in one, for one process, without torch."""
    source, wanted = "", []
    for name in names:
        own = re.compile(r"\b(\w+)_(sweep|coarse)_(\d+)\b")
        source += own.sub(rf"{name}_\1_\2_\3", triton_artifact(name).source)
        for program in programs:
            found = requests(triton_artifact(name).plans, program)
            wanted += [replace(r, kernel=f"{name}_{r.kernel}") for r in found]
    assert source.count("import torch\n") == len(names)
    source = source.replace("import torch\n", TORCH) + f"\n\n{HELPERS['later']}\n\n\n{HELPERS['along']}\n"
    return source, [*wanted, *SCANS]


# Sums in order: along long rows, on all warps; and along short ones, many at once, in an order of the index.
SHORT = replace(SCAN, signature={**SCAN.signature, "order": "*i64"}, constexprs={"rows": 32, "columns": 4}, num_warps=4)
SCANS = (replace(SCAN, constexprs={**SCAN.constexprs, "columns": 2048}, num_warps=16), SHORT)
KINDS = ("ppo", "gspo", "fiberpo_domain", "apc_obj", "cispo", "fiberpo_modal")  # a chain, a tree, ...
QUIVERS = ("fiberpo_crossed", "fiberpo_experts")  # large: not on every chip
AHEAD = [  # every kind on some chip, the larger ones where registers are counted
    ("sm_90", "objective", (*KINDS, "fiberpo", *QUIVERS) if ALL else ("fiberpo_domain", "fiberpo_experts")),
    ("sm_90", "objective" + SUFFIX, ("fiberpo_domain", "fiberpo_crossed") if ALL else ("fiberpo_domain",)),
    ("sm_100", "objective", KINDS if ALL else ("apc_obj",)),
    ("gfx942", "objective", (*KINDS, "fiberpo_crossed") if ALL else ("gspo",)),
]
if ALL:  # each start of a compiler takes a second
    AHEAD += [("sm_90", "evaluate", ("ppo", "gspo", "fiberpo", "fiberpo_domain")), ("sm_80", "objective", KINDS)]


@pytest.fixture(scope="module")
def ahead():
    """Every kernel that the tests below look at, on two cores."""
    jobs = {(arch, program): together(names, (program,), arch) for arch, program, names in AHEAD}
    with ThreadPoolExecutor(2) as pool:
        made = {k: pool.submit(aot.compile_kernels, source, r, arch=k[0]) for k, (source, r) in jobs.items()}
        return {k: future.result() for k, future in made.items()}


@pytest.mark.sampled
@pytest.mark.thorough
@pytest.mark.parametrize(("arch", "program", "names"), AHEAD, ids=lambda v: v if isinstance(v, str) else "")
def test_every_kind_of_shipped_hierarchy_compiles_ahead_of_time(ahead, arch, program, names):
    found = ahead[arch, program]
    count = sum(len(list(requests(triton_artifact(n).plans, program))) for n in names) + len(SCANS)
    assert len(found) == count
    for kernel in found:
        assert kernel.arch == arch and kernel.binary and kernel.resources.registers > 0
        assert kernel.target == arch + "a" * (arch in ("sm_90", "sm_100"))
        if arch == "sm_90" and "sweep" in kernel.kernel:
            # ptxas puts a value or two that no loop reads on the stack where that lets one more program run
            assert kernel.resources.spill_bytes <= 16, kernel


@pytest.mark.thorough
def test_compiled_kernels_report_their_resources_and_parameters(tmp_path):
    made = triton_artifact("ppo")
    (one,) = compile_all(made.source, made.plans, "sm_90", ["gate_adjoint"])["gate_adjoint"]
    assert one.kernel == "gate_adjoint_sweep_1"
    (tmp_path / "0.ptx").write_text(one.assembly)
    for known in ({"n_trajectory": "i32"}, {**one.parameters, "more": "*i8"}):
        with pytest.raises(BackendError, match="takes other parameters") as caught:  # than the certificate would list
            aot._compiled("one", "sm_90", {"assembly": "ptx", "parameters": known}, tmp_path / "0")
        assert caught.value.found == f"{[4, *[8] * 9, 4, 8, 8]} bytes"


@pytest.mark.thorough
def test_other_layouts_and_dtypes_compile():
    """Gathered tokens, advantages per row, half precision, float64, no order: what other launches are made of."""
    made = triton_artifact("fiberpo_domain")
    wanted = []
    for r in requests(made.plans, "objective", (4, 32, 4)):
        gathered = {k: "*i64" for k, v in r.constexprs.items() if v is None}
        half = {k: "*bf16" if k in ("log_probs", "old_log_probs", "advantages") else t for k, t in r.signature.items()}
        wanted.append(replace(r, signature={**half, **gathered}, constexprs=_without(r.constexprs, gathered)))
        sorted_ = {k: None for k in r.signature if re.match(r"\w+_by_\w+$", k)}
        double = {k: "*fp64" if t == "*fp32" else t for k, t in _without(r.signature, sorted_).items()}
        wide = {"WIDE": True} if "WIDE" in r.constexprs else {}
        wanted.append(replace(r, signature=double, constexprs={**r.constexprs, **sorted_, **wide}))
    assert len(wanted) == 10
    wanted = (
        wanted if ALL else [wanted[0], wanted[3], wanted[5], wanted[6], wanted[8]]
    )  # every kernel, and every change
    assert len(aot.compile_kernels(made.source, wanted, arch="sm_90")) == len(wanted)


@pytest.mark.thorough
def test_a_random_chain_compiles_ahead_of_time():
    """Gates of many kinds, a stratum under the rows, attributes."""
    made = generate(chain(9), "triton")
    wanted = list(requests(made.plans, "gate_adjoint"))[: None if ALL else 1]
    assert all(k.binary for k in aot.compile_kernels(made.source, wanted, arch="sm_90"))


def _without(values, names):
    return {k: v for k, v in values.items() if k not in names}
