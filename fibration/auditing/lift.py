"""A function as a declaration for batches of all sizes.

A coefficient is one formula per token on two batches of other sizes. Sums over the tokens of a row, a group or the
batch become statistics, cases become `where`, and numbers that differ between the batches become counts. The
declaration is kept if its coefficients are proved equal to the function's on the audit's own structures, which are of
further sizes.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np

from fibration.auditing.batch import Batch, drawn
from fibration.auditing.formula import (
    BUILT,
    Atom,
    Formula,
    Untraced,
    add,
    apply,
    atom,
    both,
    choose,
    div,
    either,
    exp,
    first_term,
    free,
    from_terms,
    is_number,
    less,
    log,
    mul,
    neg,
    negate,
    number,
    power,
    single,
    sub,
    substituted,
    terms_of,
)
from fibration.auditing.function import Function, name_of
from fibration.auditing.prove import Case, decided, equal, same
from fibration.auditing.record import Traced
from fibration.auditing.reference import ARGUMENT_OF, Reference
from fibration.errors import AuditError, FibrationError
from fibration.language import operators
from fibration.language.atoms import BATCH, Stratum, advantage, count, residual, token_log_ratio
from fibration.language.decompositions import log_ratio, ratio_deviation
from fibration.language.expressions import Expression, as_expression
from fibration.language.gates import Gate, zero_gate
from fibration.language.hierarchy import Hierarchy
from fibration.language.kernels import Fibration, uniform
from fibration.language.objectives import Objective
from fibration.language.policies import log_prob, policies
from fibration.language.statistics import Aggregate, total

STRUCTURES = (
    (((3, 1, 2, 4, 1, 2), (0, 0, 0, 0, 1, 1)), ((0, 0), (3, 1))),
    (((4, 1, 3, 2, 2, 1, 1), (0, 0, 0, 1, 1, 2, 2)), ((0, 1), (2, 0))),
)  # rows, their groups, and the tokens whose formulas are read
LARGE = tuple(1 + k * k % 61 for k in range(1, 41))  # on which numbers are compared
EXACT = 1e-12  # by which numbers of one meaning may differ, relative
SHORT = 1e-14  # by which a number may differ from the one that is written
EPSILONS = (1e-8, 1e-6, 1e-5, 1e-7, 1e-9, 1e-4)  # that functions add to a divisor
FORMS = ("tokens", "rows", "gradients")  # a value that is a sum over tokens, or over rows of a mean log ratio; no value
OF_ROWS = "one ratio per row: what single tokens do beyond their mean is dropped"
GIVEN_UP = "lifted from a function: it has the function's gradient, and no value"
Place = tuple[int, ...]
token, row, group, batch = (Stratum(name) for name in ("token", "trajectory", "prompt_group", BATCH))


class _Lack(Exception):
    """What a formula holds that has no words in the language."""


@dataclass(frozen=True)
class _Tree:
    """A formula without its numbers, which are leaves of `number`, and its parts in an order that no name decides."""

    op: str
    args: tuple[Any, ...] = ()

    @property
    def shape(self) -> Any:
        return "#" if self.op == "number" else (self.op, *(a.shape if isinstance(a, _Tree) else a for a in self.args))

    @property
    def numbers(self) -> list[Any]:
        return (
            [*self.args] if self.op == "number" else [n for a in self.args if isinstance(a, _Tree) for n in a.numbers]
        )

    @property
    def negative(self) -> _Tree:
        """A product, with the other sign."""
        (number_, *factors) = self.args
        return _Tree(self.op, (_Tree("number", (neg(*number_.args),)), *factors))

    def divided(self, n: int) -> _Tree:
        """A comparison of a product with a number, both divided."""
        (number_, *factors), right = self.args[0].args, self.args[1]
        each = (
            _Tree("product", (_Tree("number", (div(*number_.args, n),)), *factors)),
            _Tree("number", (div(*right.args, n),)),
        )
        return _Tree(self.op, each)

    @property
    def order(self) -> Any:
        return repr(self.shape), [float(n) for n in self.numbers]


@dataclass
class _Seen:
    """Formulas as a token sees them: `mine`, its row and place."""

    batch: Batch
    mine: Place
    sums: dict[Any, tuple[str, int, Any]] = field(default_factory=dict)  # by variable: over what, of which formula

    @property
    def counts(self) -> dict[str, int]:
        """Of tokens and rows: how many lie over the row, the group and the batch."""
        groups, lengths = [r.group for r in self.batch.rows], self.batch.lengths
        here = [n for n, g in zip(lengths, groups, strict=True) if g == groups[self.mine[0]]]
        tokens = {"row": lengths[self.mine[0]], "batch": sum(lengths), "group": sum(here)}
        return tokens | {"rows": len(lengths), "rows of the group": len(here), "groups": len(set(groups))}

    def others(self, x: Any) -> set[Place]:
        """The other tokens and rows that a formula reads."""
        return {v.args[1:] for v in free(x) if v not in self.sums} - {self.mine, self.mine[:1]}

    def other(self, x: Any) -> Place | None:
        """The one other token, or other row, that a formula reads; None for other formulas."""
        places = {v.args[1:] for v in free(x) if v not in self.sums}
        place = max(places, key=len)
        return place if place not in (self.mine, self.mine[:1]) and places <= {place, place[:1]} else None

    def gathered(self, x: Any) -> Any:
        """The formula with variables in the place of sums over tokens."""
        if is_number(x):
            return x
        if isinstance(x, Atom):
            args = [self.gathered(a) for a in x.args] if x.op != "var" else []
            if x.op in ("lt", "le", "eq"):
                return less(args[0], 0, x.op)
            if x.op == "var" and self.others(x):
                raise _Lack("another token's number")
            return single(x) if x.op == "var" else BUILT[x.op](*args) if x.op in BUILT else apply(x.op, *args)
        found: Any = 0
        sums: dict[Any, tuple[Any, dict[Place, Any]]] = {}
        for (m, e), c in x.terms.items():
            mine, theirs, of = c, 1, set[Place | None]()
            for part, inner, p in self._factors(m, e):
                if not self.others(part):
                    mine = mul(mine, part)
                elif (place := self.other(part)) is not None:
                    theirs, of = mul(theirs, part), of | {place}
                else:
                    made = exp(self.gathered(inner)) if isinstance(inner, Formula) else power(self.gathered(inner), p)
                    mine, of = mul(mine, made), of | {None}
            if len(of) > 1:
                raise _Lack("a product of sums")
            if not of - {None}:
                found = add(found, mine)
                continue
            factor = 1 if is_number(mine) else from_terms({next(iter(mine.terms)): 1})
            by = sums.setdefault(factor if is_number(factor) else factor.id, (factor, {}))[1]
            (place,) = of
            of_row = [(*place, t) for t in range(self.batch.lengths[place[0]])] if len(place) == 1 else [place]
            for p in of_row:  # what is a row's own counts as a sum over its tokens
                by[p] = add(by.get(p, 0), div(mul(div(mine, factor), theirs), len(of_row)))
        for factor, by in sums.values():
            for rest in self._sums(by):
                found = add(found, mul(factor, rest))
        return found

    def _factors(self, m: Any, e: Any) -> Iterator[tuple[Any, Any, int]]:
        """The factors of a term, what each is made of, and its power. An exponential of two tokens is two factors."""
        if e is not None:
            rest = from_terms({k: v for k, v in e.terms.items() if self.others(from_terms({k: 1}))})
            each = [sub(e, rest), rest] if not is_number(rest) and self.other(rest) else [e]
            yield from ((exp(x), x, 1) for x in each if not is_number(x))
        yield from ((single(a, p), a, p) for a, p in m)

    def _sums(self, by: dict[Place, Any]) -> Iterator[Any]:
        """What the parts of other tokens are: sums, each without the own token's part."""
        lengths, groups = self.batch.lengths, [r.group for r in self.batch.rows]
        tokens = [(r, t) for r, n in enumerate(lengths) for t in range(n)]
        row, group = self.mine[0], groups[self.mine[0]]
        for over, inside, outside in (
            ("batch", lambda p: True, lambda p: groups[p[0]] != group),
            ("group", lambda p: groups[p[0]] == group, lambda p: p[0] != row),
            ("row", lambda p: p[0] == row, lambda p: p != self.mine),
        ):
            places = [p for p in tokens if inside(p) and outside(p)]
            have = {p: x for p in places if not same(x := by.get(p, 0), 0)}
            if not have:
                continue
            if len(have) < len(places):
                raise _Lack("a sum over some of the tokens")
            each = {p: self._as(x, p, self.mine) for p, x in have.items()}
            first = places[0]
            ratios = {p: _ratio(x, each[first]) for p, x in each.items()}
            weight = next(
                (k for k in (0, -1, 1)
                 if all(_close(r, Fraction(lengths[p[0]], lengths[first[0]]) ** k) for p, r in ratios.items())), None
            )  # fmt: skip
            if weight is None:
                raise _Lack("a sum in which rows count by more than their lengths")
            unit, by_one = each[first], Fraction(lengths[first[0]]) ** weight
            lead = 1 if is_number(unit) else unit.terms[first_term(unit)]
            unit, scale = div(unit, lead), div(lead, by_one)
            variable = atom("var", "sum", over, weight, unit if is_number(unit) else unit.id)
            self.sums[variable] = over, weight, unit
            for p in tokens:
                if inside(p) and p != self.mine:
                    added = mul(self._as(unit, self.mine, p), scale * Fraction(lengths[p[0]]) ** weight)
                    by[p] = sub(by.get(p, 0), added)
            yield mul(scale, sub(single(variable), mul(unit, Fraction(lengths[row]) ** weight)))
        if any(self.others(x) for x in by.values()):
            raise _Lack("a sum that is of no row, group or batch")
        yield add(*by.values())  # what the row gives each of its tokens

    def _as(self, x: Any, place: Place, other: Place) -> Any:
        """A token's formula as another's."""
        if is_number(x):
            return x
        to = {place: other, place[:1]: other[:1]}
        table = {v: single(atom("var", v.args[0], *to[v.args[1:]])) for v in free(x) if v.args[1:] in to}
        return substituted([x], table)[0]

    def own_terms(self, x: Any, form: str) -> Any:
        """The part of a sum over tokens, or over rows, that is the own one's. Raises _Lack if it reads others too."""
        places = {k: {v.args[1:] for v in free(from_terms({k: 1}))} for k in x.terms}
        of_row = {k: c for k, c in x.terms.items() if any(p[:1] == self.mine[:1] for p in places[k])}
        if form == "tokens":  # a token has its part of what the row alone decides
            rows = from_terms({k: c for k, c in of_row.items() if places[k] == {self.mine[:1]}})
            own = from_terms({k: c for k, c in of_row.items() if self.mine in places[k]})
            if not any(len(p) > 1 for p in self.others(own)):
                return add(own, div(rows, self.counts["row"]))
        elif all(p[:1] == self.mine[:1] for k in of_row for p in places[k]):
            mean_ = mul(self.counts["row"], single(atom("var", "mean", *self.mine)))
            found = self.gathered(from_terms(of_row))
            unit = single(atom("var", "x", *self.mine))
            sums = [v for v in self.sums if v in free(found)]
            if [self.sums[v] for v in sums] == [("row", 0, unit)] and not any(
                len(v.args) > 2 for v in free(found) if v not in sums
            ):
                return substituted([found], {sums[0]: mean_})[0]
        raise _Lack(f"a loss that is no sum over {form}")

    def tree(self, x: Any, inside: bool = False) -> _Tree:
        """A formula of own numbers and sums. `inside` a sum, where no residual is read."""
        if is_number(x):
            return _Tree("number", (x,))
        if isinstance(x, Formula):
            x_key = ((atom("var", "x", *self.mine), 1),), None
            ratio = exp(from_terms({x_key: 1}))
            parts, constant = [], x.terms.get(((), None), 0)
            for (m, e), c in x.terms.items():
                if not m and e is None:
                    continue
                if not inside and not m and from_terms({(m, e): 1}) is ratio:
                    constant += c
                    parts.append(_Tree("product", (_Tree("number", (c,)), _Tree("residual"))))
                    continue
                factors = [_Tree("power", (self.tree(a, inside), p)) if p != 1 else self.tree(a, inside) for a, p in m]
                if e is not None:
                    k = 0 if inside else e.terms.get(x_key, 0)
                    if isinstance(k, int) and k:
                        factors.append(_Tree("power", (_Tree("ratio"), k)) if k != 1 else _Tree("ratio"))
                        e = sub(e, from_terms({x_key: k}))
                    if e != 0:
                        factors.append(_Tree("exp", (self.tree(e, inside),)))
                parts.append(_Tree("product", (_Tree("number", (c,)), *sorted(factors, key=lambda t: t.order))))
            parts += [_Tree("number", (constant,))] if constant else []
            return parts[0] if len(parts) == 1 else _Tree("sum", tuple(sorted(parts, key=lambda t: t.order)))
        if x.op == "var":
            if x not in self.sums:
                return _Tree("log ratio") if x.args[0] == "x" and not inside else _Tree("own", x.args[:1])
            over, weight, unit = self.sums[x]
            return _Tree("total", (over, weight, self.tree(unit, True)))
        if x.op in ("lt", "le", "eq"):
            constant = x.args[0].terms.get(((), None), 0)
            left = self.tree(sub(x.args[0], constant), inside)
            if left == _Tree("product", (_Tree("number", (1,)), _Tree("log ratio"))):
                return _Tree(x.op, (_Tree("residual"), _Tree("number", (math.expm1(-constant),))))
            return _Tree(x.op, (left, _Tree("number", (-constant,))))
        if x.op == "of":
            return self.tree(x.args[0], inside)
        if x.op not in (*WORDS, "choose", "and", "not"):
            raise _Lack(f"the function {x.op}")
        parts = [self.tree(a, inside) for a in x.args]
        return _Tree(x.op, tuple(sorted(parts, key=lambda t: t.order) if x.op == "and" else parts))


WORDS = {name: getattr(operators, name) for name in ("log", "sqrt", "tanh", "atan")}


def _ratio(x: Any, y: Any) -> Any:
    """By what number one formula is another. Raises _Lack if there is none."""
    if not is_number(x) and not is_number(y) and x.terms.keys() == y.terms.keys():
        k = Fraction(x.terms[first_term(y)]) / Fraction(y.terms[first_term(y)])
        if all(_close(v, k * y.terms[t]) for t, v in x.terms.items()):
            return k
    raise _Lack("a sum of unequal parts")


def _close(x: Any, y: Any, by: float = EXACT) -> bool:
    return bool(abs(x - y) <= by * abs(y))


# ------------------------------------------------------------ numbers that are counts

COUNTS: dict[str, Expression] = {
    "row": count(token, over=row), "batch": count(token, over=batch), "rows": count(row, over=batch),
    "rows of the group": count(row, over=group), "group": count(token, over=group), "groups": count(group, over=batch),
}  # fmt: skip
# what most losses divide by, the most usual first; then further products of few counts
USUAL = ({"batch": -1}, {"row": -1, "rows": -1}, {"rows": -1}, {}, {"row": -1}, {"group": -1, "groups": -1})
FURTHER = [
    {n: p for n, p in zip(COUNTS, powers, strict=True) if p}
    for powers in itertools.product((0, -1, 1), repeat=len(COUNTS)) if 0 < sum(map(abs, powers)) <= 2
]  # fmt: skip
ROOTS = [{"row": Fraction(k, 2)} for k in (1, -1)]
Powers = dict[str, Any]
Weight = tuple[Powers, str, float]  # powers of counts, and what is added to one of them


def _value(weight: Weight, counts: dict[str, int]) -> float:
    powers, name, epsilon = weight
    return math.prod((counts[n] + (epsilon if n == name else 0)) ** float(p) for n, p in powers.items())


def _weights(each: Sequence[Powers]) -> Iterator[Weight]:
    """Products of counts; then those that divide by a count and a small number."""
    yield from ((powers, "", 0.0) for powers in each)
    yield from ((powers, n, e) for e in EPSILONS for powers in each for n, p in powers.items() if p < 0)


def _solved(values: Sequence[Any], counts: Sequence[dict[str, int]]) -> tuple[Any, Weight]:
    """A number of each token as a number times counts."""
    for weight in _weights(({}, *USUAL, *FURTHER, *ROOTS)):
        each = [float(v) / _value(weight, c) for v, c in zip(values, counts, strict=True)]
        if max(each) - min(each) <= EXACT * max(map(abs, each)):
            return _short(each[0]), weight
    raise _Lack("a number that is no product of counts")


def _times(k: Any, weight: Weight, factors: Sequence[Expression] = ()) -> Expression:
    """A number times counts and factors. The logarithm of a ratio of few digits is written as such."""
    ratio = _short(math.expm1(k)) if abs(k) < 10 and len(repr(k)) > 12 else k
    if len(repr(ratio)) <= 8 < len(repr(k)):
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


def _short(x: float) -> Any:
    """A number in as few digits as tell it from others."""
    return next((v for d in range(1, 17) if _close(v := float(f"{x:.{d}g}"), x, SHORT)), x) if x else 0


def _expression(trees: Sequence[_Tree], counts: Sequence[dict[str, int]]) -> Expression:
    """Trees of one shape as an expression of the language."""
    first = trees[0]
    if any(t.shape != first.shape for t in trees):
        raise _Lack("another formula on batches of other sizes")

    def of(k: int) -> Expression:
        return _expression([t.args[k] for t in trees], counts)

    if first.op == "number":
        return _times(*_solved([t.args[0] for t in trees], counts))
    if first.op in READ:
        return READ[first.op]
    if first.op == "own":
        return OWN[first.args[0]]
    if first.op == "total":
        over, weight, _ = first.args
        each = of(2)
        each = each * COUNTS["row"] if weight > 0 else each / COUNTS["row"] if weight else each
        return total(each, over=PLACES[over])
    if first.op == "power":
        k = first.args[1]
        return of(0) ** k if k > 0 else 1 / of(0) if k == -1 else (1 / of(0)) ** -k
    if first.op == "product":
        k, (powers, *added) = _solved([t.args[0].args[0] for t in trees], counts)
        factors = [of(i) for i in range(1, len(first.args))]
        for i, factor in enumerate(factors):
            over = first.args[i + 1].args[0] if isinstance(factor, Aggregate) else ""
            if powers.get(over) == -1 and over != added[0]:
                factors[i] = replace(factor, kind="mean")
                powers = {n: p for n, p in powers.items() if n != over}
        return _times(k, (powers, *added), factors)
    if first.op in ("lt", "le") and first.args[0].op == "product":  # sums beside counts: means beside numbers
        _, (powers, *_) = _solved([t.args[1].args[0] for t in trees], counts)
        if over := next((a.args[0] for a in first.args[0].args if a.op == "total" and powers == {a.args[0]: 1}), ""):
            trees = [t.divided(c[over]) for t, c in zip(trees, counts, strict=True)]
    if first.op == "sum":
        falls = [t.op == "product" and t.numbers[0] < 0 for t in first.args]
        first_, *order = sorted(range(len(falls)), key=falls.__getitem__)
        found = of(first_)
        for k in order:
            each = [t.args[k].negative for t in trees] if falls[k] else [t.args[k] for t in trees]
            found = found - _expression(each, counts) if falls[k] else found + _expression(each, counts)
        return found
    parts = [of(k) for k in range(len(first.args))]
    return OPERATIONS[first.op](*parts) if first.op in OPERATIONS else WORDS[first.op](*parts)


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


# ------------------------------------------------------------ the declaration


def lift(function: Callable[..., Any], name: str = "") -> Hierarchy:
    """A loss function as a declaration with the function's gradient, for batches of all sizes.

    - `function`: as in `audit`; it takes advantages. It is called, and its program recorded.
    - `name`: of the hierarchy. Default: the function's.

    The declaration has the function's gradient, and its value if that is a sum over tokens, or over rows of a mean log
    ratio. Otherwise it is a score estimator, `J = Σ μ·stop(𝒢)·A·log π`. Parameters are numbers.

    Its coefficients are proved equal to the function's on three small batches, of sizes that it was not read from, for
    all log-probs and advantages that meet no bound exactly; and compared on rows of up to 60 tokens.

    Raises AuditError for a function that has no declaration here, in the words of what it does.
    """
    name = name or name_of(function)
    subject = Function(function, name)
    try:
        return _declared(subject, name)
    except (_Lack, Untraced, FibrationError) as error:
        raise AuditError(
            f"'{name}' has no declaration for all sizes",
            required="a gradient of each token's own numbers, and of sums over its row, group or batch",
            found=str(error).partition("\n")[0],
            remedy="fibration audit says what it is on small batches",
        ) from error


def _declared(subject: Function, name: str) -> Hierarchy:
    """The declaration with the function's value, if that is a sum over tokens, or else with its gradient alone."""
    if subject.moves != "log_probs" or not subject.reads_advantages:
        raise _Lack("no advantages among the arguments")
    lack: Exception = _Lack("")
    for form in FORMS:
        try:
            seen = [s for structure in STRUCTURES for s in _seen(subject, *structure, form)]
            weighed = ((w, _with_weight(name, seen, w, form)) for w in _weights(USUAL))
            made: list[Hierarchy] = []
            for weight, h in weighed:  # small numbers in divisors where nothing else is found
                if weight[1] and made:
                    break
                made += [] if h is None else [h]
            if not made:
                raise _Lack("a number that is no product of counts")
            h = min(made, key=lambda h: repr(h).count("count("))
            _check(subject, h)
            return h
        except (_Lack, Untraced, FibrationError) as error:
            lack = error
    raise lack


def _seen(subject: Function, shape: Any, places: Sequence[Place], form: str) -> Iterator[tuple[_Seen, Any, Any]]:
    """What tokens see of a batch, their advantages, and their parts of the loss where these are above and below 0."""
    lengths, groups = shape
    made = drawn(3, lengths, 0.3, groups=groups)
    tokens = [(r, t) for r, n in enumerate(lengths) for t in range(n)]
    program = subject.traced(made)
    found = subject.of_tokens(program, made) if form == "gradients" else [neg(program.loss)]
    if "old_log_probs" in subject.roles:  # π = r·π_old
        of = {p: [single(atom("var", role, *p)) for role in ("x", "old_log_probs")] for p in tokens}
        found = substituted(found, {atom("var", "log_probs", *p): add(*each) for p, each in of.items()})
    for mine in places:
        seen = _Seen(made, mine)
        own = single(atom("var", "advantages", *(mine if subject.per_token else mine[:1])))
        if form == "gradients":
            each = seen.gathered(found[tokens.index(mine)])
        else:
            each = seen.own_terms(*found, form) if form == "rows" else seen.gathered(seen.own_terms(*found, form))
        ends = {1: (0.0, math.inf), -1: (-math.inf, 0.0)}
        order = lambda key, seen=seen: seen.tree(key).order  # noqa: E731
        yield seen, own, {sign: decided(each, Case({own: end}), order) for sign, end in ends.items()}


def _with_weight(name: str, seen: Sequence[Any], weight: Weight, form: str) -> Hierarchy | None:
    """The declaration with a weight of tokens; None if it is none with that."""
    counts = [s.counts for s, *_ in seen]

    def of_signs(change: Callable[[_Seen, Any, Any], Any], inside: bool) -> tuple[Expression, Expression]:
        each = ([s.tree(change(s, cases[sign], own), inside) for s, own, cases in seen] for sign in (1, -1))
        above, below = (_expression(trees, counts) for trees in each)
        return above, below

    def gate(s: _Seen, x: Any, own: Any) -> Any:
        by = mul(own, number(_value(weight, s.counts)))

        def leaf(y: Any) -> Any:
            rest = _without(y, own)
            if form != "rows":
                return sub(_rounded(div(sub(y, rest), by)), 1)
            if rest != 0:
                raise _Lack("a row's value without an advantage")
            return log(div(y, mul(by, s.counts["row"])))

        found = _of_leaves(x, leaf)
        moving = single(atom("var", "mean" if form == "rows" else "x", *s.mine))
        if form != "gradients" and not same(_without(found, moving), 0):
            raise _Lack("a value that is not that of the policy's objective at ratio 1")
        return found

    def rest(s: _Seen, x: Any, own: Any) -> Any:
        return _of_leaves(x, lambda y: div(neg(_without(y, own)), number(_value(weight, s.counts))))

    try:
        gates = of_signs(lambda *x: _kept(gate(*x))[0], False)
        penalty = _one(*of_signs(rest, True))
        kept = of_signs(lambda *x: _kept(gate(*x))[1], True)
    except _Lack:
        return None
    objective = Objective(_times(1, weight))
    objective = objective.score() if form == "gradients" else objective
    if str(kept[0]) != "1" or str(kept[1]) != "1":
        objective = objective.keep(_both_signs(*kept))
    gate_ = Gate(_one(*gates))
    if form == "rows":
        return Hierarchy(
            name=name,
            fibrations=[Fibration(token, row, kernel=uniform())],
            gates={row: gate_, token: zero_gate()},
            decomposition=log_ratio(scale=1 / COUNTS["row"]),
            objective=objective,
            gives_up={"first_order": OF_ROWS},
        )
    formula = operators.stop(penalty) * log_prob(current) if form == "gradients" else penalty
    return Hierarchy(
        name=name,
        gates={token: gate_},
        decomposition=ratio_deviation(),
        objective=objective,
        penalties={} if str(penalty) == "0" else {"rest": formula},
        gives_up={"first_order": GIVEN_UP} if form == "gradients" else {},
    )


def _one(above: Expression, below: Expression) -> Expression:
    """What holds where the advantage is above 0, and below."""
    return above if str(above) == str(below) else operators.where(advantage >= 0, above, below)


def _kept(x: Any) -> tuple[Any, Any]:
    """A gate without the cases in which the gated ratio is 0, and the condition of the others."""
    if (cases := _cases(x)) is None:
        return (0, False) if same(x, -1) else (x, True)
    condition, one, two = cases
    (a, of_a), (b, of_b) = _kept(one), _kept(two)
    made = b if of_a is False else a if of_b is False else choose(condition, a, b)
    return made, of_a if of_a is of_b else either(both(condition, of_a), both(negate(condition), of_b))


def _both_signs(above: Expression, below: Expression) -> Expression:
    """A condition where the advantage is above 0, and one below; 1 for one that always holds."""
    if str(above) == str(below):
        return above
    if str(below) == "1":
        return (advantage < 0) | above
    return (advantage >= 0) | below if str(above) == "1" else (advantage >= 0) & above | (advantage < 0) & below


def _rounded(x: Any) -> Any:
    """A formula with factors in few digits, as if no float had been divided by another."""
    return from_terms({k: number(_short(float(c))) for k, c in terms_of(x).items()})


def _without(x: Any, own: Any) -> Any:
    (advantage,) = free(own)
    return x if is_number(x) else substituted([x], {advantage: 0})[0]


def _cases(x: Any) -> Any:
    """The condition of a choice and its two values; None of any other formula."""
    if isinstance(x, Formula) and len(x.terms) == 1:
        (((m, e), c),) = x.terms.items()
        if e is None and c == 1 and [(a.op, p) for a, p in m] == [("choose", 1)]:
            return m[0][0].args
    return None


def _of_leaves(x: Any, change: Callable[[Any], Any]) -> Any:
    """The cases of a formula, each changed."""
    if (cases := _cases(x)) is None:
        return change(x)
    condition, one, two = cases
    return choose(condition, _of_leaves(one, change), _of_leaves(two, change))


def _check(subject: Function, h: Hierarchy) -> None:
    """Raises _Lack unless the declaration is proved to have the function's coefficients, and has them on large rows."""
    reference = Reference.of(h, subject)
    large = drawn(5, LARGE, 0.5, 0.1)
    found = reference.evaluate(large)
    mine = subject.evaluate(large).coefficients
    if found is None or not np.allclose(found.coefficients, mine, rtol=1e-6, atol=1e-9 * np.abs(mine).max()):
        raise _Lack(f"something else on {len(LARGE)} rows of up to {max(LARGE)} tokens")
    for structure, made in subject.programs.items():
        if not isinstance(made, Traced):
            raise made
        pairs = zip(subject.of_tokens(made, structure), reference.with_numbers(structure, {}), strict=True)
        if not all(equal(one, two) for one, two in pairs):
            raise _Lack(f"something else on {structure}")
