"""The gated ratios `𝒢(r)` and the coefficients `c_i = ∂J/∂log π_i` of the tokens of one small batch, exactly.

The gradient is `Σ c_i ∇log π_i` for any model. Nothing here uses sympy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property

from fibration.errors import SpecError
from fibration.language.atoms import Count, Stratum, Total, token_log_ratio
from fibration.language.expressions import Expression
from fibration.language.hierarchy import Hierarchy
from fibration.language.objectives import Objective
from fibration.language.operators import exp
from fibration.language.penalties import Penalty
from fibration.language.traversal import evaluate
from fibration.laws.batches.concrete import Concrete
from fibration.laws.batches.direct_operator import DirectOperator
from fibration.laws.batches.tokens import Tokens
from fibration.laws.values.duals import Dual, Real, log_of, slopes_of, value_of


@dataclass(frozen=True)
class Point:
    """A batch with a log ratio and an advantage for every token, leaf after leaf (`DirectOperator.tokens`).

    The shape is `whole_batch(h)`, or has more strata: it has the rows, and the batch is one element. If a gate below
    the tokens reads the advantage, all tokens over its element have the same one. `log_probs` are those of frozen
    policies, by name, if formulas read them (`Tokens`). Properties raise `NoValue` where something has no value.
    """

    h: Hierarchy
    concrete: Concrete
    log_ratios: tuple[Fraction, ...]
    advantages: tuple[Fraction, ...]
    ratios: tuple[Fraction, ...] | None = None  # if rational; the log ratios are their logarithms
    strict: bool = False
    log_probs: Mapping[str, Sequence[Real]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.h.orthogonalise is not None:
            raise SpecError(
                f"hierarchy '{self.h.name}' takes residuals by projection",
                required="residuals of the Möbius recursion, which alone are evaluated exactly",
            )

    @cached_property
    def dense(self) -> DirectOperator:
        return DirectOperator(self.h, self.concrete, self.strict)

    @cached_property
    def moving(self) -> list[Real]:
        """The log ratios, one variable per token."""
        one = Fraction(1)
        if self.ratios is not None:
            return [log_of(r, {k: one}) for k, r in enumerate(self.ratios)]
        return [Dual(x, {k: one}) for k, x in enumerate(self.log_ratios)]

    @cached_property
    def at_tokens(self) -> Tokens:
        return self.dense.at_tokens(self.moving, self.advantages, self.log_probs)

    @cached_property
    def _gated(self) -> list[Real]:
        return self.dense.ratios(self.moving, self.advantages, self.log_probs)

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
    def kept(self) -> list[bool]:
        """Which tokens are kept: all conditions of the objective hold at them."""
        return self._hold([k.condition for k in self.h.objective.kept])

    def _hold(self, conditions: Sequence[Expression]) -> list[bool]:
        here = self.at_tokens
        return [all(here.value(c, k) for c in conditions) for k in range(len(self.log_ratios))]

    @cached_property
    def weights(self) -> list[Fraction]:
        """`μ_i`; 0 for a token that is not counted."""
        return self._weights(self.h.objective)

    @cached_property
    def counted(self) -> list[bool]:
        """Which tokens `μ` counts."""
        return self._counted(self.h.objective)

    def _counted(self, objective: Objective) -> list[bool]:
        return self._hold([k.condition for k in objective.kept if k.normaliser == "kept"])

    def _weights(self, objective: Objective) -> list[Fraction]:
        weight = objective.spelled_out(self.h.leaves, self.h.rows)
        places = self.dense.tokens
        is_one = self._counted(objective)
        if all(is_one):
            return [self.concrete.value(weight, leaf, i) for leaf, i in places]
        counted = [p for p, is_counted in zip(places, is_one, strict=True) if is_counted]

        def at(place: tuple[Stratum, int]) -> Fraction:
            value: Fraction = evaluate(weight, lambda a: _among(self.concrete, counted, a, place))
            return value

        return [at(p) if is_counted else Fraction(0) for p, is_counted in zip(places, is_one, strict=True)]

    @cached_property
    def factors(self) -> list[Fraction]:
        """`w_i`, the product of the objective's further weights; 0 for a token that is not kept."""
        return self._factors(self.h.objective)

    def _factors(self, objective: Objective) -> list[Fraction]:
        here, found = self.at_tokens, [Fraction(int(k)) for k in self._hold([k.condition for k in objective.kept])]
        for weight in objective.weighed:
            found = [w and w * value_of(here.value(weight, k)) for k, w in enumerate(found)]
        return found

    @cached_property
    def ungated(self) -> list[Fraction]:
        """`μ_i·w_i·A_i·r_i`: the coefficients of the loss without its gates."""
        known = self.ratios or [evaluate(exp(token_log_ratio), {token_log_ratio: x}) for x in self.log_ratios]
        return [m * w * a * r for m, w, a, r in zip(self.weights, self.factors, self.advantages, known, strict=True)]

    @cached_property
    def coefficients(self) -> list[Fraction]:
        """`c_i = Σ_j μ_j·w_j·A_j·∂𝒢_j/∂log π_i`; for a score estimator `μ_i·w_i·A_i·𝒢_i`."""
        number = [self.concrete.stands_for(leaf, i) for leaf, i in self.dense.tokens]
        weighted = [m * w * a for m, w, a in zip(self.weights, self.factors, self.advantages, strict=True)]
        if self.h.objective.estimator == "score":
            return [w * g for w, g in zip(weighted, self.gated, strict=True)]
        found = [Fraction(0)] * len(weighted)
        for n, w, g in zip(number, weighted, self._gated, strict=True):
            for i, slope in slopes_of(g).items() if w else ():
                found[i] += n * w * slope / number[i]
        return found

    @cached_property
    def penalised(self) -> list[Fraction]:
        """What penalties subtract from the coefficients: `∂/∂log π_i` of their sum. Every element stands for itself."""
        found = [Fraction(0)] * len(self.advantages)
        for penalty in self.h.penalties.values():
            for weight, value in self._penalties(penalty):
                for i, slope in slopes_of(value).items():
                    found[i] += weight * slope
        return found

    def _penalties(self, penalty: Penalty) -> Iterator[tuple[Fraction, Real]]:
        """The weight and the value of a penalty, at each of its tokens or elements."""
        here, formula = replace(self.at_tokens, flows=True), penalty.formula
        if penalty.over is not None:
            n = self.concrete.size[penalty.over]
            yield from ((Fraction(1, n), here.value_at(formula, penalty.over, e)) for e in range(n))
            return
        weights = self.weights
        if penalty.objective is not None:
            own = self._weights(penalty.objective), self._factors(penalty.objective)
            weights = [m * w for m, w in zip(*own, strict=True)]
        yield from ((w, here.value(formula, k)) for k, w in enumerate(weights) if w)


def _among(
    concrete: Concrete, tokens: Sequence[tuple[Stratum, int]], atom: Expression, place: tuple[Stratum, int]
) -> Fraction:
    """An atom of `μ` at one of `tokens`, which counts only these tokens and the elements that have one of them."""
    if not isinstance(atom, (Count, Total)) or atom.of == atom.over:
        return concrete.atom(atom, *place)
    assert isinstance(atom.of, Stratum) and isinstance(atom.over, Stratum)
    below, reach = concrete.below, concrete.shape.leaves_over(atom.of)
    base = below(*place, atom.over)
    there = {below(leaf, i, atom.of) for leaf, i in tokens if leaf in reach and below(leaf, i, atom.over) == base}
    one = [Fraction(1)] * concrete.size[atom.of] if isinstance(atom, Count) else concrete.attributes[atom.attribute]
    found = sum((concrete.stands_for(atom.of, e) * one[e] for e in there), Fraction(0))
    return found / concrete.stands_for(atom.over, base)
