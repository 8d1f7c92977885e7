"""Whether two hierarchies give every token of every batch the same coefficient, for all sizes at once.

Two arguments. Level by level: every gate is the same function of the same means, branch for branch, so that `𝒢` and all
its derivatives are; and `μ` is the same. Or by the coefficients: `c_i = Σ_j μ_j·A_j·∂𝒢_j/∂log π_i` is a sum over the
token's own log ratio and over the means that it moves, and in every combination of branches each summand is the same.
A sum over what is constant on an element is its count times one summand.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import sympy

from fibration.errors import SpecError, listed
from fibration.language.atoms import Count, Stratum, advantage, gated
from fibration.language.conditions import WHOLE, Same, reads_tokens
from fibration.language.expressions import Expression, as_expression
from fibration.language.hierarchy import Hierarchy
from fibration.language.operators import ZERO, Signs
from fibration.language.pairs import Pair
from fibration.language.policies import LogProb
from fibration.language.statistics import Aggregate
from fibration.language.sympy_bridge import symbol, to_sympy, vanishes
from fibration.language.traversal import atoms, operators
from fibration.laws.proof.branches import Case, TooManyCases, cases
from fibration.laws.proof.coordinates import X
from fibration.laws.proof.feasible import feasible, normal
from fibration.laws.proof.levels_together import merged
from fibration.laws.proof.near import SIDES, is_kinked
from fibration.laws.proof.shared_means import Form, Unsuited, Variables, is_constant_on, outcomes
from fibration.laws.proof.signs import Assumptions

MOST = 600  # combinations of branches
Conditions = dict[Any, Signs]


@dataclass(frozen=True)
class Found:
    """Whether the losses are the same, and why, or what stood in the way."""

    proved: bool
    why: str


def same_loss(pair: Pair) -> Found:
    """Decide it, as far as the two arguments go."""
    if is_the_same(pair):
        return Found(True, "both say the same: every kernel, gate, density and weight is the same formula")
    if word := word_beyond(pair):
        return Found(False, f"of {word} only equal formulas are compared")
    if any(h.orthogonalise is not None for h in pair):
        return Found(False, "residuals of a projection are no means: only equal formulas are compared there")
    try:
        return _Comparison(pair).decide()
    except TooManyCases:
        return Found(False, f"the branches of both meet in more than {MOST} ways")
    except Unsuited as error:
        return Found(False, str(error))


def is_the_same(pair: Pair) -> bool:
    """Whether the declarations differ in names, reasons and their order alone."""
    first, second = (_content(h) for h in pair)
    return first == second


def _content(h: Hierarchy) -> object:
    split, objective = h.decomposition, h.objective
    return (
        {(f.source, f.target): f.weight for f in h.fibrations}, {s: h.gate(s) for s in h.gates},
        split.densities, split.recovery, split.scale, objective.weight, objective.estimator,
        Counter(objective.weighed), Counter(objective.kept), h.rows, h.orthogonalise,
    )  # fmt: skip


def word_beyond(pair: Pair) -> str | None:
    """A word of one of both of which only equal formulas are compared."""
    said = (repr(c) for c in pair.conditions if isinstance(c, Same) or reads_tokens(c))
    return next((word for words in (*map(_words_beyond, pair), said) for word in words), None)


def _words_beyond(h: Hierarchy) -> Iterator[str]:
    yield from (f".weigh({e})" for e in h.objective.weighed)
    yield from (f".keep({k.condition})" for k in h.objective.kept)
    split = h.decomposition
    for e in (*(d for _, d in split.densities), split.recovery, *(h.gate(s) for s in h.order)):
        yield from (str(a) for a in atoms(e) if isinstance(a, (LogProb, Aggregate)))
        if "stop" in operators(e):
            yield "stop"
    if advantage in {a for e in (*(d for _, d in split.densities), split.recovery) for a in atoms(e)}:
        yield "advantage in the decomposition"


class _Comparison:
    """The branches of both hierarchies side by side."""

    def __init__(self, pair: Pair) -> None:
        self.pair, self.variables = pair, Variables(pair)
        self.sides = (0,) if self.variables.on_policy else SIDES
        self.places = [(leaf, side) for leaf in pair.first.leaves for side in self.sides]

    def decide(self) -> Found:
        if not any(self._asked(self.variables.at(*place)) for place in self.places):
            raise SpecError(
                f"no batch meets the conditions {listed(map(repr, self.pair.when))}",
                required="conditions that some token can meet, since all losses are the same on no batch",
                remedy="leave one of them out; each call compares on the batches that meet all conditions",
            )
        estimators = {h.objective.estimator for h in self.pair}
        if not self.variables.on_policy and all(self._ratios_agree(*place) for place in self.places):
            if not all(self._weights_agree(*place) for place in self.places):
                first, second = (f.h.objective.spelled_out(f.h.leaves, f.h.rows) for f in self._forms(*self.places[0]))
                return Found(
                    False, f"the gated ratios 𝒢(r) are the same, but μ = {first} could not be shown to be {second}"
                )
            if len(estimators) == 1:
                return Found(True, "every level adds the same function of the same means; R, F and μ are the same")
        if all(self._coefficients_agree(*place) for place in self.places):
            what = "what a token's own log ratio and each mean that it moves add to c is the same, branch for branch"
            return Found(True, what)
        return Found(
            False,
            "the two have other branches, or other formulas on them, and no batch was found that tells them apart",
        )

    def _forms(self, leaf: Stratum, side: int) -> list[Form]:
        return [Form(self.variables, h, leaf, side) for h in self.pair]

    # ------------------------------------------------------------ level by level

    def _ratios_agree(self, leaf: Stratum, side: int) -> bool:
        """Whether `𝒢` is the same function, because the recovery is, and what the levels add."""
        forms = self._forms(leaf, side)
        first, second = (f.h.decomposition.channels for f in forms)
        if first != second:
            return False
        back = [f.recovery({c: gated(c) for c in first}) for f in forms]
        return self._same(back[0], back[1], leaf, side) and all(self._channel_agrees(forms, c) for c in first)

    def _channel_agrees(self, forms: Sequence[Form], channel: str) -> bool:
        mine, yours = ([f.level(s, channel) for s in f.path] for f in forms)
        leaf, side = forms[0].leaf, forms[0].side
        left = []
        for level in mine:
            twin = next((k for k, other in enumerate(yours) if self._same(level, other, leaf, side)), None)
            if twin is None:
                left.append(level)
            else:
                del yours[twin]
        nothing = as_expression(0)
        return self._same(sum(left, nothing), sum(yours, nothing), leaf, side)

    def _weights_agree(self, leaf: Stratum, side: int) -> bool:
        first, second = self._forms(leaf, side)
        return self._same(first.weight, second.weight, leaf, side)

    # ------------------------------------------------------------ by the coefficients

    def _coefficients_agree(self, leaf: Stratum, side: int) -> bool:
        terms = [_Coefficient(self.variables, h, leaf, side, self.sides) for h in self.pair]
        assume = self.variables.at(leaf, side)
        split = [cases(e, assume) for t in terms for e in (t.ratio, t.weight)]
        for (r, u, q, v), where in self._together(split, assume):
            mine, yours = terms[0].parts(r.sympy(), u.sympy()), terms[1].parts(q.sympy(), v.sympy())
            same = all(identical(mine.get(k, 0), yours.get(k, 0)) for k in {**mine, **yours})
            if not (same and _alike(r, q, assume) and _alike(u, v, assume)) and _can_hold(where, assume):
                return False
        return True

    # ------------------------------------------------------------ branches

    def _same(self, one: Expression, other: Expression, leaf: Stratum, side: int) -> bool:
        """Whether two formulas are the same function with the same derivatives, branch for branch."""
        if one == other:
            return True
        assume = self.variables.at(leaf, side)
        met = self._together([cases(one, assume), cases(other, assume)], assume)
        return all(
            (identical(a.sympy(), b.sympy()) and _alike(a, b, assume)) or not _can_hold(where, assume)
            for (a, b), where in met
        )

    def _together(
        self, many: Sequence[list[Case]], assume: Assumptions
    ) -> Iterator[tuple[tuple[Case, ...], Conditions]]:
        """Every combination of branches that can hold on a batch that is asked for, and where it does."""
        if math.prod(map(len, many)) > MOST:
            raise TooManyCases(f"more than {MOST} combinations")
        conditions = {id(case): _normal(case, assume) for found in many for case in found}

        def extend(known: Conditions, k: int) -> Iterator[tuple[tuple[Case, ...], Conditions]]:
            if k == len(many):
                yield (), known
                return
            for case in many[k]:
                more = conditions[id(case)]
                both = None if more is None else merged(known, more)
                if both is not None and (both == known or feasible(both, assume)):
                    yield from (((case, *rest), where) for rest, where in extend(both, k + 1))

        for asked in self._asked(assume):
            yield from extend(asked, 0)

    def _asked(self, assume: Assumptions) -> list[Conditions]:
        """What is asked of every token, case by case."""
        found: list[Conditions] = [{}]
        for c in self.pair.conditions:
            if isinstance(c, Expression):
                holds = [_normal(case, assume) for case in outcomes(self.variables.counted(c), assume)]
                both = [merged(a, b) for a in found for b in holds if b is not None]
                found = [b for b in both if b is not None and feasible(b, assume)]
        return found


class _Coefficient:
    """What a token of one hierarchy adds to coefficients, by the variable through which it does."""

    def __init__(self, variables: Variables, h: Hierarchy, leaf: Stratum, side: int, sides: Sequence[int]) -> None:
        self.variables, self.form = variables, Form(variables, h, leaf, side)
        self.ratio, self.weight = self.form.ratio, self.form.weight
        self.is_score = h.objective.estimator == "score"
        alike = all(Form(variables, h, leaf, other).ratio == self.ratio for other in sides)
        means = {name: mean for mean, name in variables.names.items()}
        self.means = {symbol(n): m for n, m in means.items() if n in set(atoms(self.ratio))}
        self.at_point: dict[Any, int] = {X: 0} if side == 0 else {}
        self.at_point |= {symbol(n): 0 for n in means if variables.signs[symbol(n)] == frozenset({0})}
        read = [a for a in atoms(self.ratio) if not (variables.on_policy and symbol(a) in self.at_point)]
        self.folded: dict[Any, Stratum] = {}
        for z, mean in self.means.items():
            place = mean.place if isinstance(mean.place, Stratum) else WHOLE
            reads = [*read, *atoms(self.weight), advantage]
            if alike and len(mean.parts) == 1 and all(is_constant_on(variables.pair, place, means, a) for a in reads):
                self.folded[z] = place

    def parts(self, ratio: Any, weight: Any) -> dict[Any, Any]:
        """On one branch, what the token's own log ratio adds (under `x`), and what each mean does.

        A mean on which everything that is summed is constant is part of the former: its sum over tokens is their number
        times one summand.
        """
        if is_kinked(ratio):
            raise Unsuited("a branch is a root of a square")
        size = weight * symbol(advantage)
        if self.is_score:
            return {X: (size * ratio).subs(self.at_point)}
        found = {X: size * sympy.diff(ratio, X)}
        for z, mean in self.means.items():
            slope = size * sympy.diff(ratio, z)
            if z not in self.folded:
                found[z] = slope
            elif mean.side == self.form.side:
                ((leaf, share, function),) = mean.parts
                number = to_sympy(self.variables.counted(Count(leaf, self.folded[z])))
                found[X] += number * slope * share * sympy.diff(function, X)
        return {k: v.subs(self.at_point) for k, v in found.items()}


def _normal(case: Case, assume: Assumptions) -> Conditions | None:
    """The conditions of a branch in one form; None if they exclude each other."""
    found: Conditions | None = {}
    for d, signs in case.signs:
        at_0 = {v: 0 for v in d.free_symbols if assume.signs(v) == ZERO}  # exp(x) is 1 there
        value, allowed = normal(d.subs(at_0), signs, assume)
        if value.is_number:
            found = found if assume.signs(value) <= allowed else None
        elif found is not None:
            found = merged(found, {value: allowed})
    return found


def _can_hold(conditions: Conditions, assume: Assumptions) -> bool:
    """Whether no condition is excluded by what the others say of its sign; asked where elimination has not told."""
    for d, allowed in conditions.items():
        others = {e: signs for e, signs in conditions.items() if e != d}
        if not assume.with_signs(others).signs(d) & allowed:
            return False
    return True


def _alike(one: Case, other: Case, assume: Assumptions) -> bool:
    """Whether two branches have values at the same places, as far as they may have none."""
    return _unmet(one, assume) == _unmet(other, assume)


def _unmet(case: Case, assume: Assumptions) -> set[tuple[Any, Signs]]:
    inside = assume.with_signs(dict(case.signs))
    return {(sympy.expand(e), allowed) for e, allowed in case.needs if not inside.signs(e) <= allowed}


def identical(one: Any, other: Any) -> bool:
    """Whether two branch-free formulas are the same, as functions of all their variables."""
    difference = sympy.sympify(one - other)
    if difference == 0 or vanishes(difference):
        return True
    if not difference.has(sympy.exp):
        return False
    plain = difference.replace(sympy.exp, lambda a: sympy.exp(sympy.expand(sympy.cancel(sympy.together(a)))))
    return vanishes(sympy.expand(plain))
