"""All runs of the study, part by part."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

from arms import ARMS
from candidates import CANDIDATES
from rl import CONDITIONS, Run
from store import CHOSEN, Settings, command, read_chosen, read_found

TUNING, TEST, SEARCH, CONFIRMING = range(3), range(10, 20), range(20, 24), range(30, 40)
SMALL = (100, 101)  # of small.py alone
# Seeds whose base policies are trained side by side, each until all of its group are close enough.
SEED_GROUPS = (
    (0, 1, 2, 20),
    (21, 22, 23, 18),
    (10, 11, 12, 13),
    (14, 15, 16, 17),
    (30, 31, 32),
    (19, 33, 34, 35),
    (36, 37, 38, 39),
    SMALL,
)
LARGE_RATE = 4.5e-4  # of all arms in the conditions that follow
AT_LARGE_RATE = ("large", "apart")
RATES, LOW = (5e-5, 1.5e-4, LARGE_RATE), 1.5e-5
BETWEEN = (9e-5, LARGE_RATE)  # of the search: between the two best rates of tuning, and the largest


def tune() -> list[Run]:
    """Every arm that is tuned, at all of its scales and learning rates, and at a rate below at its middle scale."""
    tuned = {name: arm.scales or (None,) for name, arm in ARMS.items() if arm.of is None}
    return [
        Run("tune", name, "unequal", seed, lr, trust)
        for name, scales in tuned.items()
        for lr, several in ((LOW, (scales[len(scales) // 2],)), *((lr, scales) for lr in RATES))
        for trust, seed in itertools.product(several, TUNING)
    ]


def setting(settings: Settings, kind: str, arm: str, results: Path) -> dict:
    """What tuning chose for an arm."""
    if arm not in settings[kind]:
        tune, choose = command("run.py tune", results), command("choose.py tune", results)
        raise SystemExit(f"{results / CHOSEN} has no '{kind}' setting of {arm}: run `{tune}`, then `{choose}`")
    return settings[kind][arm]


def test(results: Path) -> list[Run]:
    """Every arm in every condition, as tuning chose it, on seeds that tuning did not see."""
    settings = read_chosen(results)
    return [
        Run("test", name, condition, seed, **setting(settings, rate, arm.of or name, results))
        for condition in CONDITIONS
        for rate in ["large" if condition in AT_LARGE_RATE else "best"]
        for seed, (name, arm) in itertools.product(TEST, ARMS.items())
    ]


def search() -> list[Run]:
    """Every candidate, where tuning was best and where steps are large, on seeds of its own."""
    return [
        Run("search", name, "unequal", seed, lr, trust)
        for name, arm in CANDIDATES.items()
        for lr, trust, seed in itertools.product(BETWEEN, arm.scales, SEARCH)
    ]


def confirm(results: Path) -> list[Run]:
    """The best hierarchy and the best loss of one level that the search found at each rate, and GSPO as it was tuned.

    None before the search has found them.
    """
    best = read_found(results)
    if best is None:
        return []
    tuned = read_chosen(results)
    return [
        Run("confirm", name, condition, seed, **at)
        for condition in ("unequal", *AT_LARGE_RATE)
        for rate in ["large" if condition in AT_LARGE_RATE else "best"]
        for name, at in [*best[rate].items(), ("gspo", setting(tuned, rate, "gspo", results))]
        for seed in CONFIRMING
    ]


# By the folder of results, in which test and confirmation find what was chosen.
PARTS: dict[str, Callable[[Path], list[Run]]] = {
    "tune": lambda _: tune(),
    "test": test,
    "search": lambda _: search(),
    "confirm": confirm,
}
