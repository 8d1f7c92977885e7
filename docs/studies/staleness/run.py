"""Run what is planned and not yet in the results: `python docs/studies/staleness/run.py tune`.

Every run appends one line of JSON to `results/PART.jsonl` as it ends, and is not run again. Several processes may share
the work: `--worker 0/2` takes every other run of the plan, whenever it is started.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import platform
import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import torch
from candidates import LOSSES
from model import Shape
from plan import PARTS, SEED_GROUPS
from pretrain import pretrain
from rl import STACK, Run, learn
from store import HERE, RESULTS, append, command, key, lines, read_bases

import fibration

BASES = HERE.parents[2] / "build" / "study" / "bases"  # made anew where they lack: a minute for each seed


def batches(runs: Iterable[Run], stack: int) -> list[list[Run]]:
    """So many runs at a time, of one condition, length and way of clipping, in the plan's order of these."""
    groups: dict[tuple, list[Run]] = {}
    for run in runs:
        groups.setdefault((run.condition, run.steps, LOSSES[run.arm].clip_domains), []).append(run)
    return [
        members[k : k + stack]
        for group in groups.values()
        for members in [sorted(group, key=lambda run: run.arm)]
        for k in range(0, len(group), stack)
    ]


def base(shape: Shape, seed: int, results: Path = RESULTS) -> torch.Tensor:
    """The weights of a seed's base policy, `[size]`, from supervised training or from an earlier one's file.

    What it can do is kept beside them, and written wherever the folder of results does not say so yet.
    """
    file = BASES / f"{seed}.pt"
    group = next((group for group in SEED_GROUPS if seed in group), None)
    if group is None:
        raise SystemExit(f"seed {seed} has no base policy: it is in no group of plan.SEED_GROUPS; add it to one")
    BASES.mkdir(parents=True, exist_ok=True)
    with (BASES / f"{group[0]}.lock").open("w") as held:  # another process may be training this group
        fcntl.flock(held, fcntl.LOCK_EX)
        if not file.exists():
            for mine, weights, right in zip(group, *pretrain(shape, group), strict=True):
                part = BASES / f"{mine}.{os.getpid()}"
                torch.save({"weights": weights.clone(), "right": [round(x, 3) for x in right.tolist()]}, part)
                part.replace(BASES / f"{mine}.pt")
        kept = torch.load(file)
        if isinstance(kept, torch.Tensor):  # of an earlier version: what it can do was not kept
            return kept
        if read_bases(results).get(seed) != kept["right"]:
            append(results / "bases.jsonl", {"seed": seed, "right": kept["right"]})
    return kept["weights"]


VERSIONS = {"fibration": fibration.__version__, "torch": torch.__version__, "python": platform.python_version()}


def go(part: str, stack: int, worker: int = 0, workers: int = 1, results: Path = RESULTS) -> int:
    """Run what lacks of a part; how many runs that were."""
    torch.set_num_threads(1)
    shape, ready = Shape(), {key(line["run"]) for line in lines(part, results)}
    # Places in the plan, not in what is left of it: a process that starts later would count that anew.
    mine = batches([run for run in PARTS[part](results)[worker::workers] if key(asdict(run)) not in ready], stack)
    for number, runs in enumerate(mine, 1):
        begun = time.perf_counter()
        found = learn(shape, runs, torch.stack([base(shape, run.seed, results) for run in runs]))
        seconds = (time.perf_counter() - begun) / len(runs)
        for run, measured in zip(runs, found, strict=True):
            line = {"run": asdict(run), "measured": measured, "seconds": round(seconds, 2), "versions": VERSIONS}
            append(results / f"{part}.jsonl", line)
        print(f"{part} {worker}: batch {number} of {len(mine)}, {seconds:.1f} s a run", flush=True)
    return sum(map(len, mine))


def models(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is no number of models: at least 1")
    return int(text)


def share(text: str) -> tuple[int, int]:
    worker, _, workers = text.partition("/")
    if not (worker.isdecimal() and workers.isdecimal() and int(worker) < int(workers)):
        raise argparse.ArgumentTypeError(f"'{text}' is no share K/N with 0 <= K < N; the first of two is 0/2")
    return int(worker), int(workers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=sorted(PARTS))
    parser.add_argument("--stack", type=models, default=STACK, help="models that are trained side by side")
    parser.add_argument(
        "--worker", type=share, default="0/1", help="K/N: this process takes every N-th run, from the K-th"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder of lines and of what is chosen")
    given = parser.parse_args()
    worker, workers = given.worker
    if given.part == "confirm" and not PARTS["confirm"](given.results):
        search = command("choose.py search", given.results)
        raise SystemExit(f"nothing is found that could be confirmed: run `{search}` first")
    if not go(given.part, given.stack, worker, workers, given.results):
        print(f"{given.part}: every run of this process's share is in {given.results / given.part}.jsonl")


if __name__ == "__main__":
    main()
