"""Trees of several tokens as one expression of the language: numbers that differ between them are counts."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

from fibration.auditing.formula import SIMPLE, number, short
from fibration.auditing.reference import ARGUMENT_OF
from fibration.auditing.seen import EXACT, WIDE, Lack, Tree
from fibration.language import operators
from fibration.language.atoms import BATCH, Stratum, advantage, count, residual, token_log_ratio
from fibration.language.expressions import Expression, as_expression
from fibration.language.policies import log_prob, policies
from fibration.language.statistics import Aggregate, total

DIGITS = 12  # characters of a number that may be simpler in other words
EPSILONS = (1e-8, 1e-6, 1e-5, 1e-7, 1e-9, 1e-4)  # that functions add to a divisor
token, row, group, batch = (Stratum(name) for name in ("token", "trajectory", "prompt_group", BATCH))
Powers = dict[str, Any]
Weight = tuple[Powers, str, float]  # powers of counts, and what is added to one of them
COUNTS: dict[str, Expression] = {
    "row": count(token, over=row), "batch": count(token, over=batch), "rows": count(row, over=batch),
    "rows of the group": count(row, over=group), "group": count(token, over=group), "groups": count(group, over=batch),
}  # fmt: skip
# what most losses divide by, the most usual first; then further products of few counts
USUAL: tuple[Powers, ...] = (
    {"batch": -1}, {"row": -1, "rows": -1}, {"rows": -1}, {}, {"row": -1}, {"group": -1, "groups": -1},
)  # fmt: skip
FURTHER = [
    {n: p for n, p in zip(COUNTS, powers, strict=True) if p}
    for powers in itertools.product((0, -1, 1), repeat=len(COUNTS)) if 0 < sum(map(abs, powers)) <= 2
]  # fmt: skip
ROOTS = [{"row": Fraction(k, 2)} for k in (1, -1)]


def value_of(weight: Weight, counts: dict[str, int]) -> float:
    powers, name, epsilon = weight
    return math.prod((counts[n] + (epsilon if n == name else 0)) ** float(p) for n, p in powers.items())


def weights(each: Sequence[Powers]) -> Iterator[Weight]:
    """Products of counts; then those that divide by a count and a small number."""
    yield from ((powers, "", 0.0) for powers in each)
    yield from ((powers, n, e) for e in EPSILONS for powers in each for n, p in powers.items() if p < 0)


def _solved(values: Sequence[Any], counts: Sequence[dict[str, int]]) -> tuple[Any, Weight]:
    """A number of each token as a number times counts."""
    for weight in weights(({}, *USUAL, *FURTHER, *ROOTS)):
        each = [float(v) / value_of(weight, c) for v, c in zip(values, counts, strict=True)]
        if max(each) - min(each) <= EXACT * max(map(abs, each)):
            return _written(each[0]), weight
    raise Lack("a number that is no product of counts")


def _written(x: float) -> Any:
    """A number in few digits, or else as a quotient of small whole numbers, or else in all its digits."""
    found, simple = short(x), number(x)
    is_quotient = isinstance(simple, Fraction) and simple.denominator <= SIMPLE
    return simple if is_quotient and len(repr(found)) > DIGITS else found


def times(k: Any, weight: Weight, factors: Sequence[Expression] = ()) -> Expression:
    """A number times counts and factors. The logarithm of a ratio of few digits is written as such."""
    ratio = short(math.expm1(k)) if abs(k) < WIDE and len(repr(k)) > DIGITS else k
    if len(repr(ratio)) <= 8 < len(repr(k)) and not isinstance(k, Fraction):
        k, factors = 1, [operators.log1p(as_expression(ratio)), *factors]
    each = ([as_expression(abs(k))] if abs(k) != 1 else []) + [*factors]
    found = functools.reduce(operator.mul, each) if each else as_expression(1)
    found = -found if k < 0 else found
    powers, name, epsilon = weight
    for n, p in powers.items():
        by = COUNTS[n] + epsilon if n == name else COUNTS[n]
        by = by if abs(p) == 1 else operators.sqrt(by)
        found = found * by if p > 0 else found / by
    return found


def expression(trees: Sequence[Tree], counts: Sequence[dict[str, int]]) -> Expression:
    """Trees of one shape as an expression of the language."""
    first = trees[0]
    if any(t.shape != first.shape for t in trees):
        raise Lack("another formula on batches of other sizes")

    def of(k: int) -> Expression:
        return expression([t.args[k] for t in trees], counts)

    if first.op == "number":
        return times(*_solved([t.args[0] for t in trees], counts))
    if first.op in READ:
        return READ[first.op]
    if first.op == "own":
        return OWN[first.args[0]]
    if first.op == "total":
        over, weight, _ = first.args
        unit = of(2)
        return total(unit * COUNTS["row"] if weight > 0 else unit / COUNTS["row"] if weight else unit, PLACES[over])
    if first.op == "power":
        k = first.args[1]
        return of(0) ** k if k > 0 else 1 / of(0) if k == -1 else (1 / of(0)) ** -k
    if first.op == "product":
        k, (powers, name, epsilon) = _solved([t.number for t in trees], counts)
        factors = [of(i) for i in range(1, len(first.args))]
        for i, factor in enumerate(factors):
            over = first.args[i + 1].args[0] if first.args[i + 1].op == "total" else ""
            if powers.get(over) == -1 and over != name and isinstance(factor, Aggregate):
                factors[i] = replace(factor, kind="mean")
                powers = {n: p for n, p in powers.items() if n != over}
        return times(k, (powers, name, epsilon), factors)
    if first.op in ("lt", "le") and first.args[0].op == "product":  # sums beside counts: means beside numbers
        _, (powers, *_) = _solved([t.args[1].args[0] for t in trees], counts)
        if over := next((a.args[0] for a in first.args[0].args if a.op == "total" and powers == {a.args[0]: 1}), ""):
            trees = [t.scaled(Fraction(1, c[over])) for t, c in zip(trees, counts, strict=True)]
    if first.op == "sum":
        falls = [t.op == "product" and t.number < 0 for t in first.args]
        first_, *order = sorted(range(len(falls)), key=falls.__getitem__)
        found = of(first_)
        for k in order:
            each = expression([t.args[k].scaled(-1 if falls[k] else 1) for t in trees], counts)
            found = found - each if falls[k] else found + each
        return found
    parts = [of(k) for k in range(len(first.args))]
    by: Callable[..., Expression] = OPERATIONS.get(first.op) or getattr(operators, first.op)
    return by(*parts)


OPERATIONS: dict[str, Callable[..., Any]] = {
    "choose": operators.where, "exp": operators.exp, "lt": lambda a, b: a < b, "le": lambda a, b: a <= b,
    "eq": lambda a, b: (a <= b) & (a >= b), "not": lambda a: ~a, "and": lambda a, b: a & b,
}  # fmt: skip
READ = {"residual": residual, "ratio": 1 + residual, "log ratio": operators.log1p(residual)}
PLACES = {"row": row, "group": group, "batch": batch}
current, old = policies("current old")
OWN: dict[str, Expression] = {
    "x": token_log_ratio, "mean": residual, "advantages": advantage, "log_probs": log_prob(current),
    "old_log_probs": log_prob(old),
    **{role: log_prob(policies(name)[0]) for name, role in ARGUMENT_OF.items()},
}  # fmt: skip
