"""Checks the inputs of one call, and makes its batch: token tensors as given, and one vector per coarser input."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from fibration.compiler.arguments import GIVEN, token_tensor
from fibration.compiler.coupling import FROZEN
from fibration.compiler.ir import Input, Key, Matrix
from fibration.compiler.program import Program
from fibration.errors import BatchError, an
from fibration.language.declared import CURRENT, OLD, LogProb, Policy
from fibration.language.hierarchy import Hierarchy, adds_up_tokens
from fibration.language.statistics import atoms_within
from fibration.runtime.batch import Batch
from fibration.runtime.given import (
    at_elements,
    at_tokens,
    checked,
    fitted,
    refuse_device,
    refuse_dtype,
    refuse_infinite,
)
from fibration.runtime.index.index import Index
from fibration.runtime.parameters import parameter_vectors_of


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
    frozen: Mapping[str, Tensor] = MappingProxyType({}),
) -> Batch:
    """The data that `program` reads. All parameters of the program `declared` are checked, even those that `program`
    ignores. `frozen`: a micro-batch's frozen sums.

    In a program that makes advantages, `advantages` are the rewards.
    """
    tokens = {name: t.detach() for name, t in tokens.items()}
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
