"""Coefficients of losses with penalties, rewards and order, by differences of `J` in rationals of fifty digits.

Gates pass everything, and tokens are of one kind: `J = Σ μ·w·A·r - Σ P`. Stopped values are read at the log-probs; all
others are read where one log-prob is moved. The module uses no code of the laws.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from fibration import Hierarchy, ratio_deviation
from fibration.language.atoms import Count, Parameter, Stratum, advantage, reward, token_log_ratio
from fibration.language.expressions import Apply, Expression, Number, apply, as_expression
from fibration.language.order import Ordered
from fibration.language.policies import LogProb
from fibration.language.statistics import Aggregate
from fibration.language.traversal import desugar, evaluate

F = Fraction
NONE = F(0)
STEP = F(1, 10**12)
CLOSE = F(1, 10**9)


@dataclass(frozen=True)
class Batch:
    """A row and a group for every token, log-probs of every policy, and advantages or rewards."""

    row: Sequence[int]
    group: Sequence[int]
    log_probs: dict[str, Sequence[F]]
    given: Sequence[F]
    parameters: dict[str, F]


class Loss:
    """`J` of one batch."""

    def __init__(self, h: Hierarchy, batch: Batch) -> None:
        self.h, self.b, self.n = h, batch, len(batch.row)
        self.moved, self.known = -1, dict[Any, Any]()
        self.advantages = list(batch.given)
        if h.advantages is not None:
            self.advantages = [self.at(h.advantages, k) for k in range(self.n)]

    def label(self, s: Any, k: int) -> Any:
        return {"token": k, "trajectory": self.b.row[k], "prompt_group": self.b.group[k], "batch": 0}[s.name]

    def elements(self, of: Any, over: Any, k: int) -> list[int]:
        """The first token of all that lies over what a token does."""
        beside = [t for t in range(self.n) if self.label(over, t) == self.label(over, k)]
        return beside if of is None else list({self.label(of, t): t for t in beside[::-1]}.values())[::-1]

    def at(self, e: Expression, k: int, place: Any = None, by: F = NONE) -> Any:
        """A formula at a token, or at its element of a place; `by` how far a log-prob is moved."""
        key = e, k, place, by and (by, self.moved)
        if key not in self.known:
            self.known[key] = self._at(desugar(e), k, place, by)
        return self.known[key]

    def _at(self, e: Expression, k: int, place: Any, by: F) -> Any:
        read = functools.partial(self.at, k=k, place=place, by=by)
        if isinstance(e, Number):
            return e.value
        if isinstance(e, Apply):
            op, a = e.operator, e.arguments
            if op == "stop":
                return self.at(a[0], k, place)
            if op == "where":
                return read(a[1] if read(a[0]) else a[2])
            if op in ("and", "or", "not"):
                truth = [read(c) for c in a]
                return not truth[0] if op == "not" else all(truth) if op == "and" else any(truth)
            return evaluate(apply(op, *(as_expression(read(c)) for c in a)), {})
        if e in (advantage, reward):
            return (self.advantages if e == advantage else self.b.given)[k]
        if e == token_log_ratio or isinstance(e, LogProb):
            name = "current" if e == token_log_ratio else e.policy.name  # type: ignore[attr-defined]
            own = self.b.log_probs[name][k] + (by if name == "current" and k == self.moved else 0)
            return own - self.b.log_probs["old"][k] if e == token_log_ratio else own
        if isinstance(e, Parameter):
            return self.b.parameters[e.name]
        if isinstance(e, Count):
            return F(len(self.elements(e.of, e.over or place or Stratum("token"), k)))
        return self.ordered(e, k, by) if isinstance(e, Ordered) else self.statistic(e, k, place, by)

    def statistic(self, a: Any, k: int, place: Any, by: F) -> F:
        assert isinstance(a, Aggregate)
        of = self.elements(a.of, a.over or place, k)
        if a.others:
            of = [t for t in of if self.label(a.of, t) != self.label(a.of, k)]
        flows = by if a.kind in ("total", "mean") else F(0)
        values = [self.at(a.formula, t, a.of, flows) for t in of]
        middle = sum(values, F(0)) / len(values)
        if a.kind == "deviation":
            square = sum(((v - middle) ** 2 for v in values), F(0)) / max(len(values) - 1, 1)
            return evaluate(apply("sqrt", as_expression(square)), {})  # type: ignore[no-any-return]
        return {"total": sum(values, F(0)), "mean": middle, "largest": max(values)}[a.kind]

    def ordered(self, o: Ordered, k: int, by: F) -> F:
        inside = self.elements(o.of, o.over, k)
        own = o.of or Stratum("token")
        here = next(i for i, t in enumerate(inside) if self.label(own, t) == self.label(own, k))
        chosen = range(here) if o.is_forward else range(here + 1, len(inside))
        share = self.at(o.discount, k)
        return sum((share ** abs(i - here) * self.at(o.formula, inside[i], o.of, by) for i in chosen), F(0))

    def weight(self, objective: Any, k: int) -> F:
        found = self.at(objective.spelled_out(self.h.leaves, self.h.rows), k)
        for w in objective.weighed:
            found *= self.at(w, k)
        return found * all(self.at(c.condition, k) for c in objective.kept)  # type: ignore[no-any-return]

    def value(self, by: F) -> F:
        """`J`, where the log-prob of one token is moved."""
        h, plain, found = self.h, self.h.decomposition == ratio_deviation(), F(0)
        log_r = token_log_ratio if plain else h.decomposition.densities[0][1]
        for k in range(self.n):
            ratio = evaluate(apply("exp", as_expression(self.at(log_r, k, None, by))), {})
            found += self.weight(h.objective, k) * self.advantages[k] * ratio
        for p in h.penalties.values():
            if p.over is not None:
                of = self.elements(p.over, Stratum("batch"), 0)
                found -= sum((self.at(p.formula, t, p.over, by) for t in of), F(0)) / len(of)
                continue
            mu = type(h.objective)(h.objective.weight) if p.objective is None else p.objective
            found -= sum((self.weight(mu, k) * self.at(p.formula, k, None, by) for k in range(self.n)), F(0))
        return found

    def coefficients(self) -> list[F]:
        found = []
        for k in range(self.n):
            self.moved = k
            found.append((self.value(STEP) - self.value(-STEP)) / (2 * STEP))
        return found


def differ(mine: Sequence[F], yours: Sequence[F]) -> bool:
    return any(abs(c - d) > CLOSE * max(1, abs(c), abs(d)) for c, d in zip(mine, yours, strict=True))


def drawn(pair: Any, seed: int) -> Batch:
    """Two groups of two rows; of one length where that is asked for."""
    rng = random.Random(seed)
    lengths = (2, 2, 2, 2) if pair.when else (1, 3, 2, 1)
    row = [i for i, n in enumerate(lengths) for _ in range(n)]
    log_probs = {p: [-F(rng.randint(1, 40), 16) for _ in row] for p in ("current", "old", "reference")}
    of_rows = [F(v, 2) for v in rng.sample(range(-5, 6), 4)]
    return Batch(row, [i // 2 for i in row], log_probs, [of_rows[i] for i in row], {"beta": F(1, 3), "gamma": F(2, 5)})


def of_witness(witness: Any) -> Batch:
    """The batch that a counterexample says."""
    c, values = witness.concrete, witness.values
    token, n = Stratum("token"), len(values["tokens"])
    log = lambda v: evaluate(apply("log", as_expression(v)), {})  # noqa: E731
    xs = [log(v) for v in values["ratios"]] if "ratios" in values else values["log_ratios"]
    said = {p: values.get(f"log_probs of {p}") for p in ("old", "reference")}
    for p in said:
        if f"probabilities of {p}" in values:
            said[p] = [log(v) for v in values[f"probabilities of {p}"]]
    frozen = {p: v or [F(-1)] * n for p, v in said.items()}
    frozen["current"] = [a + b for a, b in zip(frozen["old"], xs, strict=True)]
    row, group = ([c.below(token, i, Stratum(s)) for i in range(n)] for s in ("trajectory", "prompt_group"))
    given = values.get("rewards", values["advantages"])
    return Batch(row, group, frozen, given, {str(p): v for p, v in c.parameters.items()})
