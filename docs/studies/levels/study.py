"""Every planned run, and the choice of scales.

    python docs/studies/levels/study.py tune      # adds lines to results/tune.jsonl
    python docs/studies/levels/study.py choose    # writes results/chosen.json
    python docs/studies/levels/study.py test      # adds lines to results/test.jsonl

A run that has its line is not repeated. `--worker 0/2` takes every other run, so that two processes share the work.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path

import torch
from level_arms import LEVEL_ARMS
from torch import Tensor
from training import Run, learn, pretrain  # first: its imports open the folder of the modules below

from stats import area  # isort: skip
from store import append, key, lines, whole  # isort: skip

import fibration
from fibration.files import write_file

HERE = Path(__file__).resolve().parent
RESULTS, BASES = HERE / "results", HERE.parents[2] / "build" / "levels"
TUNING, TEST = range(3), range(10, 20)
RATE = 1e-3
GRID, FACTOR, EXTENSIONS = range(-2, 3), 3.0, 2  # powers of the factor; how often a grid may grow, by one value each
VERSIONS = {"fibration": fibration.__version__, "torch": torch.__version__, "python": platform.python_version()}


def scale(power: int) -> float:
    return float(f"{FACTOR**power:.3g}")


def curve_area(line: Mapping) -> float:
    """The primary measure: the area under the curve of greedy scores over training, between 0 and 1."""
    return float(area(line["measured"]["scores"]))


def tuned(found: Iterable[Mapping]) -> dict[str, dict[float, float]]:
    """By arm and scale the mean area over the seeds of tuning, where all of them are in."""
    areas: dict[str, dict[float, dict[int, float]]] = {arm: {} for arm in LEVEL_ARMS}
    for line in found:
        run = line["run"]
        areas[run["arm"]].setdefault(run["scale"], {})[run["seed"]] = curve_area(line)
    return {
        arm: {s: sum(of.values()) / len(of) for s, of in sorted(by_scale.items()) if set(of) == set(TUNING)}
        for arm, by_scale in areas.items()
    }


def best(areas: Mapping[float, float]) -> float:
    """The scale of the largest area; of equals the one nearest to 1."""
    return max(areas, key=lambda s: (areas[s], -max(s, 1 / s)))


def powers(areas: Mapping[float, float]) -> list[int]:
    """The grid of an arm: one value more at the end where the best lies, at most `EXTENSIONS` times."""
    grid = list(GRID)
    for _ in range(EXTENSIONS):
        if any(scale(k) not in areas for k in grid):
            break
        top = best({scale(k): areas[scale(k)] for k in grid})
        if top == scale(grid[0]):
            grid.insert(0, grid[0] - 1)
        elif top == scale(grid[-1]):
            grid.append(grid[-1] + 1)
        else:
            break
    return grid


def tune(results: Path) -> list[Run]:
    areas = tuned(lines("tune", results))
    return [Run("tune", arm, seed, scale(k), RATE) for seed in TUNING for arm in LEVEL_ARMS for k in powers(areas[arm])]


def choose(results: Path) -> None:
    areas = tuned(lines("tune", results))
    left = len(lacking("tune", results))
    if left:
        raise SystemExit(f"{left} runs of tuning lack: run `python docs/studies/levels/study.py tune`")
    chosen = {arm: best(of) for arm, of in areas.items()}
    write_file(results / "chosen.json", json.dumps(chosen, indent=1) + "\n")


def test(results: Path) -> list[Run]:
    file = results / "chosen.json"
    if not file.exists():
        raise SystemExit(f"{file} is missing: run `python docs/studies/levels/study.py choose`")
    chosen = json.loads(file.read_text())
    return [Run("test", arm, seed, chosen[arm], RATE) for seed in TEST for arm in LEVEL_ARMS]


PARTS = {"tune": tune, "test": test}


def lacking(part: str, results: Path, worker: int = 0, workers: int = 1) -> list[Run]:
    """A worker's planned runs that have no line."""
    ready = {key(line["run"]) for line in lines(part, results)}
    mine = PARTS[part](results)[worker::workers]
    return [run for run in mine if key(asdict(run)) not in ready]


def base(seed: int, results: Path) -> Tensor:
    """A seed's base policy, trained once; what its samples score is in bases.jsonl."""
    file = BASES / f"{seed}.pt"
    if not file.exists():
        weights, found, steps = pretrain(seed)
        BASES.mkdir(parents=True, exist_ok=True)
        part = BASES / f"{seed}.{os.getpid()}"
        torch.save({"weights": weights, "line": {"seed": seed, "score": round(found, 4), "steps": steps}}, part)
        part.replace(file)
    kept = torch.load(file)
    if kept["line"] not in list(whole(results / "bases.jsonl")):
        append(results / "bases.jsonl", kept["line"])
    return kept["weights"]


def go(part: str, worker: int = 0, workers: int = 1, results: Path = RESULTS) -> int:
    """Run what lacks, also what a grown grid adds; how many runs that were."""
    torch.set_num_threads(1)
    done = 0
    while mine := lacking(part, results, worker, workers):
        for number, run in enumerate(mine, 1):
            start, begun = base(run.seed, results), time.process_time()
            measured = learn(run, start)
            seconds = round(time.process_time() - begun, 1)
            line = {"run": asdict(run), "measured": measured, "seconds": seconds, "versions": VERSIONS}
            append(results / f"{part}.jsonl", line)
            done += 1
            print(f"{part} {worker}: {number} of {len(mine)}, {seconds} s of a processor", flush=True)
    return done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=(*PARTS, "choose"))
    parser.add_argument("--worker", default="0/1", help="which of how many processes this one is")
    given = parser.parse_args()
    if given.part == "choose":
        choose(RESULTS)
    else:
        go(given.part, *map(int, given.worker.split("/")))


if __name__ == "__main__":
    main()
