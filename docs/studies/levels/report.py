"""Every number and table of the study in README.md, from raw lines: `python docs/studies/levels/report.py`.

It prints the tables and writes them into the page. `--check` writes nothing, and fails where a table would change.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from level_arms import LEVEL_ARMS, TRAJECTORY
from study import GRID, HERE, RESULTS, TEST, best, curve_area, lacking, powers, scale, tuned
from training import EPOCHS, HELD_OUT

import stats  # isort: skip
from store import lines, whole  # isort: skip
from tables import NONE, chance, exact, number, short, table, written  # isort: skip

from fibration.files import write_file

PAGE = HERE / "README.md"
OF_INTEREST, ALPHA = 0.02, 1 - stats.LEVEL
CONTRASTS = [(TRAJECTORY, other) for other in LEVEL_ARMS if other != TRAJECTORY]  # the first is the question
HELPS, NOTHING, HARMS, LESS, UNKNOWN = (
    "The trajectory's level helps",
    "The trajectory's level has no effect of interest",
    "The trajectory's level harms",
    "The trajectory's level does not help",
    "This study cannot say whether the trajectory's level helps",
)
Lines = Mapping[str, Mapping[int, Mapping]]  # of the test: by arm and seed


class Contrast(NamedTuple):
    arm: str
    less: str
    differences: np.ndarray  # by seed
    holm: float

    @property
    def interval(self) -> tuple[float, float]:
        return stats.shifts(self.differences)


def tested(results: Path) -> Lines:
    found: dict[str, dict[int, Mapping]] = defaultdict(dict)
    for line in lines("test", results):
        found[line["run"]["arm"]][line["run"]["seed"]] = line
    return found


def contrasts(found: Lines) -> list[Contrast]:
    """The planned contrasts on the primary measure, over seeds that both arms have; Holm over all of them."""
    apart = []
    for arm, less in CONTRASTS:
        seeds = sorted(found.get(arm, {}).keys() & found.get(less, {}).keys())
        apart.append(np.array([curve_area(found[arm][s]) - curve_area(found[less][s]) for s in seeds]))
    if any(len(d) < 2 for d in apart):
        return []
    holm = stats.holm([stats.flips(d) for d in apart])
    return [Contrast(*names, d, float(p)) for names, d, p in zip(CONTRASTS, apart, holm, strict=True)]


def verdict(mean: float, interval: tuple[float, float], holm: float) -> str:
    """What plan.md lets one say of the question."""
    low, high = interval
    if holm < ALPHA and low > 0 and mean >= OF_INTEREST:
        return HELPS
    if high < 0:
        return NOTHING if low > -OF_INTEREST else HARMS
    if high < OF_INTEREST:
        return NOTHING if low > -OF_INTEREST else LESS
    return UNKNOWN


def said(found: Sequence[Contrast], left: int) -> str:
    if left or not found:
        return f"{left} runs of the test are not in yet. The tables below change with them, and nothing is concluded."
    first = found[0]
    mean = float(first.differences.mean())
    words = f"{number(mean, sign=True)} {exact(first.interval)}, Holm's p = {chance(first.holm)}"
    return f"**{verdict(mean, first.interval, first.holm)}**: the area is {words} beside the token's level."


def compared(found: Sequence[Contrast]) -> str:
    rows = []
    for of in found:
        d = of.differences
        spread = float(d.std(ddof=1))
        cells = number(float(d.mean()), sign=True), exact(of.interval), chance(stats.flips(d)), chance(of.holm)
        found_at = number(spread * stats.detectable(len(d)))
        rows.append([f"`{of.arm}` − `{of.less}`", *cells, found_at, f"{(d > 0).sum()} of {len(d)}"])
    head = ["difference", "mean", "exact interval of 95 %", "p", "Holm's p", "found with power 0.8", "seeds above 0"]
    return table(head, rows)


def tuning(results: Path) -> str:
    """Mean areas over the seeds of tuning, by power of the factor between scales."""
    areas = tuned(lines("tune", results))
    grids = {arm: powers(of) for arm, of in areas.items()}
    columns = range(min(GRID[0], *map(min, grids.values())), max(GRID[-1], *map(max, grids.values())) + 1)
    rows = []
    for arm, of in areas.items():
        cells = [number(of.get(scale(k))) for k in columns]
        top = best(of) if all(scale(k) in of for k in grids[arm]) else None
        ends = scale(grids[arm][0]), scale(grids[arm][-1])
        where = NONE if top is None else "an end" if top in ends else "inside"
        rows.append([f"`{arm}`", *cells, NONE if top is None else f"{top:g}", where])
    return table(["scale", *(f"{scale(k):g}" for k in columns), "chosen", "the best is"], rows)


def collapses(line: Mapping) -> bool:
    right = np.array(line["measured"]["scores"])[:, None] * HELD_OUT
    return bool(stats.collapsed(right)[-1, 0])


def by_arm(found: Lines) -> str:
    """Means over seeds, and over epochs for what is measured in each step."""
    rows = []
    for arm in LEVEL_ARMS:
        mine = list(found.get(arm, {}).values())
        if not mine:
            continue
        measured = [line["measured"] for line in mine]
        first, last = (np.mean([m["scores"][k] for m in measured]) for k in (0, -1))
        area = stats.of_mean([curve_area(line) for line in mine])
        path = np.mean([sum(m["moved"]) for m in measured])
        shares = [100 * np.mean([m[name] for m in measured]) for name in ("zeroed", "reduced", "grpo_gates")]
        cells = f"{number(area.value)} [{number(area.low)}, {number(area.high)}]", number(first), number(last)
        fell = f"{sum(map(collapses, mine))} of {len(mine)}"
        rows.append([f"`{arm}`", *cells, short(float(path)), *(number(x, 1) for x in shares), fell])
    head = ["arm", "area", "first score", "last score", "path of KL, nats", "zeroed, %", "reduced, %"]
    return table([*head, "`grpo` would gate, %", "collapsed"], rows)


def drift(found: Lines) -> str:
    """Design effects by epoch, means over seeds."""
    rows = []
    for arm in LEVEL_ARMS:
        columns = np.array([line["measured"]["design_effect"] for line in found.get(arm, {}).values()])
        if len(columns):
            rows.append([f"`{arm}`", *(number(x, 1) for x in columns.mean(0)), number(columns.max(), 1)])
    head = ["design effect", *(f"epoch {e + 1}" for e in range(EPOCHS)), "greatest of a run"]
    return table(head, rows)


def listed(results: Path, left: int) -> str:
    """Runs and bases that are in."""
    rows = []
    for part, lack in (("tune", len(lacking("tune", results))), ("test", left)):
        there = lines(part, results)
        versions = {" ".join(f"{k} {v}" for k, v in line["versions"].items()) for line in there}
        minutes = number(sum(line["seconds"] for line in there) / 60, 0)
        rows.append([part, str(len(there)), str(lack), minutes, ", ".join(sorted(versions)) or NONE])
    of_bases = {line["seed"]: line["score"] for line in whole(results / "bases.jsonl")}.values()
    words = f"Scores of the {len(of_bases)} bases' samples: {number(min(of_bases))} to {number(max(of_bases))}."
    return table(["part", "runs", "lacking", "minutes of a core", "versions"], rows) + f"\n\n{words}"


def tables(results: Path) -> dict[str, str]:
    found = tested(results)
    left = len(lacking("test", results)) if (results / "chosen.json").exists() else len(TEST) * len(LEVEL_ARMS)
    planned = contrasts(found)
    return {
        "verdict": said(planned, left),
        "contrasts": compared(planned),
        "tuning": tuning(results),
        "arms": by_arm(found),
        "drift": drift(found),
        "runs": listed(results, left),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a table would change")
    given = parser.parse_args(arguments)
    found = tables(RESULTS)
    page = PAGE.read_text()
    wanted = written(page, found, PAGE.name)
    if given.check:
        if wanted != page:
            raise SystemExit(f"{PAGE.name} is not what the results say: run python docs/studies/levels/report.py")
        return
    print("\n\n".join(f"{name}\n{text}" for name, text in found.items()))
    write_file(PAGE, wanted)


if __name__ == "__main__":
    main()
