"""The inputs of one call, checked: token tensors as the caller holds them, and a vector for everything coarser."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NoReturn

import torch
from torch import Tensor

from fibration.compiler.arguments import token_tensor
from fibration.compiler.ir import BATCH, Input, Matrix
from fibration.compiler.keys import Key
from fibration.compiler.plan import Collective
from fibration.compiler.program import Program
from fibration.errors import BatchError, an
from fibration.language.hierarchy import Hierarchy
from fibration.language.policies import CURRENT, OLD, LogProb, Policy
from fibration.language.statistics import within
from fibration.language.traversal import atoms
from fibration.runtime import devices
from fibration.runtime.batch import Batch
from fibration.runtime.index.index import Index
from fibration.runtime.parameters import parameter_values, parameter_vectors
from fibration.runtime.ranks.agreement import agreed
from fibration.runtime.ranks.collect import UNSAID, Ranks

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def make_batch(
    hierarchy: Hierarchy,
    program: Program,
    declared: Program,
    index: Index,
    tokens: Mapping[str, Tensor],
    advantages: Tensor | None,
    parameters: Mapping[str, Any] | None,
    dtype: torch.dtype,
    fill: float,
) -> Batch:
    """Everything that `program` reads. `declared` is the program whose parameters are all checked, read or not."""
    tokens = {name: t.detach() for name, t in tokens.items()}
    given_values = parameter_values(hierarchy, declared, index, {} if parameters is None else parameters)
    values = parameter_vectors(given_values, index)
    vectors: dict[Input | Matrix, Tensor] = {}
    given: Tensor | None = None
    per_row = False
    for node in program.inputs:
        if node.kind == "advantage":
            if given is None:
                given, per_row = _advantages(hierarchy, index, advantages)
            if node.over not in program.leaves:
                vectors[node] = _advantage_at(node.over, index, given, per_row)
        elif node.kind == "count":
            vectors[node] = index.count(*node.key)
        elif node.kind == "total":
            vectors[node] = index.total(hierarchy.attributes[node.key[0]], node.key[1])
        elif node.kind == "attribute":
            vectors[node] = index.values[node.key[0]]
        elif node.kind == "parameter":
            vectors[node] = values[node]
    for m in program.matrices:
        vectors[m] = index.matrix(m.into, m.of)
    return Batch(index, tokens, given, per_row, vectors, dtype, fill)


def policy_tensors(
    hierarchy: Hierarchy, program: Program, tokens: Mapping[str, Tensor], given: Mapping[str, Tensor] | None
) -> dict[str, Tensor]:
    """The log-probs of the policies that a program reads beside `tokens`, by what they are called.

    Raises BatchError for one that lacks, and for one that no formula of the hierarchy names.
    """
    policies = {} if given is None else given
    if not isinstance(policies, Mapping):
        raise BatchError(
            f"policies are {an(type(policies).__name__)}",
            required="a mapping from the name of a policy to its log-probs",
            remedy="policies={'rollout': log_probs}",
        )
    own = {CURRENT: "log_probs" if "log_probs" in tokens else "log_ratio"}
    own |= {OLD: "old_log_probs"} if "old_log_probs" in tokens else {}
    known = [name for name in hierarchy.policies if name not in own]
    for name in policies:
        if name in own:
            raise BatchError(
                f"policies={{{name!r}: ...}}",
                required=f"other policies: this call takes {own[name]}, which are {name}'s",
            )
        if name not in known:
            raise BatchError(
                f"no formula of '{hierarchy.name}' reads the policy {name!r}",
                required=f"one of {', '.join(map(repr, known))}" if known else "no policies",
                remedy="leave it out" + (", or look for a slip in its name" if known else ""),
            )
    kinds = ("policy_log_prob",) if OLD in own else ("policy_log_prob", "old_log_prob")
    read = {node.key[0] if node.key else OLD: node for node in program.inputs if node.kind in kinds}
    for name in (name for name in known if name in read):
        if policies.get(name) is None:
            raise BatchError(
                f"'{hierarchy.name}' reads the policy {name!r}, and its log-probs are not given",
                required=f"those of {', '.join(read)}, in the shape of the batch",
                found=f"no {name!r}, which is read by {_reader(hierarchy, name)}",
                remedy=f'pass policies={{"{name}": log_probs}}',
            )
    return {token_tensor(node).called: policies[name] for name, node in read.items()}


def _reader(hierarchy: Hierarchy, policy: str) -> str:
    """The formula that names a policy, as it was written."""
    read = [(f"the gate on {s}", hierarchy.gate(s)) for s in hierarchy.order]
    read += [(f"weigh({w})", w) for w in hierarchy.objective.weighed]
    read += [(f"keep({k.condition})", k.condition) for k in hierarchy.objective.kept]
    for name, penalty in hierarchy.penalties.items():
        weighed = () if penalty.objective is None else penalty.objective.formulas
        read += [(f"the penalty '{name}'", e) for e in (penalty.formula, *weighed)]
    named = LogProb(Policy(policy))
    return next((text for text, e in read if any(named in set(atoms(inner)) for inner in within(e))), "the hierarchy")


def check_tokens(hierarchy: Hierarchy, index: Index, **tensors: Tensor) -> None:
    """Refuse an index of another hierarchy, and tensors of another shape, dtype or device than the index's."""
    if not isinstance(index, Index):
        raise BatchError(f"the index is {an(type(index).__name__)}", required="what operator.index(...) returned")
    if index.hierarchy is not hierarchy and index.hierarchy != hierarchy:
        raise BatchError(
            f"the index was built for '{index.hierarchy.name}'",
            required=f"an index of '{hierarchy.name}'",
            remedy="build it with this operator's index(...)",
        )
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor) or tensor.dtype not in FLOATS:
            found = str(tensor.dtype) if isinstance(tensor, Tensor) else type(tensor).__name__
            raise BatchError(f"{name}: {found}", required="a tensor of float32, bfloat16, float16 or float64")
        if tuple(tensor.shape) != index.shape:
            raise BatchError(
                f"{name} has shape {list(tensor.shape)}", required=f"{list(index.shape)}, as the index was built for"
            )
        if tensor.device != index.device:
            raise BatchError(
                f"{name} is on {tensor.device}",
                required=f"{index.device}, where the index lies",
                remedy="pass device= to operator.index(...), or move the tensor",
            )


def in_words(
    hierarchy: Hierarchy, declared: Program, index: Index, ranks: Ranks, parameters: Mapping[str, Any] | None
) -> dict[str, str]:
    """What has to be equal on all ranks of a call: parameters, and what is coarser than tokens."""
    sizes = ", ".join(f"{n} {s}" for s, n in index.size.items() if s not in (*index.leaves, BATCH))
    said = {"the index": f"{sizes} (structure {ranks.structure})"}
    for node, numbers in parameter_values(hierarchy, declared, index, parameters or {}).items():
        name, channel = node.key
        said[f"parameter '{name}'" + f" of channel '{channel}'" * bool(channel)] = ", ".join(map(repr, numbers))
    return said


def advantages_of_rows(batch: Batch, index: Index) -> Tensor:
    """What this rank says that the advantages of rows are: float64 [rows], `UNSAID` where they are given per token.

    Where every row is one token, nothing tells which they are.
    """
    rows = index.hierarchy.rows.name
    if batch.advantage is not None and batch.per_row:
        return _advantage_at(rows, index, batch.advantage, True)
    return torch.full((index.size[rows],), UNSAID, dtype=torch.float64, device=index.device)


def agree_on_rows(batch: Batch, index: Index, ranks: Ranks, said: Tensor) -> Batch:
    """The batch, if advantages per row are equal on all pieces of each; on a GPU they are NaN where they are not.

    Those that may be per token as well have to be what others say of the row.
    """
    stratum = index.hierarchy.rows.name
    node = Input("advantage", stratum, "advantage")
    others = ranks.collect(Collective((node,)), {node: said})[node]
    looks = devices.may_look(index.device)
    with agreed(ranks.group if looks else None, "advantages of rows"):
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
                    f"pieces of one {stratum} have different advantages",
                    required=f"one per {stratum}",
                    found=f"{float(given[places[i]]):g} in row {int(places[i])}, and {float(expected[i]):g} elsewhere",
                    remedy="give all pieces the same, or advantages per token on every rank",
                )
        return replace(batch, advantage=given)


def refuse_nonfinite(batch: Batch, index: Index) -> None:
    """Name the first unmasked token whose log-prob, log ratio or advantage is infinite or undefined.

    Returns where there is none: it may be another rank's.
    """
    values = {name: t.reshape(-1)[index.positions].double() for name, t in batch.tokens.items()}
    if batch.advantage is not None:
        values["the advantage"] = _token_advantages(index, batch.advantage, batch.per_row)
    for name, numbers in values.items():
        bad = ~torch.isfinite(numbers)
        if bool(bad.any()):
            token = int(bad.nonzero()[0])
            raise BatchError(
                f"{name} of {index.describe_token(token)} is {float(numbers[token]):g}",
                required="finite values on every unmasked token",
                remedy="mask the token, or look for an overflow in the model's log-probs"
                if name != "the advantage"
                else "",
            )
    x = values["log_probs"] - values["old_log_probs"] if "log_probs" in values else values["log_ratio"]
    far = (x.abs() > torch.finfo(torch.float32).max).nonzero()
    if len(far):
        raise BatchError(
            f"the log ratio of {index.describe_token(int(far[0]))} is {float(x[far[0]]):g}",
            required="finite values, in the precision that the backend computes tokens in",
        )


def refuse_terms(hierarchy: Hierarchy, outputs: Mapping[Key, Tensor], index: Index) -> None:
    """Name the first token whose weight or penalty is infinite or undefined, and its coefficient with it; the inputs
    are not.
    """
    if Key("coefficients") not in outputs:
        return
    bad = torch.isnan(outputs[Key("coefficients")].reshape(-1)[index.positions]).nonzero()
    if not len(bad):
        return
    token = index.describe_token(int(bad[0]))
    for name, penalty in hierarchy.penalties.items():
        if not bool(torch.isfinite(outputs[Key("penalty", name)]).all()):
            what = token if penalty.over is None else f"the {penalty.over} of {token}"
            raise BatchError(
                f"the penalty '{name}' of {what} is not finite",
                required="finite penalties of all that is kept",
                found=f"{penalty!r}",
                remedy="bound it: minimum(..., bound), or leave such tokens out by the keep(...) of its own objective",
            )
    if hierarchy.objective.weighed:
        raise BatchError(
            f"the weight of {token} is not finite",
            required="finite weights of all tokens that are kept",
            found=f"weigh({hierarchy.objective.weighed[0]})",
            remedy="bound it: weigh(minimum(..., bound)), or leave such tokens out by keep(...)",
        )


def _advantages(hierarchy: Hierarchy, index: Index, advantages: Tensor | None) -> tuple[Tensor, bool]:
    """The caller's tensor, and whether it holds one number per row rather than per token."""
    if advantages is None:
        raise BatchError(
            f"a formula of '{hierarchy.name}' reads the advantage, and none is given",
            required="advantages per token or per row",
            remedy="pass advantages=...",
        )
    if not isinstance(advantages, Tensor) or advantages.dtype not in FLOATS:
        raise BatchError(
            f"advantages: {getattr(advantages, 'dtype', type(advantages).__name__)}", required="a floating-point tensor"
        )
    if advantages.device != index.device:
        raise BatchError(f"advantages are on {advantages.device}", required=f"{index.device}, where the index lies")
    flat = advantages.detach()
    per_token, per_row = tuple(flat.shape) == index.shape, tuple(flat.shape) == (index.n_rows,)
    if per_token and per_row and not index.rows_are_tokens():
        one, other = (_token_advantages(index, flat, way) for way in (True, False))
        if not devices.may_look(index.device):
            same = torch.where(one == other, one, torch.nan).to(flat.dtype)
            flat = torch.zeros_like(flat).index_put_((index.positions,), same)
        elif not torch.equal(one, other):
            raise BatchError(
                f"advantages of shape {list(flat.shape)} may be per token or per row: there are as many of each",
                required="a shape that tells which",
                remedy="leave the rows without tokens out of the offsets",
            )
    if not per_token and not per_row:
        raise BatchError(
            f"advantages have shape {list(flat.shape)}",
            required=f"{list(index.shape)} per token, or [{index.n_rows}] per row",
        )
    return flat, not per_token


def _token_advantages(index: Index, advantages: Tensor, per_row: bool) -> Tensor:
    """float64 [unmasked tokens]."""
    if per_row:
        return advantages[index.row_tensor()[index.row_of_token]].double()
    return advantages.reshape(-1)[index.positions].double()


def _advantage_at(stratum: str, index: Index, advantages: Tensor, per_row: bool) -> Tensor:
    """The advantage of coarser elements, which must be one number per element: float64 [elements], NaN where it is not.

    Where values may be looked at, that is an error.
    """
    if per_row and stratum == index.hierarchy.rows.name and index.ranks is None:
        result = advantages[index.row_tensor()].double()
    else:
        elements, *parts = map(_joined, zip(*_parts(stratum, index, advantages, per_row), strict=True))
        low, high = (
            advantages.new_zeros(index.size[stratum]).scatter_reduce_(0, elements, part, reduce, include_self=False)
            for part, reduce in zip(parts, ("amin", "amax"), strict=True)
        )
        result = torch.where(low == high, low, torch.nan).double()
    if devices.may_look(index.device) and not bool(torch.isfinite(result).all()):
        _refuse_advantages(stratum, index, advantages, per_row)
    return result


def _parts(stratum: str, index: Index, advantages: Tensor, per_row: bool) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Elements of `stratum`, each once or more, and the least and the greatest advantage of a part of its tokens."""
    if per_row:
        of_row = advantages[index.row_tensor()]
        return [(elements, of_row[rows], of_row[rows]) for elements, rows in index.over_rows(stratum)]
    found, flat = [], advantages.reshape(-1)
    for leaf in index.leaves_over(stratum):
        elements, bounds = index.pieces(stratum, leaf)
        if not len(elements):
            found.append((elements, flat[:0], flat[:0]))
            continue
        # every other segment is what lies between two pieces
        low, high = (torch.segment_reduce(flat, r, offsets=bounds, unsafe=True)[::2] for r in ("min", "max"))
        found.append((elements, low, high))
    return found


def _joined(parts: tuple[Tensor, ...]) -> Tensor:
    return torch.cat(parts) if len(parts) > 1 else parts[0]


def _refuse_advantages(stratum: str, index: Index, advantages: Tensor, per_row: bool) -> NoReturn:
    """Name the first token whose advantage is not that of its element of `stratum`, or is not finite."""
    every = _token_advantages(index, advantages, per_row)
    tokens, parent = _tokens_over(index, stratum)
    values = every if tokens is None else every[tokens]
    result = torch.empty(index.size[stratum], dtype=torch.float64, device=index.device)
    result[parent] = values
    differs = (result[parent] != values) & torch.isfinite(values)
    if bool(differs.any()):
        i = int(differs.nonzero()[0])
        there = index.describe_token(i if tokens is None else int(tokens[i]))
        found = f"{float(values[i]):g} and {float(result[parent[i]]):g} at {there}"
        if per_row and stratum == index.hierarchy.rows.name:
            raise BatchError(
                f"pieces of one {stratum} have different advantages",
                required=f"one per {stratum}",
                found=found,
                remedy="give all pieces the same, or advantages per token",
            )
        raise BatchError(
            f"the gate on {stratum} reads its advantage, and the advantages vary within {an(stratum)}",
            required=f"one advantage per {stratum}",
            found=found,
            remedy="pass advantages per row, or gate tokens instead",
        )
    token = int((~torch.isfinite(every)).nonzero()[0])
    raise BatchError(
        f"the advantage of {index.describe_token(token)} is not finite",
        required="finite values on every unmasked token",
    )


def _tokens_over(index: Index, stratum: str) -> tuple[Tensor | None, Tensor]:
    """The tokens of every leaf over `stratum` (None: all of them), and the element that each lies over."""
    over = [(index.tokens_of(leaf), index.parent(leaf, stratum)) for leaf in index.leaves_over(stratum)]
    tokens = [t for t, _ in over if t is not None]
    return (torch.cat(tokens), torch.cat([p for _, p in over])) if tokens else (None, over[0][1])
