"""Rewrites formulas. The result has the same value and slope as the first, and no value where the first has none."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from fibration import exp, log, log_prob, total, where
from fibration.language.atoms import Count, Stratum, token_log_ratio
from fibration.language.declared import LogProb
from fibration.language.expressions import Apply, Expression, as_expression
from fibration.language.operators import OPERATORS, Sugar
from fibration.language.statistics import Aggregate, Ordered
from fibration.language.traversal import atoms
from fuzz.generate import Formulas, batch, current, old, parts, replaced, trajectory

TURNED = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}
OPPOSITE = {"<": ">=", ">=": "<", "<=": ">", ">": "<="}


@dataclass
class Rewriting:
    """Rewrites formulas of a setting; `kinds` of strata are those of its tokens."""

    f: Formulas

    @property
    def rng(self) -> random.Random:
        return self.f.rng

    def __call__(self, e: Expression, times: int) -> Expression:
        for _ in range(times):
            path, part = self.rng.choice(list(parts(e)))
            options = list(self.options(part))
            if options:
                e = replaced(e, path, self.rng.choice(options)())
        return e

    def options(self, e: Expression) -> Iterator[Callable[[], Expression]]:
        """Other words for one part."""
        if isinstance(e, (Aggregate, Ordered)):
            yield from self.of_statistic(e)
            yield from self.of_statistic(e)
        if e.is_condition:
            yield from self.of_condition(e)
            return
        yield lambda: e * 2 / 2
        yield lambda: -(-e)
        yield lambda: e + 0
        yield lambda: (e + 3) - 3
        yield lambda: where(self.plain(), e, e)
        yield lambda: where(self.never(), self.other(), e)
        yield lambda: where(~self.never(), e, self.other())
        yield lambda: 2 * e - e
        if e == token_log_ratio:
            yield lambda: log_prob(current) - log_prob(old)
        if isinstance(e, LogProb) and not e.policy.is_frozen:
            yield lambda: token_log_ratio + log_prob(old)
        if isinstance(e, Apply):
            yield from self.of_operator(e)
            yield from self.of_operator(e)

    def of_operator(self, e: Apply) -> Iterator[Callable[[], Expression]]:
        row, a = OPERATORS[e.operator], e.arguments
        if isinstance(row, Sugar):
            yield lambda: row.expand(*a)
        match e.operator:
            case "+" | "*":
                yield lambda: Apply(e.operator, (a[1], a[0]))
            case "-":
                yield lambda: -a[1] + a[0]
            case "**":
                yield lambda: a[0] * a[0] ** (int(a[1].value) - 1) if a[1].value > 1 else e  # type: ignore[attr-defined]
            case "where":
                yield lambda: where(~a[0], a[2], a[1])
                yield lambda: where(a[0], a[1] + a[2], a[2] + a[2]) - a[2] if self.is_total(a[2]) else e
                yield lambda: where(a[0], a[1], where(a[0], self.other(), a[2]))
            case "exp":
                yield lambda: 1 / exp(-a[0])
                yield lambda: exp(a[0] / 2) ** 2
                yield lambda: exp(a[0] - 1) * exp(1)
            case "tanh":
                yield lambda: (exp(2 * a[0]) - 1) / (exp(2 * a[0]) + 1)
            case "sigmoid":
                yield lambda: 1 / (1 + exp(-a[0]))
                yield lambda: exp(a[0]) / (1 + exp(a[0]))
            case "softplus":
                yield lambda: log(1 + exp(a[0]))
            case "expm1":
                yield lambda: exp(a[0]) - 1
            case "log1p":
                yield lambda: log(1 + a[0])
        if e.operator == "*":
            for one, other in ((a[0], a[1]), (a[1], a[0])):
                if isinstance(other, Apply) and other.operator in ("+", "-"):
                    b = other.arguments
                    yield lambda one=one, op=other.operator, b=b: Apply(op, (one * b[0], one * b[1]))  # type: ignore[misc]

    def of_condition(self, e: Expression) -> Iterator[Callable[[], Expression]]:
        yield lambda: ~~e
        yield lambda: e | self.never()
        yield lambda: e & ~self.never()
        if isinstance(e, Apply):
            a = e.arguments
            if e.operator in TURNED:
                yield lambda: Apply(TURNED[e.operator], (a[1], a[0]))
                yield lambda: ~Apply(OPPOSITE[e.operator], a)
                yield lambda: Apply(e.operator, (2 * a[0], 2 * a[1]))
                yield lambda: Apply(e.operator, (a[0] - a[1], as_expression(0)))
            if e.operator in ("and", "or"):
                dual = "or" if e.operator == "and" else "and"
                yield lambda: ~Apply(dual, (~a[0], ~a[1]))

    def of_statistic(self, e: Aggregate | Ordered) -> Iterator[Callable[[], Expression]]:
        inside = self(e.formula, 1)
        yield lambda: replace(e, formula=inside)
        g = e.formula
        if isinstance(e, Ordered):
            yield lambda: replace(e, formula=2 * g) / 2
            if isinstance(g, Apply) and g.operator == "+":
                yield lambda: replace(e, formula=g.arguments[0]) + replace(e, formula=g.arguments[1])
            return
        if e.kind == "some":
            yield lambda: total(where(g, 1, 0), over=e.over, of=e.of) > 0
            return
        if e.kind == "mean" and not e.others:
            n = self.f.setting.tokens(e.over) if e.of is None else Count(e.of, e.over)  # type: ignore[arg-type]
            yield lambda: total(g, over=e.over, of=e.of) / n
        if e.kind == "mean" and e.others and e.of == trajectory and isinstance(e.over, Stratum):
            n = Count(e.of, e.over)
            yield lambda: (total(g, over=e.over, of=e.of) - g) / (n - 1) if self.reads_alike(g) else e
        if e.kind in ("mean", "total", "largest", "deviation"):
            yield lambda: replace(e, formula=2 * g) / 2
        if e.kind in ("mean", "total") and isinstance(g, Apply) and g.operator in ("+", "-"):
            a, b = (replace(e, formula=p) for p in g.arguments)
            yield lambda: Apply(g.operator, (a, b))
        if e.kind == "mean" or (e.kind == "largest"):
            yield lambda: replace(e, formula=g + 1) - 1
        if e.kind == "deviation":
            yield lambda: replace(e, formula=1 - g)

    # ------------------------------------------------------------ what changes nothing

    def reads_alike(self, e: Expression) -> bool:
        """Whether a formula of rows says the same at their tokens."""
        return all(getattr(a, "over", trajectory) is not None for a in atoms(e))

    def is_total(self, e: Expression) -> bool:
        """Whether a formula surely has a value everywhere."""
        if isinstance(e, Apply):
            return e.operator not in ("/", "log", "log1p", "sqrt") and all(map(self.is_total, e.arguments))
        return not isinstance(e, (Aggregate, Ordered))

    def plain(self) -> Expression:
        """A condition that has a truth wherever rows are."""
        n = self.f.setting.tokens(trajectory)
        return self.f.pick(n > 1, n > 7, n >= 30, Count(trajectory, batch) <= 2)  # type: ignore[no-any-return]

    def never(self) -> Expression:
        n = self.f.setting.tokens(trajectory)
        return self.f.pick(n < 1, n * n < n, n > Count(trajectory, batch) * self.f.setting.tokens(batch), n + 1 <= n)  # type: ignore[no-any-return]

    def other(self) -> Expression:
        return self.f.pick(as_expression(5), self.f.setting.tokens(trajectory), -self.f.setting.tokens(trajectory))  # type: ignore[no-any-return]
