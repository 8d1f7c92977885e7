"""Advantages and rewards of a call, per token or per row, and their values at coarser elements."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NoReturn

import numpy as np
import torch
from torch import Tensor

from fibration.compiler.arguments import GIVEN
from fibration.compiler.ir import Input
from fibration.compiler.plan import Collective
from fibration.errors import BatchError, an
from fibration.language.hierarchy import Hierarchy
from fibration.runtime import devices
from fibration.runtime.batch import Batch
from fibration.runtime.index.index import Index
from fibration.runtime.ranks.agreement import agreed
from fibration.runtime.ranks.group import Group
from fibration.runtime.ranks.shards import UNSAID, Shards
from fibration.runtime.tracing import refuse_kind

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def checked(hierarchy: Hierarchy, index: Index, kind: str, given: Tensor | None) -> tuple[Tensor, bool]:
    """The caller's tensor, and whether it has one number per row instead of per token. `kind` is a key of `GIVEN`."""
    word = GIVEN[kind]
    if given is None:
        ways = "pass advantages=..., or rewards=..." if hierarchy.advantages is not None else "pass advantages=..."
        raise BatchError(
            f"a formula of '{hierarchy.name}' reads the {kind}, which is missing",
            required=f"{word} per token or per row",
            remedy=ways if kind == "advantage" else f"pass {word}=...",
        )
    refuse_dtype(word, given)
    refuse_device(word, given, index, "are")
    flat = given.detach()
    per_token, per_row = tuple(flat.shape) == index.shape, tuple(flat.shape) == (index.n_rows,)
    if per_token and per_row and not index.rows_are_tokens():
        one, other = (at_tokens(index, flat, way) for way in (True, False))
        if not devices.can_sync(index.device):
            same = torch.where(one == other, one, torch.nan).to(flat.dtype)
            flat = torch.zeros_like(flat).index_put_((index.positions,), same)
        elif not torch.equal(one, other):
            raise BatchError(
                f"{word} of shape {list(flat.shape)} may be per token or per row: the batch has as many tokens as rows",
                required="a shape that is either per token or per row",
                remedy="leave the rows without tokens out of the offsets",
            )
    if not per_token and not per_row:
        raise BatchError(
            f"{word} have shape {list(flat.shape)}",
            required=f"{list(index.shape)} per token, or [{index.n_rows}] per row",
            remedy=fitted(word, tuple(flat.shape), (index.n_rows,), index.shape),
        )
    return flat, not per_token


def has_two_readings(batch: Batch, index: Index) -> bool:
    """Whether the shape of advantages is that of tokens and that of rows, so that values decide."""
    return batch.advantage is not None and index.shape == (index.n_rows,) and not index.rows_are_tokens()


def refuse_dtype(name: str, given: object) -> None:
    refuse_kind(name, given)
    dtypes = "float32, bfloat16, float16 or float64"
    if not isinstance(given, Tensor):
        raise BatchError(
            f"{name}: {type(given).__name__}", required=f"a tensor of {dtypes}", remedy=converted(name, given)
        )
    if given.dtype not in FLOATS:
        raise BatchError(
            f"{name}: {given.dtype}", required=f"a floating-point tensor: {dtypes}", remedy=converted(name, given)
        )


def refuse_device(name: str, given: Tensor, index: Index, verb: str = "is") -> None:
    if given.device != index.device:
        raise BatchError(
            f"{name} {verb} on {given.device}",
            required=f"{index.device}, the device of the index",
            remedy="pass device= to operator.index(...), or move the tensor",
        )


def converted(name: str, value: object) -> str:
    """How to convert a value to a tensor of floats: the remedy of an error, or ""."""
    if isinstance(value, Index):
        return "pass the index by its name: index=..."
    if isinstance(value, Tensor):
        return f"pass {name}.float()" if not value.is_complex() else ""
    if isinstance(value, np.ndarray):
        return f"pass torch.from_numpy({name})"
    if isinstance(value, (list, tuple, int, float)):
        return f"pass torch.tensor({name}, dtype=torch.float32), with a number for each"
    return ""


def fitted(name: str, shape: tuple[int, ...], *wanted: tuple[int, ...]) -> str:
    """How to give a tensor one of the `wanted` shapes: the remedy of an error, or ""."""
    for one in wanted:
        if shape == (*one, 1) or shape == (1, *one):
            return f"pass {name}.squeeze({-1 if shape == (*one, 1) else 0})"
        if len(one) == 2 and shape == one[::-1]:
            return f"pass {name}.T"
        if len(one) > 1 and shape == (math.prod(one),):
            return f"pass {name}.reshape({', '.join(map(str, one))})"
        if shape[:-1] == one and name.endswith("log_probs"):
            return (
                f"pass the sampled tokens' log-probs: {name}.log_softmax(-1).gather(-1, tokens[..., None]).squeeze(-1)"
            )
        if len(one) == len(shape) == 2 and shape[0] == one[0]:
            return f"each row has {shape[1]} places here, and {one[1]} in the index: cut both to the same length"
    return ""


def is_per_row(index: Index, given: object, group: Group | None = None) -> bool:
    """Whether rewards have one number per row, on all ranks. If every row is one token, both are possible."""
    shape = tuple(given.shape) if isinstance(given, Tensor) else None
    per_token = shape == index.shape and not index.rows_are_tokens()
    if group is None:
        return not per_token
    said = group.all_gather(torch.tensor([per_token], dtype=torch.int64), "whether rewards are per token")
    return not said.any()


def at_tokens(index: Index, given: Tensor, per_row: bool) -> Tensor:
    """The number of every unmasked token: float64 [unmasked tokens]."""
    if per_row:
        return given[index.row_tensor()[index.row_of_token]].double()
    return given.reshape(-1)[index.positions].double()


def at_elements(stratum: str, index: Index, kind: str, given: Tensor, per_row: bool) -> Tensor:
    """The number of every element of `stratum`: float64 [elements], NaN where the tokens of an element differ.

    Where the device allows reading values, differing tokens are an error.
    """
    of_rows = per_row or index.rows_are_tokens()
    if of_rows and stratum == index.hierarchy.rows.name and index.ranks is None:
        result = (given if _every_row(index) else given[index.row_tensor()]).double().contiguous()
    else:
        elements, *parts = map(_joined, zip(*_parts(stratum, index, given, per_row), strict=True))
        leaves = index.leaves_over(stratum)
        if per_row or len(leaves) > 1 or not index.is_in_pieces(stratum, leaves[0]):
            parts = [
                given.new_zeros(index.size[stratum]).scatter_reduce_(0, elements, part, reduce, include_self=False)
                for part, reduce in zip(parts, ("amin", "amax"), strict=True)
            ]
        low, high = parts
        result = torch.where(low == high, low, torch.nan).double()
    # a finite sum has finite terms, and takes half the time to tell
    looks = devices.can_sync(index.device) and not math.isfinite(result.sum().item())
    if looks and not bool(torch.isfinite(result).all()):
        _refuse(stratum, index, kind, given, per_row)
    return result


def _every_row(index: Index) -> bool:
    """Whether every row of the tensors is an element, in order, so that no gather is needed."""
    return len(index.row_numbers) == index.n_rows


def _parts(stratum: str, index: Index, given: Tensor, per_row: bool) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Elements of `stratum`, each one or more times, with the minimum and the maximum of a part of its tokens."""
    if per_row:
        of_row = given[index.row_tensor()]
        return [(elements, of_row[rows], of_row[rows]) for elements, rows in index.over_rows(stratum)]
    found, flat = [], given.reshape(-1)
    for leaf in index.leaves_over(stratum):
        elements, bounds = index.pieces(stratum, leaf)
        if not len(elements):
            found.append((elements, flat[:0], flat[:0]))
            continue
        # every other segment is the gap between two pieces
        low, high = (torch.segment_reduce(flat, r, offsets=bounds, unsafe=True)[::2] for r in ("min", "max"))
        found.append((elements, low, high))
    return found


def _joined(parts: tuple[Tensor, ...]) -> Tensor:
    return torch.cat(parts) if len(parts) > 1 else parts[0]


def _refuse(stratum: str, index: Index, kind: str, given: Tensor, per_row: bool) -> NoReturn:
    """Name the first token whose number is not finite, or differs from another token of its element of `stratum`."""
    every, word = at_tokens(index, given, per_row), GIVEN[kind]
    leaves = index.leaves_over(stratum)
    tokens = np.concatenate([index.token_numbers(leaf) for leaf in leaves])
    parent = torch.cat([index.parent(leaf, stratum) for leaf in leaves])
    values = every[torch.from_numpy(tokens).to(index.device)]
    result = torch.empty(index.size[stratum], dtype=torch.float64, device=index.device)
    result[parent] = values
    differs = (result[parent] != values) & torch.isfinite(values)
    if bool(differs.any()):
        i = int(differs.nonzero()[0])
        j = int(((parent == parent[i]) & (values != values[i])).nonzero()[0])
        one, other = (f"{float(values[k]):g} at {index.describe_token(int(tokens[k]))}" for k in (i, j))
        found = f"{one}, and {other}"
        if per_row and stratum == index.hierarchy.rows.name:
            raise BatchError(
                f"pieces of one {stratum} have different {word}",
                required=f"one per {stratum}",
                found=found,
                remedy=f"give all pieces the same, or {word} per token",
            )
        reader, remedy = f"the gate on {stratum} reads its {kind}", "gate tokens instead"
        if kind == "reward":
            reader, remedy = f"the formula of advantages reads the reward of {an(stratum)}", "read those of tokens"
        raise BatchError(
            f"{reader}, and the {word} vary within {an(stratum)}",
            required=f"one {kind} per {stratum}",
            found=found,
            remedy=f"pass {word} per row, or {remedy}",
        )
    refuse_infinite(index, kind, every, per_row)


def refuse_infinite(index: Index, kind: str, every: Tensor, per_row: bool) -> NoReturn:
    """Name the first unmasked token, or its row, whose number is infinite or NaN."""
    token = int((~torch.isfinite(every)).nonzero()[0])
    raise BatchError(
        f"the {kind} of {index.describe_row(index.every.row_of(token)) if per_row else index.describe_token(token)} is "
        f"{float(every[token]):g}",
        required=f"finite values on every {'row that has tokens' if per_row else 'unmasked token'}",
        remedy=f"look at what made it, or mask the {'row' if per_row else 'token'}",
    )


def row_values(batch: Batch, index: Index, kind: str) -> Tensor:
    """This rank's number of every row: float64 [rows], `UNSAID` where numbers are per token.

    Where every row is one token, `per_row` decides.
    """
    rows = index.hierarchy.rows.name
    if batch.advantage is not None and batch.per_row:
        return at_elements(rows, index, kind, batch.advantage, True)
    return torch.full((index.size[rows],), UNSAID, dtype=torch.float64, device=index.device)


def check_rows_agree(batch: Batch, index: Index, ranks: Shards, kind: str, said: Tensor) -> Batch:
    """The batch, if numbers per row are equal on all pieces of each row. On a GPU, unequal numbers become NaN.

    Where every row is one token, numbers per token must equal the other ranks' numbers of the row.
    """
    stratum, word = index.hierarchy.rows.name, GIVEN[kind]
    node = Input(kind, stratum, kind)
    others = ranks.collect(Collective((node,)), {node: said})[node]
    looks = devices.can_sync(index.device)
    with agreed(ranks.group if looks else None, f"{word} of rows"):
        given = batch.advantage
        if given is None or not (batch.per_row or index.rows_are_tokens()):
            return batch
        for elements, rows in index.over_rows(stratum):
            places, expected = index.row_tensor()[rows], others[elements]
            differs = (expected != UNSAID) & (given[places] != expected)
            if not looks:
                given = given.index_put((places,), torch.where(differs, torch.nan, given[places]))
            elif bool(differs.any()):
                i = int(differs.nonzero()[0])
                raise BatchError(
                    f"pieces of one {stratum} have different {word}",
                    required=f"one per {stratum}",
                    found=f"{float(given[places[i]]):g} in row {int(places[i])}, and {float(expected[i]):g} elsewhere",
                    remedy=f"give all pieces the same, or {word} per token on every rank",
                )
        return replace(batch, advantage=given)


def of_batch_rows(index: Index, values: Tensor) -> Tensor:
    """One number per row of the tensors from one per row element: float64 [B], 0 at rows without tokens."""
    rows = index.hierarchy.rows.name
    if index.ranks is None and _every_row(index):
        return values.expand(index.n_rows).contiguous()
    found = values.new_zeros(index.n_rows)
    for elements, places in index.over_rows(rows):
        found[index.row_tensor()[places]] = values.expand(index.size[rows])[elements]
    return found
