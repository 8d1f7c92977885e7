"""A trainer's tensors → packed arrays: padded with a mask, packed with offsets, or a list of rows.

The input may be torch tensors, numpy arrays or lists, of any float dtype, on any device and with a graph. Reading it
imports no torch. Every message has the argument's name and the place of the wrong value in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fibration.errors import RolloutsError, an, listed, shown
from fibration.rollouts.labels import Labels

Array = NDArray[Any]
POSITIVE = 1e-6  # float32 arithmetic leaves a probability of 1 within this of log 1 = 0


class Layout:
    """The places of a batch's unmasked tokens in the user's arrays, and how they are packed.

    Rows without an unmasked token are left out.
    """

    def __init__(self, log_probs: Any, mask: Any, offsets: Any) -> None:
        read = _read(log_probs, "log_probs")
        alone = mask is None and offsets is None and isinstance(log_probs, (list, tuple))
        given = list(read) if isinstance(read, np.ndarray) and read.ndim == 2 and alone else read
        self.in_rows = isinstance(given, list)
        self.shape: tuple[int, ...]
        if isinstance(given, list):
            if offsets is not None:
                raise RolloutsError(
                    "offsets are given, and log_probs is a list of rows",
                    required="one of them: packed log_probs [N] with offsets [n + 1], or a list of rows",
                    remedy="leave offsets out",
                )
            lengths = [len(_flat(row, f"log_probs[{i}]")) for i, row in enumerate(given)]
            bounds = np.cumsum([0, *lengths])
            self.shape = (int(bounds[-1]),)
        elif offsets is not None:
            self.shape = given.shape
            bounds = self._offsets(offsets)
        else:
            self.shape = given.shape
            bounds = self._padded(mask)
        self.bounds: NDArray[np.int64] = bounds.astype(np.int64)
        self.n_given = len(bounds) - 1
        kept = np.ones(int(bounds[-1]), bool) if mask is None else self._mask(mask, "mask")
        if not kept.any():
            raise RolloutsError(
                "the batch has no unmasked token",
                required="at least one token",
                found=f"log_probs of shape {self._shown()}",
            )
        before = np.concatenate([[0], np.cumsum(kept)])[self.bounds]
        self.rows = np.flatnonzero(np.diff(before))  # rows with an unmasked token
        self.kept = np.flatnonzero(kept)
        self.offsets = np.append(before[self.rows], before[-1]).astype(np.int64)

    # ------------------------------------------------------------ reading the layout

    def _offsets(self, offsets: Any) -> Array:
        if len(self.shape) != 1:
            raise RolloutsError(
                f"log_probs of shape {list(self.shape)}, and offsets",
                required="packed log_probs [N] with offsets [n + 1], or padded ones [B, T] with mask=",
                remedy="drop the axis of length 1: .squeeze(0)" if self.shape[:1] == (1,) else "give one of the two",
            )
        array = _read(offsets, "offsets")
        rule = f"cu_seqlens: whole numbers [n + 1] from 0 to {self.shape[0]}, the length of log_probs, never decreasing"
        if isinstance(array, list) or array.ndim != 1 or array.dtype.kind not in "iu" or len(array) < 2:
            found = "rows" if isinstance(array, list) else f"dtype {array.dtype}, shape {list(array.shape)}"
            raise RolloutsError("offsets delimit no rows", required=rule, found=found)
        array = array.astype(np.int64)
        wrong = np.flatnonzero(np.diff(array) < 0)
        if array[0] or array[-1] != self.shape[0] or len(wrong):
            found, remedy = f"they go from {array[0]} to {array[-1]}", ""
            if len(wrong):
                found += f", and from {array[wrong[0]]} to {array[wrong[0] + 1]} at {wrong[0]}"
            elif array[-1] < self.shape[0]:
                remedy = "cut what lies behind the last row off: log_probs[:offsets[-1]], and so everything per token"
            if int(array.sum()) == self.shape[0]:
                remedy = "these are lengths: numpy.cumsum([0, *lengths]) are the offsets"
            raise RolloutsError("offsets do not fit log_probs", required=rule, found=found, remedy=remedy)
        return array

    def _padded(self, mask: Any) -> Array:
        if len(self.shape) != 2 or mask is None:
            remedy = "mask=torch.ones_like(log_probs), if every token was sampled" if len(self.shape) == 2 else ""
            if self.shape[-1:] == (1,) and len(self.shape) == 3:
                remedy = "drop the axis of length 1: .squeeze(-1)"
            raise RolloutsError(
                f"log_probs of shape {list(self.shape)}, with {'no mask' if mask is None else 'a mask'} and no offsets",
                required="padded [B, T] with mask=[B, T], packed [N] with offsets=cu_seqlens, or a list of rows",
                remedy=remedy,
            )
        return np.arange(self.shape[0] + 1) * self.shape[1]

    def _shown(self) -> str:
        return f"{self.n_given} rows" if self.in_rows else f"{list(self.shape)}"

    # ------------------------------------------------------------ packing

    def _every(self, array: Array | list[Array], name: str) -> Array:
        """Returns one entry per given token, masked or not, one after the other."""
        if self.in_rows:
            return self._joined(array, name)
        if isinstance(array, list):
            lengths = sorted({len(row) for row in array})
            raise RolloutsError(
                f"{name} has rows of {listed(lengths)} entries",
                required=f"shape {list(self.shape)}, that of log_probs",
                remedy="pad it, or give log_probs as a list of rows too",
            )
        if array.shape != self.shape:
            raise RolloutsError(
                f"{name} has shape {list(array.shape)}",
                required=f"{list(self.shape)}, that of log_probs",
                remedy=self._cut(array.shape, name),
            )
        return array.reshape(-1)

    def _cut(self, shape: tuple[int, ...], name: str) -> str:
        if len(shape) == len(self.shape) == 2 and shape[0] == self.shape[0] and shape[1] > self.shape[1]:
            what = "attention_mask is of prompt and completion" if "mask" in name else "it has the prompt's tokens too"
            return f"{what}: pass the completion's part, {name}[:, -{self.shape[1]}:]"
        if len(shape) == len(self.shape) == 2 and shape == (self.shape[0], self.shape[1] - 1):
            return f"one token less: shift log_probs and {name} alike"
        if shape[:-1] == self.shape and len(shape) == len(self.shape) + 1:
            return f"drop the last axis: .{'squeeze(-1)' if shape[-1] == 1 else 'select(-1, 0), the first of each'}"
        return "one entry for each token, in the order of log_probs"

    def _joined(self, rows: Array | list[Array], name: str) -> Array:
        if not isinstance(rows, list) and rows.ndim < 2 and (rows.size or self.n_given != len(rows)):
            raise RolloutsError(
                f"{name} has shape {list(rows.shape)}",
                required=f"a list of {self.n_given} rows, as log_probs is one",
            )
        found = [_flat(row, f"{name}[{i}]") for i, row in enumerate(rows)]
        lengths = np.diff(self.bounds).tolist()
        if len(found) != len(lengths):
            raise RolloutsError(f"{name} has {len(found)} rows", required=f"{len(lengths)}, as log_probs has")
        for i, (row, length) in enumerate(zip(found, lengths, strict=True)):
            if len(row) != length:
                raise RolloutsError(
                    f"{name}[{i}] has {len(row)} entries", required=f"{length}, as log_probs[{i}] has, one per token"
                )
        return np.concatenate(found)

    def _mask(self, value: Any, name: str) -> NDArray[np.bool_]:
        array = self._every(_read(value, name), name)
        if array.dtype == np.bool_:
            return array
        numeric = array.dtype.kind in "iuf"
        good = np.isin(array, (0, 1)) if numeric else np.zeros(array.shape, bool)
        rule, remedy = "booleans, or 0 and 1", f"{name}=... > 0, if what is above 0 is a token" if numeric else ""
        return self._all(array, good, name, self._at, rule, f"dtype {array.dtype}", remedy).astype(bool)

    def of_leaf(self, value: Any, name: str) -> NDArray[np.bool_]:
        """Returns whether each unmasked token belongs to a leaf: bool [N]."""
        return self._mask(value, name)[self.kept]

    def log_probs(self, value: Any, name: str) -> Array:
        """Returns the log-probs of the unmasked tokens [N]: float64 if they were float64, else float32."""
        found = self._finite(_floats(self._every(_read(value, name), name), name), name)
        remedy = "look whether these are log-probs of the sampled tokens, and not logits or ratios"
        if (found >= 0).all():
            remedy = f"these look like negative log-likelihoods: give -{name}"
        elif found.max() < 0.1:
            half = "half precision rounds a probability of 1 above it"
            remedy = f"{half}: work log-probs out in float32, or .clamp(max=0)"
        rule = "log-probs, natural logs of probabilities: at most 0"
        return self._all(found, found <= POSITIVE, name, self._at_kept, rule, "{} tokens above 0", remedy)

    def ids(self, value: Any, name: str) -> NDArray[np.int32]:
        """Returns the tokenizer's numbers of the unmasked tokens: int32 [N]."""
        found = self._every(_read(value, name), name)[self.kept]
        if found.dtype.kind not in "iu":
            raise RolloutsError(f"{name} has dtype {found.dtype}", required="whole numbers, the tokenizer's")
        rule = "the tokenizer's numbers, at least 0, of every unmasked token"
        good = (found >= 0) & (found <= np.iinfo(np.int32).max)
        return self._all(found, good, name, self._at_kept, rule, "", "mask what is padding").astype(np.int32)

    def numbers(self, value: Any, name: str) -> Array:
        """Returns a number per token [N] or per row [n]: float64 if the input was float64, else float32."""
        array = _read(value, name)
        if self._is_per_row(array, name):
            return self._finite(_floats(array, name), name, per_row=True)
        return self._finite(_floats(self._every(array, name), name), name)

    def labels(self, value: Any, name: str) -> Labels:
        """Returns the labels of a stratum, per token or per row."""
        what = f"labels of '{name}'"
        given = _objects(value, what, self._ways())
        if self._is_per_row(given, what):
            return Labels.of_each(given[self.rows], what)  # type: ignore[call-overload]
        return Labels.of_each(self._every(given, what)[self.kept], what)

    def _ways(self) -> str:
        if self.in_rows:
            return f"one per row, {self.n_given}, or a list of rows, one per token"
        return f"one per row, [{self.n_given}], or one per token, {list(self.shape)}"

    def _is_per_row(self, array: Array | list[Array], name: str) -> bool:
        """Whether an array is per row, not per token. Raises RolloutsError if it is neither, or may be both."""
        if isinstance(array, list) or (self.in_rows and array.ndim > 1):
            return False
        per_row, per_token = array.shape == (self.n_given,), not self.in_rows and array.shape == self.shape
        if per_row and per_token and len(self.rows) < self.n_given:  # with a token in every row, each row is one token
            raise RolloutsError(
                f"{name} of shape {list(array.shape)} may be per token or per row: there are as many of each",
                required="a shape that tells which",
                remedy="leave the rows without tokens out of the offsets",
            )
        if not per_row and not per_token:
            remedy = self._cut(array.shape, name)
            if array.shape == (self.n_given, 1):
                remedy = ".squeeze(-1) makes one per row of it"
            elif array.ndim == 0:
                remedy = "one number for the whole batch says nothing of its rows: repeat it"
            raise RolloutsError(f"{name}: shape {list(array.shape)}", required=self._ways(), remedy=remedy)
        return per_row

    def provenance(self, **given: Any) -> dict[str, Any]:
        """Returns the default provenance of a batch: its layout, the dtypes and the number of rows."""
        kind = "a list of rows" if self.in_rows else "padded" if len(self.shape) == 2 else "packed"
        return {
            "made by": "Rollouts.from_batch",
            "layout": kind if self.in_rows else f"{kind} {list(self.shape)}",
            "dtypes": {name: str(getattr(value, "dtype", type(value).__name__)) for name, value in given.items()},
            "rows": self.n_given,
            "rows without tokens": self.n_given - len(self.rows),
        }

    def _finite(self, given: Array, name: str, per_row: bool = False) -> Array:
        """Returns the values of unmasked tokens, or of rows that have one. Raises RolloutsError unless finite."""
        places, at = (self.rows, lambda k: f"[{self.rows[k]}]") if per_row else (self.kept, self._at_kept)
        found = given[places]
        one = "row that has a token" if per_row else "unmasked token"
        remedy = "look for a division by 0" if per_row else "mask the token, or look for an overflow"
        rule, remedy = f"finite values of every {one}", f"{remedy} where it was computed"
        return self._all(found, np.isfinite(found), name, at, rule, "{} are not finite", remedy)

    def _all(
        self, found: Array, good: Array, name: str, at: Callable[[int], str], rule: str, words: str, remedy: str
    ) -> Array:
        """Returns `found` if all its values are good. Raises RolloutsError with the place of the first other value."""
        wrong = np.flatnonzero(~good)
        if len(wrong):
            one = found[wrong[0]]
            value = f"{one:g}" if found.dtype.kind == "f" else shown(one.item() if hasattr(one, "item") else one)
            words = words.format(f"{len(wrong)} of {len(found)}")
            raise RolloutsError(f"{name}{at(int(wrong[0]))} is {value}", required=rule, found=words, remedy=remedy)
        return found

    def _at_kept(self, k: int) -> str:
        return self._at(int(self.kept[k]))

    def _at(self, place: int) -> str:
        """Returns a token's place as an index into the user's array."""
        if len(self.shape) == 2:
            return f"[{place // self.shape[1]}, {place % self.shape[1]}]"
        row = int(np.searchsorted(self.bounds, place, side="right")) - 1
        within = place - int(self.bounds[row])
        return f"[{row}][{within}]" if self.in_rows else f"[{place}] (row {row}, its token {within})"


# ---------------------------------------------------------------- reading


def _read(value: Any, name: str) -> Array | list[Array]:
    """Returns a tensor, an array or lists as an array; rows of different lengths as a list of arrays."""
    if hasattr(value, "detach"):  # torch's
        if getattr(value, "is_nested", False):
            return [_read(row, name) for row in value.unbind()]  # type: ignore[misc]
        value = value.detach().cpu()
        half = str(value.dtype) == "torch.bfloat16"  # numpy has no bfloat16
        return (value.float() if half else value).numpy()  # type: ignore[no-any-return]
    if isinstance(value, (list, tuple)):
        return _of_parts(value, name)
    array = np.asarray(value)
    return _of_parts(array.tolist(), name) if array.dtype == object and array.ndim == 1 else array


def _of_parts(parts: Sequence[Any], name: str) -> Array | list[Array]:
    if not any(isinstance(p, (list, tuple, np.ndarray)) or hasattr(p, "detach") for p in parts):
        return np.asarray(parts)
    rows = [_read(part, name) for part in parts]
    if any(isinstance(row, list) for row in rows):
        raise RolloutsError(f"{name} is nested more than twice", required="one value per token or per row")
    if len({row.shape for row in rows}) == 1:  # type: ignore[union-attr]
        return np.stack(rows)  # type: ignore[arg-type]
    return rows  # type: ignore[return-value]


def _flat(row: Any, name: str) -> Array:
    array: Array = np.asarray(row)
    if array.ndim != 1:
        raise RolloutsError(f"{name} has shape {list(array.shape)}", required="one entry per token of the row")
    return array


def _floats(array: Array | list[Array], name: str) -> Array:
    assert isinstance(array, np.ndarray)
    if array.dtype.kind not in "fiub" and array.dtype.name != "bfloat16":
        raise RolloutsError(
            f"{name} has dtype {array.dtype}",
            required="floating-point numbers: float64, float32, bfloat16 or float16",
            found=shown(array.reshape(-1)[0]) if array.size else "",
        )
    return array.astype(np.float64 if array.dtype in (np.float64, np.longdouble) else np.float32)


def _objects(value: Any, what: str, required: str) -> Array | list[Array]:
    """Returns labels as an array of objects, whole numbers or booleans; rows of unequal lengths as a list of arrays."""
    if hasattr(value, "detach"):
        value = _read(value, what)
    if isinstance(value, (str, bytes, dict)) or not (hasattr(value, "__array__") or isinstance(value, (list, tuple))):
        one = f"for the same of all rows, [{value!r}] times their number" if isinstance(value, (str, bytes)) else ""
        raise RolloutsError(f"{what}: {an(type(value).__name__)}", required=required, remedy=one)
    if not isinstance(value, (list, tuple)):
        array = np.asarray(value)
        if array.dtype.kind in "iub" or array.ndim == 0:
            return array
        value = array.tolist()
    parts = [p.tolist() if getattr(p, "ndim", 0) else p for p in value]
    if not parts or not all(isinstance(p, list) for p in parts):
        return _array_of(parts)
    rows = [_array_of(part) for part in parts]
    return np.stack(rows) if len({len(row) for row in rows}) == 1 else rows


def _array_of(objects: Sequence[Any]) -> Array:
    array = np.empty(len(objects), object)
    for i, one in enumerate(objects):  # numpy would turn tuples into more axes
        array[i] = one
    return array
