"""The tables of the study of levels in ../README.md, from raw lines: `python docs/studies/levels/report.py`.

From the runs of `study.py`. It prints them and writes them into the page. `--check` writes nothing, and fails where a
table would change.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from level_arms import LEVEL_ARMS, TRAJECTORY
from study import HERE, RESULTS, TEST, curve_area, lacking

import stats  # isort: skip
from store import lines  # isort: skip
from tables import chance, exact, number, table, written  # isort: skip

from fibration.files import write_file

PAGE = HERE.parent / "README.md"
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
    """What the plan lets one say of the question."""
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
        mean = f"{number(float(d.mean()), sign=True)} {exact(of.interval)}"
        cells = mean, chance(stats.flips(d)), chance(of.holm)
        found_at = number(spread * stats.detectable(len(d)))
        rows.append([f"`{of.arm}` − `{of.less}`", *cells, found_at, f"{(d > 0).sum()} of {len(d)}"])
    head = ["difference", "area", "p", "Holm's p", "found with power 0.8", "seeds above 0"]
    return table(head, rows)


def tables(results: Path) -> dict[str, str]:
    found = tested(results)
    left = len(lacking("test", results)) if (results / "chosen.json").exists() else len(TEST) * len(LEVEL_ARMS)
    planned = contrasts(found)
    return {
        "levels_verdict": said(planned, left),
        "levels_contrasts": compared(planned),
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
