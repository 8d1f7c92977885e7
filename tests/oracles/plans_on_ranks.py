"""Runs a plan over ranks in numpy. Values that a rank does not have are NaN, and so are all results of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fibration.compiler.interpret import Sizes, Vector, value_of
from fibration.compiler.ir import BATCH, Const, Input, Key, Map, Matrix, Mix, Node, Pull, Push
from fibration.compiler.plan import Coarse, Collective, Pass, Plan, Sweep
from fibration.runtime.index.index import Index

Numbers = np.ndarray[Any, np.dtype[np.int64]]


class Rank:
    """One rank's tokens, and the vectors that it has. `mine[leaf]` are its tokens, as numbers of the whole batch's."""

    def __init__(self, plan: Plan, index: Index, inputs: Mapping[Input | Matrix, Any], mine: Mapping[str, Numbers]):
        self.plan, self.mine = plan, mine
        self.sizes: Sizes = index.sizes(plan.program.edges)
        self.held: dict[str, Any] = {BATCH: np.array([any(map(len, mine.values()))])}
        for s in {n.stratum for n in plan.program.nodes()} - {*mine, BATCH}:
            self.held[s] = np.zeros(index.size[s], bool)
            for leaf in index.leaves_over(s) or index.leaves:
                self.held[s][index.parent(leaf, s).numpy()[mine[leaf]]] = True
        self.values: dict[Node, Vector] = {}
        for node in plan.program.inputs:
            vector = np.broadcast_to(np.asarray(inputs[node], float), (self.sizes.size[node.stratum],))
            if node.stratum in mine:
                vector = vector[mine[node.stratum]]
            self.values[node] = self.own(node, vector) if node.kind == "advantage" else vector
        self.kept = set(self.values)
        self.matrices = {m: np.asarray(inputs[m], float) for m in plan.program.matrices}

    def own(self, node: Node, vector: Vector) -> Vector:
        """NaN at the elements that this rank has no token of."""
        return vector if node.stratum in self.mine else np.where(self.held[node.stratum], vector, np.nan)

    def parent(self, node: Any) -> Numbers:
        parent = self.sizes.parents[node.source, node.target]
        return parent[self.mine[node.source]] if node.source in self.mine else parent

    def read(self, node: Node) -> Vector:
        if isinstance(node, Const):
            return np.full(len(self.mine.get(node.over, self.held.get(node.over, ()))), node.value)
        return self.values[node]

    def compute(self, node: Node) -> Vector:
        given = [self.read(o) for o in node.operands]
        if isinstance(node, Map):
            return np.asarray(value_of(node.body, lambda i: given[i]))
        if isinstance(node, Mix):
            matrix = self.matrices[node.matrix]
            return (matrix.T if node.transposed else matrix) @ given[0]
        if isinstance(node, Pull):
            return given[0][self.parent(node)]
        assert isinstance(node, Push)
        if node.reduce == "max":
            result = np.full(len(self.held[node.target]), -np.inf)
            np.maximum.at(result, self.parent(node), given[0])
            return result
        return np.bincount(self.parent(node), weights=given[0], minlength=len(self.held[node.target]))

    def perform(self, stage: Sweep | Coarse) -> None:
        if isinstance(stage, Coarse):
            for group in stage.groups:
                for node in group.values:
                    self.values[node] = self.compute(node)
            kept = set(stage.saved)
        else:
            for step in stage.steps:
                for node in step.values:
                    if not isinstance(node, (Input, Const)):
                        self.values[node] = self.own(node, self.compute(node))
                for push in step.pushes if isinstance(step, Pass) else ():
                    self.values[push] = self.own(push, self.compute(push))
            kept = set(stage.saved) | {n for p in stage.passes for _, n in p.stores}
        self.kept |= kept  # the others were scalars of a loop
        self.values = {n: v for n, v in self.values.items() if n in self.kept}


def together(stage: Collective, ranks: Sequence[Rank]) -> None:
    """What a collective does, one node after the other."""
    for node in stage.values:
        held = np.array([r.held[node.stratum] for r in ranks])
        known = np.array([r.values[node] for r in ranks])
        if node in stage.units:
            unit = stage.units[node]  # type: ignore[index]
            parts = np.where(held, known, 0.0) / unit
            assert ((parts == np.round(parts)) & (abs(parts) <= 2**53) | np.isnan(parts)).all()
            lost = np.isnan(parts).any(0)
            whole = np.array([float(sum(int(p) for p in column)) for column in np.nan_to_num(parts).T]) * unit
            whole[lost] = np.nan
        elif node in stage.parts:
            whole = np.where(held, known, -np.inf).max(0)
        else:
            first = held.argmax(0)
            whole = known[first, np.arange(held.shape[1])]
            assert (~held | (known == whole) | np.isnan(known)).all()
        for r in ranks:
            r.values[node] = whole


def on_ranks(
    plan: Plan, index: Index, inputs: Mapping[Input | Matrix, Any], rank_of: Mapping[str, Numbers], size: int
) -> list[dict[Key, Vector]]:
    """Every output on every rank, float64; those over tokens are its own. `rank_of[leaf]` is each token's rank."""
    mine = [{leaf: np.flatnonzero(ranks == r) for leaf, ranks in rank_of.items()} for r in range(size)]
    ranks = [Rank(plan, index, inputs, tokens) for tokens in mine]
    with np.errstate(all="ignore"):
        for stage in plan.stages:
            if isinstance(stage, Collective):
                together(stage, ranks)
            else:
                for rank in ranks:
                    rank.perform(stage)
    return [{key: rank.read(node) for key, node in plan.program.outputs.items()} for rank in ranks]
