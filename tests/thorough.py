"""How much is tried: everything takes several times as long, and is for changes deep in the laws or the compiler."""

import os

ALL = os.environ.get("FIBRATION_ALL_TESTS") == "1"


def some(everything, step, start=0):
    """Every `step`-th of a list from `start` on, or all of it."""
    return list(everything) if ALL else list(everything)[start::step]
