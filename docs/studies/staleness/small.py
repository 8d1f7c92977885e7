"""A small part of the study from nothing, in minutes: `make study`, or `python docs/studies/staleness/small.py`.

Two seeds that the study has nowhere else; three losses at the largest learning rate. Trains the bases, then runs what
lacks, and prints what came out; nothing is written among the results of the study.
"""

from __future__ import annotations

from arms import THREE
from cells import cells
from plan import PARTS, SMALL, setting
from rl import Run
from run import go
from store import HERE, RESULTS, lines, read_chosen

FOLDER = HERE.parents[2] / "build" / "study" / "small"


def small() -> list[Run]:
    settings = read_chosen()
    return [
        Run("small", name, "large", seed, **setting(settings, "large", name, RESULTS))
        for seed in SMALL
        for name in THREE
    ]


def main() -> None:
    PARTS["small"] = lambda _: small()
    print(f"{len(small())} runs of 150 steps; bases are trained first, where they lack: some minutes", flush=True)
    go("small", len(small()), results=FOLDER)
    rows = []
    for (_, arm, (lr, trust)), cell in sorted(cells(lines("small", FOLDER)).items()):
        for k, seed in enumerate(cell.seeds):
            numbers = (cell.accuracy[k, 0].mean(), cell.final[k], cell.mean_area[k], cell.worst_area[k], cell.path[k])
            largest = cell.measured("amplification")[k].max()
            collapsed = "yes" if cell.collapses[k].any() else "no"
            said = [f"{number:.3f}" for number in numbers]
            rows.append([arm, f"{lr:g}, {trust:g}", str(seed), *said, collapsed, f"{largest:.1f}"])
    head = ["loss", "rate, trust", "seed", "at first", "at last", "mean area", "worst area", "path's KL"]
    head += ["collapsed", "amplification"]
    for row in (head, *rows):
        print(" | ".join(cell.ljust(14) for cell in row))


if __name__ == "__main__":
    main()
