"""Whether two hierarchies give every token of every batch the same coefficient, for all sizes at once.

Advantages computed from rewards must be the same formula; all else is compared for any advantages. What penalties add
to `c` is compared separately. Then two arguments are tried:

- Level by level: every gate is the same function of the same means, branch for branch. So `𝒢` and all its derivatives
  agree; and `μ` agrees.
- By the coefficients: `c_i = Σ_j μ_j·A_j·∂𝒢_j/∂log π_i` is a sum over the token's own log ratio and over the means that
  it moves. Each summand agrees in every combination of branches. A sum of n equal terms is n times one of them.
"""

from __future__ import annotations

import functools
import operator
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import sympy

from fibration.errors import SpecError, listed
from fibration.language.atoms import Count, Stratum, advantage, at, gated
from fibration.language.conditions import WHOLE
from fibration.language.expressions import Expression, as_expression
from fibration.language.hierarchy import Hierarchy
from fibration.language.operators import stop
from fibration.language.pairs import Pair
from fibration.language.sympy_bridge import flowing, symbol, to_sympy
from fibration.language.token_formulas import SUMS
from fibration.language.traversal import atoms
from fibration.laws.equivalent.branchwise import MOST, alike, at_ties, can_hold, identical, together
from fibration.laws.equivalent.search import has_batches
from fibration.laws.equivalent.shared_means import Part, Variables
from fibration.laws.equivalent.token_formulas import ONE, ZERO, Form, TokenFormulas, Unsuited
from fibration.laws.gates.coordinates import X
from fibration.laws.law import Proved, Unknown
from fibration.laws.signs.branches import TooManyCases, cases
from fibration.laws.signs.neighbourhood import SIDES, is_kinked


def same_loss(pair: Pair) -> Proved | Unknown:
    """Tries both arguments. Raises NoBatchError if no batch meets the conditions of the pair."""
    if is_the_same(pair):
        return Proved("both say the same: every kernel, gate, density and weight is the same formula")
    if any(h.orthogonalise is not None for h in pair):
        return Unknown("residuals of a projection are no means: only equal formulas are compared there")
    try:
        check_conditions(pair)
        if not has_batches(pair):
            return Unknown(f"no batch was found that meets the conditions {_listed(pair)}; on none, all are the same")
        return _Comparison(pair).decide()
    except TooManyCases:
        return Unknown(f"the branches of both meet in more than {MOST} ways")
    except Unsuited as error:
        return Unknown(str(error))


def is_the_same(pair: Pair) -> bool:
    """Whether the declarations are equal apart from names, reasons and order."""
    return _content(pair.first) == _content(pair.second)


def _content(h: Hierarchy) -> object:
    split, objective = h.decomposition, h.objective
    return (
        {(f.source, f.target): f.weight for f in h.fibrations}, {s: h.gate(s) for s in h.gates},
        split.densities, split.recovery, split.scale, objective.spelled_out(h.leaves, h.rows), objective.estimator,
        Counter(objective.weighed), Counter(objective.kept), h.rows, h.orthogonalise, h.groups, h.advantages,
        Counter(h.penalties.values()),
    )  # fmt: skip


def _written(h: Hierarchy) -> str:
    """The weights of a loss as text for the report."""
    o = h.objective
    found = [f"μ = {o.spelled_out(h.leaves, h.rows)}", *(f"w = {w}" for w in o.weighed)]
    found += [f"{k.condition} (normalised by {'all' if k.normaliser == 'all' else 'what is kept'})" for k in o.kept]
    return ", ".join(found)


class NoBatchError(SpecError):
    """No batch meets the conditions of a comparison."""


def check_conditions(pair: Pair) -> None:
    """Raises NoBatchError, with the fewest conditions that exclude each other, if no batch can meet them."""
    left = [*pair.when, *pair.ranges]
    if not left or _can_hold(pair):
        return
    for c in [*left]:
        others = tuple(d for d in left if d != c)
        if not _can_hold(replace(pair, when=others, ranges=())):
            left = [*others]
    raise NoBatchError(
        f"no batch meets the condition{'s' * (len(left) > 1)} {listed(map(repr, left))}",
        required="conditions that some batch meets, since all losses are the same on no batch",
        remedy="leave one of them out; each call compares on the batches that meet all conditions",
    )


def _can_hold(pair: Pair) -> bool:
    """Whether the conditions were not shown to exclude each other at every token."""
    variables = Variables(pair)
    sides = (0,) if variables.on_policy else SIDES
    try:
        return any(variables.conditions_at(leaf, side) for leaf in pair.first.leaves for side in sides)
    except TooManyCases:
        return True


def _listed(pair: Pair) -> str:
    return listed(map(repr, (*pair.when, *pair.ranges)))


class _Comparison:
    """The comparison of a pair, at every leaf and on each side of a token's log ratio 0."""

    def __init__(self, pair: Pair) -> None:
        self.pair, self.variables = pair, Variables(pair)
        self.formulas = TokenFormulas(self.variables)
        self._forms = functools.cache(lambda leaf, side: [Form(self.formulas, h, leaf, side) for h in pair])
        self.compared = 0  # pairs of branches of the coefficients
        self.sides = (0,) if self.variables.on_policy else SIDES
        self.places = [(leaf, side) for leaf in pair.first.leaves for side in self.sides]

    def decide(self) -> Proved | Unknown:
        for agree, what in ((self._advantages_agree, "advantages"), (self._penalties_agree, "penalties")):
            if not agree():
                return Unknown(f"{what}, {self._listed(what)}, could not be shown to be the same")
        estimators = {h.objective.estimator for h in self.pair}
        weights = all(self._weights_agree(*place) for place in self.places)
        ratios = not self.variables.on_policy and all(self._ratios_agree(*place) for place in self.places)
        if ratios and weights and len(estimators) == 1:
            return Proved(
                f"every level adds the same function of {self._means}; R, F and "
                f"{'weights' if any(h.objective.formulas for h in self.pair) else 'μ'} are the same",
            )
        if any(self._coefficients_agree(alone) for alone in ((True, False) if weights else (False,))):
            return Proved(
                "what a token's own log ratio and each mean that it moves add to c is the same in every pair of "
                f"branches that hold together ({self.compared} compared); both read {self._means}",
            )
        if ratios and not weights:
            first, second = map(_written, self.pair)
            return Unknown(f"the gated ratios 𝒢(r) are the same, but {first} could not be shown to be {second}")
        return Unknown(
            "the two have other branches, or other formulas on them, and no batch was found that tells them apart",
        )

    def _listed(self, what: str) -> str:
        if what == "advantages":
            return " and ".join(str(h.advantages) for h in self.pair)
        return " and ".join(" + ".join(map(str, h.penalties.values())) or "none" for h in self.pair)

    def _advantages_agree(self) -> bool:
        """Whether both advantages are the same function of rewards in value, or one of them is no formula."""
        first, second = (h.advantages for h in self.pair)
        if first is None or second is None or first == second:
            return True
        formulas = {leaf: [self.formulas.value(e, leaf) for e in (first, second)] for leaf in self.pair.first.leaves}
        return all(self.variables.same(a, b, leaf, None, by_value=True) for leaf, (a, b) in formulas.items())

    def _penalties_agree(self) -> bool:
        """Whether the sum of all penalties adds the same to the coefficients in both losses."""
        if has_same_penalties(self.pair):
            return True
        for leaf, side in self.places:
            found = [penalties(self.formulas, h, leaf) for h in self.pair]
            terms = [_Coefficient(self.formulas, side, e, ONE, ONE, same_ratio=True) for e in found]
            if not self._agree(terms, leaf, side, True):
                return False
        return True

    @property
    def _means(self) -> str:
        """The means that both losses read, for a reader."""
        forms = zip(*(self._forms(*place) for place in self.places), strict=True)
        first, second = ({a for f in own for e in (f.ratio, f.weight) for a in atoms(e)} for own in forms)
        names = self.variables.names
        found = dict.fromkeys(str(m) for m, name in names.items() if m.kind == "mean" and name in first & second)
        return f"the same means ({'; '.join(found)})" if found else "the token's own numbers"

    # ------------------------------------------------------------ level by level

    def _ratios_agree(self, leaf: Stratum, side: int) -> bool:
        """Whether `𝒢` is the same function because the recovery and the sums over levels are the same."""
        forms = self._forms(leaf, side)
        first, second = (f.h.decomposition.channels for f in forms)
        if first != second:
            return False
        back = [f.recovery({c: gated(c) for c in first}) for f in forms]
        return self.variables.same(back[0], back[1], leaf, side) and all(self._channel_agrees(forms, c) for c in first)

    def _channel_agrees(self, forms: Sequence[Form], channel: str) -> bool:
        mine, yours = ([f.level(s, channel) for s in f.path] for f in forms)
        leaf, side = forms[0].leaf, forms[0].side
        left = []
        for level in mine:
            twin = next((k for k, other in enumerate(yours) if self.variables.same(level, other, leaf, side)), None)
            if twin is None:
                left.append(level)
            else:
                del yours[twin]
        nothing = as_expression(0)
        return self.variables.same(sum(left, nothing), sum(yours, nothing), leaf, side)

    def _weights_agree(self, leaf: Stratum, side: int) -> bool:
        first, second = self._forms(leaf, side)
        return self.variables.same(first.weight, second.weight, leaf, side, by_value=True)

    # ------------------------------------------------------------ by the coefficients

    def _coefficients_agree(self, ratios_alone: bool) -> bool:
        """Whether tokens add the same to all coefficients; `ratios_alone`: weights agree and are left out."""
        self.compared = 0
        for leaf, side in self.places:
            terms = []  # what the gated ratio times the advantage adds
            for k, form in enumerate(self._forms(leaf, side)):
                same_ratio = all(self._forms(leaf, s)[k].ratio == form.ratio for s in self.sides)
                is_score = form.h.objective.estimator == "score"
                one = _Coefficient(self.formulas, side, form.ratio, form.weight, advantage, same_ratio, is_score)
                terms.append(one)
            if not self._agree(terms, leaf, side, ratios_alone):
                return False
        return True

    def _agree(self, terms: Sequence[_Coefficient], leaf: Stratum, side: int, ratios_alone: bool) -> bool:
        assume = self.variables.at(leaf, side)
        parts = [(t.ratio, ONE if ratios_alone else t.weight) for t in terms]
        if len({self.variables.partial_in(*both) for both in parts}) > 1:
            return False
        split = [cases(e, assume) for both in parts for e in both]
        for (r, u, q, v), known in together(split, assume, self.variables.conditions_at(leaf, side)):
            self.compared += 1
            mine, yours = (
                {k: at_ties(flowing(e), known) for k, e in t.parts(ratio.held(), weight.sympy()).items()}
                for t, ratio, weight in ((terms[0], r, u), (terms[1], q, v))
            )
            same = all(identical(mine.get(k, 0), yours.get(k, 0)) for k in {**mine, **yours})
            same = same and alike(r, q, known, assume, by_value=False) and alike(u, v, known, assume, by_value=True)
            if not same and can_hold(known, assume):
                return False
        return True


class _Coefficient:
    """What a token of one hierarchy adds to coefficients, by variable: its own log ratio, and each mean."""

    def __init__(
        self,
        formulas: TokenFormulas,
        side: int,
        ratio: Expression,
        weight: Expression,
        times: Expression,
        same_ratio: bool,
        is_score: bool = False,
    ) -> None:
        self.variables, self.side, self.is_score = formulas.variables, side, is_score
        variables = self.variables
        self.ratio, self.weight, self.times = ratio, weight, times
        known = {symbol(name): key for key, name in variables.names.items()}
        self.moving = [symbol(a) for a in atoms(self.ratio) if symbol(a) in known]
        self.at_point: dict[Any, int] = {X: 0} if side == 0 else {}
        self.at_point |= {z: 0 for z in known if variables.signs[z] == frozenset({0})}
        read = [a for a in atoms(self.ratio) if not (variables.on_policy and symbol(a) in self.at_point)]
        self.folded: dict[Any, tuple[Part, Stratum]] = {}
        reads = [*read, *atoms(self.weight), *atoms(times)]
        for z in self.moving:
            mean = known[z]
            part, *others = mean.parts
            if mean.kind != "mean" or others or isinstance(part.function, Expression):
                continue
            place = mean.place if isinstance(mean.place, Stratum) else WHOLE
            own = not part.function.free_symbols & set(known)  # moves with the token's log ratio alone
            if same_ratio and own and all(variables.is_constant_on(place, a) for a in reads):
                self.folded[z] = part, place

    def parts(self, ratio: Any, weight: Any) -> dict[Any, Any]:
        """On one branch, what the token's own log ratio adds (under `x`), and what each mean adds.

        If all summands over the elements of a mean are equal, the mean is folded into `x`: the sum over tokens is their
        number times one summand.
        """
        if is_kinked(ratio):
            raise Unsuited("a branch is a root of a square")
        size = weight * to_sympy(self.times)
        if self.is_score:
            return {X: (size * ratio).subs(self.at_point)}
        found = {X: size * sympy.diff(ratio, X)}
        for z in self.moving:
            slope = size * sympy.diff(ratio, z)
            if z not in self.folded:
                found[z] = slope
                continue
            mean, place = self.folded[z]
            if mean.side in (None, self.side):
                number = to_sympy(self.variables.counted(Count(mean.leaf, place)))
                found[X] += number * slope * mean.weight * sympy.diff(mean.function, X)
        return {k: v.subs(self.at_point) for k, v in found.items()}


# ---------------------------------------------------------------- penalties


def penalties(formulas: TokenFormulas, h: Hierarchy, leaf: Stratum) -> Expression:
    """`Σ_k μ·P_k` at a token, whose derivatives are what the penalties add to `c`.

    The weights of tokens carry no gradient. A penalty over coarser elements becomes one over tokens: the tokens of an
    element have equal shares, which add up to the element's penalty.
    """
    found, counted = ZERO, formulas.variables.counted
    for p in h.penalties.values():
        if p.over is None:
            weight = stop(formulas.weight(h, leaf, p.objective or h.objective.of_penalties))
        else:
            tokens = functools.reduce(operator.add, [counted(Count(s, p.over)) for s in h.leaves])
            weight = 1 / (counted(Count(p.over, WHOLE)) * tokens)
        found = found + weight * formulas.read(at(p.formula, p.over or leaf), leaf, SUMS)
    return found


def has_same_penalties(pair: Pair) -> bool:
    """Whether both hierarchies have equal penalties with equal weights; names do not matter."""
    first, second = (Counter(h.penalties.values()) for h in pair)
    if first != second:
        return False
    own = {(h.objective.of_penalties, h.rows) for h in pair}
    return len(own) == 1 or all(p.objective or p.over for p in first)
