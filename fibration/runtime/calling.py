"""A value for every argument of a generated function, from a batch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fibration.compiler.arguments import GIVEN, KINDS, LAYOUT, Argument, for_each, tensor_of
from fibration.compiler.ir import Const, Input, Node
from fibration.compiler.keys import Key
from fibration.compiler.plan import Plan
from fibration.runtime.batch import Batch


@dataclass(frozen=True)
class _Call:
    plan: Plan
    batch: Batch
    work: Tensor
    whole: bool

    def result(self) -> Tensor:
        batch = self.batch
        make = torch.empty if self.whole else torch.zeros
        made = make(batch.index.shape, dtype=batch.dtype, device=batch.index.device)
        return made if self.whole or not batch.fill else made.fill_(batch.fill)


# The value of an argument, by its kind.
VALUES: Mapping[str, Callable[[_Call, Argument], object]] = for_each("values of arguments", KINDS, {
    "size": lambda call, a: call.batch.index.size[a.key[0]],
    **{kind: lambda call, a: getattr(call.batch.index.layout(*a.key), a.kind) for kind in LAYOUT},
    "token": lambda call, a: call.batch.tokens[tensor_of(*a.key).called].contiguous(),
    "advantage": lambda call, a: _advantages(call.batch, call.plan),
    "rows": lambda call, a: call.batch.index.rows_of(a.key[0]) if per_row(call.batch, call.plan) else None,
    "vector": lambda call, a: call.batch.vectors[a.key[0]],
    "stride": lambda call, a: _stride(call.batch.vectors[a.key[0]]),
    "matrix": lambda call, a: call.batch.vectors[a.key[0]],
    "parent": lambda call, a: call.batch.index.parent(*a.key).contiguous(),
    "order": lambda call, a: call.batch.index.members(*a.key).order,
    "members": lambda call, a: call.batch.index.members(*a.key).offsets,
    "sequence": lambda call, a: call.batch.index.sequence(*a.key).order,
    "sequence_members": lambda call, a: call.batch.index.sequence(*a.key).offsets,
    "result": lambda call, a: call.result(),
    "places": lambda call, a: math.prod(call.batch.index.shape),
    "fill": lambda call, a: call.batch.fill,
    "work": lambda call, a: call.work,
})  # fmt: skip


def bind(
    arguments: tuple[Argument, ...], plan: Plan, batch: Batch
) -> tuple[dict[str, object], dict[Key, Tensor], Tensor]:
    """A value for every argument: tensors, numbers, or None for what lacks; the results that the call will fill; and
    the workspace.
    """
    index = batch.index
    slots = workspace(plan, index.size)
    work = torch.empty(sum(n for _, n in slots.values()), dtype=torch.float64, device=index.device)
    # whole segments, each behind the one before, fill the gaps between them themselves; in gaps between those of one
    # leaf among several lie others' tokens
    layouts = [index.layout(*a.key) for a in arguments if a.kind == "offsets"]
    whole = len(plan.program.leaves) == 1 and all(at.positions is None and at.tokens is None for at in layouts)
    call = _Call(plan, batch, work, whole)
    values = {a.name: VALUES[a.kind](call, a) for a in arguments}
    outputs: dict[Key, Any] = {a.key[0]: values[a.name] for a in arguments if a.kind == "result"}
    for key, node in plan.program.outputs.items():
        if node.stratum not in plan.program.leaves:
            outputs[key] = vector_of(node, slots, work, batch)
    return values, outputs, work


def perform(name: str, plan: Plan, batch: Batch, work: Tensor, call: Callable[[str], None]) -> None:
    """Call a program's functions one after the other, and between them put together what ranks know in part."""
    ranks = batch.index.ranks
    if ranks is None:
        call(name)
        return
    slots = workspace(plan, batch.index.size)
    for (function, section), stage in itertools.zip_longest(plan.functions(name).items(), plan.collectives):
        if section:
            call(function)
        if stage:
            vectors = {n: vector_of(n, slots, work, batch) for n in stage.reads}
            for node, whole in ranks.collect(stage, vectors, batch.index).items():
                vector_of(node, slots, work, batch).copy_(whole)


def per_row(batch: Batch, plan: Plan) -> bool:
    """Whether kernels read advantages per row: they are given so, and segments that need one lie in one row each."""
    reading = [s for s in plan.sweeps if any(i.kind in GIVEN for p in s.passes for i in p.reads)]
    return batch.per_row and all(batch.index.rows_of(s.segments) is not None for s in reading)


def workspace(plan: Plan, size: Mapping[str, int]) -> dict[Node, tuple[int, int]]:
    """Where every saved vector starts in the workspace, and how long it is."""
    slots: dict[Node, tuple[int, int]] = {}
    at = 0
    for node in plan.saved:
        slots[node] = (at, size[node.stratum])
        at += size[node.stratum]
    return slots


def vector_of(node: Node, slots: Mapping[Node, tuple[int, int]], work: Tensor, batch: Batch) -> Tensor:
    if isinstance(node, Input) and node not in slots:
        return batch.vectors[node]
    if isinstance(node, Const) and node not in slots:
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
