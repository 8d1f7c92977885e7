"""Checks the inputs of one call, and makes its batch: token tensors as given, and one vector per coarser input."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from fibration.compiler.arguments import GIVEN, token_tensor
from fibration.compiler.coupling import FROZEN
from fibration.compiler.ir import Input, Key, Matrix
from fibration.compiler.plan import Collective
from fibration.compiler.program import Program
from fibration.errors import BatchError, an
from fibration.language.declared import CURRENT, OLD, LogProb, Policy
from fibration.language.hierarchy import Hierarchy, adds_up_tokens
from fibration.language.statistics import atoms_within
from fibration.runtime import devices
from fibration.runtime.batch import Batch
from fibration.runtime.index.index import Index
from fibration.runtime.parameters import parameter_vectors_of
from fibration.runtime.ranks.group import Group, agreed
from fibration.runtime.ranks.shards import UNSAID, Shards
from fibration.runtime.tracing import refuse_kind


def make_batch(
    program: Program,
    declared: Program,
    index: Index,
    tokens: Mapping[str, Tensor],
    advantages: Tensor | None,
    parameters: Mapping[str, Any] | None,
    dtype: torch.dtype,
    fill: float,
    frozen: Mapping[str, Tensor] = MappingProxyType({}),
) -> Batch:
    """The data that `program` reads. All parameters of the program `declared` are checked, even those that `program`
    ignores. `frozen`: a micro-batch's frozen sums.

    In a program that makes advantages, `advantages` are the rewards.
    """
    hierarchy, tokens = index.hierarchy, {name: t.detach() for name, t in tokens.items()}
    vectors = dict(index.kept(("inputs", id(program)), lambda: _of_index(hierarchy, program, index))[1])
    chosen, largest = parameter_vectors_of(hierarchy, declared, index, {} if parameters is None else parameters)
    vectors.update(chosen.items())
    given: Tensor | None = None
    per_row = False
    for node in program.inputs:
        if node.kind in GIVEN:
            if given is None:
                given, per_row = checked(hierarchy, index, node.kind, advantages)
            if node.over not in program.leaves:
                vectors[node] = at_elements(node.over, index, node.kind, given, per_row)
        elif node.kind == FROZEN:
            vectors[node] = frozen[node.key[0]]
    return Batch(index, tokens, given, per_row, vectors, dtype, fill, largest)


def _of_index(hierarchy: Hierarchy, program: Program, index: Index) -> tuple[Program, Mapping[Input | Matrix, Tensor]]:
    """The inputs that depend on the index alone. The program is kept beside them, so that no other gets its `id`."""
    found: dict[Input | Matrix, Tensor] = {m: index.matrix(m.into, m.of) for m in program.matrices}
    for node in program.inputs:
        if node.kind == "count":
            found[node] = index.count(*node.key)
        elif node.kind == "total":
            found[node] = index.total(hierarchy.attributes[node.key[0]], node.key[1])
        elif node.kind == "attribute":
            found[node] = index.values[node.key[0]]
    return program, found


def policy_tensors(
    hierarchy: Hierarchy, program: Program, tokens: Mapping[str, Tensor], given: Mapping[str, Tensor] | None
) -> dict[str, Tensor]:
    """The log-probs of the further policies that a program reads, by the argument name of each.

    Raises BatchError for missing policies, and for policies that no formula names.
    """
    policies = {} if given is None else given
    if not isinstance(policies, Mapping):
        raise BatchError(
            f"policies are {an(type(policies).__name__)}",
            required="a mapping from the name of a policy to its log-probs",
            remedy="policies={'rollout': log_probs}",
        )
    own = {CURRENT: "log_probs" if "log_probs" in tokens else "log_ratio"} if tokens else {}
    own |= {OLD: "old_log_probs"} if "old_log_probs" in tokens else {}
    known = [name for name in hierarchy.policies if name not in own]
    for name in policies:
        if name in own:
            raise BatchError(
                f"policies={{{name!r}: ...}}",
                required=f"other policies: {own[name]} of this call gives {name}",
            )
        if name not in known:
            raise BatchError(
                f"no formula of '{hierarchy.name}' reads the policy {name!r}",
                required=f"one of {', '.join(map(repr, known))}" if known else "no policies",
                remedy="leave it out" + (", or correct its name" if known else ""),
            )
    kinds = ("policy_log_prob",) if OLD in own else ("policy_log_prob", "old_log_prob")
    read = {node.key[0] if node.key else OLD: node for node in program.inputs if node.kind in kinds}
    for name in (name for name in known if name in read):
        if policies.get(name) is None:
            raise BatchError(
                f"'{hierarchy.name}' reads the policy {name!r}, whose log-probs are missing",
                required=f"log-probs of {', '.join(read)}, in the shape of the batch",
                found=f"no {name!r}, which is read by {_reader(hierarchy, name)}",
                remedy=f'pass policies={{"{name}": log_probs}}',
            )
    return {token_tensor(node).called: policies[name] for name, node in read.items()}


def _reader(hierarchy: Hierarchy, policy: str) -> str:
    """The formula that names a policy, as written."""
    read = [(f"the gate on {s}", hierarchy.gate(s)) for s in hierarchy.order]
    read += [(f"weigh({w})", w) for w in hierarchy.objective.weighed]
    read += [(f"keep({k.condition})", k.condition) for k in hierarchy.objective.kept]
    for name, penalty in hierarchy.penalties.items():
        weighed = () if penalty.objective is None else penalty.objective.formulas
        read += [(f"the penalty '{name}'", e) for e in (penalty.formula, *weighed)]
    read += [] if hierarchy.advantages is None else [("the formula of advantages", hierarchy.advantages)]
    named = LogProb(Policy(policy))
    return next((text for text, e in read if named in atoms_within(e)), "the hierarchy")


def check_tokens(hierarchy: Hierarchy, index: Index | None, **tensors: Tensor) -> Index:
    """Refuse an index of another hierarchy, and tensors whose shape, dtype or device does not fit the index."""
    if not isinstance(index, Index):
        raise no_index(type(index).__name__)
    if index.hierarchy is not hierarchy and index.hierarchy != hierarchy:
        raise BatchError(
            f"the index was built for '{index.hierarchy.name}'",
            required=f"an index of '{hierarchy.name}'",
            remedy="build it with this operator's index(...)",
        )
    for name, tensor in tensors.items():
        refuse_dtype(name, tensor)
        if tuple(tensor.shape) != index.shape:
            raise BatchError(
                f"{name} has shape {list(tensor.shape)}",
                required=f"{list(index.shape)}, the shape of the index",
                remedy=fitted(name, tuple(tensor.shape), index.shape)
                or "an index belongs to one batch: build this batch's, op.index(...), or of a micro-batch of its rows, "
                "index.micro(rows)",
            )
        refuse_device(name, tensor, index)
    return index


def no_index(kind: str) -> BatchError:
    return BatchError(
        "no index is given" if kind == "NoneType" else f"the index is {an(kind)}",
        required="what operator.index(...) returned",
        remedy="pass it by its name: index=...",
    )


def refuse_both(hierarchy: Hierarchy, advantages: Tensor | None) -> None:
    """Refuse rewards beside advantages, and rewards for which the hierarchy has no formula."""
    if advantages is not None:
        raise BatchError(
            "both rewards and advantages are given",
            required="one of them",
            found=f"advantages, and rewards from which '{hierarchy.name}' makes advantages",
            remedy="pass the index by its name: index=..."
            if isinstance(advantages, Index)
            else "leave advantages out, or rewards",
        )
    if hierarchy.advantages is None:
        raise BatchError(
            f"rewards are given, and '{hierarchy.name}' has no formula for advantages",
            required="advantages=...",
            remedy="declare Hierarchy(advantages=centred(reward, over=prompt_group)), or compute them before the call",
        )


def refuse_sums(hierarchy: Hierarchy, index: Index) -> None:
    """Refuse rewards per row where the formula adds up rewards of tokens: a row's reward would count once per token."""
    if adds_up_tokens(hierarchy):
        raise BatchError(
            "rewards are given per row",
            required=f"{list(index.shape)}, one per token",
            found=f"'{hierarchy.name}' adds up the rewards of tokens, in {hierarchy.advantages}",
            remedy="give a row's reward to its last token, and 0 to the others",
        )


def refuse_nonfinite(batch: Batch, index: Index) -> None:
    """Name the first unmasked token whose log-prob, log ratio or advantage is infinite or NaN.

    Returns if this rank has no such token; another rank may have it.
    """
    values = refuse_given(batch, index, "advantage")
    x = values["log_probs"] - values["old_log_probs"] if "log_probs" in values else values["log_ratio"]
    far = (x.abs() > torch.finfo(torch.float32).max).nonzero()
    if len(far):
        raise BatchError(
            f"the log ratio of {index.describe_token(int(far[0]))} is {float(x[far[0]]):g}",
            required="finite values in the precision of the backend's token arithmetic",
        )


def refuse_given(batch: Batch, index: Index, kind: str) -> dict[str, Tensor]:
    """Every token tensor of a call at the unmasked tokens, float64 [tokens] each. Raises BatchError if one is not
    finite.
    """
    values = {name: t.reshape(-1)[index.positions].double() for name, t in batch.tokens.items()}
    for name, numbers in values.items():
        bad = ~torch.isfinite(numbers)
        if bool(bad.any()):
            token = int(bad.nonzero()[0])
            raise BatchError(
                f"{name} of {index.describe_token(token)} is {float(numbers[token]):g}",
                required="finite values on every unmasked token",
                remedy="mask the token, or look for an overflow in the model's log-probs",
            )
    if batch.advantage is not None:
        every = at_tokens(index, batch.advantage, batch.per_row)
        if not bool(torch.isfinite(every).all()):
            refuse_infinite(index, kind, every, batch.per_row)
    return values


def refuse_advantages(batch: Batch, index: Index, outputs: Mapping[Key, Tensor], by_row: bool) -> None:
    """Name why advantages are not finite: rewards, log-probs, or a division by a deviation of 0."""
    refuse_given(batch, index, "reward")
    h, rows = index.hierarchy, index.hierarchy.rows.name
    made = outputs[Key("advantages")]
    for key in (k for k in outputs if k.word.startswith("deviation_")):
        is_0 = outputs[key].expand(index.size[key.stratum]) == 0
        for of in (rows,) if by_row else index.leaves_over(key.stratum):
            values = made.expand(index.size[rows]) if by_row else made.reshape(-1)[index.positions_of(of)]
            under = index.parent(of, key.stratum)[~torch.isfinite(values)]
            for element in under[is_0[under]][:1].tolist():
                raise BatchError(
                    f"the advantages of {index.describe_element(key.stratum, element)} are divided by a deviation of 0",
                    required="a standard deviation above 0, or an epsilon that is added to it",
                    found=f"equal values over that element: {h.advantages}",
                    remedy="write standardised(..., epsilon=1e-6), or leave such elements out of the batch",
                )
    bad = ~torch.isfinite(made)
    if bool(bad.any()):
        first = bad.reshape(-1).nonzero()[0, 0]
        where = rows if by_row else "token"
        element = int(first) if by_row else int((index.positions == first).nonzero()[0, 0])
        raise BatchError(
            f"the advantage of {index.describe_element(rows, element) if by_row else index.describe_token(element)} is "
            f"{float(made.reshape(-1)[first]):g}",
            required=f"a finite advantage of every {where}",
            found=str(h.advantages),
            remedy="bound it: minimum(..., bound), or leave such elements out of the batch",
        )


def refuse_terms(hierarchy: Hierarchy, outputs: Mapping[Key, Tensor], index: Index) -> None:
    """Name the first token whose weight or penalty is infinite or NaN, although the inputs are finite."""
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
                required="finite penalties of all kept tokens",
                found=f"{penalty!r}",
                remedy="bound it: minimum(..., bound), or drop such tokens: keep(...) in the penalty's objective",
            )
    roots = [name for name, penalty in hierarchy.penalties.items() if penalty.has_root]
    if roots:
        weight = "the weight, or " * bool(hierarchy.objective.weighed)
        raise BatchError(
            f"{weight}the slope of the penalty '{roots[0]}' at {token} is not finite",
            required="square roots of positive numbers at kept tokens",
            found=f"{hierarchy.penalties[roots[0]]!r}",
            remedy="keep it from 0: sqrt(... + 1e-8)",
        )
    if hierarchy.objective.weighed:
        raise BatchError(
            f"the weight of {token} is not finite",
            required="finite weights of all kept tokens",
            found=f"weigh({hierarchy.objective.weighed[0]})",
            remedy="bound it: weigh(minimum(..., bound)), or drop such tokens: keep(...)",
        )


# ---------------------------------------------------------------- advantages and rewards

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


# ---------------------------------------------------------------- arguments that are no log-probs

FEW_TOKENS = 8  # with fewer tokens, or fewer different advantages, signs prove nothing
NO_LOG_PROBS = ("log_ratio", "cotangent", *GIVEN.values())


def highest(name: str, dtype: torch.dtype) -> float:
    """How far rounding lifts a log-prob above 0; infinity for a tensor of other numbers.

    Two units in the last place of a float32 logit of size 128, and eight of 1 in half precision.
    """
    return torch.inf if name in NO_LOG_PROBS else max(2.0**-15, 8 * torch.finfo(dtype).eps)


def refuse_exchanged(tensors: Mapping[str, Tensor], index: Index, word: str, given: object) -> None:
    """Refuse log-probs that are exchanged with `given`, numbers per token (`word`: advantages or rewards)."""
    name = exchanged(tensors, index, given)
    if name is None:
        return
    values = _unmasked(tensors[name], index)
    token = int(values.argmax())
    raise BatchError(
        f"{name} and {word} look exchanged",
        required=f"{name}, which are never above 0, and {word} in their own places",
        found=f"{name} of {index.describe_token(token)} is {float(values[token]):g}, and none of the {word} is above 0",
        remedy=f"pass them by name: op.loss(log_probs=..., old_log_probs=..., {word}=..., index=...)",
    )


def exchanged(tensors: Mapping[str, Tensor], index: Index, given: object) -> str | None:
    """The name of a tensor of log-probs that has numbers above 0, if `given` looks like log-probs instead; else None.

    `given` looks so if it is per token, has at least `FEW_TOKENS` different numbers, and none above 0. Log ratios
    beside old log-probs of zeros are accepted.
    """
    if not isinstance(given, Tensor) or tuple(given.shape) != index.shape or given.device != index.device:
        return None
    some = sample_of(index)  # enough for most batches
    if not len(some) or given.detach().reshape(-1)[some].amax().item() > 0:
        return None
    for name, tensor in tensors.items():
        limit = highest(name, tensor.dtype)
        # one pass is enough: what lies under the mask, even a NaN, leads to the exact answer
        if tensor.detach().amax().item() <= limit:
            continue
        if bool((_unmasked(tensor, index) > limit).any()):
            numbers, old = _unmasked(given, index), tensors.get("old_log_probs")
            is_relative = old is not None and not bool(_unmasked(old, index).any())
            is_like_log_probs = not bool((numbers > 0).any()) and numbers.unique().numel() >= FEW_TOKENS
            return name if is_like_log_probs and not is_relative else None
    return None


def sample_of(index: Index) -> Tensor:
    """The places of about 64 unmasked tokens."""

    def places() -> Tensor:
        runs = index.every.runs
        return torch.from_numpy(runs.place(np.arange(0, len(runs), len(runs) // 64 + 1))).to(index.device)

    return index.kept("a few tokens", places)


def refuse_negated(tensors: Mapping[str, Tensor], index: Index) -> None:
    """Refuse negative log-likelihoods in place of log-probs: no value is below 0, and most are above.

    Log ratios beside zeros are accepted.
    """
    given = {name: _unmasked(tensors[name], index) for name in ("log_probs", "old_log_probs")}
    for name, values in given.items() if bool(given["old_log_probs"].any()) else ():
        above = int((values > 0).sum())
        if len(values) >= FEW_TOKENS and 2 * above > len(values) and not bool((values < 0).any()):
            first = int((values > 0).nonzero()[0])
            remedy = f"of negative log-likelihoods, pass -{name}"
            if not bool((values > 1).any()):
                remedy = f"of probabilities, pass {name}.log(); {remedy}"
            raise BatchError(
                f"{name} are above 0 at {above} of {len(values)} tokens, and below 0 at none",
                required="logarithms of probabilities, which are at most 0",
                found=f"{float(values[first]):g} at {index.describe_token(first)}",
                remedy=remedy,
            )


def _unmasked(tensor: Tensor, index: Index) -> Tensor:
    return tensor.detach().reshape(-1)[index.positions]
