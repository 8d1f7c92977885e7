"""C code of sums and maxima over a segment's tokens, in lanes: `fibres.h` defines their order."""

from __future__ import annotations

from fibration.compiler.ir import Push


def precision_of(wide: bool) -> str:
    """The suffix of functions on the numbers of a pass."""
    return "f64" if wide else "real"


def start_of(push: Push, wide: bool, lanes: str) -> str:
    """The declaration of the lanes."""
    of = precision_of(wide)
    if push.reduce == "sum":
        return f"{'double' if wide else 'real'} {lanes}[LANES] = {{0}};"
    return f"ordered_{of} {lanes}[LANES];\nfor (int k = 0; k < LANES; k++) {lanes}[k] = order_{of}(-INFINITY);"


def add_to(push: Push, wide: bool, lanes: str, value: str) -> str:
    """The statement that adds a token's value to lane `k`."""
    if push.reduce == "sum":
        return f"{lanes}[k] += {value};"
    return f"{lanes}[k] = MORE({lanes}[k], order_{precision_of(wide)}({value}));"


def add_up(push: Push, wide: bool, total: str, lanes: str) -> str:
    """The statement that adds the lanes of a chunk to the total, a double."""
    found = f"{push.reduce}_{precision_of(wide)}({lanes}, LANES)"
    if push.reduce == "sum":
        return f"{total} += {found};"
    return f"{total} = MORE({total}, unorder_{precision_of(wide)}({found}));"
