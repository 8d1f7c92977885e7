"""Cases with the dense evaluation as reference, and the interpreter's rounding bounds."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from hierarchies.random_quivers import batch_for
from support import Batch, Layout

from fibration import Hierarchy
from fibration.language.gates import CHANNEL_WORD
from oracles.backend_cases import F64, Bounded, Case, Truth, case
from oracles.matrices import Dense, dense

LONGEST = 2.0**-58  # of the largest value: what rounding may do to the dense numbers themselves
FITTED = 2.0**-50  # and to the matrices of a projection, which are solved for in float64


@dataclass(frozen=True)
class DenseCase(Case):
    """A case whose truth is the dense evaluation."""

    @functools.cached_property
    def dense(self) -> Dense:
        return dense(self.hierarchy, self.batch, self.now, self.old)

    def bounds(self, layout: Layout, unit: float) -> Truth:
        return DenseTruth(self.dense, *self.given(layout, unit))


class DenseTruth(Truth):
    """The interpreter's bounds around the dense values; what only the interpreter gives (metrics) is its own."""

    def __init__(self, values: Dense, *given: Any) -> None:
        super().__init__(*given)
        self.dense = values

    def run(self, name: str, **more: np.ndarray) -> dict[str, Bounded]:
        found = super().run(name, **more)
        for word in found.keys() & (values := self.values(more)).keys():
            value = values[word].astype(float)
            found[word] = Bounded(value, found[word].error + (FITTED if self.h.orthogonalise else LONGEST) * self.size)
        return found

    @functools.cached_property
    def size(self) -> float:
        return max(
            float(np.abs(self.dense.intensive(self.dense.density, s, c)).max(initial=0)) for s, c in self.dense.density
        )

    def values(self, more: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        d = self.dense
        found = {
            "gated_ratio": d.ratio.value,
            "objective": d.objective.value,
            "coefficients": d.coefficients,
            **({"log_ratio_gradient": d.ratio.slope.T @ more["cotangent"]} if "cotangent" in more else {}),
        }
        for word, levels in (("residual", d.residual), ("gated", d.gated)):
            for stratum, channel in levels:
                found[f"{word}_{stratum}{CHANNEL_WORD[channel]}"] = d.intensive(levels, stratum, channel)
        return found


def dense_case(h: Hierarchy, seed: int, dtype: torch.dtype = F64, direct: bool = False, **kinds: Any) -> DenseCase:
    batch = batch_for(h, seed + 1000 * direct, **kinds)
    if h.name == "apc_obj":  # something left for every token: where nothing is, it ties with what did not deviate
        batch = replace(batch, x=0.33 * np.tanh(batch.x / 0.33), parameters={"delta": 0.3})
    return against_dense(h, batch, dtype, seed, direct)


def against_dense(h: Hierarchy, batch: Batch, dtype: torch.dtype, seed: int = 0, direct: bool = False) -> DenseCase:
    found = case(h, batch, dtype, seed, direct)
    return DenseCase(**{f.name: getattr(found, f.name) for f in fields(found)})
