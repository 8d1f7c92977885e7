"""Times the backends of a loss beside a copy and hand-written losses, in turns in one run, and compares results."""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
from torch import Tensor

from fibration import pipeline
from fibration.bench.baselines import baseline, prepare
from fibration.bench.batches import Batch, Shape, make_batch
from fibration.language.hierarchy import Hierarchy

COPY, EAGER, COMPILED = "copy of the same bytes", "eager torch", "torch.compile"
ROWS = ("", " + metrics", " + index", " loss", " loss + metrics")  # what follows the name of a backend
WARM_UP = 2  # rounds

Call = Callable[[], Any]
Times = list[float] | str  # seconds of each round, or why there are none


def seconds(call: Call, device: torch.device) -> float:
    """Wall time on a CPU; on a GPU the time between two events on its stream, after earlier work is done."""
    if device.type != "cuda":
        start = time.perf_counter()
        call()
        return time.perf_counter() - start
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    first.record()
    call()
    last.record()
    torch.cuda.synchronize()
    return float(first.elapsed_time(last)) / 1e3


def interleave(calls: Mapping[str, Call], repeats: int, clock: Callable[[Call], float]) -> dict[str, Times]:
    """Time every call in turns, a, b, c, a, b, c, ... A call that raises is left out; the others continue."""
    found: dict[str, Times] = {name: [] for name in calls}
    for _ in range(WARM_UP + repeats):
        for name, call in calls.items():
            if isinstance(times := found[name], list):
                try:
                    times.append(clock(call))
                except Exception as error:
                    found[name] = reason(error)
    return {name: times if isinstance(times, str) else times[WARM_UP:] for name, times in found.items()}


def reason(error: BaseException) -> str:
    """The error's type and the first three lines of its message: some compilers raise pages."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()][:3]
    return " ".join([f"{type(error).__name__}:", *lines])[:300]


def record(times: list[float]) -> dict[str, Any]:
    """Seconds for JSON."""
    first, _, third = quantiles(times, n=4, method="inclusive") if len(times) > 1 else times * 3
    return {"median_s": median(times), "quartiles_s": [first, third], "best_s": min(times), "samples_s": times}


# ---------------------------------------------------------------- what is timed


def names(hierarchy: Hierarchy, backends: Iterable[str]) -> list[str]:
    """The rows of a table, in the order of their turns."""
    written = [EAGER, COMPILED] if baseline(hierarchy) is not None else []
    return [*(f"fibration {backend}{row}" for backend in backends for row in ROWS), *written, COPY]


def start(hierarchy: Hierarchy, batch: Batch, name: str) -> Call:
    """Compiles and prepares. Returns the call to time, which returns coefficients or the gradient of the loss."""
    b = batch
    if name == COPY:
        here = torch.ones(b.bytes_moved // 8, device=b.log_probs.device)  # in float32: half is read, half is written
        there = here + 1  # written before, so that no page fault is timed
        return lambda: there.copy_(here)
    if not name.startswith("fibration "):
        written, prepared = baseline(hierarchy), prepare(b)
        assert written is not None
        if name == COMPILED:
            torch._dynamo.reset()  # otherwise the tenth shape exceeds the limit of recompilations
            written = torch.compile(written, fullgraph=True, dynamic=False)
        return _backward(b, lambda leaf: written(leaf, b.old_log_probs, b.advantages, prepared))
    operator = pipeline.compile(hierarchy, name.split()[1])
    index = b.index(operator)
    word = "advantages" if hierarchy.advantages is None else "rewards"
    given: dict[str, Any] = {word: b.advantages, "policies": b.policies, "metrics": name.endswith("metrics")}
    if " loss" in name:
        return _backward(b, lambda leaf: operator.loss(leaf, b.old_log_probs, index=index, **given).loss)
    of = (lambda: b.index(operator)) if name.endswith("index") else (lambda: index)
    return lambda: operator.coefficients(b.log_probs, b.old_log_probs, index=of(), **given).values


def _backward(batch: Batch, loss: Callable[[Tensor], Tensor]) -> Call:
    leaf = batch.log_probs.detach().requires_grad_()

    def run() -> Tensor | None:
        leaf.grad = None
        loss(leaf).backward()  # type: ignore[no-untyped-call]
        return leaf.grad

    return run


def reference(hierarchy: Hierarchy, batch: Batch) -> Tensor:
    """The coefficients in float64, by the torch backend, which is tested against the interpreter."""
    wide: dict[str, Any] = {n: getattr(batch, n).double() for n in ("log_probs", "old_log_probs", "advantages")}
    wide["policies"] = {name: given.double() for name, given in batch.policies.items()}
    return start(hierarchy, replace(batch, **wide), "fibration torch")()  # type: ignore[no-any-return]


def disagreement(name: str, result: Tensor, expected: Tensor) -> float:
    """The mean difference from `expected`, relative to its mean size."""
    ours = result if name.startswith("fibration ") and " loss" not in name else -result
    return float((ours.double() - expected).abs().mean() / expected.abs().mean().clamp_min(1e-300))


def measure(h: Hierarchy, shape: Shape, named: Iterable[str], rounds: int, **batch_of: Any) -> dict[str, Any]:
    """One result of the JSON (docs/bench.md). A row that cannot start, or that fails, has the reason."""
    result: dict[str, Any] = {"hierarchy": h.name, "shape": asdict(shape)}
    rows: dict[str, dict[str, Any]] = {}
    calls: dict[str, Call] = {}
    try:
        batch = make_batch(h, shape, **batch_of)
        expected = reference(h, batch)
    except (MemoryError, RuntimeError) as error:
        return {**result, "rows": [{"name": "the batch", "error": reason(error)}]}
    for name in named:
        try:
            call = start(h, batch, name)
            rows[name] = {} if name == COPY else {"differs": disagreement(name, call(), expected)}
            calls[name] = call
        except Exception as error:
            rows[name] = {"error": reason(error)}
    for name, times in interleave(calls, rounds, lambda call: seconds(call, expected.device)).items():
        rows[name] |= {"error": times} if isinstance(times, str) else record(times)
    eager, floor = rows.get(EAGER, {}).get("median_s"), rows[COPY].get("best_s")  # noise must not raise the floor
    for row in (row for row in rows.values() if "median_s" in row):
        row |= {"over_eager": row["median_s"] / eager} if eager else {}
        row |= {"over_copy": row["median_s"] / floor} if floor else {}
    sizes = {"tokens": batch.tokens, "positions": batch.log_probs.numel(), "bytes_moved": batch.bytes_moved}
    return {**result, **sizes, "rows": [{"name": name, **row} for name, row in rows.items()]}


def describe_machine(device: torch.device) -> dict[str, Any]:
    """The facts that a reader needs to judge the numbers. None identifies the machine."""
    return {
        "processor": processor(),
        "cores": usable_cores(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "the processor",
        "torch": torch.__version__,
        "torch_threads": torch.get_num_threads(),
        "vector_unit": torch.backends.cpu.get_cpu_capability(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "load_before": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else 0.0,
    }


def processor() -> str:
    with suppress(OSError):
        if found := re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text()):
            return found[1].strip()
    return platform.processor() or platform.machine()


def usable_cores() -> int:
    """The number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
