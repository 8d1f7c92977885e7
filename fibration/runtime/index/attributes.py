"""Attribute values from the user → one number per element. Errors name the label."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fibration.errors import HierarchyIndexError, an, shown, suggest
from fibration.language.atoms import BATCH, Attribute
from fibration.runtime.index.labels import Encoded, TokenPlaces
from fibration.runtime.tracing import requires_grad


class Numbers:
    """Reads attribute values. `spread`: the batch is over ranks. `keyed`: rows have names from the caller."""

    def __init__(
        self, places: TokenPlaces, encoded: Encoded, size: Mapping[str, int], spread: bool, keyed: bool
    ) -> None:
        self.places, self.encoded, self.size, self.spread, self.keyed = places, encoded, size, spread, keyed
        self.leaves = [s.name for s in places.hierarchy.leaves]
        self.rows = places.hierarchy.rows.name
        self.names = {s: names for s, names in encoded.names.items() if s not in self.leaves}

    def attribute(self, attribute: Attribute, given: Mapping[str, Any]) -> NDArray[np.float64]:
        """One number per element of the attribute's stratum on this rank."""
        places, size, names = self.places, self.size, self.names
        stratum, what = attribute.on.name, f"attribute '{attribute.name}'"
        if attribute.name not in given:
            known = tuple(places.hierarchy.attributes)
            unknown = next((name for name in given if name not in known), None)
            raise HierarchyIndexError(
                f"{what} is missing",
                required=f"attributes={{'{attribute.name}': one number per {stratum}}}",
                found="" if unknown is None else f"{unknown!r}, which the hierarchy does not read",
                remedy="" if unknown is None else suggest(str(unknown), known),
            )
        value = given[attribute.name]
        if torch.is_grad_enabled() and requires_grad(value):
            raise HierarchyIndexError(
                f"{what} requires grad",
                required="numbers: an index has no gradient",
                remedy="pass its .detach()",
            )
        if isinstance(value, Mapping):
            if self.spread and stratum == self.rows and not self.keyed:
                raise HierarchyIndexError(
                    f"{what} is a mapping from row numbers, which ranks do not have for the whole batch",
                    required=f"one number per row of this rank: [{places.n_rows}]",
                    remedy=f"pass {stratum}=keys to name the rows, and a mapping from these names",
                )
            lacking = [n for n in names.get(stratum, ()) if n not in value]
            if lacking or stratum not in names:
                if stratum in self.leaves:
                    raise HierarchyIndexError(
                        f"{what} is a mapping, and {stratum} elements have no labels",
                        required=f"one number per token: an array of the shape {list(places.shape)}",
                    )
                raise HierarchyIndexError(
                    f"{what} has no value for {stratum} {lacking[:1]}", required=f"a value for every {stratum}"
                )
            array = _numbers([value[n] for n in names[stratum]], what)
        else:
            array = _numbers(to_numpy(value, what), what)
            if stratum in self.leaves and array.shape == places.shape:
                array = array.reshape(-1)[places.spans[stratum].runs.places()]
            elif stratum == self.rows and array.shape == (places.n_rows,):
                array = self._of_pieces(attribute, array[places.row_numbers])
            elif array.ndim == 0:
                array = np.full(size[stratum], float(array))
            elif self.spread and stratum not in (*self.leaves, BATCH):
                raise HierarchyIndexError(
                    f"{what} is given in the order of {stratum} elements, which ranks do not have for the whole batch",
                    required=f"one number, or a mapping from labels: {{{stratum}: number}}"
                    + (f", or one per row of this rank, [{places.n_rows}]" if stratum == self.rows else ""),
                    remedy=f"pass {{label: number}} for the {stratum} labels of this rank",
                )
            elif array.shape != (size[stratum],):
                of_tokens = stratum in self.leaves
                as_tokens = f", or {list(places.shape)} as the tokens" if of_tokens else ""
                repeat = f"repeat each number at the tokens of its {self.rows}, or declare the attribute on={self.rows}"
                raise HierarchyIndexError(
                    f"{what} has shape {list(array.shape)}",
                    required=f"one number per {stratum}: [{size[stratum]}]{as_tokens}",
                    remedy=repeat if of_tokens and array.shape == (places.n_rows,) else "",
                )
        bad = ~np.isfinite(array) | attribute.is_outside(array)
        if bad.any():
            i = int(np.argmax(bad))
            label = names[stratum][i] if stratum in names else i
            raise HierarchyIndexError(
                f"{what} of {stratum} {label!r} is {array[i]:g}",
                required=f"a finite number{_in_range(attribute)}",
                remedy=_out_of_range(attribute),
            )
        return array

    def _of_pieces(self, attribute: Attribute, array: NDArray[Any]) -> NDArray[np.float64]:
        """One number per row element, from one per non-empty row of the tensors; rows of one key must agree."""
        pieces, names = self.encoded.per_row[self.rows], self.names
        found = np.empty(len(names[self.rows]))
        found[pieces] = array
        wrong = np.flatnonzero((found[pieces] != array) & ~np.isnan(array))
        if len(wrong):
            element = pieces[wrong[0]]
            raise HierarchyIndexError(
                f"attribute '{attribute.name}' of {self.rows} {names[self.rows][element]!r} has two values",
                required=f"one number for all rows of one {self.rows}",
                found=f"{array[wrong[0]]:.17g} and {found[element]:.17g}",
                remedy=f"give all pieces of {an(self.rows)} the same number",
            )
        return found


def _in_range(attribute: Attribute) -> str:
    bounded = attribute.lower is not None or attribute.upper is not None
    return f" in {attribute.range}" if bounded else " above 0" if attribute.positive else ""


def _out_of_range(attribute: Attribute) -> str:
    if attribute.lower is not None or attribute.upper is not None:
        return "proofs assume this range: give values inside it, or declare another range"
    if attribute.positive:
        return "proofs assume positive values; declare positive=False to drop the assumption"
    return ""


def to_numpy(value: Any, what: str) -> NDArray[Any]:
    if isinstance(value, Tensor):
        if value.is_nested or value.layout != torch.strided:
            kind = "a nested tensor" if value.is_nested else f"a tensor of the layout {value.layout}"
            remedy = "x.to_padded_tensor(0) for padded rows, or x.values() and x.offsets() for packed ones"
            raise HierarchyIndexError(
                f"{what}: {kind}", required="a dense tensor", remedy=remedy if value.is_nested else "x.to_dense()"
            )
        value = value.detach().cpu()
        return (value.float() if value.dtype == torch.bfloat16 else value).numpy()  # type: ignore[no-any-return]
    try:
        return np.asarray(value)
    except ValueError:
        raise HierarchyIndexError(
            f"{what}: rows of several lengths", required="rows of one length, or offsets"
        ) from None


def _numbers(values: Any, what: str) -> NDArray[np.float64]:
    try:
        return np.array(values, np.float64)
    except (TypeError, ValueError, OverflowError):
        raise HierarchyIndexError(
            f"{what} has values that are not numbers",
            required="real numbers, which convert to float64",
            found=shown(values),
        ) from None
