"""The index of a batch over ranks: tokens are this rank's, coarser elements are the whole batch's.

Every rank builds the index of its own tokens, and sends its shard: everything coarser than tokens. From all shards each
rank computes the same `WholeBatch` (`runtime/ranks/merge.py`), and maps its tokens to the elements there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fibration.errors import HierarchyIndexError, listed, located
from fibration.language.atoms import BATCH, Stratum
from fibration.language.hierarchy import Hierarchy, fingerprint
from fibration.runtime.index.build import (
    POSITIONS,
    Builder,
    check_order,
    finished,
    read_over,
    refuse_others,
    runs_of,
    unordered,
)
from fibration.runtime.index.index import Index
from fibration.runtime.index.labels import Encoded, nothing_over
from fibration.runtime.ranks.group import ALONE, Group, agreed, as_group, is_group
from fibration.runtime.ranks.merge import NOWHERE, STRADDLES, Shard, WholeBatch, keys_of
from fibration.runtime.ranks.shards import Pieces, RankElements, Shards
from fibration.runtime.sums import Codes

GROUP = "group"  # the keyword for ranks in `Operator.index`


def ranks_or_labels(
    h: Hierarchy, given: Any, labels: dict[str, Any], positions: bool = False
) -> tuple[Group | None, dict[str, Any]]:
    """The ranks and the labels; `group=` has the labels of a stratum if one has that name.

    Without `group=`, named rows with `positions` form a group of this process alone: rows of one name are then pieces.
    """
    if given is None:
        return ALONE if positions and labels.get(h.rows.name) is not None else None, labels
    known = any(s.name == GROUP for s in (*h.strata, h.rows, *h.groups))
    if known and not is_group(given):
        return None, {**labels, GROUP: given}
    if known and h.rows.name != GROUP:
        raise HierarchyIndexError(
            f"index of '{h.name}': {GROUP}= are the ranks, and the labels of the stratum '{GROUP}'",
            required="one meaning per keyword",
            remedy=f"rename the stratum '{GROUP}'",
        )
    return as_group(given), labels


def build_index(
    hierarchy: Hierarchy,
    labels: Mapping[str, Any],
    mask: Any = None,
    offsets: Any = None,
    attributes: Mapping[str, Any] | None = None,
    device: torch.device | str | None = None,
    positions: Any = None,
    group: Group | None = None,
) -> Index:
    """See `Operator.index`. Every rank of the group must call it; an error on one rank is raised on all."""
    here = f"index of '{hierarchy.name}'"

    def built(on: torch.device | None) -> tuple[Builder, Index]:
        refuse_others(hierarchy, labels)
        builder = Builder(hierarchy, mask, offsets, device, spread=group is not None)
        index = builder.build(labels, attributes, on or builder.device, positions)
        check_order(index)
        return builder, index

    if group is None:
        with located(here):
            _, index = built(None)
        return finished(index)
    with agreed(group, "op.index") as said:
        said["the hierarchy"] = f"'{hierarchy.name}' ({str(fingerprint(hierarchy))[:16]})"
        keyed = labels.get(hierarchy.rows.name) is not None
        said["keys for the rows"] = "given" if keyed else "not given"
        said[POSITIONS] = "not given" if positions is None else "given"
        with located(here):
            builder, local = built(torch.device("cpu"))
            shard = _shard(local, builder.encoded, keyed)
    shards = group.all_gather_object(shard, "op.index")
    with located(here):
        whole = WholeBatch(shards)
        _check(hierarchy, whole)
        cut = _in_pieces(hierarchy, whole, positions is not None)
    said_of = {over: runs_of(local, over, whole.numbers[over][group.rank], several) for over, several in cut.items()}
    runs = group.all_gather_object(said_of, "positions in what ranks have pieces of") if cut else []
    with located(here):
        pieces = {over: Pieces.of([r[over] for r in runs], over, whole.words(over)) for over in cut}
    return finished(_joined(group, local, whole, pieces, builder.device))


def _shard(local: Index, encoded: Encoded, keyed: bool) -> Shard:
    """The data that this rank sends: all except its tokens."""
    h, rows = local.hierarchy, local.hierarchy.rows.name
    direct = [edge for edge in local.edges if edge[0] in local.leaves]
    direct += [(f.source.name, BATCH) for f in h.fibrations if f.source in h.leaves and f.target.name == BATCH]
    labels = {**local.labels, BATCH: (BATCH,)}
    coarse = [a for a in h.attributes.values() if a.on.name in labels]
    fine = [(a, t) for a in h.attributes.values() for s, t in direct if s == a.on.name]
    covered = np.zeros(local.size[rows], np.bool_)
    pieces = encoded.per_row[rows]
    covered[pieces[encoded.places.rows_over(rows)]] = True
    return Shard(
        rows=rows,
        n_rows=local.n_rows,
        cut=len(np.unique(pieces)) < len(pieces),
        tokens={leaf: local.size[leaf] for leaf in local.leaves},
        labels=labels,
        keys={s: keys_of(s, labels[s]) for s in labels if keyed or s != rows},
        kinds=encoded.kinds,
        parents={edge: parent.numpy() for edge, parent in local.edges.items() if edge[0] not in local.leaves},
        counts={edge: local.count(*edge).long().numpy() for edge in direct},
        values={(a.name, a.on.name): local.values[a.name].numpy() for a in coarse},
        sums={(a.name, t): local.summed(a).over(t) for a, t in fine},
        inside={s: _inside(local, s, pieces) for s in labels},
        covered=covered,
        first={str(a.of): local.places(str(a.of)).numpy() for a in h.ordered if a.of is not None},
    )


def _inside(local: Index, stratum: str, pieces: Codes) -> Codes:
    """The row of each element's tokens; `pieces[i]` is the row of the `i`th non-empty row of the tensors."""
    under = [(parent.numpy(), pieces[rows.numpy()]) for parent, rows in local.over_rows(stratum)]
    inside = np.full(local.size[stratum], NOWHERE)
    for parent, rows in under:
        inside[parent] = rows
    for parent, rows in under:
        inside[parent[inside[parent] != rows]] = STRADDLES
    return inside


def _check(h: Hierarchy, whole: WholeBatch) -> None:
    """Refuse errors that need the whole batch: rows without tokens over them, and too many tokens for exact sums."""
    if h.rows in h.strata and not whole.covered.all():
        raise nothing_over(h, whole.labels[h.rows.name][int(np.argmin(whole.covered))])
    for edge in whole.counts:
        target = Stratum(edge[1])
        if whole.cut or not (target == h.rows or h.rows in h.coarser(target)):
            whole.refuse_many(edge)


def _in_pieces(h: Hierarchy, whole: WholeBatch, given: bool) -> dict[str, NDArray[np.bool_]]:
    """By stratum over which an order is read: the elements that several ranks share; only strata that have some."""
    found = {over: whole.several(over) for over in read_over(h)}
    cut = {over: several for over, several in found.items() if several.any()}
    for over in () if given else cut:
        element = int(np.argmax(cut[over]))
        ranks = [f"rank {rank}" for rank in range(len(whole.shards)) if element in whole.elements_on(over, rank)]
        raise unordered(read_over(h)[over], whole.words(over)(element), f"tokens on {listed(ranks)}")
    return cut


def _joined(group: Group, local: Index, whole: WholeBatch, pieces: Mapping[str, Pieces], device: torch.device) -> Index:
    """The index of this rank's tokens over the elements of the whole batch."""

    def move(array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device)

    edges = {}
    for edge, mine in local.edges.items():
        below = whole.numbers[edge[1]][group.rank]
        edges[edge] = move(below[mine.numpy()] if edge[0] in local.leaves else whole.parents[edge])
    rank_elements = {}
    for stratum, numbers in whole.numbers.items():
        here = [np.sort(whole.elements_on(stratum, rank)) for rank in range(len(numbers))]
        elements = move(np.concatenate(here)).split([len(n) for n in here])
        rank_elements[stratum] = RankElements(elements, whole.size(stratum))
    labels = {s: whole.labels[s] for s in local.labels}
    counts = {edge: move(counts).double() for edge, counts in whole.counts.items()}
    counts |= {(leaf, BATCH): move(np.array([n])).double() for leaf, n in whole.tokens.items()}
    ranks = Shards(
        group=group,
        cut=whole.cut,
        tokens=sum(whole.tokens.values()),
        rank_elements=rank_elements,
        labels=labels,
        structure=_structure(whole, pieces),
        most={leaf: max(p.tokens[leaf] for p in whole.shards) for leaf in whole.tokens},
        pieces=pieces,
        counts=counts,
        sums=whole.sums,
        inside={s: None if (rows == STRADDLES).any() else move(rows) for s, rows in whole.inside.items()},
        first={s: move(first) for s, first in whole.first.items()},
    )
    return replace(
        local,
        edges=edges,
        size={s: n if s in local.leaves else whole.size(s) for s, n in local.size.items()},
        labels=labels,
        values={name: move(whole.values.get(name, mine.numpy())) for name, mine in local.values.items()},
        device=device,
        ranks=ranks,
        _cache={},
    )


def _structure(whole: WholeBatch, pieces: Mapping[str, Pieces]) -> str:
    """A digest of the structure: equal on all ranks of one index, and different for most other indexes."""
    known: dict[tuple[str, ...], Codes] = {("parent", *edge): n for edge, n in whole.parents.items()}
    known |= {("count", *edge): n for edge, n in whole.counts.items()}
    known |= {(s, str(rank)): n for s, numbers in whole.numbers.items() for rank, n in enumerate(numbers)}
    known |= {("pieces", over, f.name): getattr(p, f.name) for over, p in pieces.items() for f in fields(p)}
    found = blake2b(digest_size=8)
    for what, numbers in known.items():
        found.update(f"{what} {len(numbers)}".encode() + np.ascontiguousarray(numbers, np.int64).tobytes())
    return found.hexdigest()
