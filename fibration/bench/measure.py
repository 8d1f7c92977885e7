"""Timing: all candidates take turns in one run, so that noise on the machine affects them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

Call = Callable[[], object]
Clock = Callable[[Call], float]  # runs a call once; seconds until its result is there
LARGE = 2**28  # bytes of a buffer that is larger than any cache


@dataclass(frozen=True)
class Timing:
    """Samples in seconds, in the order of measurement."""

    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def quartiles(self) -> tuple[float, float]:
        if len(self.samples) == 1:
            return self.samples[0], self.samples[0]
        first, _, third = statistics.quantiles(self.samples, n=4, method="inclusive")
        return first, third

    def record(self) -> dict[str, Any]:
        """The timing for JSON, in seconds."""
        first, third = self.quartiles
        return {
            "median_s": self.median,
            "quartiles_s": [first, third],
            "best_s": min(self.samples),
            "samples_s": list(self.samples),
        }


@dataclass(frozen=True)
class Failed:
    """A failed measurement, with its reason."""

    reason: str


def reason(error: BaseException) -> str:
    """The error's type and the first three lines of its message: some compilers raise pages."""
    lines = [line.rstrip() for line in str(error).splitlines() if line.strip()][:3]
    return " ".join([f"{type(error).__name__}:", *(line.strip() for line in lines)])[:300]


def clock(device: torch.device) -> Clock:
    """A clock: wall time on a CPU; on a GPU the time between two events on its stream, after earlier work is done."""
    return _cuda_clock if device.type == "cuda" else _wall_clock


def _wall_clock(call: Call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _cuda_clock(call: Call) -> float:
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    first.record()
    call()
    last.record()
    torch.cuda.synchronize()
    return float(first.elapsed_time(last)) / 1e3


def interleave(calls: Mapping[str, Call], repeats: int, clock: Clock, warm_up: int = 2) -> dict[str, Timing | Failed]:
    """Time every call `repeats` times: a, b, c, a, b, c, ... A call that raises is left out; the others continue."""
    samples: dict[str, list[float]] = {name: [] for name in calls}
    failed: dict[str, Failed] = {}
    for turn in range(-warm_up, repeats):
        for name, call in calls.items():
            if name in failed:
                continue
            try:
                seconds = clock(call)
            except Exception as error:
                failed[name] = Failed(reason(error))
                continue
            if turn >= 0:
                samples[name].append(seconds)
    return {name: failed.get(name) or Timing(tuple(samples[name])) for name in calls}


# ---------------------------------------------------------------- the floor


def copy_call(bytes_moved: int, device: torch.device) -> Call:
    """A `copy_` that moves `bytes_moved` bytes: half of them read, half written."""
    here = torch.ones(max(1, bytes_moved // 8), dtype=torch.float32, device=device)
    there = torch.zeros_like(here).fill_(2)  # both buffers are written here, so that no page fault is timed
    return lambda: there.copy_(here)


def bandwidth(device: torch.device, clock: Clock, size: int = LARGE, repeats: int = 7) -> Timing:
    """The time to copy `size` bytes to another buffer, with all threads. Bandwidth is `2·size` over its median."""
    timing = interleave({"copy": copy_call(2 * size, device)}, repeats, clock)["copy"]
    if isinstance(timing, Failed):
        raise MemoryError(timing.reason)
    return timing


def ratio(numerator: Timing | Failed | None, denominator: Timing | Failed | None) -> float | None:
    """The ratio of the medians, or None if a timing is missing."""
    if isinstance(numerator, Timing) and isinstance(denominator, Timing):
        return numerator.median / denominator.median
    return None


def median_of(call: Callable[[], Any], repeats: int, clock: Clock) -> Timing:
    """Time a call `repeats` times, without a warm-up."""
    return Timing(tuple(clock(call) for _ in range(repeats)))
