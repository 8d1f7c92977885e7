"""Which learning rate and scale of trust every arm is tested at, and what a search has found.

`python docs/studies/staleness/choose.py tune` writes `chosen.json` into the folder of results once every run of the
plan's tuning is in, and `search` for `tune` `found.json`.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from candidates import HIERARCHIES, ONE_LEVEL
from measures import QUESTIONS
from plan import LARGE_RATE, PARTS
from rl import Run
from stats import Array, area
from store import CHOSEN, FOUND, RESULTS, command, key, lines

from fibration.files import write_file

Setting = tuple[float, float | None]  # learning rate, and scale of trust where an arm has one


def accuracy(line: Mapping) -> Array:
    """Shares of questions answered right, `[looks, domains]`."""
    return np.array(line["measured"]["right"]) / QUESTIONS


def areas(accuracy: Array) -> tuple[float, float]:
    """Of `[looks, domains]`: area over training of the mean over domains, and of the worst domain's at each look."""
    return float(area(accuracy.mean(1))), float(area(accuracy.min(1)))


def scores(tuning: Iterable[Mapping]) -> dict[str, dict[Setting, float]]:
    """Mean of both areas over seeds, of every arm's settings that were run with all seeds of tuning."""
    found: dict[str, dict[Setting, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for line in tuning:
        run = line["run"]
        found[run["arm"]][run["lr"], run["trust"]][run["seed"]] = sum(areas(accuracy(line))) / 2
    seeds = {seed for arm in found.values() for by_seed in arm.values() for seed in by_seed}
    mean = {arm: {s: sum(y.values()) / len(y) for s, y in of.items() if set(y) == seeds} for arm, of in found.items()}
    return {arm: of for arm, of in sorted(mean.items()) if of}


def best(of: Mapping[Setting, float]) -> Setting:
    """The setting of the highest score; of equals that of the smaller rate, and then of the smaller scale."""
    return min(of, key=lambda setting: (-of[setting], setting[0], setting[1] or 0))


def chosen(tuning: Iterable[Mapping]) -> dict[str, Setting]:
    """Learning rate and scale of trust of every arm that was tuned."""
    return {arm: best(of) for arm, of in scores(tuning).items()}


def chosen_at(tuning: Iterable[Mapping], lr: float) -> dict[str, Setting]:
    """The same where the learning rate is given, as in the condition `large`."""
    at = {arm: {s: y for s, y in of.items() if s[0] == lr} for arm, of in scores(tuning).items()}
    return {arm: best(of) for arm, of in at.items() if of}


def record(tuning: Iterable[Mapping]) -> str:
    """What `chosen.json` says."""
    tuning = list(tuning)
    found = {"best": chosen(tuning), "large": chosen_at(tuning, LARGE_RATE)}
    said = {kind: {arm: {"lr": lr, "trust": trust} for arm, (lr, trust) in of.items()} for kind, of in found.items()}
    return json.dumps(said, indent=1) + "\n"


def record_search(searching: Iterable[Mapping]) -> str:
    """What `found.json` says: at each rate the best hierarchy and the best loss of one level."""
    by_arm = scores(searching)
    rates = sorted({lr for of in by_arm.values() for lr, _ in of})
    said: dict[str, dict] = {}
    for kind, rate in zip(("best", "large"), rates, strict=True):
        said[kind] = {}
        for group in (HIERARCHIES, ONE_LEVEL):
            at = {(arm, s): y for arm in group for s, y in by_arm.get(arm, {}).items() if s[0] == rate}
            arm, (lr, trust) = min(at, key=lambda pair: (-at[pair], pair[0], pair[1][1]))
            said[kind][arm] = {"lr": lr, "trust": trust}
    return json.dumps(said, indent=1) + "\n"


def lacking(runs: Iterable[Run], found: Iterable[Mapping]) -> list[Run]:
    """Planned runs without a line."""
    there = {key(line["run"]) for line in found}
    return [run for run in runs if key(vars(run)) not in there]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=("tune", "search"))
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder that is read and written")
    given = parser.parse_args()
    part, results = given.part, given.results
    seen = lines(part, results)
    left = lacking(PARTS[part](results), seen)
    if left:
        run = command(f"run.py {part}", results)
        raise SystemExit(f"{len(left)} runs of {part} lack, of which the first is {left[0]}: run `{run}`")
    name, text = (CHOSEN, record(seen)) if part == "tune" else (FOUND, record_search(seen))
    write_file(results / name, text)


if __name__ == "__main__":
    main()
