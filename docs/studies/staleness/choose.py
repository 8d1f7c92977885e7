"""Which learning rate and scale of trust every arm is tested at: `python choose.py tune`; and what a search has found.

Writes `results/chosen.json` once every run of the plan's tuning is in, and after `python choose.py search`
`results/found.json`.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from stats import Array, area

HERE = Path(__file__).parent
RESULTS = HERE / "results"
CHOSEN, FOUND = RESULTS / "chosen.json", RESULTS / "found.json"
QUESTIONS = 64  # of every domain, at every look
LARGE = 4.5e-4  # the learning rate of all arms in the condition `large`

Setting = tuple[float, float | None]  # learning rate, and scale of trust where an arm has one


def lines(part: str, results: Path = RESULTS) -> list[dict]:
    """The results of a part, each run's once, in an order of their own; a line that was cut off is none."""
    file, found = results / f"{part}.jsonl", {}
    for text in file.read_text().splitlines() if file.exists() else ():
        try:
            line = json.loads(text)
            found.setdefault(json.dumps(line["run"], sort_keys=True), line)
        except (json.JSONDecodeError, KeyError):
            continue
    return [found[key] for key in sorted(found)]


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
    """What `results/chosen.json` says."""
    tuning = list(tuning)
    found = {"best": chosen(tuning), "large": chosen_at(tuning, LARGE)}
    said = {kind: {arm: {"lr": lr, "trust": trust} for arm, (lr, trust) in of.items()} for kind, of in found.items()}
    return json.dumps(said, indent=1) + "\n"


def record_search(searching: Iterable[Mapping]) -> str:
    """What `results/found.json` says: at each rate the best hierarchy and the best loss of one level."""
    from candidates import HIERARCHIES, ONE_LEVEL

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


def settings(kind: str = "best", file: Path = CHOSEN) -> dict[str, Setting]:
    """What `results/chosen.json` says: `best`, or `large` for the best scale at the large learning rate."""
    return {arm: (of["lr"], of["trust"]) for arm, of in json.loads(file.read_text())[kind].items()}


def lacking(runs: Iterable, found: Iterable[Mapping]) -> list:
    """Planned runs without a line."""
    there = {json.dumps(line["run"], sort_keys=True) for line in found}
    return [run for run in runs if json.dumps(vars(run), sort_keys=True) not in there]


def main() -> None:
    from plan import PARTS

    from fibration.files import write_file

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=("tune", "search"))
    part = parser.parse_args().part
    seen = lines(part)
    left = lacking(PARTS[part](), seen)
    if left:
        raise SystemExit(f"{len(left)} runs of {part} lack, of which the first is {left[0]}: python run.py {part}")
    write_file(*((CHOSEN, record(seen)) if part == "tune" else (FOUND, record_search(seen))))


if __name__ == "__main__":
    main()
