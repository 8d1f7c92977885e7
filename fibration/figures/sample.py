"""Small batches made for a figure: worlds of one or two short trajectories, every coarser stratum one element each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fibration.errors import FigureError
from fibration.index import Index
from fibration.ir import Input, Program, Push
from fibration.operator import Levels, Operator
from fibration.section import element_regimes
from fibration.spec import Hierarchy
from fibration.symbols import BATCH, Stratum

Vector = NDArray[np.float64]
Level = tuple[str, str]  # stratum, channel


def strata_of(hierarchy: Hierarchy) -> tuple[Stratum, ...]:
    """The strata that a figure shows, root first. Raises FigureError for hierarchies that are not chains.

    Everything in `fibration.figures` asks here, so this is what grows with the hierarchies that can be drawn.
    """
    h = hierarchy
    reasons = [f"{len(h.leaves)} leaf strata: {', '.join(map(str, h.leaves))}"] if len(h.leaves) != 1 else []
    for s in h.strata:
        finer, coarser = [f.source for f in h.shape.above(s)], [f.target for f in h.shape.below(s)]
        reasons += [f"{' and '.join(map(str, finer))} both lie over {s}"] if len(finer) > 1 else []
        reasons += [f"{s} lies over both {' and '.join(map(str, coarser))}"] if len(coarser) > 1 else []
    if reasons:
        raise FigureError(
            f"'{h.name}' has no figures",
            required="a chain of strata, each over one coarser stratum",
            found=reasons[0],
            remedy=f"its strata can be drawn: fibration show {h.name} --format mermaid",
        )
    return h.order


def leaf_of(hierarchy: Hierarchy) -> Stratum:
    return strata_of(hierarchy)[-1]


@dataclass(frozen=True)
class Sample:
    """A batch of `worlds` equal hierarchies that differ in their log ratios alone.

    `log_ratio` is float64 `[worlds, tokens]`, in nats; `advantages` float64 `[tokens]`, the same in every world.
    """

    op: Operator
    index: Index
    log_ratio: Vector
    advantages: Vector
    parameters: Mapping[str, Any]

    @property
    def worlds(self) -> int:
        return len(self.log_ratio)

    @property
    def _tokens(self) -> tuple[torch.Tensor, torch.Tensor]:
        advantages = np.tile(self.advantages, self.worlds)
        return torch.from_numpy(self.log_ratio.reshape(-1).copy()), torch.from_numpy(advantages)

    def inputs(self, program: str) -> dict[str, Vector]:
        values = self.op.inputs(self.index, *self._tokens, self.parameters, program)
        return {k: v.numpy() for k, v in values.items()}

    @cached_property
    def levels(self) -> Levels:
        log_ratio, advantages = self._tokens
        return self.op.levels(log_ratio, self.index, self.parameters, advantages=advantages)

    @cached_property
    def regimes(self) -> dict[Level, NDArray[np.int64]]:
        """`[worlds, elements]` numbers of `fibration.instrument.REGIMES`."""
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
        """Which of the channels carries every token, the first where none does: `[worlds, tokens]`."""
        h = self.op.hierarchy
        density = np.zeros((len(h.decomposition.channels), *self.log_ratio.shape))
        for stratum in strata_of(h):  # a density is the sum of the residuals up to it
            for i, channel in enumerate(h.decomposition.channels):
                density[i] += self.residual[stratum.name, channel][:, self.element(stratum.name)]
        return np.argmax(np.abs(density), axis=0)

    @cached_property
    def ratio(self) -> Vector:
        """Gated ratios `[worlds, tokens]`."""
        log_ratio, advantages = self._tokens
        gated = self.op.gate(log_ratio, self.index, self.parameters, advantages=advantages)
        return gated.numpy().reshape(self.log_ratio.shape)

    @cached_property
    def objective(self) -> float:
        """`J` of all worlds as one batch."""
        log_ratio, advantages = self._tokens
        old = torch.zeros_like(log_ratio)
        result = self.op.coefficients(log_ratio, old, advantages, self.index, self.parameters, metrics=False)
        return float(result.objective)

    def element(self, stratum: str) -> NDArray[np.int64]:
        """The element of a stratum under every token of a world: `[tokens]`."""
        leaf = leaf_of(self.op.hierarchy).name
        return self.index.parent(leaf, stratum).numpy()[: self.log_ratio.shape[1]]


def sample(
    op: Operator, log_ratio: Vector, advantages: Sequence[float], parameters: Mapping[str, Any], rows: int = 1
) -> Sample:
    """A batch of worlds of `rows` trajectories of equal length; every attribute is 1.

    `log_ratio`: float64 `[worlds, tokens]`. Raises what `Operator.index` raises.
    """
    h = op.hierarchy
    worlds, tokens = log_ratio.shape
    offsets = np.arange(0, worlds * tokens + 1, tokens // rows)
    per_row = np.repeat(np.arange(worlds), rows).tolist()
    per_token = np.repeat(np.arange(worlds * rows), tokens // rows).tolist()
    labels: dict[str, Any] = {
        s.name: per_token if h.rows in h.coarser(s) else per_row
        for s in strata_of(h)
        if s not in (leaf_of(h), h.rows) and s.name != BATCH
    }
    index = op.index(offsets=offsets, attributes=dict.fromkeys(h.attributes, 1.0), **labels)
    return Sample(op, index, np.asarray(log_ratio, np.float64), np.asarray(advantages, np.float64), parameters)


def apart(op: Operator) -> bool:
    """Whether worlds of one batch do not see each other: no gate reads what is summed or counted over the batch."""
    seen = {k: v for k, v in op.programs["levels"].outputs.items() if k.startswith(("residual_", "gated_"))}
    for node in Program("levels", op.programs["levels"].leaves, seen, {}).nodes():
        if isinstance(node, Push) and node.target == BATCH:
            return False
        if isinstance(node, Input) and node.kind in ("count", "total") and node.over == BATCH:
            return False
    return True


def samples(
    op: Operator, log_ratio: Vector, advantages: Sequence[float], parameters: Mapping[str, Any], rows: int = 1
) -> list[Sample]:
    """`sample`, in one batch where worlds do not see each other, else one batch per world."""
    if apart(op):
        return [sample(op, log_ratio, advantages, parameters, rows)]
    first = sample(op, log_ratio[:1], advantages, parameters, rows)
    return [replace(first, log_ratio=log_ratio[i : i + 1]) for i in range(len(log_ratio))]
