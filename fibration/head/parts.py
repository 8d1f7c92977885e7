"""How a batch is cut: into parts whose coefficients are computed together, and parts into chunks of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from fibration.runtime.index.index import Index
from fibration.runtime.index.micro import MicroIndex
from fibration.runtime.index.spans import spread_out
from fibration.runtime.operator import Operator
from fibration.runtime.sums import Codes

Chunk = slice  # of the numbers of unmasked tokens


@dataclass(frozen=True)
class Part:
    """Some rows of a batch, in order. `index`: of these rows, or the batch's own if the part is all of it.

    `rows`: those with tokens, int64 [rows]. `places`: of these rows in the flattened shape, int64 [places]. Both are
    None if the part is the whole batch. `tokens`: numbers of unmasked tokens.
    """

    index: Index
    tokens: slice
    rows: Tensor | None = None
    places: Tensor | None = None

    def chunks(self, size: int) -> list[Chunk]:
        """The tokens of this part, at most `size` at a time."""
        first, last = self.tokens.start, self.tokens.stop
        return [slice(start, min(start + size, last)) for start in range(first, last, size)]

    def of(self, tensor: Tensor, per_row: bool = False) -> Tensor:
        """This part of a tensor of the batch, which has one number per token or per row."""
        which = self.rows if per_row or tensor.ndim == 2 else self.places
        return tensor if which is None else tensor[which]

    def local(self, tokens: slice) -> Tensor:
        """The places of some of its tokens in this part's flattened tensors: int64."""
        first = self.tokens.start
        return self.index.positions[tokens.start - first : tokens.stop - first]

    def __str__(self) -> str:
        rows = [] if self.rows is None else self.rows.tolist()
        return f"rows {rows[0]} to {rows[-1]}, as a micro-batch" if rows else "the batch"


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
    # of rows with tokens alone: with empty ones, a packed part might have as many rows as tokens, and its advantages
    # per row might be per token
    rows, before = index.row_numbers, index.every.before
    step = index.whole if isinstance(index, MicroIndex) else index
    in_pieces = step.ranks is not None and step.ranks.cut
    separable = op.coupling.is_row_local and not (in_pieces and op.coupling.within)
    ends = [0]
    while separable and ends[-1] < len(rows):
        most = max(before[ends[-1]] + chunk, before[ends[-1] + 1])
        ends.append(int(np.searchsorted(before, most, side="right")) - 1)
    if not separable or (len(ends) <= 2 and index.ranks is None):  # all ranks make the same calls, of one part too
        return [Part(index, slice(0, len(index.every)))]
    ends = ends if len(ends) > 1 else [0, 0]
    return [_part(index, rows[a:b], slice(int(before[a]), int(before[b]))) for a, b in pairwise(ends)]


def _part(index: Index, rows: Codes, tokens: slice) -> Part:
    starts = index.bounds[rows]
    places = spread_out(starts, index.bounds[rows + 1] - starts)
    return Part(index.micro(rows), tokens, *(torch.from_numpy(a).to(index.device) for a in (rows, places)))


def default_chunk(vocabulary: int, device: torch.device) -> int:
    """As many tokens as have 2**26 logits, 256 MiB in float32; on a GPU 2**28.

    Each chunk reads and writes the gradient of the weight, which on a GPU takes as long as the products of 400 tokens.
    """
    return max((2**26 if device.type == "cpu" else 2**28) // vocabulary, 1)


def with_gradient(coefficients: Tensor) -> Tensor | None:
    """The numbers of the coefficients that are not 0: int64; None if all are. Reads their number from the device."""
    found = coefficients.nonzero().squeeze(1)
    return None if len(found) == len(coefficients) else found


def chosen(tensor: Tensor, which: Tensor | None) -> Tensor:
    """The numbers `which` of a tensor; None: all."""
    return tensor if which is None else tensor.index_select(0, which)
