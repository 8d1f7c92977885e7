"""Ahead-of-time compilation of kernels to machine code, on a machine without an accelerator, and their resources."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from fibration.backends.triton.emit import alone, shared
from fibration.backends.triton.kernels import kernels
from fibration.backends.triton.writer import MEMORY, Kernel
from fibration.compiler.arguments import (
    FLOATS,
    HOLDS,
    INTEGER,
    INTEGERS,
    REAL,
    REALS,
    RESULTS,
    WORKSPACE,
    fill_of,
    for_each,
)
from fibration.compiler.plan import Plan
from fibration.errors import BackendError

WORKER = Path(__file__).with_name("aot_worker.py")
ARCHITECTURES = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120", "gfx90a", "gfx942", "gfx950")
# Variables that would turn the compiler into an interpreter, or make it compile for another target.
CLEARED = ("TRITON_INTERPRET", "TRITON_OVERRIDE_ARCH", "TRITON_KERNEL_OVERRIDE")
Constexpr = int | float | bool | str | None
BYTES = {"i32": 4, "i64": 8}  # of an argument that is passed by value; the others are pointers
# Pointers that Triton adds to a kernel's own parameters; older versions add fewer. No kernel here uses their memory.
SCRATCH = ("global_scratch", "profile_scratch")
SHAPE = (2, 64, 1)  # BLOCK_R, BLOCK_T, warps: the value of `shape_for` for rows of a few hundred tokens
COLUMNS = 16  # the sources over one target that are summed at a time
# Triton's types of arguments. A real number is no argument but a constant of the kernel.
TYPES = for_each("Triton types", HOLDS, {
    INTEGER: "i32", REAL: "", INTEGERS: "*i64", REALS: "*fp64", WORKSPACE: "*fp64", FLOATS: "*fp32", RESULTS: "*fp32",
})  # fmt: skip
LACKING = ("positions", "tokens", "by_length", "rows")  # None: adjacent tokens, in order, advantages per token


@dataclass(frozen=True)
class KernelRequest:
    """One kernel, specialised: a Triton type per run-time argument (`"*fp32"`, `"i64"`), a value per constexpr."""

    kernel: str
    signature: Mapping[str, str]
    constexprs: Mapping[str, Constexpr] = field(default_factory=dict)
    num_warps: int = 4
    num_stages: int = 2


# The kernel that finds quantiles, for elements that are in order.
QUANTILE = KernelRequest(
    "digits",
    {
        **{"x": "*fp64", "before": "*i64", "counts": "*i32", "states": "*i64", "least": "*fp64"},
        **dict.fromkeys(("columns", "column", "pieces", "targets", "first", "last"), "i32"),
    },
    {"order": None, "block": 512},
    num_warps=8,
)
# The kernel for sums in order, in both directions.
SCAN = KernelRequest(
    "along",
    {"out": "*fp64", "x": "*fp64", "before": "*i64", "discount": "*fp64", "targets": "i32", "way": "i32"},
    {"order": None, "rows": SHAPE[0], "columns": SHAPE[1]},
    num_warps=SHAPE[2],
)


@dataclass(frozen=True)
class Resources:
    """The resources of one program: registers and spilled bytes of each thread, shared bytes of the program."""

    registers: int
    spill_bytes: int
    shared_bytes: int


@dataclass(frozen=True)
class CompiledKernel:
    """Assembly (PTX or AMD GCN) and machine code (cubin or hsaco); the kinds are file extensions.

    `target` is the target that the assembly names; `parameters` are the types of the parameters by name, in order.
    """

    kernel: str
    arch: str
    target: str
    parameters: Mapping[str, str]
    assembly_kind: str
    assembly: str
    binary_kind: str
    binary: bytes = field(repr=False)
    resources: Resources


def target_of(arch: str) -> tuple[str, int | str, int]:
    """Triton's words for an architecture: language, number or name, threads in a warp. Raises BackendError."""
    if arch not in ARCHITECTURES:
        raise BackendError(
            f"the triton backend does not compile for '{arch}'",
            required=f"one of {', '.join(ARCHITECTURES)}",
            found=repr(arch),
            remedy="name the chip that your devices have, for example --arch sm_90 for Hopper",
        )
    if arch.startswith("gfx"):
        return "hip", arch, 64
    return "cuda", int(arch.removeprefix("sm_")), 32


def compile_all(
    source: str,
    plans: Mapping[str, Plan],
    arch: str,
    programs: Iterable[str] | None = None,
    shape: tuple[int, int, int] = SHAPE,
    filename: str = "kernels.py",
) -> dict[str, tuple[CompiledKernel, ...]]:
    """The kernels of all programs, or of `programs`, for float32 tensors. Raises BackendError."""
    wanted = {name: list(requests(plans, name, shape)) for name in (plans if programs is None else programs)}
    different = {str(r): r for one in wanted.values() for r in one}  # some kernels are the same without metrics
    compiled = compile_kernels(source, [*different.values()], arch=arch, filename=filename)
    made = dict(zip(different, compiled, strict=True))
    return {name: tuple(made[str(r)] for r in one) for name, one in wanted.items()}


def requests(plans: Mapping[str, Plan], program: str, shape: tuple[int, int, int] = SHAPE) -> Iterator[KernelRequest]:
    """The kernels of a program, specialised as its launcher launches them."""
    plan, made = plans[program], kernels(plans, program)
    scan = replace(SCAN, constexprs={"order": None, "rows": shape[0], "columns": shape[1]}, num_warps=shape[2])
    yield from (request for request in (QUANTILE, scan) if any(k.name == request.kernel for k in made))
    for kernel in made:
        if kernel.text:
            yield _request(kernel, shape, {"fill": fill_of(plan), "METRICS": plan.of is None, "WIDE": False})


def _request(kernel: Kernel, shape: tuple[int, int, int], known: dict[str, Constexpr]) -> KernelRequest:
    types = {a.name: TYPES[a.holds] for a in kernel.arguments if a.kind not in LACKING and TYPES[a.holds]}
    rows, columns, warps = shape if "BLOCK_R" in kernel.constants else (0, 0, 8)
    vector = columns % 4 == 0 and rows * columns >= 128 * warps
    if known["METRICS"] and "BLOCK_L" in kernel.constants:
        rows, vector = 1 if columns >= 64 else rows, False
    known |= {"BLOCK_R": rows, "BLOCK_T": columns, "BLOCK_L": 32 * warps, "VECTOR": vector}
    values: dict[str, Constexpr] = {a.name: None for a in kernel.arguments if a.kind in LACKING}
    values |= {c: known.get(c, COLUMNS) for c in kernel.constants}
    return KernelRequest(kernel.name, types | {w: MEMORY[w] for w in kernel.memory}, values, num_warps=warps)


def compile_kernels(
    source: str, requests: Sequence[KernelRequest], *, arch: str, filename: str = "kernels.py"
) -> tuple[CompiledKernel, ...]:
    """Compiles several kernels of the module `source` in one separate process. `filename` is for messages.

    Calls share nothing, not even a cache on disk, so that any number of processes may compile at once.
    """
    target = target_of(arch)
    jobs = [asdict(request) | {"target": target} for request in requests]
    with tempfile.TemporaryDirectory(prefix="fibration-aot-") as folder:
        answer = _run(Path(folder), {"source": alone(source), "shared": shared(), "filename": filename, "jobs": jobs})
        if "error" in answer:
            failed = requests[min(len(answer["done"]), len(requests) - 1)].kernel
            raise _failure(failed, arch, answer["error"])
        return tuple(
            _compiled(request.kernel, arch, made, Path(folder) / str(i))
            for i, (request, made) in enumerate(zip(requests, answer["done"], strict=True))
        )


def _compiled(kernel: str, arch: str, made: Mapping[str, Any], file: Path) -> CompiledKernel:
    assembly = file.with_suffix(f".{made['assembly']}").read_text()
    if made["assembly"] == "ptx":
        target = re.findall(r"^\.target (\w+)", assembly, re.MULTILINE)
        entry = assembly.partition(".entry")[2].partition("{")[0]  # functions have parameters too
        sizes = [int(bits) // 8 for bits in re.findall(r"^\s*\.param \.[bu](\d+)", entry, re.MULTILINE)]
    else:
        target = re.findall(r'\.amdgcn_target ".*--(.*)"', assembly)
        arguments = assembly[assembly.index(".args:") : assembly.index(".kernarg_segment_size:")]
        pairs = re.findall(r"^\s*\.size:\s+(\d+)\n\s*\.value_kind:\s+(\w+)", arguments, re.MULTILINE)
        sizes = [int(size) for size, kind in pairs if not kind.startswith("hidden_")]  # the driver fills hidden ones
    added = max(0, len(sizes) - len(made["parameters"]))
    parameters = {**made["parameters"], **dict.fromkeys(SCRATCH[:added], "*i8")}
    known = [BYTES.get(kind, 8) for kind in parameters.values()]
    if len(target) != 1 or sizes != known:
        raise BackendError(
            f"kernel '{kernel}' for {arch} takes other parameters than this library knows of",
            required=f"parameters of {known} bytes: {', '.join(parameters)}",
            found=f"{sizes} bytes",
            remedy="this version of triton adds others than those before it did; try another version of triton",
        )
    return CompiledKernel(
        kernel,
        arch,
        target[0],
        parameters,
        made["assembly"],
        assembly,
        made["binary"],
        file.with_suffix(f".{made['binary']}").read_bytes(),
        Resources(made["registers"], made["spill_bytes"], made["shared_bytes"]),
    )


def _run(folder: Path, request: Mapping[str, Any]) -> dict[str, Any]:
    """The worker's answer. With the safe path (-P) it does not import the folders called `triton` and `torch` here."""
    environment = {k: v for k, v in os.environ.items() if k not in CLEARED}
    environment["TRITON_CACHE_DIR"] = str(folder / "cache")
    environment["TRITON_DISABLE_LINE_INFO"] = "1"  # it would name the folder where Triton is installed
    done = subprocess.run(
        [sys.executable, "-P", str(WORKER)],
        input=json.dumps(request),
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
    )
    answer = folder / "answer.json"
    if not answer.exists():
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise BackendError(
            "the triton compiler died",
            found=f"exit status {done.returncode}: {last}",
            remedy="this is a defect of Triton or of the generated kernel; try another version of triton",
        )
    result: dict[str, Any] = json.loads(answer.read_text())
    return result


def _failure(kernel: str, arch: str, error: Mapping[str, Any]) -> BackendError:
    missing = re.search(r"Cannot find (\S+)", error["message"])
    if error["kind"] == "ModuleNotFoundError" and error["module"] == "triton":
        return BackendError(
            "the triton backend is not available",
            required="the package triton",
            found="no module named 'triton'",
            remedy="pip install triton (Linux; it comes with torch for CUDA and ROCm), or use backend='torch'",
        )
    if missing:
        return BackendError(
            f"kernel '{kernel}' cannot be compiled for {arch}",
            required=f"the program {missing[1]}, which comes with the package triton",
            found=error["message"],
            remedy="reinstall triton, or name one in TRITON_PTXAS_PATH and TRITON_CUOBJDUMP_PATH",
        )
    return BackendError(
        f"kernel '{kernel}' does not compile for {arch}",
        found=f"{error['kind']}: {error['message']}",
        remedy="this is a defect of the generated kernel or of this version of triton, not of the hierarchy",
    )
