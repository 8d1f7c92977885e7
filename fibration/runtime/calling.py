"""A value for every argument of a generated function, from a batch."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fibration.compiler.arguments import Argument
from fibration.compiler.ir import Const, Input, Node
from fibration.compiler.plan import Plan
from fibration.runtime.batch import Batch


def bind(arguments: tuple[Argument, ...], plan: Plan, batch: Batch) -> tuple[dict[str, object], dict[str, Tensor]]:
    """A value for every argument: tensors, numbers, or None for what lacks; and the results that the call will fill."""
    index = batch.index
    device = index.device
    slots = workspace(plan, index.size)
    work = torch.empty(sum(n for _, n in slots.values()), dtype=torch.float64, device=device)
    outputs: dict[str, Tensor] = {}
    values: dict[str, object] = {}
    for a in arguments:
        if a.kind == "size":
            values[a.name] = index.size[a.key[0]]
        elif a.kind in ("offsets", "starts", "positions", "tokens"):
            values[a.name] = getattr(index.layout(*a.key), a.kind)
        elif a.kind == "rows":
            values[a.name] = index.rows_of(a.key[0]) if per_row(batch, plan) else None
        elif a.kind == "token":
            values[a.name] = batch.tokens[a.key[0]].contiguous()
        elif a.kind == "advantage":
            values[a.name] = _advantages(batch, plan)
        elif a.kind == "vector":
            values[a.name] = batch.vectors[a.key[0]]
        elif a.kind == "matrix":
            values[a.name] = batch.vectors[a.name]
        elif a.kind == "stride":
            values[a.name] = _stride(batch.vectors[a.key[0]])
        elif a.kind == "parent":
            values[a.name] = index.parent(*a.key).contiguous()
        elif a.kind == "order":
            values[a.name] = index.members(*a.key).order
        elif a.kind == "members":
            values[a.name] = index.members(*a.key).offsets
        elif a.kind == "places":
            values[a.name] = _places(index.shape)
        elif a.kind == "fill":
            values[a.name] = batch.fill
        elif a.kind == "work":
            values[a.name] = work
    # whole segments fill the gaps between them themselves; those of one leaf among several have others' tokens there
    whole = len(plan.program.leaves) == 1 and all(values[a.name] is None for a in arguments if a.kind == "positions")
    for a in arguments:
        if a.kind == "result":
            make = torch.empty if whole else torch.zeros
            outputs[a.key[0]] = make(index.shape, dtype=batch.dtype, device=device)
            if not whole and batch.fill:
                outputs[a.key[0]].fill_(batch.fill)
            values[a.name] = outputs[a.key[0]]
    for name, node in plan.program.outputs.items():
        if node.stratum not in plan.program.leaves:
            outputs[name] = _coarse_output(node, slots, work, batch)
    return values, outputs


def per_row(batch: Batch, plan: Plan) -> bool:
    """Whether kernels read advantages per row: they are given so, and segments that need one lie in one row each."""
    reading = [s for s in plan.sweeps if any(i.kind == "advantage" for p in s.passes for i in p.reads)]
    return batch.per_row and all(batch.index.rows_of(s.segments) is not None for s in reading)


def workspace(plan: Plan, size: Mapping[str, int]) -> dict[Node, tuple[int, int]]:
    """Where every saved vector starts in the workspace, and how long it is."""
    slots: dict[Node, tuple[int, int]] = {}
    at = 0
    for node in plan.saved:
        slots[node] = (at, size[node.stratum])
        at += size[node.stratum]
    return slots


def _coarse_output(node: Node, slots: Mapping[Node, tuple[int, int]], work: Tensor, batch: Batch) -> Tensor:
    if isinstance(node, Input):
        return batch.vectors[node.name]
    if isinstance(node, Const):
        return torch.full((1,), node.value, dtype=torch.float64, device=work.device)
    at, n = slots[node]
    return work[at : at + n]


def _advantages(batch: Batch, plan: Plan) -> Tensor | None:
    given = batch.advantage
    if given is None or not batch.per_row or per_row(batch, plan):
        return None if given is None else given.contiguous()
    spread = torch.zeros(batch.index.shape, dtype=given.dtype, device=given.device)
    spread.view(-1)[batch.index.positions] = given[batch.index.row_tensor()][batch.index.row_of_token]
    return spread


def _stride(vector: Tensor) -> int:
    return 0 if vector.numel() == 1 or vector.stride(0) == 0 else 1


def _places(shape: tuple[int, ...]) -> int:
    total = 1
    for n in shape:
        total *= n
    return total
