"""Masks and offsets from the user → booleans and whole numbers. Errors name the likely mistake."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fibration.errors import HierarchyIndexError, shown
from fibration.runtime.index.attributes import to_numpy
from fibration.runtime.index.spans import Intervals
from fibration.runtime.sums import Codes

IGNORED = -100  # the label that losses of token ids ignore


def as_mask(mask: Any, what: str) -> NDArray[np.bool_]:
    array = to_numpy(mask, what)
    if array.dtype == np.bool_:
        return array
    wrong = ~np.isin(array, (0, 1)) if array.dtype.kind in "iuf" else np.ones(array.shape, np.bool_)
    if array.dtype.kind == "O":
        wrong = np.vectorize(lambda v: not isinstance(v, (bool, int)) or v not in (0, 1), otypes=[bool])(array)
    if wrong.any() or array.dtype.kind not in "iuf":
        raise HierarchyIndexError(
            f"{what} has values other than 0 and 1",
            required="booleans, or 0 and 1",
            found=f"dtype {array.dtype}{_first(array, wrong)}",
            remedy=_meant(array) if array.dtype.kind in "if" else "",
        )
    return array.astype(np.bool_)


def _meant(array: NDArray[Any]) -> str:
    if (array == IGNORED).any():
        return f"from labels with {IGNORED}, pass labels != {IGNORED}"
    if ((array == 0) | (array < -1e4)).all():
        return "from an additive attention mask, pass mask == 0, and mask the prompt too"
    return "from token ids, pass ids != pad_token_id" if (array > 1).any() else ""


def _first(array: NDArray[Any], wrong: NDArray[np.bool_]) -> str:
    if not wrong.any():
        return ""
    place = tuple(map(int, np.argwhere(wrong)[0]))
    return f", {shown(array.item(place))}" + (f" at {list(place)}" if place else "")


def as_offsets(offsets: Any, least: int) -> Codes:
    """The offsets as int64 [n + 1], for at least `least` rows."""
    array = to_numpy(offsets, "the offsets")
    rule = "cu_seqlens: whole numbers [n + 1], starting at 0, never decreasing"
    if array.ndim != 1 or len(array) < 1 + least or array.dtype.kind not in "iu":
        raise HierarchyIndexError(
            f"offsets of shape {list(array.shape)} and dtype {array.dtype}",
            required=rule,
            remedy="offsets.long()" if array.ndim == 1 and array.dtype.kind == "f" else "",
        )
    if int(array.max()) > np.iinfo(np.int64).max:
        raise HierarchyIndexError(f"the offsets reach {array.max()}", required=rule)
    array = array.astype(np.int64)
    falls = np.diff(array) < 0
    if array[0] != 0 or falls.any():
        bad = (
            f"they start at {array[0]}"
            if array[0]
            else f"offsets[{int(np.argmax(falls)) + 1}] is smaller than the one before"
        )
        ways = [f"from lengths pass {_some([0, *np.cumsum(array).tolist()])}"] * bool(array[0] > 0 and array.min() >= 0)
        ways += [f"from row ends pass {_some([0, *array.tolist()])}"] * bool(array[0] > 0 and not falls.any())
        raise HierarchyIndexError(
            "the offsets do not delimit rows",
            required=rule,
            found=bad,
            remedy=", ".join(ways),
        )
    return array


def _some(numbers: list[int]) -> str:
    return f"[{', '.join(map(str, numbers[:4]))}{', ...' * (len(numbers) > 4)}]"


def every_place(n: int) -> Intervals:
    try:
        np.empty(n, np.bool_)
    except (MemoryError, ValueError):
        raise HierarchyIndexError(
            f"the offsets end at {n}",
            required="as many tokens as memory allows",
            remedy="give cu_seqlens: their last entry is the number of tokens",
        ) from None
    return Intervals.first(n)
