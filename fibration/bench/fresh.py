"""Measures cold starts and peak memory in a fresh process, `python -m fibration.bench.fresh`.

The parent writes a task as JSON to the process's stdin and reads an answer as JSON from its stdout.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from fibration import pipeline
from fibration.bench.candidates import COMPILED, Candidate, Ready, start
from fibration.bench.measure import Failed, reason
from fibration.bench.shapes import DTYPES, Problem, Shape, make_problem
from fibration.language.hierarchy import Hierarchy

TIMEOUT = 900  # seconds until a slow compiler counts as failed
SMALL = 2**12  # tokens of the batch that loads a candidate's code before its memory is measured
CACHES = ("FIBRATION_CACHE", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")


@dataclass(frozen=True)
class Task:
    """One measurement. `kind` is `cold` or `memory`; the other fields give the candidate and the batch."""

    kind: str
    hierarchy: str  # JSON
    candidate: Candidate
    shape: Shape
    dtype: str
    device: str
    seed: int
    threads: int


def cold(task: Task) -> list[dict[str, float]] | Failed:
    """Two starts in fresh processes: the first with empty caches, the second with the caches that the first filled.

    Each has `seconds`, from `fibration.compile(...)` (or `torch.compile(...)`) to the first result, without imports
    and without building the index.
    """
    with tempfile.TemporaryDirectory(prefix="fibration-bench-") as folder:
        caches = {name: str(Path(folder) / name.lower()) for name in CACHES}
        answers: list[dict[str, float]] = []
        for _ in range(2):
            answer = ask(task, caches)
            if isinstance(answer, Failed):
                return answer
            answers.append(answer)
        return answers


def memory(task: Task) -> float | Failed:
    """Peak memory beyond the batch itself, in bytes: index, scratch, results, and memory kept between calls."""
    answer = ask(task, {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"})
    return answer if isinstance(answer, Failed) else answer["bytes"]


def ask(task: Task, environment: Mapping[str, str]) -> dict[str, float] | Failed:
    """Run a task in a fresh process. Returns its answer, or why it failed."""
    command = [sys.executable, "-m", "fibration.bench.fresh"]
    try:
        done = subprocess.run(
            command,
            input=json.dumps(asdict(task)),
            capture_output=True,
            text=True,
            env={**os.environ, **environment},
            timeout=TIMEOUT,
        )
        answer = json.loads(done.stdout.splitlines()[-1]) if done.stdout.strip() else {}
    except subprocess.TimeoutExpired:
        return Failed(f"no answer within {TIMEOUT} s")
    except ValueError:
        answer = {}
    if "error" in answer:
        return Failed(answer["error"])
    if done.returncode or not answer:
        last = done.stderr.strip().splitlines()[-1:] or ["it said nothing"]
        return Failed(f"the fresh process ended with {done.returncode}: {last[0]}"[:300])
    return answer  # type: ignore[no-any-return]


# ---------------------------------------------------------------- in the fresh process


def answer_cold(task: Task, hierarchy: Hierarchy, problem: Problem) -> dict[str, float]:
    _import_all(task.candidate)
    _settle(problem.device)
    begin = time.perf_counter()
    ready, index = None, 0.0
    if task.candidate.ours:
        operator = pipeline.compile(hierarchy, task.candidate.backend)
        compiled = time.perf_counter()
        ready = Ready(operator, problem.index(operator))
        index = time.perf_counter() - compiled
    start(task.candidate, hierarchy, problem, ready)()
    _settle(problem.device)
    return {"seconds": time.perf_counter() - begin - index, "index_s": index}


def answer_memory(task: Task, hierarchy: Hierarchy, problem: Problem) -> dict[str, float]:
    small = problem  # torch.compile reuses the code that it compiled for these very shapes
    if task.candidate.name != COMPILED:
        shape = Shape(SMALL, min(task.shape.length, 64), layout=task.shape.layout)
        small = make_problem(hierarchy, shape, problem.log_probs.dtype, task.device)
    start(task.candidate, hierarchy, small)()
    del small
    gc.collect()
    before = reset_peak(problem.device)
    run = start(task.candidate, hierarchy, problem)
    for _ in range(2):
        run()
    return {"bytes": float(max(0, peak(problem.device) - before))}


def _import_all(candidate: Candidate) -> None:
    """Import the modules that the first call would import, so that imports are not timed."""
    if candidate.ours:
        for module in ("emit", "load"):
            importlib.import_module(f"fibration.backends.{candidate.backend}.{module}")
        importlib.import_module("fibration.backends.torch.load")
    else:
        importlib.import_module("torch._dynamo")
        importlib.import_module("torch._inductor.compile_fx")


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def reset_peak(device: torch.device) -> int:
    """Reset the peak. Returns the memory in use now, in bytes."""
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        return int(torch.cuda.memory_allocated())
    try:
        Path("/proc/self/clear_refs").write_text("5")  # sets the peak of the resident set to its present size
    except OSError as error:
        raise OSError(f"peak memory needs a Linux that can forget it: {error}") from None
    return _status("VmRSS")


def peak(device: torch.device) -> int:
    return int(torch.cuda.max_memory_allocated()) if device.type == "cuda" else _status("VmHWM")


def _status(field: str) -> int:
    """A line of the process's status, in bytes. (`ru_maxrss` is the same peak, but cannot be reset.)"""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def main() -> None:
    out, sys.stdout = sys.stdout, sys.stderr  # compilers print; the parent must read the answer alone
    given = json.load(sys.stdin)
    task = Task(**{**given, "candidate": Candidate(**given["candidate"]), "shape": Shape(**given["shape"])})
    torch.set_num_threads(task.threads)
    try:
        hierarchy = Hierarchy.model_validate_json(task.hierarchy)
        problem = make_problem(hierarchy, task.shape, DTYPES[task.dtype], task.device, task.seed)
        answers = {"cold": answer_cold, "memory": answer_memory}
        answer: dict[str, Any] = dict(answers[task.kind](task, hierarchy, problem))
    except Exception as error:
        answer = {"error": reason(error)}
    out.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
