"""Computes the arguments of a generated function from a batch. Arguments that depend on the index alone are cached."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fibration.compiler.arguments import GIVEN, KINDS, LAYOUT, Argument, for_each, tensor_of
from fibration.compiler.ir import Const, Input, Node
from fibration.compiler.keys import Key
from fibration.compiler.plan import Plan
from fibration.runtime.batch import Batch, Elements, Outputs


@dataclass(frozen=True)
class BoundPlan:
    """A plan on one index: the layout of its workspace, and the arguments that no call changes.

    `whole`: segments cover all tokens, so kernels fill the gaps between segments. `by_row`: every segment that reads
    advantages lies in one row. `constant` and `given`: outputs that are numbers or inputs, so that nothing computes
    them.
    """

    plan: Plan
    slots: Mapping[Node, slice]
    length: int
    whole: bool
    by_row: bool
    values: Mapping[str, object]
    places: Mapping[Key, slice]
    constant: Mapping[Key, Tensor]
    given: Mapping[Key, Input]

    def per_row(self, batch: Batch) -> bool:
        """Whether kernels read one advantage per row: the batch has them, and each segment that reads one lies in one
        row.
        """
        return batch.per_row and self.by_row

    def vector_of(self, node: Node, work: Tensor, batch: Batch) -> Tensor:
        if node in self.slots:
            return work[self.slots[node]]
        if isinstance(node, Const):
            return torch.full((1,), node.value, dtype=torch.float64, device=work.device)
        assert isinstance(node, Input)
        return batch.vectors[node]


@dataclass(frozen=True)
class Launch:
    """One call: the arguments that depend on the batch, the results that it fills, and its workspace."""

    bound: BoundPlan
    batch: Batch
    values: dict[str, object]
    outputs: Outputs
    work: Tensor

    def perform(self, name: str, call: Callable[[str], None]) -> None:
        """Call the functions of a program in order. Between two functions, combine the partial sums of ranks."""
        batch, bound, work, ranks = self.batch, self.bound, self.work, self.batch.index.ranks
        if ranks is None:
            call(name)
            return
        plan = bound.plan
        for (function, section), stage in itertools.zip_longest(plan.functions(name).items(), plan.collectives):
            if section:
                call(function)
            if stage:
                vectors = {n: bound.vector_of(n, work, batch) for n in stage.reads}
                for node, whole in ranks.collect(stage, vectors, batch.index).items():
                    bound.vector_of(node, work, batch).copy_(whole)


class Binding:
    """Binds the arguments of one plan: once per index, and once per batch."""

    def __init__(self, plan: Plan, arguments: tuple[Argument, ...]) -> None:
        self.plan, self.arguments = plan, arguments
        self.of_index = [a for a in arguments if a.kind in OF_INDEX]
        self.of_call = [a for a in arguments if a.kind in OF_CALL]
        self.results = [a for a in arguments if a.kind == "result"]
        self.coarse = {k: n for k, n in plan.program.outputs.items() if n.stratum not in plan.program.leaves}
        self.reading = [s.segments for s in plan.sweeps if any(i.kind in GIVEN for p in s.passes for i in p.reads)]

    def on(self, index: Elements) -> BoundPlan:
        return index.kept(self, lambda: self._bound(index))

    def _bound(self, index: Elements) -> BoundPlan:
        slots: dict[Node, slice] = {}
        at = 0
        for node in self.plan.saved:
            slots[node] = slice(at, at + index.size[node.stratum])
            at += index.size[node.stratum]
        # contiguous segments in order fill the gaps between them; with several leaves, such gaps hold other tokens
        layouts = [index.layout(*a.key) for a in self.arguments if a.kind == "offsets"]
        alone = len(self.plan.program.leaves) == 1
        found = {k: n for k, n in self.coarse.items() if n not in slots}
        return BoundPlan(
            plan=self.plan,
            slots=slots,
            length=at,
            whole=alone and all(lay.positions is None and lay.tokens is None and len(lay.starts) for lay in layouts),
            by_row=all(index.rows_of(segments) is not None for segments in self.reading),
            values={a.name: OF_INDEX[a.kind](index, a) for a in self.of_index},
            places={k: slots[n] for k, n in self.coarse.items() if n in slots},
            constant={
                k: torch.full((1,), n.value, dtype=torch.float64, device=index.device)
                for k, n in found.items()
                if isinstance(n, Const)
            },
            given={k: n for k, n in found.items() if isinstance(n, Input)},
        )

    def bind(self, batch: Batch) -> Launch:
        bound = self.on(batch.index)
        work = torch.empty(bound.length, dtype=torch.float64, device=batch.index.device)
        outputs = Outputs({k: batch.vectors[n] for k, n in bound.given.items()}, work, bound.places, bound.constant)
        call = Launch(bound, batch, {}, outputs, work)
        call.values.update({a.name: OF_CALL[a.kind](call, a) for a in self.of_call})
        for a in self.results:
            outputs[a.key[0]] = call.values[a.name]  # type: ignore[assignment]
        return call


# The value of an argument by its kind: those that depend on the index alone, then the others.
OF_INDEX: Mapping[str, Callable[[Elements, Argument], object]] = {
    "size": lambda index, a: index.size[a.key[0]],
    **{kind: lambda index, a: getattr(index.layout(*a.key), a.kind) for kind in LAYOUT},
    "parent": lambda index, a: index.parent(*a.key).contiguous(),
    "order": lambda index, a: index.members(*a.key).order,
    "members": lambda index, a: index.members(*a.key).offsets,
    "sequence": lambda index, a: index.sequence(*a.key).order,
    "sequence_members": lambda index, a: index.sequence(*a.key).offsets,
    "places": lambda index, a: math.prod(index.shape),
}
OF_CALL: Mapping[str, Callable[[Launch, Argument], object]] = {
    "token": lambda call, a: call.batch.tokens[tensor_of(*a.key).called].contiguous(),
    "advantage": lambda call, a: _advantages(call),
    "rows": lambda call, a: call.batch.index.rows_of(a.key[0]) if call.bound.per_row(call.batch) else None,
    "vector": lambda call, a: call.batch.vectors[a.key[0]],
    "stride": lambda call, a: _stride(call.batch.vectors[a.key[0]]),
    "matrix": lambda call, a: call.batch.vectors[a.key[0]],
    "result": lambda call, a: _result(call),
    "fill": lambda call, a: call.batch.fill,
    "work": lambda call, a: call.work,
}
for_each("values of arguments", KINDS, {**OF_INDEX, **OF_CALL})


def _result(call: Launch) -> Tensor:
    batch, whole = call.batch, call.bound.whole
    make = torch.empty if whole else torch.zeros
    made = make(batch.index.shape, dtype=batch.dtype, device=batch.index.device)
    return made if whole or not batch.fill else made.fill_(batch.fill)


def _advantages(call: Launch) -> Tensor | None:
    batch = call.batch
    given = batch.advantage
    if given is None or not batch.per_row or call.bound.per_row(batch):
        return None if given is None else given.contiguous()
    spread = torch.zeros(batch.index.shape, dtype=given.dtype, device=given.device)
    spread.view(-1)[batch.index.positions] = given[batch.index.row_tensor()][batch.index.row_of_token]
    return spread


def _stride(vector: Tensor) -> int:
    return 0 if vector.numel() == 1 or vector.stride(0) == 0 else 1
