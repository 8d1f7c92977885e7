"""The parameters of a model, sorted by how a step's gradient lies beside the declared one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

# How far a parameter's gradient may be from a multiple of the declared one, relative, by the coarsest dtype.
CLOSE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 0.03, torch.bfloat16: 0.1}
ROUNDING = 1e-2  # times the tolerance: a parameter's share of the whole gradient that may be rounding alone


@dataclass(frozen=True)
class Pair:
    """A parameter's gradient in the step beside the declared one.

    `size`, `declared`: the squared norms. `both`: their product. All in float64. `there`: whether the step has a
    gradient. `finite`: whether it has no NaN or infinity.
    """

    name: str
    size: float
    declared: float
    both: float
    there: bool
    finite: bool

    @classmethod
    def of(cls, name: str, found: Tensor | None, declared: Tensor | None) -> Pair:
        def product(a: Tensor | None, b: Tensor | None) -> float:
            if a is None or b is None:
                return 0.0
            return float((_dense(a).double() * _dense(b).double()).sum())

        finite = found is None or bool(_dense(found).isfinite().all())
        size, both = (product(found, found), product(found, declared)) if finite else (math.nan, math.nan)
        return cls(name, size, product(declared, declared), both, found is not None, finite)

    @property
    def factor(self) -> float:
        return self.both / self.declared if self.declared else math.nan

    @property
    def rest(self) -> float:
        """How far the step's gradient is from a multiple of the declared one, relative."""
        if not self.size or not self.declared:
            return 1.0
        return math.sqrt(max(0.0, 1 - self.both * self.both / (self.size * self.declared)))


def _dense(gradient: Tensor) -> Tensor:
    return gradient.to_dense() if gradient.is_sparse else gradient


class Comparison:
    """All parameters, sorted.

    `broken`: the step has NaN. `missing`: it has no gradient, and the declared loss has one. `extra`: the other way
    round. `turned`: both have one, of different directions. `alike`: they have one direction. Parameters whose
    gradients are as small as rounding are in none of these.
    """

    def __init__(
        self, found: Mapping[str, Tensor | None], declared: Mapping[str, Tensor | None], tolerance: float
    ) -> None:
        self.tolerance = tolerance
        self.pairs = [Pair.of(name, found[name], declared[name]) for name in found]
        finite = [p for p in self.pairs if p.finite]
        least = (ROUNDING * tolerance) ** 2
        owed, made = least * sum(p.declared for p in finite), least * sum(p.size for p in finite)
        self.broken = [p for p in self.pairs if not p.finite]
        self.missing = [p for p in finite if p.declared > owed and not p.size]
        self.extra = [p for p in finite if p.declared <= owed and p.size > made]
        both = [p for p in finite if p.declared > owed and p.size]
        self.alike = [p for p in both if p.rest <= tolerance]
        self.turned = [p for p in both if p.rest > tolerance]

    @property
    def cosine(self) -> float:
        """Of the angle between both gradients, over all finite parameters."""
        finite = [p for p in self.pairs if p.finite]
        size, declared, both = (sum(getattr(p, k) for p in finite) for k in ("size", "declared", "both"))
        return both / math.sqrt(size * declared) if size and declared else math.nan

    @property
    def factor(self) -> float | None:
        """By what the declared gradient is multiplied in the step; None if that is no single number."""
        if not self.alike or self.turned or len(self.groups()) > 1:
            return None
        return _factor(self.alike)

    def groups(self) -> list[tuple[float, list[Pair]]]:
        """The parameters that are alike, by their factors; the largest group first."""
        found: list[list[Pair]] = []
        for p in sorted(self.alike, key=lambda p: p.factor):
            if found and abs(p.factor - found[-1][0].factor) <= 2 * self.tolerance * abs(p.factor):
                found[-1].append(p)
            else:
                found.append([p])
        return sorted(((_factor(g), g) for g in found), key=lambda x: -len(x[1]))

    def factors(self) -> dict[str, float]:
        """By parameter: 0 where it is missing, NaN where it has another direction or is broken."""
        told = {p.name: p.factor for p in self.alike} | {p.name: 0.0 for p in self.missing}
        return told | {p.name: math.nan for p in (*self.turned, *self.broken)}


def _factor(chosen: Sequence[Pair]) -> float:
    return sum(p.both for p in chosen) / sum(p.declared for p in chosen)
