"""One small batch in exact numbers: the formulas, the gated ratios `𝒢(r)` and the coefficients `c_i = ∂J/∂log π_i`.

The gradient is `Σ c_i ∇log π_i` for any model. Nothing here uses sympy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any, TypeVar

from fibration.compiler.ir import Input, Node, part
from fibration.compiler.keys import Key
from fibration.compiler.lower import lower
from fibration.compiler.penalties import Penalties
from fibration.compiler.program import Program
from fibration.language.atoms import Attribute, Component, Count, Stratum, Total, in_channel, token_log_ratio
from fibration.language.exact import NoValue
from fibration.language.expressions import Expression
from fibration.language.hierarchy import Hierarchy
from fibration.language.operators import exp
from fibration.language.places import home
from fibration.language.policies import CURRENT, OLD
from fibration.language.traversal import evaluate
from fibration.laws.batches.concrete import Concrete
from fibration.laws.batches.exact import Exact, number, places_of
from fibration.laws.values.duals import Dual, Real, log_of, slopes_of, value_of, without_slopes

LOG_RATIO, ADVANTAGE = "log ratio", "advantage"
MANY_TOKENS = 40
RESIDUAL = -1  # the variable that is no token
T = TypeVar("T")


def attempt(evaluate: Callable[[], T]) -> T | None:
    """The result of `evaluate`; None if it has no value or no slope."""
    try:
        return evaluate()
    except NoValue:
        return None


def rows_of(h: Hierarchy, concrete: Concrete) -> list[int]:
    """The row of every token."""
    return [concrete.below(*place, h.rows) for place in places_of(h, concrete)]


class _Nodes(Penalties):
    """The nodes of a hierarchy and of its formulas. Gradients flow through formulas as through penalties."""

    def __init__(self, h: Hierarchy) -> None:
        super().__init__(h)
        self.made: dict[tuple[Expression, str], Node] = {}

    @cached_property
    def program(self) -> Program:
        return lower(self.h)

    @cached_property
    def weight(self) -> Node:
        """`μ` of every row."""
        return self.normaliser(self.h.objective)

    def formula(self, expression: Expression, stratum: str) -> Node:
        """A formula at the elements of a stratum; of a condition 1 where it holds, else 0."""
        if (expression, stratum) not in self.made:
            at = self.tokens if stratum in self.leaves else self.elements
            self.made[expression, stratum] = at(expression, stratum)
        return self.made[expression, stratum]


_nodes = lru_cache(256)(_Nodes)


@lru_cache(1024)
def _key(h: Hierarchy, parameter: Any) -> tuple[str, str, str | None]:
    """The name, the channel and the place of a parameter's values."""
    whole, channel = (parameter.parameter, parameter.channel) if isinstance(parameter, Component) else (parameter, "")
    return whole.name, channel, home(h, parameter)


@dataclass(frozen=True)
class Point(Exact):
    """A batch with a log ratio and an advantage for every token, leaf after leaf (`places`).

    The shape is `whole_batch(h)`, or has more strata: it has the rows, and the batch is one element. `log_probs` are
    those of frozen policies, by name. One that is not given is that of `old`; if that is not given, it and the current
    one are below 0. `rewards` are those of the tokens' rows, or of the tokens. Properties raise `NoValue` where
    something has no value.
    """

    log_ratios: Sequence[Fraction]
    advantages: Sequence[Fraction]
    ratios: tuple[Fraction, ...] | None = None  # if rational; the log ratios are their logarithms
    log_probs: Mapping[str, Sequence[Real]] = field(default_factory=dict)
    rewards: Sequence[Fraction] = ()

    @classmethod
    def alike(
        cls, h: Hierarchy, concrete: Concrete, advantages: Sequence[Fraction], log_probs: Sequence[Fraction] = ()
    ) -> Point:
        """A batch in which all policies have these log-probs; default -1. Rewards are equal to advantages."""
        n = concrete.tokens
        given = tuple(log_probs) or (Fraction(-1),) * n
        frozen = {p: given for p in (OLD, *h.policies) if p != CURRENT}
        return cls(h, concrete, (Fraction(0),) * n, advantages, log_probs=frozen, rewards=advantages)

    def changed(self, what: str | Attribute, k: int, to: Fraction) -> Point:
        """The batch with another number at a token: its log ratio, its advantage, an attribute, or a policy's log-prob.

        Under a log ratio above 0, all log-probs are lower, so that those of the current policy stay below 0.
        """

        def replaced(values: Sequence[Any], k: int = k) -> tuple[Any, ...]:
            return (*values[:k], to, *values[k + 1 :])

        if isinstance(what, Attribute):
            attributes = self.concrete.attributes
            own = replaced(attributes[what], self.places[k][1])
            return replace(self, concrete=replace(self.concrete, attributes={**attributes, what: own}))
        if what == ADVANTAGE:
            return replace(self, advantages=replaced(self.advantages), rewards=replaced(self.advantages))
        if what != LOG_RATIO:
            return replace(self, log_probs={**self.log_probs, what: replaced(self.log_probs[what])})
        lower = {p: tuple(v - max(to, Fraction(0)) for v in values) for p, values in self.log_probs.items()}
        return replace(self, log_ratios=replaced(self.log_ratios), log_probs=lower)

    @property
    def numbers(self) -> dict[str, Any]:
        """The log ratios, advantages and log-probs that a call takes, by name."""
        given: dict[str, Any] = {"log_ratios": tuple(self.log_ratios), "advantages": tuple(self.advantages)}
        return given | {f"log_probs of {p}": tuple(values) for p, values in self.log_probs.items()}

    # ------------------------------------------------------------ what nodes read

    @cached_property
    def nodes(self) -> _Nodes:
        return _nodes(self.h)

    def log_ratio(self, k: int, moves: bool = False) -> Real:
        """The log ratio of a token, which is the variable `k` if it moves."""
        slopes = {k: Fraction(1)} if moves else {}
        if self.ratios is not None:
            return log_of(self.ratios[k], slopes)
        return Dual(self.log_ratios[k], slopes) if moves else self.log_ratios[k]

    def log_prob(self, policy: str, k: int, moves: bool = False) -> Any:
        if policy in self.log_probs:
            return without_slopes(self.log_probs[policy][k])
        if policy == CURRENT:
            return self.log_prob(OLD, k) + self.log_ratio(k, moves)
        return -1 - max(value_of(self.log_ratio(k)), Fraction(0)) if policy == OLD else self.log_prob(OLD, k)

    def given(self, node: Input, element: int, moves: bool) -> Any:
        kind, key = node.kind, node.key
        stratum: Any = self.concrete.strata.get(node.over)  # a shape without rows need not have the batch
        if kind == "count":
            return self.concrete.atom(Count(self.concrete.strata[key[0]], stratum), stratum, element)
        if kind in ("total", "attribute", "parameter"):
            atom = self._named[(*key, node.over) if kind == "parameter" else key[0]]
            return self.concrete.atom(Total(atom, stratum) if kind == "total" else atom, stratum, element)
        if node.over in self.nodes.leaves:
            before = self.h.leaves[: self.nodes.leaves.index(node.over)]
            k = sum(self.concrete.size[leaf] for leaf in before) + element
        else:
            k = self.over(stratum, element)[0]
        if kind == "log_ratio":
            return self.log_ratio(k, moves)
        if kind in ("advantage", "reward"):
            return (self.advantages if kind == "advantage" else self.rewards)[k]
        return self.log_prob({"log_prob": CURRENT, "old_log_prob": OLD}.get(kind) or key[0], k, moves)

    @cached_property
    def _named(self) -> dict[Any, Any]:
        """Attributes by name, and parameters by name, channel and place: those of a pair may share a name."""
        parameters = {_key(self.h, a): a for a in self.concrete.parameters}
        return {a.name: a for a in self.concrete.attributes} | parameters

    # ------------------------------------------------------------ formulas

    def value_at(self, expression: Expression, stratum: Stratum, element: int, moves: bool = False) -> Any:
        """The value of a formula at an element, or at a token; for a condition, whether it holds."""
        found = number(self.read(self.nodes.formula(expression, stratum.name), element, moves))
        return value_of(found) == 1 if expression.is_condition else found

    def value(self, expression: Expression, k: int, moves: bool = False) -> Any:
        """The value of a formula at a token, as a penalty has it; for a condition, whether it holds."""
        return self.value_at(expression, *self.places[k], moves)

    def attempt(self, expression: Expression, k: int, place: Stratum | None = None) -> Any:
        """A formula at a token, or at the element of `place` that the token lies over; None where it has no value."""
        at = self.places[k] if place is None else (place, self.concrete.below(*self.places[k], place))
        found = attempt(lambda: self.value_at(expression, *at))
        return found if found is None or isinstance(found, bool) else value_of(found)

    # ------------------------------------------------------------ the loss

    def _outputs(self, word: str) -> list[tuple[Node, int]]:
        leaves, outputs = self.nodes.leaves, self.nodes.program.outputs
        return [(outputs[part(word, leaf.name, leaves)], i) for leaf, i in self.places]

    def output(self, word: str, moves: bool = False) -> list[Any]:
        """A vector of the program at every token."""
        return [self.read(node, i, moves) for node, i in self._outputs(word)]

    @cached_property
    def gated(self) -> list[Fraction]:
        """`𝒢(r)_i`."""
        return [value_of(g) for g in self.output("gated_ratio")]

    def slope(self, stratum: Stratum, channel: str, element: int) -> Fraction:
        """The slope of a gate in its own residual at an element."""
        outputs, held = self.nodes.program.outputs, replace(self)
        own, gate = (outputs[Key(word, stratum.name, channel)] for word in ("residual", "gated"))
        held.known[own, element, True] = Dual(value_of(self.read(own, element)), {RESIDUAL: Fraction(1)})
        return slopes_of(held.read(gate, element, True)).get(RESIDUAL, Fraction(0))

    @cached_property
    def weights(self) -> list[Fraction]:
        """`μ_i`; 0 for a token that is not counted."""
        conditions = [k.condition for k in self.h.objective.kept if k.normaliser == "kept"]
        counted = (all(self.value(c, k) for c in conditions) for k in range(len(self.places)))
        rows = zip(rows_of(self.h, self.concrete), counted, strict=True)
        return [value_of(self.read(self.nodes.weight, row)) if c else Fraction(0) for row, c in rows]

    @cached_property
    def ungated(self) -> list[Fraction]:
        """The coefficients of the loss without its gates: each gated ratio is the token's own."""
        known = self.ratios or [evaluate(exp(token_log_ratio), {token_log_ratio: x}) for x in self.log_ratios]
        free = replace(self)
        for k, (node, i) in enumerate(self._outputs("gated_ratio")):
            free.known[node, i, True] = Dual(known[k], {k: known[k]})
            free.known[node, i, False] = known[k]
        return free.coefficients

    @cached_property
    def coefficients(self) -> list[Fraction]:
        """`c_i` without penalties: `Σ_j μ_j·w_j·A_j·∂𝒢_j/∂log π_i`; for a score estimator `μ_i·w_i·A_i·𝒢_i`."""
        objective = self.nodes.program.outputs[Key("objective")]
        return self._slopes([objective.operands[0] if self.h.penalties else objective])

    @cached_property
    def penalised(self) -> list[Fraction]:
        """What penalties subtract from the coefficients: `∂/∂log π_i` of their sum."""
        return self._slopes([self.nodes.program.outputs[Key("penalty", name)] for name in self.h.penalties])

    def _slopes(self, nodes: Sequence[Node]) -> list[Fraction]:
        """`∂/∂log π` of a sum over the batch, for one of the tokens that each stands for."""
        found = [slopes_of(self.read(node, 0, True)) for node in nodes]
        number = [self.concrete.stands_for(leaf, i) for leaf, i in self.places]
        return [sum((f.get(k, Fraction(0)) for f in found), Fraction(0)) / n for k, n in enumerate(number)]


def formulas(h: Hierarchy) -> list[Expression]:
    """All formulas that the operator evaluates."""
    found = [f.weight for f in h.fibrations]
    found += [in_channel(h.gate(s), c) for s in h.order for c in h.decomposition.channels]
    for leaf in h.leaves:
        found += [h.with_mass(e, leaf) for _, e in h.decomposition.densities]
        found.append(h.with_mass(h.decomposition.recovery, leaf))
    return [*found, *h.masses.values()]


def has_residual(h: Hierarchy, concrete: Concrete, stratum: Stratum, element: int) -> bool:
    """Whether some log ratios give an element a residual that is not 0, if all tokens weigh the same."""
    if h.shape.is_tree:
        below = h.shape.below(stratum)
        if not below:
            return True
        base = below[0].target
        parent = concrete.below(stratum, element, base)
        return sum(len(concrete.over(f.source, base, parent)) for f in h.shape.above(base)) > 1
    if concrete.tokens > MANY_TOKENS:
        return False
    over = Exact(h, concrete).over
    inside = {u: over(u, concrete.below(stratum, element, u)) for u in h.coarser(stratum)}
    own, factors = over(stratum, element), h.shape.moebius(stratum)
    return any(
        sum(Fraction(c, len(inside[u])) for u, c in factors.items() if k in inside[u]) != Fraction(1, len(own))
        for k in own
    )
