"""How much is tried: everything takes several times as long, and is for changes deep in the laws or the compiler."""

import os

ALL = os.environ.get("FIBRATION_ALL_TESTS") == "1"


def some(everything, step):
    """Every `step`-th of a list, or all of it."""
    return list(everything)[:: 1 if ALL else step]
