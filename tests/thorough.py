"""How much the tests try. `FIBRATION_TESTS` chooses one of three levels.

| | command | parametrised tests | random cases, backends, dtypes |
|---|---|---|---|
| few | `make test` | all of most functions; `FEW` of one marked `sampled`, none of one marked `thorough`; those of `telling.py` | a slice |
| most | `make test-all`, which CI runs | all of most functions; of one marked `sampled` every other over `MANY` cases, every third over `VERY_MANY` | a slice |
| all | `FIBRATION_TESTS=all make test` | all cases | everything: hours, for changes deep in the laws or the compiler |
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable

import pytest
from hypothesis import HealthCheck, settings
from telling import TELLING

LEVEL = os.environ.get("FIBRATION_TESTS", "few")
assert LEVEL in ("few", "most", "all"), f"FIBRATION_TESTS is few, most or all, and not {LEVEL!r}"
ALL = LEVEL == "all"
FEW = 2
MANY, VERY_MANY = 8, 24


def some(everything, step, start=0):
    """Every `step`-th of a list from `start` on, or all of it."""
    return list(everything) if ALL else list(everything)[start::step]


def examples(n):
    """Hypothesis settings for `n` examples, or a quarter of them unless everything is tried."""
    n = n if ALL else -(-n // 4)
    checks = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
    return settings(
        max_examples=n, deadline=None, derandomize=True, database=None, suppress_health_check=checks, print_blob=False
    )


def left_out(items: list[pytest.Item]) -> list[pytest.Item]:
    """The tests that a level leaves out: some cases of those marked `sampled`, and at the level `few` those marked
    `thorough`. Cases of `telling.py` are kept.
    """
    if ALL:
        return []
    functions: dict[str, list[pytest.Item]] = defaultdict(list)
    out: list[pytest.Item] = []
    for item in items:
        if LEVEL == "few" and item.get_closest_marker("thorough"):
            out.append(item)
        elif item.get_closest_marker("sampled"):
            functions[item.nodeid.partition("[")[0]].append(item)
    for cases in functions.values():
        kept = set(_kept(len(cases)))
        out += [case for k, case in enumerate(cases) if k not in kept]
    return [item for item in out if item.nodeid.removeprefix("tests/") not in TELLING]


def _kept(n: int) -> Iterable[int]:
    """Which of `n` cases stay, evenly spaced."""
    if LEVEL == "most":
        return range(0, n, 1 + (n > MANY) + (n > VERY_MANY))
    return [k * (n - 1) // (FEW - 1) for k in range(FEW)] if n > FEW else range(n)
