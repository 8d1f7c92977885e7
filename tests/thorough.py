"""How much is tried: everything takes several times as long, and is for changes deep in the laws or the compiler."""

import os

from hypothesis import HealthCheck, settings

ALL = os.environ.get("FIBRATION_ALL_TESTS") == "1"


def some(everything, step, start=0):
    """Every `step`-th of a list from `start` on, or all of it."""
    return list(everything) if ALL else list(everything)[start::step]


def examples(n):
    """So many of what hypothesis draws; a quarter of them in an everyday run."""
    n = n if ALL else -(-n // 4)
    checks = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
    return settings(
        max_examples=n, deadline=None, derandomize=True, database=None, suppress_health_check=checks, print_blob=False
    )
