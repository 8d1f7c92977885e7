"""All runs of the study, part by part: what plan.md says in words."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path

from arms import ARMS
from candidates import CANDIDATES
from rl import Run

RESULTS = Path(__file__).parent / "results"
TUNING, TEST, SEARCH, CONFIRMING = range(3), range(10, 20), range(20, 24), range(30, 40)
SMALL = (100, 101)  # of small.py alone
# Seeds whose base policies are trained side by side, each until all of its group are close enough.
GROUPS = (
    (0, 1, 2, 20),
    (21, 22, 23, 18),
    (10, 11, 12, 13),
    (14, 15, 16, 17),
    (30, 31, 32),
    (19, 33, 34, 35),
    (36, 37, 38, 39),
    SMALL,
)
RATES, LOW = (5e-5, 1.5e-4, 4.5e-4), 1.5e-5
BETWEEN = (9e-5, 4.5e-4)  # of the search: between the two best rates of tuning, and the largest


def tune() -> list[Run]:
    """Every arm that is tuned, at all of its scales and learning rates, and at a rate below at its middle scale."""
    tuned = {name: arm.scales or (None,) for name, arm in ARMS.items() if arm.of is None}
    return [
        Run("tune", name, "unequal", seed, lr, trust)
        for name, scales in tuned.items()
        for lr, several in ((LOW, (scales[len(scales) // 2],)), *((lr, scales) for lr in RATES))
        for trust, seed in itertools.product(several, TUNING)
    ]


def tuned() -> dict[str, dict[str, dict]]:
    """What `choose.py tune` has written."""
    if not (RESULTS / "chosen.json").exists():
        raise SystemExit(f"{RESULTS} has no chosen.json, whose settings are tested: run `python choose.py tune` first")
    return json.loads((RESULTS / "chosen.json").read_text())


def test() -> list[Run]:
    """Every arm in every condition, as tuning chose it, on seeds that tuning did not see."""
    chosen = tuned()
    found = []
    for condition in ("unequal", "large", "apart", "stale", "fresh", "noisy"):
        settings = chosen["large" if condition in ("large", "apart") else "best"]
        for seed, (name, arm) in itertools.product(TEST, ARMS.items()):
            found.append(Run("test", name, condition, seed, **settings[arm.of or name]))
    return found


def search() -> list[Run]:
    """Every candidate, where tuning was best and where steps are large, on seeds of its own."""
    return [
        Run("search", name, "unequal", seed, lr, trust)
        for name, arm in CANDIDATES.items()
        for lr, trust, seed in itertools.product(BETWEEN, arm.scales, SEARCH)
    ]


def confirm() -> list[Run]:
    """The best hierarchy and the best loss of one level that the search found at each rate, and GSPO as it was tuned.

    None before the search has found them.
    """
    if not (RESULTS / "found.json").exists():
        return []
    found = json.loads((RESULTS / "found.json").read_text())
    chosen = tuned()
    return [
        Run("confirm", name, condition, seed, **setting)
        for condition in ("unequal", "large", "apart")
        for rate in ["best" if condition == "unequal" else "large"]
        for name, setting in [*found[rate].items(), ("gspo", chosen[rate]["gspo"])]
        for seed in CONFIRMING
    ]


PARTS: dict[str, Callable[[], list[Run]]] = {"tune": tune, "test": test, "search": search, "confirm": confirm}
