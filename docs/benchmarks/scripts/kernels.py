"""Time the kernels of a call on a GPU, the call as a CUDA graph, and the host's work to launch it.

python docs/benchmarks/scripts/kernels.py [SPEC...] [--json FILE.json]

In µs. Kernels: torch's profiler, mean of 5 calls. Graph: between events, median of 20. Host: until the call returns, on
an idle GPU, median of 100. `floor`: the bytes that must move, at the bandwidth of a copy of 1 GiB.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

import fibration
from fibration.bench.batches import Shape, make_batch
from fibration.bench.measure import describe_machine
from fibration.files import write_file
from fibration.printing.reports import load_quietly

SHAPES = (
    Shape(2**13, 128, "equal"), Shape(2**20), Shape(2**24), Shape(2**22, 64), Shape(2**22, 2**16)
)  # fmt: skip
Call = Callable[[], Any]


def on_stream(call: Call, rounds: int) -> float:
    """Between two events, in µs."""
    taken = []
    for _ in range(rounds):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        call()
        last.record()
        torch.cuda.synchronize()
        taken.append(first.elapsed_time(last) * 1e3)
    return statistics.median(taken)


def copy_bandwidth() -> float:
    """Bytes read and written per µs."""
    source = torch.empty(2**28, device="cuda")
    target = torch.empty_like(source)
    return 2 * 4 * 2**28 / on_stream(lambda: target.copy_(source), 10)


def kernels(call: Call, calls: int = 5) -> list[tuple[str, float]]:
    """Each kernel and its µs per call, the longest first."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU], acc_events=True) as seen:
        for _ in range(calls):
            call()
        torch.cuda.synchronize()
    of_gpu = [e for e in seen.key_averages() if e.self_device_time_total > 0 and e.device_type.name == "CUDA"]
    return sorted(((e.key[:80], e.self_device_time_total / calls) for e in of_gpu), key=lambda found: -found[1])


def in_graph(call: Call) -> float:
    aside = torch.cuda.Stream()
    with torch.cuda.stream(aside):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return on_stream(graph.replay, 20)


def of_host(call: Call, rounds: int = 100) -> float:
    taken = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        taken.append((time.perf_counter() - start) * 1e6)
    return statistics.median(taken)


def calls_of(spec: str, shape: Shape) -> tuple[dict[str, Call], int]:
    """Coefficients, these with metrics, and a loss with its backward; and the bytes that must move."""
    hierarchy = load_quietly(spec)
    op = fibration.compile(hierarchy, backend="triton")
    batch = make_batch(hierarchy, shape, device="cuda")
    given = batch.old_log_probs, batch.advantages, batch.index(op)
    leaf = batch.log_probs.detach().clone().requires_grad_()

    def loss() -> None:
        leaf.grad = None
        op.loss(leaf, *given, metrics=False, policies=batch.policies).loss.backward()

    def coefficients(metrics: bool) -> Call:
        return lambda: op.coefficients(batch.log_probs, *given, metrics=metrics, policies=batch.policies)

    return {"coefficients": coefficients(False), "with metrics": coefficients(True), "loss": loss}, batch.bytes_moved


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("specs", nargs="*", default=["ppo", "gspo", "fiberpo", "fiberpo_domain"])
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    bandwidth, rows = copy_bandwidth(), list[dict[str, Any]]()
    measured = {"machine": describe_machine(torch.device("cuda")), "copy_tb_s": bandwidth / 1e6}
    print(f"a copy moves {bandwidth / 1e6:.2f} TB/s; kernels, graph, host in µs")
    for spec in given.specs:
        for shape in SHAPES:
            calls, moved = calls_of(spec, shape)
            row: dict[str, Any] = {"spec": spec, "shape": str(shape), "floor_us": moved / bandwidth}
            for name, call in calls.items():
                found = kernels(call)
                row[name] = {"kernels_us": sum(us for _, us in found), "kernels": found, "host_us": of_host(call)}
                if name != "loss":  # its backward pass runs on another thread
                    row[name]["graph_us"] = in_graph(call)
            rows.append(row)
            if given.json:  # after each, so that an interruption loses nothing
                write_file(given.json, json.dumps({**measured, "rows": rows}, indent=1))
            print(f"{spec}, {shape}: floor {row['floor_us']:.0f}", *(
                f"{name} {row[name]['kernels_us']:.0f}, {row[name].get('graph_us', 0):.0f}, {row[name]['host_us']:.0f}"
                for name in calls
            ), sep="; ", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
