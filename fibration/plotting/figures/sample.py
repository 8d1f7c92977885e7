"""Small batches made for a figure: worlds of one or two short trajectories, with one element per coarser stratum.

If there are several leaves, the tokens of a trajectory are dealt out to them in turn.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fibration.compiler.diagnostics import UNCHANGED
from fibration.compiler.ir import Input, Matrix, Mix, Push, Quantile
from fibration.compiler.program import Program
from fibration.language.atoms import BATCH, Stratum
from fibration.language.hierarchy import Hierarchy
from fibration.language.policies import OLD as BEFORE
from fibration.plotting.gate_curve import element_regimes, reads_advantage, regimes_along
from fibration.runtime.index.index import Index
from fibration.runtime.operator import Operator
from fibration.runtime.results import Coefficients, Levels
from fibration.runtime.weights import read_of_tokens, weights_of

Vector = NDArray[np.float64]
Level = tuple[str, str]  # stratum, channel
OLD = 0.5  # the old probability of every token: it stays at most 1 after any drift that is drawn


@dataclass(frozen=True)
class Sample:
    """A batch of `worlds` that differ in their log ratios alone.

    `log_ratio` is float64 `[worlds, tokens]`, in nats; `advantages` float64 `[tokens]`, the same in every world.
    """

    op: Operator
    index: Index
    log_ratio: Vector
    advantages: Vector
    parameters: Mapping[str, Any]
    rows: int = 1

    @property
    def worlds(self) -> int:
        return len(self.log_ratio)

    @property
    def _tokens(self) -> tuple[torch.Tensor, torch.Tensor]:
        advantages = np.tile(self.advantages, self.worlds)
        return torch.from_numpy(self.log_ratio.reshape(-1).copy()), torch.from_numpy(advantages)

    @cached_property
    def _others(self) -> dict[str, torch.Tensor]:
        """Log-probs of the frozen policies that the hierarchy reads. In a figure each equals the old policy."""
        frozen = [name for name, policy in self.op.hierarchy.policies.items() if policy.is_frozen]
        return dict.fromkeys(frozen, self._old)

    @property
    def _old(self) -> torch.Tensor:
        return torch.full((self.log_ratio.size,), math.log(OLD), dtype=torch.float64)

    @property
    def _passed(self) -> dict[str, torch.Tensor]:
        return {name: given for name, given in self._others.items() if name != BEFORE}

    def inputs(self, program: str) -> dict[Input | Matrix, Vector]:
        (log_ratio, advantages), old = self._tokens, self._old
        values = self.op.inputs(
            self.index, log_ratio, advantages, self.parameters, program, (old + log_ratio, old), self._passed
        )
        return {k: v.numpy() for k, v in values.items()}

    @cached_property
    def levels(self) -> Levels:
        log_ratio, advantages = self._tokens
        return self.op.levels(log_ratio, self.index, self.parameters, advantages=advantages, policies=self._others)

    @cached_property
    def regimes(self) -> dict[Level, NDArray[np.int64]]:
        """`[worlds, elements]` numbers of `fibration.compiler.diagnostics.REGIMES`."""
        return {k: v.reshape(self.worlds, -1) for k, v in element_regimes(self).items()}

    @cached_property
    def residual(self) -> dict[Level, Vector]:
        """`[worlds, elements]`, in intensive units."""
        return {k: v.numpy().reshape(self.worlds, -1) for k, v in self.levels.residual.items()}

    @cached_property
    def gated(self) -> dict[Level, Vector]:
        """`[worlds, elements]`, in intensive units."""
        return {k: v.numpy().reshape(self.worlds, -1) for k, v in self.levels.gated.items()}

    @cached_property
    def own(self) -> NDArray[np.int64]:
        """The number of the channel that carries each token, the first if none does: `[worlds, tokens]`."""
        h = self.op.hierarchy
        density = np.zeros((len(h.decomposition.channels), *self.log_ratio.shape))
        for stratum in h.order:  # a density is the sum of an element's residual and those of its coarser elements
            over, element = self.tokens_over(stratum), self.element(stratum)
            for i, channel in enumerate(h.decomposition.channels):
                density[i][:, over] += self.residual[stratum.name, channel][:, element]
        return np.argmax(np.abs(density), axis=0)

    @cached_property
    def ratio(self) -> Vector:
        """Gated ratios `[worlds, tokens]`."""
        log_ratio, advantages = self._tokens
        given: dict[str, Any] = {"advantages": advantages, "policies": self._others}
        gated = self.op.gate(log_ratio, self.index, self.parameters, **given)
        return gated.numpy().reshape(self.log_ratio.shape)

    @cached_property
    def moved(self) -> NDArray[np.bool_]:
        """Whether all gates together change a token's ratio: `[worlds, tokens]`."""
        r = np.exp(self.log_ratio)
        return np.asarray(np.abs(self.ratio - r) > UNCHANGED * np.abs(r - 1) + 1e-12)

    @cached_property
    def weight(self) -> Vector:
        """The factor of every token's term beside `μ`, 0 for a dropped token: `[worlds, tokens]`."""
        h = self.op.hierarchy
        if not h.objective.formulas:
            return np.ones_like(self.log_ratio)
        return weights_of(h, self.index, self.inputs("evaluate")).product.reshape(self.log_ratio.shape)

    @property
    def objective(self) -> float:
        """`J` of all worlds as one batch. A score estimator's `J` reads the old probability `OLD`."""
        return float(self._evaluated.objective)

    @property
    def penalties(self) -> float:
        """The sum of all penalties, which `J` subtracts."""
        return sum(map(float, self._evaluated.metrics.values()))

    @cached_property
    def _evaluated(self) -> Coefficients:
        (log_ratio, advantages), old = self._tokens, self._old
        given: dict[str, Any] = {
            "policies": self._passed,
            "metrics": ["penalties"] if self.op.hierarchy.penalties else False,
        }
        return self.op.coefficients(old + log_ratio, old, advantages, self.index, self.parameters, **given)

    def tokens_of(self, leaf: Stratum) -> NDArray[np.int64]:
        """The tokens of a world that are elements of a leaf, ascending."""
        leaves = self.op.hierarchy.leaves
        mine = dealt(self.log_ratio.shape[1], self.rows, len(leaves)) == leaves.index(leaf)
        return np.flatnonzero(mine)

    def tokens_over(self, stratum: Stratum) -> NDArray[np.int64]:
        """The tokens of a world that lie over a stratum, ascending."""
        over = self.op.hierarchy.shape.leaves_over(stratum)
        return np.sort(np.concatenate([self.tokens_of(leaf) for leaf in self.op.hierarchy.leaves if leaf in over]))

    def element(self, stratum: Stratum) -> NDArray[np.int64]:
        """The element of a stratum that each of `tokens_over(stratum)` lies over, numbered within a world."""
        found = np.full(self.log_ratio.shape[1], -1, np.int64)
        for leaf in self.op.hierarchy.leaves:
            if leaf in self.op.hierarchy.shape.leaves_over(stratum):
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
    op: Operator, log_ratio: Vector, advantages: Sequence[float], parameters: Mapping[str, Any], rows: int = 1
) -> Sample:
    """A batch of worlds of `rows` trajectories of equal length; every attribute is 1.

    `log_ratio`: float64 `[worlds, tokens]`. Raises what `Operator.index` raises.
    """
    h = op.hierarchy
    worlds, tokens = log_ratio.shape
    offsets = np.arange(0, worlds * tokens + 1, tokens // rows)
    of_world, of_row = np.repeat(np.arange(worlds), tokens), np.repeat(np.arange(worlds * rows), tokens // rows)
    labels: dict[str, Any] = {}
    for s in h.order:
        if s not in (*h.leaves, h.rows) and s.name != BATCH:
            labels[s.name] = (of_row if _by_row(op, s) else of_world).tolist()
    labels |= {s.name: np.repeat(np.arange(worlds), rows).tolist() for s in h.groups}  # of rows: those of a world
    if len(h.leaves) > 1:
        leaf = np.tile(dealt(tokens, rows, len(h.leaves)), worlds)
        labels |= {s.name: leaf == i for i, s in enumerate(h.leaves)}
    index = op.index(offsets=offsets, attributes={n: a.usual for n, a in h.attributes.items()}, **labels)
    return Sample(op, index, np.asarray(log_ratio, np.float64), np.asarray(advantages, np.float64), parameters, rows)


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
    for node in Program("levels", op.programs["levels"].leaves, seen, {}).nodes():
        if isinstance(node, Mix) or (isinstance(node, (Push, Quantile)) and node.target == BATCH):
            return False
        if isinstance(node, Input) and node.kind in ("count", "total") and node.over == BATCH:
            return False
    return True


def samples(
    op: Operator, log_ratio: Vector, advantages: Sequence[float], parameters: Mapping[str, Any], rows: int = 1
) -> list[Sample]:
    """`sample`, in one batch if its worlds are independent, else in one batch per world."""
    if apart(op):
        return [sample(op, log_ratio, advantages, parameters, rows)]
    first = sample(op, log_ratio[:1], advantages, parameters, rows)
    return [replace(first, log_ratio=log_ratio[i : i + 1]) for i in range(len(log_ratio))]


def regimes_of(parts: Sequence[Sample]) -> dict[Level, NDArray[np.int64]]:
    """`Sample.regimes` of all worlds of `samples`. Gates are evaluated once if possible, else world by world."""
    if len(parts) == 1:
        return parts[0].regimes
    found = {}
    for level in parts[0].residual:
        codes = regimes_along(parts[0], *level, np.concatenate([s.residual[level] for s in parts]))
        found[level] = np.concatenate([s.regimes[level] for s in parts]) if codes is None else codes
    return found
