"""One small batch in exact numbers: formulas, gated ratios `𝒢(r)` and coefficients `c_i = ∂J/∂log π_i`.

The gradient is `Σ c_i ∇log π_i` for any model. A `Point` has the meaning of the IR in fractions, fractions with slopes,
or bounds; `compiler/interpret.py` has that in float64. An element is computed when something reads it. So a missing
value, such as a mean over nothing, raises `NoValue` only from what reads it: a choice does not read the branch that it
does not take. Nothing here uses sympy.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any, TypeVar

from fibration.compiler.ir import (
    Const,
    Detach,
    Input,
    Key,
    Map,
    Mix,
    Node,
    Pull,
    Push,
    Quantile,
    Scalar,
    Scan,
    arg,
    part,
)
from fibration.compiler.lower import Penalties, lower
from fibration.compiler.program import Program
from fibration.compiler.scalars import ZERO, to_scalar
from fibration.errors import SpecError
from fibration.language.atoms import Attribute, Component, Count, Stratum, Total, in_channel
from fibration.language.declared import CURRENT, OLD, LogProb
from fibration.language.exact import NoValue, transcendental
from fibration.language.expressions import Expression
from fibration.language.hierarchy import Hierarchy
from fibration.language.operators import PRIMITIVES
from fibration.language.outline import home
from fibration.language.statistics import atoms_within
from fibration.language.traversal import KEPT, desugar
from fibration.laws.batches.concrete import Concrete
from fibration.laws.values.duals import DUALS, Dual, LogOf, Real, slopes_of, value_of, without_slopes
from fibration.laws.values.intervals import Interval, interval
from fibration.laws.values.numerals import in_brief, plural

LOG_RATIO, ADVANTAGE = "log ratio", "advantage"
NOTHING = None  # the largest of no values: less than every number, and no number itself
MANY_TOKENS = 40
RESIDUAL = -1  # the variable that is no token
Place = tuple[Stratum, int]  # a token: its leaf, and which element of it
T = TypeVar("T")
exact_exp = transcendental("exp")


def places_of(h: Hierarchy, concrete: Concrete) -> tuple[Place, ...]:
    """Every token of a batch, leaf after leaf."""
    return tuple((leaf, i) for leaf in h.leaves for i in range(concrete.size[leaf]))


def attempt(evaluate: Callable[[], T], *unknown: type[Exception]) -> T | None:
    """The result of `evaluate`; None if it has no value or no slope, or after one of the exceptions `unknown`."""
    try:
        return evaluate()
    except NoValue:
        return None
    except unknown:
        return None


def policies_read(formula: Expression) -> list[str]:
    """The policies whose log-probs a formula reads, inside statistics too."""
    return list(dict.fromkeys(a.policy.name for a in atoms_within(formula, LogProb)))


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
class Point:
    """A batch with a log ratio and an advantage for every token, leaf after leaf (`places`).

    The shape is `whole_batch(h)`, or has more strata: it has the rows, and the batch is one element. `log_probs` are
    those of frozen policies, by name. One that is not given is that of `old`; if that is not given, it and the current
    one are below 0. `rewards` are those of the tokens' rows, or of the tokens. Properties raise `NoValue` where
    something has no value. Elements that stand for several count as many times. `domain` applies the operators, as in
    `traversal.fold`.
    """

    h: Hierarchy
    concrete: Concrete
    log_ratios: Sequence[Any]  # fractions, or `LogOf` where the ratio is rational
    advantages: Sequence[Fraction]
    log_probs: Mapping[str, Sequence[Real]] = field(default_factory=dict)
    rewards: Sequence[Fraction] = ()
    domain: Any = field(default=DUALS, kw_only=True)

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
        """The batch with another number at a token: a log ratio, an advantage, an attribute, or a log-prob."""

        def replaced(values: Sequence[Any], k: int = k) -> tuple[Any, ...]:
            return (*values[:k], to, *values[k + 1 :])

        if isinstance(what, Attribute):
            attributes = self.concrete.attributes
            own = replaced(attributes[what], self.places[k][1])
            return replace(self, concrete=replace(self.concrete, attributes={**attributes, what: own}))
        if what == ADVANTAGE:
            return replace(self, advantages=replaced(self.advantages), rewards=replaced(self.advantages))
        if what == LOG_RATIO:
            return replace(self, log_ratios=replaced(self.log_ratios))
        return replace(self, log_probs={**self.log_probs, what: replaced(self.log_probs[what])})

    def lowered(self, by: Fraction) -> Point:
        """The batch with all frozen log-probs lower, so that those of the current policy stay below 0."""
        return replace(self, log_probs={p: tuple(v - by for v in values) for p, values in self.log_probs.items()})

    @property
    def numbers(self) -> dict[str, Any]:
        """The log ratios, advantages and log-probs that a call takes, by name."""
        given: dict[str, Any] = {"log_ratios": tuple(self.log_ratios), "advantages": tuple(self.advantages)}
        return given | {f"log_probs of {p}": tuple(values) for p, values in self.log_probs.items()}

    @property
    def advantages_of_rows(self) -> str:
        """`advantage 1`, or `trajectories of advantages 1, -1`."""
        of_row = dict(zip(rows_of(self.h, self.concrete), self.advantages, strict=True))
        given = in_brief(*(of_row[row] for row in sorted(of_row)))
        return f"{plural(self.h.rows.name)} of advantages {given}" if len(of_row) > 1 else f"advantage {given}"

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """Every token of a batch, leaf after leaf."""
        return places_of(self.h, self.concrete)

    # ------------------------------------------------------------ nodes

    @cached_property
    def known(self) -> dict[tuple[Node, int, bool], Any]:
        return {}

    def read(self, node: Node, element: int = 0, moves: bool = False) -> Any:
        """The value at an element, with slopes if it moves. Raises `NoValue` if there is none."""
        key = node, element, moves
        if key not in self.known:
            self.known[key] = self._read(node, element, moves)
        return self.known[key]

    def over(self, stratum: Stratum, element: int) -> list[int]:
        """Which tokens lie over an element."""
        reach, below = self.concrete.shape.leaves_over(stratum), self.concrete.below
        return [k for k, (leaf, i) in enumerate(self.places) if leaf in reach and below(leaf, i, stratum) == element]

    def _inside(self, source: str, target: str, element: int) -> list[tuple[int, int]]:
        """The `source` elements over an element, and how many each stands for."""
        of, base, number = self.concrete.strata[source], self.concrete.strata[target], self.concrete.stands_for
        return [(a, number(of, a) // number(base, element)) for a in self.concrete.over(of, base, element)]

    def _read(self, node: Node, element: int, moves: bool) -> Any:
        if isinstance(node, Map):
            return compute(node.body, lambda i, m: self.read(node.inputs[i], element, m), self.domain, moves)
        if isinstance(node, Input):
            found = self.given(node, element, moves)
            return self.domain.constant(found) if isinstance(found, Fraction) else found
        if isinstance(node, Const):
            return self.domain.constant(Fraction(node.value))
        if isinstance(node, Detach):
            return self.read(node.operand, element)
        if isinstance(node, Pull):
            base = self.concrete.strata.get(node.target)
            below = 0 if base is None else self.concrete.below(self.concrete.strata[node.source], element, base)
            return self.read(node.operand, below, moves)
        if isinstance(node, Push):
            inside = self._inside(node.source, node.target, element)
            if node.reduce == "max":
                found = [v for a, _ in inside if (v := self.read(node.operand, a)) is not NOTHING]
                return _quantile(found, [1] * len(found), Fraction(1)) if found else NOTHING
            values = (number(self.read(node.operand, a, moves)) * Fraction(n) for a, n in inside)
            return sum(values, self.domain.constant(Fraction(0)))
        if isinstance(node, Quantile):
            each = [(v, *one) for v in node.values for one in self._inside(v.stratum, node.target, element)]
            level = value_of(self.read(node.level, element))
            return _quantile([self.read(v, a) for v, a, _ in each], [n for *_, n in each], level)
        if isinstance(node, Scan):
            return self._scan(node, element, moves)
        assert isinstance(node, Mix)
        raise SpecError(
            f"hierarchy '{self.h.name}' takes residuals by projection",
            required="residuals of the Möbius recursion, which alone are evaluated exactly",
        )

    def _scan(self, node: Scan, element: int, moves: bool) -> Any:
        if self.concrete.alike:
            raise NoValue("a sum in order of tokens that stand for several, of which none is the first")
        below, target = self.concrete.below, self.concrete.strata[node.target]
        of, into = {self.concrete.strata[v.stratum]: v for v in node.values}, self.concrete.strata[node.into]
        reach = {s: self.concrete.shape.leaves_over(s) for s in of}
        tokens = [self.places[k] for k in self.over(target, below(into, element, target))]
        order = list(dict.fromkeys((s, below(*t, s)) for t in tokens for s in of if t[0] in reach[s]))
        own = order.index((into, element))
        discount, total = self.read(node.discount), self.domain.constant(Fraction(0))
        for s, a in order[:own] if node.forward else order[:own:-1]:
            value = self.domain.apply(PRIMITIVES["add"], [total, number(self.read(of[s], a, moves))])
            total = self.domain.apply(PRIMITIVES["mul"], [value, discount])
        return total

    # ------------------------------------------------------------ inputs

    @cached_property
    def nodes(self) -> _Nodes:
        return _nodes(self.h)

    def log_ratio(self, k: int, moves: bool = False) -> Real:
        """The log ratio of a token, which is the variable `k` if it moves."""
        x = self.log_ratios[k]
        if not moves:
            return x
        slopes = {k: Fraction(1)}
        return replace(x, slopes=slopes) if isinstance(x, Dual) else Dual(x, slopes)

    def log_prob(self, policy: str, k: int, moves: bool = False) -> Any:
        if policy in self.log_probs:
            return without_slopes(self.log_probs[policy][k])
        if policy == CURRENT:
            return self.log_prob(OLD, k) + self.log_ratio(k, moves)
        return -1 - max(value_of(self.log_ratio(k)), Fraction(0)) if policy == OLD else self.log_prob(OLD, k)

    def given(self, node: Input, element: int, moves: bool) -> Any:
        """The value of an input at an element, with slopes if it moves."""
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

    @property
    def with_advantages(self) -> Point:
        """The batch with the advantages that the loss computes from its rewards, if it does."""
        if self.h.advantages is None:
            return self
        found = (value_of(self.value(self.h.advantages, k)) for k in range(len(self.places)))
        return replace(self, advantages=tuple(found))

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
        known = [x.ratio if isinstance(x, LogOf) else exact_exp(value_of(x)) for x in self.log_ratios]
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
    over = Point(h, concrete, (), ()).over
    inside = {u: over(u, concrete.below(stratum, element, u)) for u in h.coarser(stratum)}
    own, factors = over(stratum, element), h.shape.moebius(stratum)
    return any(
        sum(Fraction(c, len(inside[u])) for u, c in factors.items() if k in inside[u]) != Fraction(1, len(own))
        for k in own
    )


# ---------------------------------------------------------------- bodies of nodes


def compute(body: Scalar, argument: Callable[[int, bool], Any], domain: Any, moves: bool = False) -> Any:
    """The value of a body, with slopes if it moves. Those of conditions, of what is stopped and of a product with 0 are
    not computed.
    """
    done: dict[tuple[Scalar, bool], Any] = {}  # bodies share parts; nested choices share them many times

    def of(s: Scalar, moves: bool) -> Any:
        if s.op == "arg":
            return argument(s.value, moves)  # type: ignore[arg-type]
        if s.op == "const":
            return NOTHING if s.value == -math.inf else domain.constant(s.value)
        if (s, moves) not in done:
            done[s, moves] = applied(s, moves)
        return done[s, moves]

    def applied(s: Scalar, moves: bool) -> Any:
        if s.op == "select":
            return of(s.args[1 if of(s.args[0], False) else 2], moves)
        row = PRIMITIVES[s.op]
        still = row.is_condition or s.op == "stop" or (s.op == "mul" and ZERO in s.args)
        arguments = [of(a, moves and not still) for a in s.args]
        if arguments[0] is not NOTHING is not arguments[-1]:
            return domain.apply(row, arguments)
        if s.op in ("lt", "le"):
            return arguments[0] is NOTHING and (s.op == "le" or arguments[1] is not NOTHING)
        return domain.apply(row, list(map(number, arguments)))

    return of(body, moves)


def differentiate(expression: Expression, values: Callable[[Expression], Any], domain: Any = DUALS) -> Any:
    """As `traversal.evaluate`, in a domain whose numbers may have slopes. Raises `NoValue` without a value or slope."""
    body, read = _of_atoms(expression)

    def argument(i: int, moves: bool) -> Any:
        return values(read[i]) if moves or read[i].is_condition else without_slopes(values(read[i]))

    return compute(body, argument, domain, True)


@lru_cache(KEPT)
def _of_atoms(expression: Expression) -> tuple[Scalar, list[Expression]]:
    """An expression as a body, and the atoms that are its arguments."""
    read: dict[Expression, int] = {}
    body = to_scalar(desugar(expression), lambda a: arg(read.setdefault(a, len(read))))
    return body, list(read)


def number(value: Any) -> Any:
    """A value that is a number; raises `NoValue` for the largest of none."""
    if value is NOTHING:
        raise NoValue("the largest of none")
    return value


def _quantile(values: list[Any], numbers: list[int], level: Fraction) -> Any:
    """The value at a level among the sorted values, of which each counts so many times; linear between two of them."""
    if not values:
        raise NoValue("a quantile of none")
    position = (sum(numbers) - 1) * level
    if not any(isinstance(v, Interval) for v in values):
        return _ordered(values, numbers, position)
    known = [interval(v) for v in values]
    return Interval(*(_ordered([getattr(v, end) for v in known], numbers, position) for end in ("low", "high")))


def _ordered(values: list[Any], numbers: list[int], position: Fraction) -> Any:
    ranked = sorted(zip(values, numbers, strict=True), key=lambda found: value_of(found[0]))
    ends = list(itertools.accumulate(n for _, n in ranked))
    low, share = math.floor(position), position - math.floor(position)
    a = ranked[bisect.bisect_right(ends, low)][0]
    if not share:
        return a
    b = ranked[bisect.bisect_right(ends, low + 1)][0]
    return a * (1 - share) + b * share
