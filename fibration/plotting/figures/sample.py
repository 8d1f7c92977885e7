"""Small batches made for a figure: worlds of one or two short trajectories, with one element per coarser stratum.

If there are several leaves, the tokens of a trajectory are dealt out to them in turn.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from fibration.compiler.diagnostics import REGIMES, UNCHANGED
from fibration.compiler.ir import Input, Mix, Push, Quantile
from fibration.compiler.program import Program
from fibration.language.atoms import BATCH, Stratum
from fibration.language.hierarchy import Hierarchy
from fibration.plotting.gate_curve import reads_advantage, regimes, removes
from fibration.rollouts.replay import Replay
from fibration.runtime.index.index import Index
from fibration.runtime.operator import Operator
from fibration.runtime.weights import read_of_tokens

Vector = NDArray[np.float64]
Level = tuple[str, str]  # stratum, channel
PASSED, ATTENUATED = REGIMES.index("passed"), REGIMES.index("attenuated")
OLD = 0.5  # the old probability of every token: it stays at most 1 after any drift that is drawn


@dataclass(frozen=True)
class Sample:
    """Worlds that differ in their log ratios alone: one batch, or one batch per world if they are `alone`.

    `log_ratio` is float64 `[worlds, tokens]`, in nats; `advantages` float64 `[tokens]`, the same in every world.
    Arrays of tokens and of elements are `[worlds, tokens]` and `[worlds, elements]`, in intensive units.
    """

    op: Operator
    index: Index  # of one batch
    log_ratio: Vector
    advantages: Vector
    parameters: Mapping[str, Any]
    rows: int
    alone: bool

    @cached_property
    def batches(self) -> list[Replay]:
        """In a figure the log-probs of every policy but the current one equal the old policy's."""
        h = self.op.hierarchy
        made = []
        for worlds in self.log_ratio[:, None] if self.alone else self.log_ratio[None]:
            x, a = torch.from_numpy(worlds.reshape(-1).copy()), np.resize(self.advantages, worlds.size)
            old = torch.full_like(x, math.log(OLD))
            policies = {name: old for name, policy in h.policies.items() if policy.is_passed}
            metrics = ["penalties"] if h.penalties else False
            given = self.op, self.index, self.parameters, old + x, old, x, torch.from_numpy(a)
            made.append(Replay(*given, policies, metrics))
        return made

    def _worlds(self, found: Iterable[ArrayLike]) -> NDArray[Any]:
        return np.concatenate([np.ravel(values) for values in found]).reshape(len(self.log_ratio), -1)

    @cached_property
    def regimes(self) -> dict[Level, NDArray[np.int64]]:
        """Numbers of `fibration.compiler.diagnostics.REGIMES`."""
        return {level: regimes(self.batches, *level, residual) for level, residual in self.residual.items()}

    @cached_property
    def residual(self) -> dict[Level, Vector]:
        levels = [b.levels.residual for b in self.batches]
        return {level: self._worlds(values[level] for values in levels) for level in levels[0]}

    @cached_property
    def gated(self) -> dict[Level, Vector]:
        levels = [b.levels.gated for b in self.batches]
        return {level: self._worlds(values[level] for values in levels) for level in levels[0]}

    @cached_property
    def own(self) -> NDArray[np.int64]:
        """The number of the channel that carries each token, the first if none does."""
        h = self.op.hierarchy
        density = np.zeros((len(h.decomposition.channels), *self.log_ratio.shape))
        for stratum in h.order:  # a density is the sum of an element's residual and those of its coarser elements
            over, element = self.tokens_over(stratum), self.element(stratum)
            for i, channel in enumerate(h.decomposition.channels):
                density[i][:, over] += self.residual[stratum.name, channel][:, element]
        return np.argmax(np.abs(density), axis=0)

    @cached_property
    def ratio(self) -> Vector:
        """Gated ratios."""
        return self._worlds(b.ratio for b in self.batches)

    @cached_property
    def moved(self) -> NDArray[np.bool_]:
        """Whether all gates together change a token's ratio."""
        r = np.exp(self.log_ratio)
        return np.asarray(np.abs(self.ratio - r) > UNCHANGED * np.abs(r - 1) + 1e-12)

    def token_regimes(self, leaf: Stratum, by_ratio: bool = False) -> NDArray[np.int64]:
        """The regimes of a leaf's tokens, each in its own channel: numbers.

        By ratio, a token passes if its ratio is unchanged.
        """
        tokens = self.tokens_of(leaf)
        each = np.stack([self.regimes[leaf.name, c] for c in self.op.hierarchy.decomposition.channels])
        found: NDArray[np.int64] = np.take_along_axis(each, self.own[None, :, tokens], axis=0)[0]
        if by_ratio:
            found = np.where(self.moved[:, tokens], np.where(found == PASSED, ATTENUATED, found), PASSED)
        return found

    @property
    def by_ratio(self) -> tuple[str, ...]:
        """Leaves whose gates pass no token of these worlds, though they do not remove the level.

        Worlds are next to the old policy. The gate of APC-Obj passes a token's whole deviation, so only the ratio shows
        whether a token passes.
        """
        some = [s for s in self.op.hierarchy.leaves if not removes(self.op, s.name)]
        return tuple(s.name for s in some if len(self.tokens_of(s)) and (self.token_regimes(s) != PASSED).all())

    @cached_property
    def weight(self) -> Vector:
        """The factor of every token's term beside `μ`, 0 for a dropped token."""
        if not self.op.hierarchy.objective.formulas:
            return np.ones_like(self.log_ratio)
        return self._worlds(b.weights.product for b in self.batches)

    @property
    def objective(self) -> Vector:
        """`J` of every batch. A score estimator's `J` reads the old probability `OLD`."""
        return np.array([float(b.result.objective) for b in self.batches])

    @property
    def penalties(self) -> Vector:
        """The sum of all penalties of every batch, which `J` subtracts."""
        return np.array([sum(map(float, b.result.metrics.values())) for b in self.batches])

    def tokens_of(self, leaf: Stratum) -> NDArray[np.int64]:
        """The tokens of a world that are elements of a leaf, ascending."""
        leaves = self.op.hierarchy.leaves
        return np.flatnonzero(dealt(self.log_ratio.shape[1], self.rows, len(leaves)) == leaves.index(leaf))

    def tokens_over(self, stratum: Stratum) -> NDArray[np.int64]:
        """The tokens of a world that lie over a stratum, ascending."""
        over = self.op.hierarchy.shape.leaves_over(stratum)
        return np.sort(np.concatenate([self.tokens_of(leaf) for leaf in over]))

    def element(self, stratum: Stratum) -> NDArray[np.int64]:
        """The element of a stratum that each of `tokens_over(stratum)` lies over, numbered within a world."""
        found = np.empty(self.log_ratio.shape[1], np.int64)
        for leaf in self.op.hierarchy.shape.leaves_over(stratum):
            tokens = self.tokens_of(leaf)  # the index begins with the first world
            found[tokens] = self.index.parent(leaf.name, stratum.name).numpy()[: len(tokens)]
        return found[self.tokens_over(stratum)]


def dealt(tokens: int, rows: int, leaves: int) -> NDArray[np.int64]:
    """The number of each token's leaf: leaves take turns along every trajectory."""
    return np.tile(np.arange(tokens // rows) % leaves, rows)


def dealing(hierarchy: Hierarchy) -> str:
    """How a figure deals out tokens, for its caption; empty for one leaf."""
    leaves = hierarchy.leaves
    return f"its tokens are {', '.join(map(str, leaves))} in turn" if len(leaves) > 1 else ""


def sample(
    op: Operator, log_ratio: Vector, advantages: ArrayLike, parameters: Mapping[str, Any], rows: int = 1
) -> Sample:
    """Worlds of `rows` trajectories of equal length; every attribute is 1. They are alone unless independent.

    `log_ratio`: float64 `[worlds, tokens]`; `advantages`: one, or one per token. Raises what `Operator.index` raises.
    """
    h, tokens, alone = op.hierarchy, log_ratio.shape[1], not apart(op)
    worlds = 1 if alone else len(log_ratio)
    of_world, of_row = (np.repeat(np.arange(n), worlds * tokens // n) for n in (worlds, worlds * rows))
    labels: dict[str, Any] = {}
    for s in h.order:
        if s not in (*h.leaves, h.rows) and s.name != BATCH:
            labels[s.name] = (of_row if _by_row(op, s) else of_world).tolist()
    labels |= {s.name: np.repeat(np.arange(worlds), rows).tolist() for s in h.groups}  # of rows: those of a world
    if len(h.leaves) > 1:
        leaf = np.tile(dealt(tokens, rows, len(h.leaves)), worlds)
        labels |= {s.name: leaf == i for i, s in enumerate(h.leaves)}
    offsets = np.arange(0, worlds * tokens + 1, tokens // rows)
    index = op.index(offsets=offsets, attributes={n: a.usual for n, a in h.attributes.items()}, **labels)
    each = np.broadcast_to(np.asarray(advantages, np.float64), tokens)
    return Sample(op, index, np.asarray(log_ratio, np.float64), each, parameters, rows, alone)


def _by_row(op: Operator, stratum: Stratum) -> bool:
    """Whether a stratum has one element per trajectory: it or a coarser stratum is the rows or reads the advantage."""
    below = (stratum, *op.hierarchy.coarser(stratum))
    return any(s == op.hierarchy.rows or reads_advantage(op, s.name) for s in below)


def apart(op: Operator) -> bool:
    """Whether the worlds of one batch are independent: no gate and no weight reads a sum, quantile, count or fit over
    the batch.
    """
    seen = {k: v for k, v in op.programs["levels"].outputs.items() if k.word in ("residual", "gated")}
    seen |= read_of_tokens(op.hierarchy).outputs if op.hierarchy.objective.formulas else {}

    def joins(node: Any) -> bool:
        if isinstance(node, Input):
            return node.kind in ("count", "total") and node.over == BATCH
        return isinstance(node, Mix) or (isinstance(node, (Push, Quantile)) and node.target == BATCH)

    return not any(map(joins, Program("levels", op.programs["levels"].leaves, seen, {}).nodes()))
