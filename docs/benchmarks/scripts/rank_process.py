"""A process that has one rank's part of a batch, with the others of its group and without them.

It reads a task as JSON from its stdin and then what to do, line by line; it writes an answer in JSON for each line to
its stdout.
"""

from __future__ import annotations

import gc
import json
import os
import pickle
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from fibration import pipeline
from fibration.bench.batches import Batch, Shape, make_batch
from fibration.bench.measure import reason
from fibration.language.hierarchy import Hierarchy
from fibration.runtime.index.index import Index
from fibration.runtime.operator import Operator
from fibration.runtime.ranks.group import Group, as_group

PATIENCE = 120  # seconds that ranks wait for one another


@dataclass(frozen=True)
class Task:
    """Which rank of how many this is, of which batch. `meeting`: a file at which they find each other."""

    hierarchy: str  # JSON
    backend: str
    shape: Shape
    dtype: str
    seed: int
    rank: int
    size: int
    threads: int
    meeting: str


class Counted:
    """A group that keeps what this rank sent, in bytes per gathering."""

    def __init__(self, group: Group) -> None:
        self._group, self.rank, self.size = group, group.rank, group.size
        self.sent: list[int] = []

    def all_gather(self, tensor: Tensor) -> Sequence[Tensor] | Tensor:
        self.sent.append(tensor.numel() * tensor.element_size())
        return self._group.gather(tensor)

    def all_gather_object(self, obj: Any) -> Sequence[Any]:
        self.sent.append(len(pickle.dumps(obj)))
        return self._group.gather_objects(obj)


def part(batch: Batch, rank: int, size: int) -> Batch:
    """The rows of one rank of a packed batch: neighbours, about as many tokens as every other rank has."""
    ends = batch.offsets.numpy()
    first, last = (int(np.searchsorted(ends, batch.tokens * r / size)) for r in (rank, rank + 1))
    rows, tokens = slice(first, last), slice(int(ends[first]), int(ends[last]))

    def mine(values: Any) -> Any:
        return values[rows if len(values) == len(ends) - 1 else tokens].clone()

    return replace(
        batch,
        offsets=batch.offsets[first : last + 1] - batch.offsets[first],
        log_probs=batch.log_probs[tokens].clone(),
        old_log_probs=batch.old_log_probs[tokens].clone(),
        advantages=mine(batch.advantages),
        labels={k: mine(v) for k, v in batch.labels.items()},
        policies={name: given[tokens].clone() for name, given in batch.policies.items()},
    )


@dataclass
class Rank:
    """Its part of the batch, and what is measured on it: with a group, or without one where that is None."""

    operator: Operator
    batch: Batch
    group: Any
    meet: Callable[[], object]

    def coefficients(self, index: Index) -> None:
        p = self.batch
        self.operator.coefficients(
            p.log_probs, p.old_log_probs, p.advantages, index, policies=p.policies, metrics=False
        )

    def timed(self, call: Callable[[], object]) -> dict[str, Any]:
        self.meet()
        begin = time.perf_counter()
        call()
        return {"seconds": time.perf_counter() - begin}

    def sent(self) -> dict[str, Any]:
        """Bytes per gathering, of an index and of a call."""
        counted = Counted(as_group(self.group))
        index = self.batch.index(self.operator, group=counted)
        at = len(counted.sent)
        self.coefficients(index)
        return {"index": counted.sent[:at], "call": counted.sent[at:], "tokens": self.batch.tokens}

    def memory(self, group: Any) -> dict[str, Any]:
        """The peak of an index and two calls beyond the batch, in bytes."""
        gc.collect()
        self.meet()
        before = reset_peak()
        index = self.batch.index(self.operator, group=group)
        for _ in range(2):
            self.coefficients(index)
        return {"bytes": max(0, resident("VmHWM") - before)}


def reset_peak() -> int:
    """Set the peak of the resident set to its present size; returns that, in bytes."""
    Path("/proc/self/clear_refs").write_text("5")
    return resident("VmRSS")


def resident(field: str) -> int:
    """A line of the process's status, in bytes. (`ru_maxrss` is the same peak, but cannot be reset.)"""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def answers(rank: Rank) -> dict[str, Callable[[], dict[str, Any]]]:
    """What a process can be told to do."""
    indices: dict[bool, Index] = {}

    def call(group: Any) -> dict[str, Any]:
        if (spread := group is not None) not in indices:
            indices[spread] = rank.batch.index(rank.operator, group=group)
            rank.coefficients(indices[spread])
        return rank.timed(lambda: rank.coefficients(indices[spread]))

    def does(what: Callable[[Any], dict[str, Any]], group: Any) -> Callable[[], dict[str, Any]]:
        return lambda: what(group)

    found: dict[str, Callable[[], dict[str, Any]]] = {"sent": rank.sent}
    for suffix, group in ((" alone", None), ("", rank.group)):
        found[f"coefficients{suffix}"] = does(call, group)
        found[f"index{suffix}"] = does(lambda g: rank.timed(lambda: rank.batch.index(rank.operator, group=g)), group)
        found[f"memory{suffix}"] = does(rank.memory, group)
    return found


def begin(task: Task) -> Rank:
    torch.set_num_threads(task.threads)
    wait = timedelta(seconds=PATIENCE)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all are on this machine
    dist.init_process_group(
        "gloo", init_method=f"file://{task.meeting}", rank=task.rank, world_size=task.size, timeout=wait
    )
    hierarchy = Hierarchy.model_validate_json(task.hierarchy)
    operator = pipeline.compile(hierarchy, task.backend)
    whole = make_batch(hierarchy, task.shape, task.dtype, seed=task.seed)
    return Rank(operator, part(whole, task.rank, task.size), dist.group.WORLD, dist.barrier)


def main() -> None:
    out, sys.stdout = sys.stdout, sys.stderr
    try:
        given = json.loads(sys.stdin.readline())
        rank = begin(Task(**{**given, "shape": Shape(**given["shape"])}))
        does = answers(rank)
        for line in sys.stdin:
            out.write(json.dumps(does[line.strip()]()) + "\n")
            out.flush()
    except Exception as error:
        out.write(json.dumps({"error": reason(error)}) + "\n")
        out.flush()


if __name__ == "__main__":
    main()
