"""What a loss does to one small batch: `𝒢(r)` and the coefficients `c_i = ∂J/∂log π_i` of its tokens, exactly.

The gradient is `Σ c_i ∇log π_i` for any model. Nothing here uses sympy.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from fibration.errors import SpecError
from fibration.language.hierarchy import Hierarchy
from fibration.laws.witness.batches import Concrete
from fibration.laws.witness.definition import Dense
from fibration.laws.witness.duals import Dual, Real, log_of, slopes_of, value_of


@dataclass(frozen=True)
class Point:
    """A batch with a log ratio and an advantage for every token, leaf after leaf (`tokens`).

    The batch has the rows too, and is one element: its shape is `whole_batch(h)`, or has more strata. Where a gate
    below the tokens reads the advantage, all tokens over its element have one. What has no value raises `NoValue`.
    """

    h: Hierarchy
    concrete: Concrete
    log_ratios: tuple[Fraction, ...]
    advantages: tuple[Fraction, ...]
    ratios: tuple[Fraction, ...] | None = None  # where these are rational, and the log ratios their logarithms
    strict: bool = False

    def __post_init__(self) -> None:
        if self.h.orthogonalise is not None:
            raise SpecError(
                f"hierarchy '{self.h.name}' takes residuals by projection",
                required="residuals of the Möbius recursion, which alone are evaluated exactly",
            )

    @cached_property
    def dense(self) -> Dense:
        return Dense(self.h, self.concrete, self.strict)

    @cached_property
    def _gated(self) -> list[Real]:
        one = Fraction(1)
        if self.ratios is not None:
            xs: list[Real] = [log_of(r, {k: one}) for k, r in enumerate(self.ratios)]
        else:
            xs = [Dual(x, {k: one}) for k, x in enumerate(self.log_ratios)]
        return self.dense.ratios(xs, self.advantages)

    @cached_property
    def gated(self) -> list[Fraction]:
        """`𝒢(r)_i`."""
        return [value_of(g) for g in self._gated]

    @cached_property
    def jacobian(self) -> list[list[Fraction]]:
        """`∂𝒢(r)_j/∂log π_i`, one row per token `j`."""
        n = range(len(self.log_ratios))
        return [[slopes_of(g).get(i, Fraction(0)) for i in n] for g in self._gated]

    @cached_property
    def weights(self) -> list[Fraction]:
        """`μ_i`."""
        weight = self.h.objective.spelled_out(self.h.leaves, self.h.rows)
        return [self.concrete.value(weight, leaf, i) for leaf, i in self.dense.tokens]

    @cached_property
    def coefficients(self) -> list[Fraction]:
        """`c_i = Σ_j μ_j·A_j·∂𝒢_j/∂log π_i`; of a score estimator `μ_i·A_i·𝒢_i`."""
        number = [self.concrete.stands_for(leaf, i) for leaf, i in self.dense.tokens]
        weighted = [m * a for m, a in zip(self.weights, self.advantages, strict=True)]
        if self.h.objective.estimator == "score":
            return [w * g for w, g in zip(weighted, self.gated, strict=True)]
        found = [Fraction(0)] * len(weighted)
        for n, w, g in zip(number, weighted, self._gated, strict=True):
            for i, slope in slopes_of(g).items() if w else ():
                found[i] += n * w * slope / number[i]
        return found
