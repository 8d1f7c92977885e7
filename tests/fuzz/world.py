"""A hierarchy on one batch, by definition: formulas, 𝒢(r), the objective, and the coefficients `c_i = ∂J/∂log π_i`.

The module uses neither the laws nor the normal form, lowering or a backend. Every token has a label per stratum, and
the labels determine everything else. Values are floats, or `Fraction`s with `exact=True`. Derivatives are forward-mode.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fibration import Hierarchy
from fibration.language.atoms import (
    BATCH,
    Attribute,
    Component,
    Count,
    Density,
    Gated,
    Parameter,
    Place,
    Reading,
    Stratum,
    Total,
    in_channel,
)
from fibration.language.declared import CURRENT, LogProb, Policy
from fibration.language.expressions import Expression
from fibration.language.objectives import LEAF, Objective
from fibration.language.statistics import Aggregate, Ordered
from fuzz.dual_numbers import (
    Dual,
    Illegal,
    NoValue,
    Numbers,
    Unclear,
    add,
    divided,
    slopes_of,
    times,
    total_of,
    value_of,
)


@dataclass
class Batch:
    """Tokens in the order of their rows, each with a label per stratum that it lies over, by the stratum's name.

    `leaf` names each token's own stratum. `attributes` has a number per label of the attribute's stratum (on a leaf: per
    token), `parameters` one number, one per channel, or one per label. `policies` has log-probs of `old` and others;
    that of `current` is `old + x`. `rewards` are per token, or per row's label.
    """

    leaf: list[Stratum]
    labels: dict[str, list[Any]]
    x: list[Any]
    advantages: list[Any]
    policies: dict[str, list[Any]]
    attributes: dict[str, Mapping[Any, Any]] = field(default_factory=dict)
    parameters: dict[str, Any] = field(default_factory=dict)
    rewards: Mapping[Any, Any] | None = None
    by_token: bool = False  # rewards are per token

    @property
    def size(self) -> int:
        return len(self.leaf)


class World:
    """A hierarchy on a batch. A place is a stratum's name and a label; a token is the place of its leaf.

    `flat`: values alone, without slopes.
    """

    def __init__(
        self, h: Hierarchy, batch: Batch, exact: bool = False, lazy: bool = True, flat: bool = False
    ) -> None:
        self.h, self.batch, self.by = h, batch, Numbers(exact, lazy)
        self.leaves = [s.name for s in h.leaves]
        self.n = batch.size
        self.label: dict[str, list[Any]] = {**batch.labels, BATCH: [0] * self.n}
        for leaf in h.leaves:
            self.label[leaf.name] = [i if own == leaf else None for i, own in enumerate(batch.leaf)]
        self.over: dict[str, dict[Any, list[int]]] = {}
        for s, labels in self.label.items():
            found: dict[Any, list[int]] = {}
            for i, e in enumerate(labels):
                if e is not None:
                    found.setdefault(e, []).append(i)
            self.over[s] = found
        number = self.by.number
        self.x = [Dual(number(x), {} if flat else {i: number(1)}) for i, x in enumerate(batch.x)]
        self._statistics: dict[Any, Any] = {}

    # ------------------------------------------------------------ places

    def place(self, token: int) -> tuple[str, Any]:
        return self.batch.leaf[token].name, token

    def elements(self, stratum: str) -> list[Any]:
        return list(self.over[stratum])

    def below(self, stratum: str, element: Any, target: str) -> Any:
        """The target element below an element."""
        return self.label[target][self.over[stratum][element][0]]

    def name(self, place: Any, stratum: str) -> str:
        if place is None:
            return stratum
        if isinstance(place, Place):
            return {"rows": self.h.rows.name, "batch": BATCH}[place.name]
        return str(place.name)

    def inside(self, of: str, over: str, element: Any) -> list[Any]:
        """The elements of a stratum that lie over an element, in the order of their first tokens."""
        if of == over:
            return [element]
        return list(dict.fromkeys(e for i in self.over[over][element] if (e := self.label[of][i]) is not None))

    # ------------------------------------------------------------ formulas

    def value(
        self, e: Expression, stratum: str, element: Any, bound: Mapping[Expression, Any] = {}, flows: str = ""
    ) -> Any:
        """A formula at an element. `flows`: `order` or `sums`, what of the gathered passes gradients on; `none`."""

        def atom(a: Expression) -> Any:
            return bound[a] if a in bound else self.atom(a, stratum, element, flows)

        return self.by.evaluate(e, atom)

    def at_token(self, e: Expression, token: int, flows: str = "") -> Any:
        return self.value(e, *self.place(token), flows=flows)

    def atom(self, a: Expression, stratum: str, element: Any, flows: str) -> Any:
        token = self.over[stratum][element][0]
        if isinstance(a, Aggregate):
            return self.statistic(a, stratum, element, flows)
        if isinstance(a, Ordered):
            return self.ordered(a, stratum, element, flows)
        if isinstance(a, (Count, Total)):
            return self.measure(a, stratum, element)
        if isinstance(a, LogProb):
            if a.policy.name == "current":
                return add(
                    self.by.number(self.batch.policies["old"][token]), self.x[token] if flows else self.x[token].value
                )
            return self.by.number(self.batch.policies[a.policy.name][token])
        if isinstance(a, Attribute):
            return self.by.number(self.batch.attributes[a.name][self.label[a.on.name][token]])
        if isinstance(a, (Parameter, Component)):
            return self.parameter(a, token)
        if isinstance(a, Reading) and a.name == "token_log_ratio":
            return self.x[token] if flows else self.x[token].value
        if isinstance(a, Reading) and a.name == "advantage":
            return self.advantage(token)
        if isinstance(a, Reading) and a.name == "reward":
            assert self.batch.rewards is not None
            return self.by.number(
                self.batch.rewards[token if self.batch.by_token else self.label[self.h.rows.name][token]]
            )
        raise AssertionError(f"{a!r} at {stratum}")

    def advantage(self, token: int) -> Any:
        if self.h.advantages is None:
            return self.by.number(self.batch.advantages[token])
        key = "advantage", token
        if key not in self._statistics:
            self._statistics[key] = value_of(self.at_token(self.h.advantages, token))
        return self._statistics[key]

    def parameter(self, a: Any, token: int) -> Any:
        p, channel = (a.parameter, a.channel) if isinstance(a, Component) else (a, "")
        given = self.batch.parameters[p.name]
        if p.on is not None and isinstance(given, Mapping):
            given = given[self.label[p.on.name][token]]
        return self.by.number(given[channel] if isinstance(given, Mapping) else given)

    def measure(self, a: Count | Total, stratum: str, element: Any) -> Any:
        over = self.name(a.over, stratum)
        e = element if over == stratum else self.below(stratum, element, over)
        if a.of == LEAF:
            return self.by.number(len(self.over[over][e]))
        there = self.inside(self.name(a.of, stratum), over, e)
        if isinstance(a, Count):
            return self.by.number(len(there))
        return sum((self.by.number(self.batch.attributes[a.attribute.name][k]) for k in there), self.by.number(0))

    def statistic(self, a: Aggregate, stratum: str, element: Any, flows: str) -> Any:
        over = self.name(a.over, stratum)
        e = element if over == stratum else self.below(stratum, element, over)
        through = flows if flows == "sums" and a.kind in ("total", "mean") else ""
        left_out = self.below(stratum, element, self.name(a.of, stratum)) if a.others else None
        key = a, over, e, left_out, through
        if key not in self._statistics:
            try:
                self._statistics[key] = self._statistic(a, over, e, left_out, through)
            except OverflowError:
                self._statistics[key] = Unclear(f"{a} overflows")
            except (NoValue, Unclear, Illegal) as error:
                self._statistics[key] = error
        found = self._statistics[key]
        if isinstance(found, Exception):
            raise found
        return found

    def _statistic(self, a: Aggregate, over: str, e: Any, left_out: Any, flows: str) -> Any:
        if a.of is None:
            places = [self.place(i) for i in self.over[over][e]]
        else:
            of = self.name(a.of, over)
            places = [(of, k) for k in self.inside(of, over, e)]
        if a.others:
            places = [p for p in places if p[1] != left_out]
            if not places:
                raise Illegal(f"{a} of one alone")
        values = [self.value(a.formula, s, k, flows=flows) for s, k in places]
        n = len(values)
        if a.kind == "some":
            return any(values)
        if a.kind == "total":
            return total_of(values)
        if not values:
            raise NoValue(f"{a} of nothing")
        if a.kind == "mean":
            return divided(total_of(values), self.by.number(n))
        plain = sorted(map(value_of, values))
        if a.kind == "largest":
            return plain[-1]
        if a.kind == "deviation":
            if n == 1 or plain[0] == plain[-1]:
                return self.by.number(0)
            middle = sum(plain) / n
            return self.by.call("sqrt", sum((v - middle) ** 2 for v in plain) / (n - 1))
        assert a.kind == "quantile" and a.level is not None
        place = value_of(self.value(a.level, over, e)) * (n - 1)
        low = min(math.floor(place), n - 1)
        return plain[low] + (place - low) * (plain[min(low + 1, n - 1)] - plain[low])

    def ordered(self, o: Ordered, stratum: str, element: Any, flows: str) -> Any:
        over = self.name(o.over, stratum)
        e = element if over == stratum else self.below(stratum, element, over)
        if o.of is None:
            places, here = [self.place(i) for i in self.over[over][e]], self.place(self.over[stratum][element][0])
        else:
            of = self.name(o.of, stratum)
            places, here = [(of, k) for k in self.inside(of, over, e)], (of, self.below(stratum, element, of))
        key = o, over, e, here, bool(flows)
        if key not in self._statistics:
            t, discount = places.index(here), value_of(self.value(o.discount, stratum, element))
            found: Any = 0
            for s, place in enumerate(places):
                if (s < t) if o.is_forward else (s > t):
                    value = self._each(o, place, flows)
                    found = add(found, times(discount ** abs(t - s), value))
            self._statistics[key] = found
        return self._statistics[key]

    def _each(self, o: Ordered, place: tuple[str, Any], flows: str) -> Any:
        """The formula of an order at one of its places."""
        key = o.formula, place, flows
        if key not in self._statistics:
            self._statistics[key] = self.value(o.formula, *place, flows=flows)
        return self._statistics[key]

    # ------------------------------------------------------------ the operator

    @functools.cached_property
    def coarser(self) -> dict[str, list[str]]:
        """Of every stratum of the hierarchy, those that it lies over, nearest first."""
        targets: dict[str, list[str]] = {s.name: [] for s in self.h.strata}
        for f in self.h.fibrations:
            targets[f.source.name].append(f.target.name)

        def found(s: str) -> list[str]:
            below = [u for t in targets[s] for u in (t, *found(t))]
            return list(dict.fromkeys(below))

        return {s: found(s) for s in targets}

    def kernel(self, s: str, e: Any, target: str) -> Any:
        """`K_{s←target}` at an element, the product along one path."""
        if s == target:
            return self.by.number(1)
        f = next(
            f
            for f in self.h.fibrations
            if f.source.name == s and target in (f.target.name, *self.coarser[f.target.name])
        )
        own = value_of(self.value(f.weight, s, e))
        return own * self.kernel(f.target.name, self.below(s, e, f.target.name), target)

    @functools.cached_property
    def density(self) -> dict[tuple[str, str], dict[Any, Any]]:
        """By stratum and channel, of every element."""
        found: dict[tuple[str, str], dict[Any, Any]] = {}
        for c in self.h.decomposition.channels:
            own: dict[int, Any] = {}
            for leaf in self.h.leaves:
                formula = in_channel(self.h.with_mass(self.h.decomposition[c], leaf), c)
                for i in self.over[leaf.name]:
                    own[i] = self.value(formula, leaf.name, i, flows="order")
            for s in self.coarser:
                found[s, c] = {e: total_of([own[i] for i in tokens]) for e, tokens in self.over[s].items()}
        return found

    @functools.cached_property
    def residual(self) -> dict[tuple[str, str], dict[Any, Any]]:
        """`ρ_v = σ_v - Σ_{u coarser} K_{v←u} ρ_u`."""
        found: dict[tuple[str, str], dict[Any, Any]] = {}
        for c in self.h.decomposition.channels:
            for s in sorted(self.coarser, key=lambda s: len(self.coarser[s])):
                found[s, c] = {}
                for e, rho in self.density[s, c].items():
                    for u in self.coarser[s]:
                        rho = add(rho, times(self.kernel(s, e, u), found[u, c][self.below(s, e, u)]), -1)
                    found[s, c][e] = rho
        return found

    def gate(self, s: str, e: Any, c: str, residual: Any) -> Any:
        """The gate of an element, of a residual."""
        stratum = Stratum(s)
        formula = in_channel(self.h.gate(stratum), c)
        bound: dict[Expression, Any] = {Reading("residual"): residual}
        for u in self.coarser[s]:
            for channel in self.h.decomposition.channels:
                bound[Density(Stratum(u), channel)] = self.density[u, channel][self.below(s, e, u)]
        return self.value(formula, s, e, bound)

    @functools.cached_property
    def gated(self) -> dict[tuple[str, str], dict[Any, Any]]:
        return {
            (s, c): {e: self.gate(s, e, c, rho) for e, rho in elements.items()}
            for (s, c), elements in self.residual.items()
        }

    @functools.cached_property
    def ratios(self) -> list[Any]:
        """`𝒢(r)` of every token, with its slopes."""
        found = []
        for i in range(self.n):
            leaf, _ = self.place(i)
            down = {}
            for c in self.h.decomposition.channels:
                parts = [
                    times(self.kernel(leaf, i, s), self.gated[s, c][self.below(leaf, i, s)])
                    for s in (leaf, *self.coarser[leaf])
                ]
                down[Gated(c)] = total_of(parts)
            stratum = Stratum(leaf)
            recovery = self.h.with_mass(self.h.decomposition.recovery, stratum)
            found.append(self.value(recovery, leaf, i, down))
        return found

    # ------------------------------------------------------------ the loss

    def holds(self, objective: Objective, *normalisers: str) -> list[bool]:
        """Which tokens are kept, by the conditions with these normalisers."""
        conditions = [k.condition for k in objective.kept if k.normaliser in normalisers]
        return [all(self.at_token(c, i) for c in conditions) for i in range(self.n)]

    def mu(self, objective: Objective) -> list[Any]:
        """`μ` of every token; 0 of one that is not counted."""
        counted = self.holds(objective, "kept")
        world = self if all(counted) else self.of([i for i in range(self.n) if counted[i]])
        weight = objective.spelled_out(self.h.leaves, self.h.rows)
        found, k = [self.by.number(0)] * self.n, 0
        for i in range(self.n):
            if counted[i]:
                found[i], k = value_of(world.at_token(weight, k)), k + 1
        return found

    def of(self, tokens: list[int]) -> World:
        """The same batch with some of its tokens alone, and the elements that have one of them."""
        b, place = self.batch, {i: k for k, i in enumerate(tokens)}
        on_tokens = {a.name for a in self.h.attributes.values() if a.on in self.h.leaves}
        attributes = {
            n: {place[i]: v for i, v in vs.items() if i in place} if n in on_tokens else vs
            for n, vs in b.attributes.items()
        }
        rewards = {place[i]: v for i, v in b.rewards.items() if i in place} if b.rewards and b.by_token else b.rewards
        batch = Batch(
            [b.leaf[i] for i in tokens], {s: [v[i] for i in tokens] for s, v in b.labels.items()}, [b.x[i] for i in tokens],
            [b.advantages[i] for i in tokens], {p: [v[i] for i in tokens] for p, v in b.policies.items()}, attributes,
            b.parameters, rewards, b.by_token,
        )  # fmt: skip
        found = World(self.h, batch, self.by.exact, self.by.lazy)
        found.by = self.by
        return found

    def factors(self, objective: Objective) -> list[Any]:
        """The product of a token's further weights; 0 where it is not kept."""
        found = [self.by.number(int(k)) for k in self.holds(objective, "all", "kept")]
        for w in objective.weighed:
            found = [f and f * value_of(self.at_token(w, i)) for i, f in enumerate(found)]
        return found

    @functools.cached_property
    def coefficients(self) -> list[Any]:
        """`c_i = ∂J/∂log π_i`, penalties included."""
        h = self.h
        mu, factors = self.mu(h.objective), self.factors(h.objective)
        found = [self.by.number(0)] * self.n
        for i in range(self.n):
            size = mu[i] * factors[i]
            if not size:
                continue
            size *= self.advantage(i)
            if h.objective.estimator == "score":
                found[i] += size * value_of(self.ratios[i])
            else:
                for k, s in slopes_of(self.ratios[i]).items():
                    found[k] += size * s
        for k, s in slopes_of(self.penalised).items():
            found[k] -= s
        return found

    @functools.cached_property
    def objective(self) -> Any:
        """`J`: the weighed sum of gated ratios, less penalties."""
        h = self.h
        mu, factors = self.mu(h.objective), self.factors(h.objective)
        found: Any = -value_of(self.penalised)
        for i in range(self.n):
            if size := mu[i] * factors[i]:
                score = value_of(self.at_token(LogProb(Policy(CURRENT)), i)) if h.objective.estimator == "score" else 1
                found += size * self.advantage(i) * value_of(self.ratios[i]) * score
        return found

    @functools.cached_property
    def penalised(self) -> Any:
        """What penalties take off the objective, with its slopes."""
        found: Any = 0
        for p in self.h.penalties.values():
            if p.over is not None:
                elements = self.elements(p.over.name)
                each = [self.value(p.formula, p.over.name, e, flows="sums") for e in elements]
                found = add(found, divided(total_of(each), self.by.number(len(each))))
                continue
            own = p.objective or h_of_penalties(self.h)
            for i, (m, f) in enumerate(zip(self.mu(own), self.factors(own), strict=True)):
                if m * f:
                    found = add(found, times(m * f, self.at_token(p.formula, i, flows="sums")))
        return found


def h_of_penalties(h: Hierarchy) -> Objective:
    """What weighs penalties without an objective: `μ`, of the tokens that it counts."""
    kept = tuple(k for k in h.objective.kept if k.normaliser == "kept")
    return h.objective.model_copy(update={"weighed": (), "kept": kept, "estimator": "ratio"})
