"""How a step's gradient comes of its backward passes, and of the micro-batches of the declared loss."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fibration.auditing.finding import Finding
from fibration.errors import listed

Floats = NDArray[np.float64]


def fitted(target: Floats, rows: Floats, tolerance: float) -> Floats | None:
    """The numbers by which the rows `[k, n]` have to be multiplied to add up to the target `[n]`; None if there are
    none. NaN for rows that are as small as rounding, of which nothing can be said.
    """
    if not len(rows) or not target.any():
        return None
    scales = np.linalg.norm(rows, axis=1)
    used = scales > min(10 * tolerance, 0.3) * scales.max()
    found = np.full(len(rows), np.nan)
    if not used.any():
        return None
    unit = rows[used] / scales[used, None]
    found[used] = np.linalg.lstsq(unit.T, target, rcond=1e-8)[0] / scales[used]
    rest = np.linalg.norm(found[used] @ rows[used] - target)
    return found if rest <= tolerance * np.linalg.norm(target) else None


def scale_of(target: Floats, one: Floats, tolerance: float) -> float | None:
    """The number by which `one` has to be multiplied to be the target; None if there is none."""
    found = fitted(target, one[None], tolerance)
    return None if found is None else float(found[0])


def explained(found: Floats, passes: Floats, declared: Floats, parts: Floats, tolerance: float) -> Finding | None:
    """What happened to micro-batches, where the gradient is not that of the declared loss; None if nothing is seen.

    All are sampled elements: `found` and `declared` `[n]` of whole gradients, `passes` `[k, n]` of backward passes,
    `parts` `[j, n]` of the declared loss's micro-batches.
    """
    for ask in (_kept, _twice, _weights, _left_out):
        if text := ask(found, passes, declared, parts, tolerance):
            return Finding("accumulation", "fails", text)
    return None


def _kept(found: Floats, passes: Floats, declared: Floats, parts: Floats, tolerance: float) -> str:
    """Backward passes that are not in the gradient."""
    if len(passes) < 2 or (kept := fitted(found, passes, tolerance)) is None:
        return ""
    gone = np.abs(kept) < 0.05 * np.nanmax(np.abs(kept))
    if not gone.any():
        return ""
    if (gone | np.isnan(kept))[:-1].all() and not gone[-1]:
        return (
            f"the gradient is that of the last of {len(passes)} backward passes alone: it is overwritten, as by "
            "zero_grad() between them"
        )
    return f"{_numbered('backward pass', gone)} of {len(passes)} {_are(gone)} not in the gradient"


def _twice(found: Floats, passes: Floats, declared: Floats, parts: Floats, tolerance: float) -> str:
    """Backward passes of one micro-batch."""
    for j in range(len(passes)):
        for i in range(j):
            apart = np.linalg.norm(passes[i] - passes[j])
            if passes[i].any() and apart <= 1e-2 * tolerance * np.linalg.norm(passes[i]):
                return f"backward passes {i + 1} and {j + 1} have the same gradient: one micro-batch comes twice"
    return ""


def _weights(found: Floats, passes: Floats, declared: Floats, parts: Floats, tolerance: float) -> str:
    """Micro-batches that count differently in the step and in the declared loss."""
    owed = fitted(declared, passes, tolerance) if len(passes) > 1 else None
    if owed is not None and _spread(owed) > 3 * tolerance * np.nanmax(np.abs(owed)):
        by = listed(f"{w:.4g}" for w in owed)
        return (
            f"the backward passes have to be multiplied by {by} to add up to the declared loss: each has a normaliser "
            "of its own, such as its number of tokens"
        )
    return ""


def _left_out(found: Floats, passes: Floats, declared: Floats, parts: Floats, tolerance: float) -> str:
    """Micro-batches of the declared loss that are not in the step, or too often."""
    if len(parts) < 2 or (counted := fitted(found, parts, tolerance)) is None:
        return ""
    usual = float(np.median(counted[np.abs(counted) > 0.05 * np.nanmax(np.abs(counted))]))
    times = counted / usual
    gone = np.abs(times) < 0.05
    if gone.any():
        return f"{_numbered('micro-batch', gone)} of {len(parts)} of the declared loss {_are(gone)} left out"
    if _spread(times) > 3 * tolerance:
        by = listed(f"{w:.4g}" for w in counted)
        return f"the micro-batches of the declared loss are in the gradient {by} times"
    return ""


def _spread(values: Floats) -> float:
    return float(np.nanmax(values) - np.nanmin(values))


def _numbered(what: str, chosen: NDArray[np.bool_]) -> str:
    numbers: Sequence[int] = (np.flatnonzero(chosen) + 1).tolist()
    plural = "es" if what.endswith(("s", "ch")) else "s"
    return f"{what}{plural if len(numbers) > 1 else ''} {listed(numbers)}"


def _are(chosen: NDArray[np.bool_]) -> str:
    return "are" if chosen.sum() > 1 else "is"
