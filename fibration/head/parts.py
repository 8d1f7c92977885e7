"""How a batch is cut: into parts whose coefficients are computed together, and parts into chunks of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from torch import Tensor

from fibration.runtime.index.index import Index
from fibration.runtime.index.micro import MicroIndex
from fibration.runtime.operator import Operator

Chunk = slice  # of the numbers of unmasked tokens


@dataclass(frozen=True)
class Part:
    """Neighbouring rows of a batch. `index`: of these rows, or the batch's own if the part is all of it.

    `rows`, and `places` in the flattened shape, are slices of the batch's tensors. `tokens`: numbers of unmasked
    tokens.
    """

    index: Index
    rows: slice
    places: slice
    tokens: slice

    def chunks(self, size: int) -> list[Chunk]:
        """The tokens of this part, at most `size` at a time."""
        first, last = self.tokens.start, self.tokens.stop
        return [slice(start, min(start + size, last)) for start in range(first, last, size)]

    def of(self, tensor: Tensor, per_row: bool = False) -> Tensor:
        """This part of a tensor of the batch, which has one number per token or per row."""
        if per_row or tensor.ndim == 2:
            return tensor[self.rows]
        return tensor[self.places]

    def local(self, places: Tensor) -> Tensor:
        """Places of the batch as places of this part's flattened tensors."""
        return places - self.places.start if self.places.start else places


def is_of_tokens(op: Operator) -> bool:
    """Whether each coefficient depends on its own token's log-prob alone."""
    return op.coupling.is_row_local and not op.coupling.within


def cut(op: Operator, index: Index, chunk: int) -> list[Part]:
    """The parts of a batch, at least one. Row-local losses have parts of at most `chunk` tokens, or of one row.

    A loss that couples rows has one part: the batch. So has a loss of rows in pieces, unless it is of tokens alone.
    """
    parts: list[Part] = index.kept(("parts", chunk), lambda: _cut(op, index, chunk))
    return parts


def _cut(op: Operator, index: Index, chunk: int) -> list[Part]:
    counts = np.zeros(index.n_rows, np.int64)
    counts[index.row_numbers] = index.every.sizes
    before = np.concatenate([[0], np.cumsum(counts)])
    step = index.whole if isinstance(index, MicroIndex) else index
    in_pieces = step.ranks is not None and step.ranks.cut
    separable = op.coupling.is_row_local and not (in_pieces and op.coupling.within)
    ends = [0]
    while separable and ends[-1] < index.n_rows:
        fitting = np.searchsorted(before, before[ends[-1]] + chunk, side="right") - 1
        ends.append(max(int(fitting), ends[-1] + 1))
    ends = ends if len(ends) > 1 else [0, index.n_rows]
    # all ranks make the same calls, however many parts each has
    alone = len(ends) == 2 and (index.ranks is None or not separable)
    return [
        Part(
            index=index if alone else index.micro(slice(a, b)),
            rows=slice(a, b),
            places=slice(int(index.bounds[a]), int(index.bounds[b])),
            tokens=slice(int(before[a]), int(before[b])),
        )
        for a, b in pairwise(ends)
    ]


def default_chunk(vocabulary: int) -> int:
    """As many tokens as have 2**26 logits: 256 MiB in float32."""
    return max(2**26 // vocabulary, 1)


def live(coefficients: Tensor) -> Tensor | None:
    """The numbers of the coefficients that are not 0: int64; None if all are. Reads their number from the device."""
    found = coefficients.nonzero().squeeze(1)
    return None if len(found) == len(coefficients) else found


def chosen(tensor: Tensor, which: Tensor | None) -> Tensor:
    """The numbers `which` of a tensor; None: all."""
    return tensor if which is None else tensor.index_select(0, which)
