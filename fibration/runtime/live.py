"""The rows of an index that can get a gradient, `op.live`; and the rows whose log-probs their coefficients read."""

from __future__ import annotations

import torch
from torch import Tensor

from fibration.compiler.coupling import Advantages, DeadIf
from fibration.language.atoms import BATCH, Stratum
from fibration.language.hierarchy import Hierarchy
from fibration.language.outline import is_beyond_rows
from fibration.runtime.given import at_tokens
from fibration.runtime.index.index import Index


def live_rows(h: Hierarchy, dead_if: DeadIf, index: Index, given: Tensor, per_row: bool) -> Tensor:
    """bool `[B]`: the rows with a token whose coefficient may differ from 0. `given`: checked advantages.

    Over ranks, one all-gather for each stratum of `dead_if` whose elements may have tokens on several ranks.
    """
    nonzero = at_tokens(index, given, per_row) != 0  # NaN too: the loss refuses it
    of_leaf: dict[str, Tensor] = {}
    for leaf in index.leaves:
        at = index.tokens_of(leaf)
        of_leaf[leaf] = nonzero if at is None else nonzero[at]
    needed = {leaf: sorted(of or ()) for leaf, of in dead_if.needed.items()}
    found = {a: _of_elements(h, index, a, of_leaf[a.leaf]) for a in sorted({a for of in needed.values() for a in of})}
    rows = torch.zeros(index.n_rows, dtype=torch.int64, device=index.device)
    for leaf, of in needed.items():
        alive = torch.full_like(of_leaf[leaf], dead_if.needed[leaf] is None)
        for a in of:
            alive |= found[a] if a == (leaf, leaf) else found[a][index.parent(leaf, a.over)]
        rows.index_add_(0, index.row_tensor()[index.rows_of_tokens(leaf)], alive.long())
    return rows > 0


def coupled_rows(index: Index, rows: Tensor) -> Tensor:
    """The rows whose log-probs the coefficients of `rows` read, themselves included: bool `[B]`.

    `rows`: bool `[B]`. On this rank alone: an element over which the loss couples rows must not have tokens elsewhere.
    """
    found = rows.clone()
    places = [(leaf, stratum) for stratum in index.coupling.strata for leaf in index.leaves_over(stratum)]
    of_tokens = {leaf: index.row_tensor()[index.rows_of_tokens(leaf)] for leaf, _ in places}
    while True:
        before = found.clone()
        for leaf, stratum in places:
            parent = index.parent(leaf, stratum)
            size = 1 if stratum == BATCH else index.size[stratum]
            reached = torch.zeros(size, dtype=torch.int64, device=index.device)
            reached.index_add_(0, parent, found[of_tokens[leaf]].long())
            found[of_tokens[leaf][reached[parent] > 0]] = True
        if torch.equal(found, before):
            return found


def _of_elements(h: Hierarchy, index: Index, a: Advantages, nonzero: Tensor) -> Tensor:
    """Per element of `a.over`, whether one of its advantages is not 0: bool [elements]."""
    if a.over == a.leaf:
        return nonzero
    found = torch.zeros(index.size[a.over], dtype=torch.int64, device=index.device)
    found.index_add_(0, index.parent(a.leaf, a.over), nonzero.long())
    ranks = index.ranks
    if ranks is not None and (ranks.cut or is_beyond_rows(h, Stratum(a.over))):
        found = ranks.group.all_gather(found, f"which {a.over}s have an advantage").sum(0)
    return found > 0
