"""`fibration doctor`: finds what this machine has, what works, and which backend runs."""

from __future__ import annotations

import os
import platform
import pwd
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import metadata, util
from pathlib import Path
from typing import Literal

import torch
from packaging.requirements import Requirement
from rich.console import Console
from rich.text import Text
from torch import Tensor

from fibration import cache
from fibration.backends.c.build import compiler, version
from fibration.bench.measure import processor, usable_cores
from fibration.errors import FibrationError, ParameterError, RolloutsError
from fibration.escaping import json_text
from fibration.language.hierarchy import Hierarchy
from fibration.pipeline import best
from fibration.pipeline import compile as compile_operator
from fibration.printing import reports
from fibration.printing.law_table import columns
from fibration.rollouts.file import load_rollouts
from fibration.rollouts.replay import build_index, passed_policies

State = Literal["fine", "note", "look", "broken"]
SIGNS: dict[State, tuple[str, str]] = {
    "fine": ("✓", "green"),
    "note": ("·", "dim"),
    "look": ("!", "yellow"),
    "broken": ("✗", "bold red"),
}
PACKAGES = ("torch", "triton", "numpy", "sympy")
TRAINERS = ("trl", "verl", "tinker", "torchrl", "transformers")  # shown if installed
DRIVERS = {"NVIDIA": Path("/proc/driver/nvidia/version"), "AMD": Path("/dev/kfd")}
TRIED = "fiberpo"  # if no SPEC is named
AGREEMENT = 1e-9  # in float64, relative to the largest coefficient; rounding explains about 1e-13


@dataclass(frozen=True)
class Finding:
    """One row of the report. `broken`: something that should work does not; `look`: it works, but could do better."""

    name: str
    state: State
    value: str
    remedy: str = ""


def doctor(console: Console, spec: Sequence[str] | None, as_json: bool) -> int:
    """Print the findings. Returns the exit code, 1 if something is broken."""
    hierarchy = reports.load_quietly(spec or TRIED)
    hierarchy.verify().raise_for_status()
    with warnings.catch_warnings():  # a row of the report covers this warning
        warnings.filterwarnings("ignore", "kernels are built for this process alone", RuntimeWarning)
        findings = [*_software(), *_hardware(), _compiler(), _cache(), *_backends(hierarchy)]
    backend, why = best()
    broken = [f.name for f in findings if f.state == "broken"]
    if as_json:
        found = {"usable": not broken, "backend": backend, "why": why, "findings": [asdict(f) for f in findings]}
        print(json_text(found))
        return int(bool(broken))
    grid = columns(2)
    for f in findings:
        sign, style = SIGNS[f.state]
        word = f" {f.state}" if f.state in ("look", "broken") else ""
        remedy = Text(f"\n{f.remedy}" if f.remedy else "", style)
        grid.add_row(Text(sign + word, style), Text(f.name), Text.assemble(f.value, remedy))
    reports.emit(console, grid)
    usable = f"broken: {', '.join(broken)}" if broken else "usable"
    reports.emit(console, Text(f"\n{usable}; fibration.compile takes the {backend} backend: {why}"))
    return int(bool(broken))


# ---------------------------------------------------------------- software


def _software() -> Iterator[Finding]:
    yield Finding("fibration", "fine", f"{metadata.version('fibration')}, in {Path(__file__).parents[1]}")
    yield Finding("Python", "fine", f"{platform.python_version()}, {sys.executable}")
    wanted: dict[str, Requirement] = {}
    for text in metadata.requires("fibration") or ():
        wanted.setdefault(Requirement(text).name, Requirement(text))
    for name in dict.fromkeys((*PACKAGES, *TRAINERS, *wanted)):
        found = _package(name, wanted.get(name))
        if found and (name in (*PACKAGES, *TRAINERS) or found.state == "broken"):
            yield found


def _package(name: str, wanted: Requirement | None) -> Finding | None:
    """The finding about a package, or None for an optional package that is not installed."""
    required = "" if wanted is None else str(wanted.specifier)
    optional = wanted is None or "extra" in str(wanted.marker or "")
    try:
        installed = metadata.version(name)
    except metadata.PackageNotFoundError:
        return None if optional else Finding(name, "broken", "not installed", f"pip install '{name}{required}'")
    if wanted is None or wanted.specifier.contains(installed, prereleases=True):
        series = f", of the series that is supported ({required})" if name in TRAINERS and wanted else ""
        return Finding(name, "fine", installed + series)
    state: State = "look" if optional else "broken"
    return Finding(name, state, f"{installed}, where fibration needs {required}", f"pip install '{name}{required}'")


# ---------------------------------------------------------------- hardware


def _hardware() -> Iterator[Finding]:
    cores, threads = usable_cores(), torch.get_num_threads()
    vectors = torch.backends.cpu.get_cpu_capability()
    yield Finding("processor", "fine", f"{processor()}, {platform.machine()} with {vectors}")
    said = os.environ.get("OMP_NUM_THREADS")
    value = f"{threads} in torch and C, of {cores} cores that this process may use"
    value += f" (OMP_NUM_THREADS={said})" if said else ""
    if threads > cores:
        yield Finding("threads", "look", value, f"more than cores make calls slow: OMP_NUM_THREADS={cores}")
    else:
        yield Finding("threads", "fine", value)
    yield _gpu()


def _gpu() -> Finding:
    if torch.cuda.is_available():
        major, minor = torch.cuda.get_device_capability()
        made = f"ROCm {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}"
        others = f", and {n - 1} more" if (n := torch.cuda.device_count()) > 1 else ""
        return Finding("GPU", "fine", f"{torch.cuda.get_device_name()} ({major}.{minor}), {made}{others}")
    there = [name for name, sign in DRIVERS.items() if sign.exists()]
    if not there:
        return Finding("GPU", "note", "none")
    value = f"{there[0]} has a driver here, and torch {torch.__version__} finds no device"
    if torch.version.cuda is None and torch.version.hip is None:
        return Finding("GPU", "look", value, "this torch is built for CPUs alone: install one built for your GPU")
    try:
        torch.cuda.init()
    except Exception as error:  # torch raises many types; the message is the finding
        value += f": {error}"
    return Finding(
        "GPU", "look", value, "nvidia-smi says whether the driver works; CUDA_VISIBLE_DEVICES may hide devices"
    )


# ---------------------------------------------------------------- compiler and cache


def _compiler() -> Finding:
    try:
        command = compiler()
        return Finding("C compiler", "fine", f"{' '.join(command)}: {(version(command).splitlines() or ['?'])[0]}")
    except FibrationError as error:
        state: State = "broken" if os.environ.get("CC") else "look"
        return Finding(
            "C compiler", state, _said(error), f"required: {error.required}; else torch runs, many times slower"
        )


def _bytes_in(place: Path) -> int:
    """The size of all files below a folder. Skips files that another process removes meanwhile: builds run there."""
    total = 0
    for folder, _, files in os.walk(place):
        for name in files:
            with suppress(FileNotFoundError):
                total += os.lstat(os.path.join(folder, name)).st_size
    return total


def _cache() -> Finding:
    chosen = bool(os.environ.get("FIBRATION_CACHE"))
    state: State = "broken" if chosen else "look"
    instead = "" if chosen else "; until then each process builds in a temporary folder"
    try:
        place = cache.folder()
        cache.make_private(place)
        tempfile.TemporaryFile(dir=place).close()  # mode bits do not tell: a file system may deny root too
    except FibrationError as error:
        return Finding("cache", state, _said(error), error.remedy + instead)
    except OSError as error:
        why_not = f"{place} cannot be written: {error.strerror}"
        return Finding("cache", state, why_not, f"set FIBRATION_CACHE to another folder{instead}")
    kept = [f for f in place.iterdir() if (f / cache.DIGEST).exists()]
    owner = cache.named(pwd.getpwuid, place.stat().st_uid)
    size = _bytes_in(place) / 2**20
    return Finding(
        "cache", "fine", f"{place} of {owner}: {len(kept)} built, {size:.1f} MiB; nobody else may write there"
    )


# ---------------------------------------------------------------- backends


def _backends(hierarchy: Hierarchy) -> Iterator[Finding]:
    """Build every backend that should work here, run it on the shipped rollouts and compare it with torch."""
    expected, found = _tried("torch", lambda: _coefficients(hierarchy, "torch", "cpu"), None)
    yield found
    try:
        compiler()
    except FibrationError:
        yield Finding("backend c", "note", "not tried without a compiler")
    else:
        yield _tried("c", lambda: _coefficients(hierarchy, "c", "cpu"), expected)[1]
    if not util.find_spec("triton"):
        state: State = "look" if torch.cuda.is_available() else "note"
        yield Finding("backend triton", state, "not installed", "pip install triton" if state == "look" else "")
    elif not torch.cuda.is_available():
        yield Finding("backend triton", "note", "not tried without a GPU")
    else:
        yield _tried("triton", lambda: _coefficients(hierarchy, "triton", "cuda"), expected)[1]


def _coefficients(hierarchy: Hierarchy, backend: str, device: str) -> Tensor:
    op = compile_operator(hierarchy, backend)
    recorded = load_rollouts(engine=any(p.is_passed for p in hierarchy.policies.values()))
    index = build_index(op, recorded, device)

    def moved(values: Tensor) -> Tensor:
        return values.double().to(device)

    now, old, advantages = (
        moved(torch.as_tensor(column)) for column in (recorded.log_probs, recorded.old_log_probs, recorded.advantages)
    )
    policies = {name: moved(values) for name, values in passed_policies(hierarchy, recorded).items()}
    return op.coefficients(now, old, advantages, index, policies=policies).values.cpu()


def _tried(name: str, make: Callable[[], Tensor], expected: Tensor | None) -> tuple[Tensor | None, Finding]:
    begun, row = time.perf_counter(), f"backend {name}"
    try:
        made = make()
    except (RolloutsError, ParameterError) as error:  # a fault of SPEC, not of the machine
        return None, Finding(row, "note", f"not tried: {_said(error)}")
    except FibrationError as error:
        return None, Finding(row, "broken", _said(error), error.remedy)
    except Exception as error:  # any failure is a finding
        return None, Finding(row, "broken", f"{type(error).__name__}: {error}")
    took = f"built and run on {made.numel()} tokens in {time.perf_counter() - begun:.1f} s"
    if expected is None:
        return made, Finding(row, "fine", took)
    size = max(float(expected.abs().max()), 1e-300)  # a loss may have no gradient here
    difference = float((made - expected).abs().max()) / size
    if difference <= AGREEMENT:
        return made, Finding(row, "fine", f"{took}; agrees with torch to {difference:.0e}")
    return made, Finding(
        row, "broken", f"{took}; differs from torch by {difference:.0e}", "a defect of fibration: report it"
    )


def _said(error: FibrationError) -> str:
    return error.what + (f": {error.found}" if error.found else "")
