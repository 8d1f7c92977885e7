"""Formulas as one token sees them: of its own numbers, and of sums over its row, its group and the batch."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple

from fibration.auditing import formula as f
from fibration.auditing.batch import Batch
from fibration.auditing.formula import Atom, Formula, atom, from_terms, is_number, single
from fibration.auditing.prove import same

EXACT = 1e-12  # by which numbers of one meaning may differ, relative
WIDE = 5  # log ratios beyond it keep their digits as such alone
WORDS = ("log", "sqrt", "tanh", "atan")  # functions that the language has by these names
SPREADS = ("deviation", "population")  # with n − 1, and with n
ORDER = ("before", "after")
Place = tuple[int, ...]  # a token's row and where it stands there; of a row the first alone


class Lack(Exception):
    """What a formula holds that has no words in the language."""


@dataclass(frozen=True)
class Tree:
    """A formula without its numbers, which are leaves of `number`, and its parts in an order that no name decides."""

    op: str
    args: tuple[Any, ...] = ()

    @property
    def shape(self) -> Any:
        return "#" if self.op == "number" else (self.op, *(a.shape if isinstance(a, Tree) else a for a in self.args))

    @property
    def numbers(self) -> list[Any]:
        return [*self.args] if self.op == "number" else [n for a in self.args if isinstance(a, Tree) for n in a.numbers]

    def scaled(self, by: Any) -> Tree:
        """A number times another; of a product its number, of a comparison both sides."""
        if self.op == "number":
            return leaf(f.mul(self.args[0], by))
        first = 2 if self.op in ("lt", "le") else 1
        return Tree(self.op, (*(a.scaled(by) for a in self.args[:first]), *self.args[first:]))

    @property
    def number(self) -> Any:
        """The number of a product."""
        return self.args[0].args[0]

    @property
    def order(self) -> Any:
        return repr(self.shape), [float(n) for n in self.numbers]


def leaf(number: Any) -> Tree:
    return Tree("number", (number,))


class Sum(NamedTuple):
    """A statistic: over what, by which power of their lengths rows count, and of which formula, of rows or tokens."""

    over: str
    weight: int
    unit: Any
    of_rows: bool


@dataclass
class Seen:
    """Formulas as a token sees them: `mine`, its row and place."""

    batch: Batch
    mine: Place
    without_own: bool = False  # sums over rows leave out the own one
    sums: dict[Any, Sum] = field(default_factory=dict)  # by variable

    @property
    def counts(self) -> dict[str, int]:
        return self.batch.counts(self.mine[0])

    def at_ratio_1(self, x: Any) -> Any:
        """The formula where the log ratios of the token, its row, its group and the batch are 0."""
        moving = {v for v in f.free(x) if v.args[0] in ("x", "mean")}
        moving |= {v for v in f.free(x) if v in self.sums and same(self.at_ratio_1(self.sums[v].unit), 0)}
        return f.substituted([x], dict.fromkeys(moving, 0))[0]

    def roles(self, x: Any) -> set[str]:
        """What the formula's numbers are: arguments of the function, and the log ratio `x`."""
        each = (self.roles(self.sums[v].unit) if v in self.sums else {v.args[0]} for v in f.free(x))
        return set().union(*each)

    def others(self, x: Any) -> set[Place]:
        """The other tokens and rows that a formula reads."""
        return {v.args[1:] for v in f.free(x) if v not in self.sums} - {self.mine, self.mine[:1]}

    def other(self, x: Any) -> Place | None:
        """The one other token, or other row, that a formula reads; None for other formulas."""
        places = {v.args[1:] for v in f.free(x) if v not in self.sums}
        place = max(places, key=len)
        return place if place not in (self.mine, self.mine[:1]) and places <= {place, place[:1]} else None

    def gathered(self, x: Any) -> Any:
        """The formula with variables in the place of sums over tokens."""
        if is_number(x):
            return x
        if isinstance(x, Atom):
            if x.op == "var" and self.others(x):
                raise Lack("another token's number, which is in no sum, mean, maximum or deviation")
            for sign in (1, -1) if x.op == "choose" else ():
                if (extreme := self._extreme(_leaves(single(x), sign), sign)) is not None:
                    return extreme
            if x.op == "and" and (extreme := self._extreme(_conjuncts(x), -1)) is not None:
                return f.less(Fraction(1, 2), extreme)
            if x.op == "sqrt" and (spread := self._spread(x.args[0])) and not spread[0]:
                return f.mul(f.power(spread[1], Fraction(1, 2)), spread[2])
            return single(x) if x.op == "var" else f.built(x.op, *map(self.gathered, x.args))
        if spread := self._spread(x):
            return f.add(spread[0], f.mul(spread[1], f.power(spread[2], 2)))
        found: Any = 0
        sums: dict[Any, tuple[Any, dict[Place, Any]]] = {}
        for (m, e), c in x.terms.items():
            mine, theirs, of = c, 1, set[Place]()
            for part, inner, p in self._factors(m, e):
                if not self.others(part):
                    mine = f.mul(mine, part)
                elif (place := self.other(part)) is not None:
                    theirs, of = f.mul(theirs, part), of | {place}
                else:
                    base = self.gathered(inner)
                    mine = f.mul(mine, f.exp(base) if isinstance(inner, Formula) else f.power(base, p))
            if not of:
                found = f.add(found, mine)
                continue
            if len(of) > 1 or len(f.terms_of(mine)) > 1:
                raise Lack("a product of sums, as a covariance has")
            factor = 1 if is_number(mine) else from_terms({next(iter(mine.terms)): 1})
            by = sums.setdefault(factor.id if isinstance(factor, Formula) else factor, (factor, {}))[1]
            (place,) = of
            tokens = [(*place, t) for t in range(self.batch.lengths[place[0]])] if len(place) == 1 else [place]
            for t in tokens:  # what is a row's own counts as a sum over its tokens
                by[t] = f.add(by.get(t, 0), f.div(f.mul(f.div(mine, factor), theirs), len(tokens)))
        for factor, by in sums.values():
            for rest in self._sums(by):
                found = f.add(found, f.mul(factor, rest))
        return found

    def _factors(self, m: Any, e: Any) -> Iterator[tuple[Any, Any, int]]:
        """The factors of a term, what each is made of, and its power. An exponential of two tokens is two factors."""
        if e is not None:
            rest = from_terms({k: v for k, v in e.terms.items() if self.others(from_terms({k: 1}))})
            each = [f.sub(e, rest), rest] if not is_number(rest) and self.other(rest) else [e]
            yield from ((f.exp(x), x, 1) for x in each if not is_number(x))
        yield from ((single(a, p), a, p) for a, p in m)

    def _sums(self, by: dict[Place, Any]) -> Iterator[Any]:
        """What the parts of other tokens are: sums, each without the own token's part."""
        lengths, groups = self.batch.lengths, [r.group for r in self.batch.rows]
        row, group = self.mine[0], groups[self.mine[0]]
        for over, inside, outside in (
            ("batch", lambda p: True, lambda p: groups[p[0]] != group),
            ("group", lambda p: groups[p[0]] == group, lambda p: p[0] != row),
            ("row", lambda p: p[0] == row, lambda p: p != self.mine),
            ("before", lambda p: p[0] == row and p[1] < self.mine[1], lambda p: True),
            ("after", lambda p: p[0] == row and p[1] > self.mine[1], lambda p: True),
        ):
            places = [p for p in self.batch.places if inside(p) and outside(p)]
            have = {p: x for p in places if not same(x := by.get(p, 0), 0)}
            if not have:
                continue
            each = {p: self._as(x, p, self.mine) for p, x in have.items()}
            first = next(iter(each))
            try:
                if len(have) < len(places):
                    raise Lack("a sum over some of the tokens, as a slice or a selection of them has")
                ratios = {p: _ratio(x, each[first]) for p, x in each.items()}
            except Lack:
                if over == "row":  # then one of those before the token, or after it
                    continue
                raise
            weight = next(
                (k for k in (0, -1, 1)
                 if all(close(r, Fraction(lengths[p[0]], lengths[first[0]]) ** k) for p, r in ratios.items())), None
            )  # fmt: skip
            if weight is None:
                raise Lack("a sum in which rows count by more than their lengths")
            unit, by_one = each[first], Fraction(lengths[first[0]]) ** weight
            lead = 1 if is_number(unit) else unit.terms[f.first_term(unit)]
            unit, scale = f.div(unit, lead), f.div(lead, by_one)
            of_rows = not is_number(unit) and all(len(v.args) == 2 for v in f.free(unit))
            is_own = (lambda p: p[0] == row) if of_rows else (lambda p: p == self.mine)
            without = self.without_own and of_rows and weight == -1
            kind = over if over in ORDER else "others" if without else "sum"
            variable = self._sum(kind, "row" if over in ORDER else over, weight, unit, of_rows)
            for p in self.batch.places:
                if inside(p) and not is_own(p):
                    added = f.mul(self._as(unit, self.mine, p), scale * Fraction(lengths[p[0]]) ** weight)
                    by[p] = f.sub(by.get(p, 0), added)
            own = 0 if without or over in ORDER else f.mul(unit, Fraction(lengths[row]) ** (weight + of_rows))
            yield f.mul(scale, f.sub(variable, own))
        if any(self.others(x) for x in by.values()):
            raise Lack("a sum that is of no row, group or batch")
        yield f.add(*by.values())  # what the row gives each of its tokens

    def _sum(self, kind: str, over: str, weight: int, unit: Any, of_rows: bool) -> Any:
        """The variable in the place of a statistic."""
        variable = atom("var", kind, over, weight, unit if is_number(unit) else unit.id, of_rows)
        self.sums[variable] = Sum(over, weight, unit, of_rows)
        return single(variable)

    def _extreme(self, leaves: Sequence[Any], sign: int) -> Any:
        """The largest (`sign` 1) or the smallest of formulas, one of each place of a row, a group or the batch.

        None for others.
        """
        groups, (row, *_) = [r.group for r in self.batch.rows], self.mine
        scopes: dict[str, Callable[[Place], bool]] = {
            "row": lambda p: p[0] == row, "group": lambda p: groups[p[0]] == groups[row], "batch": lambda p: True,
        }  # fmt: skip
        places = [_place(y) for y in leaves]
        of_rows = all(len(p) == 1 for p in places)
        mine = self.mine[: 1 if of_rows else 2]
        every = {p[: len(mine)] for p in self.batch.places}
        over = next((n for n, has in scopes.items() if sorted(filter(has, every)) == sorted(places)), "")
        unit = leaves[places.index(mine)] if over else 0
        if not over or not all(same(self._as(y, p, mine), unit) for y, p in zip(leaves, places, strict=True)):
            return None
        return f.mul(sign, self._sum("largest", over, -int(of_rows), f.mul(sign, unit), of_rows))

    def _spread(self, x: Any) -> tuple[Any, Any, Any] | None:
        """A number, a factor, and a standard deviation of rewards, whose square times the factor is the rest."""
        if not isinstance(x, Formula) or {v.args[0] for v in f.free(x)} != {"rewards"}:
            return None
        constant = x.terms.get(((), None), 0)
        for place, of_rows, unit, squares, n in _spreads(self.batch, self.mine[0]):
            try:
                k = _ratio(f.sub(x, constant), squares)
            except Lack:
                continue
            is_of_all = close(k * n, 1)
            variable = self._sum(SPREADS[is_of_all], place, -int(of_rows), self.gathered(unit), of_rows)
            return constant, 1 if is_of_all else k * (n - 1), variable
        return None

    def _as(self, x: Any, place: Place, other: Place) -> Any:
        """A token's formula as another's."""
        if is_number(x):
            return x
        to = {place: other, place[:1]: other[:1]}
        table = {v: single(atom("var", v.args[0], *to[v.args[1:]])) for v in f.free(x) if v.args[1:] in to}
        return f.substituted([x], table)[0]

    def own_terms(self, x: Any, form: str) -> Any:
        """The part of a sum over tokens, or over rows, that is the own one's. Raises Lack if it reads others too."""
        places = {k: {v.args[1:] for v in f.free(from_terms({k: 1}))} for k in f.terms_of(x)}
        of_row = {k: c for k, c in f.terms_of(x).items() if any(p[:1] == self.mine[:1] for p in places[k])}
        if form == "tokens":  # a token has its part of what the row alone decides
            rows = from_terms({k: c for k, c in of_row.items() if places[k] == {self.mine[:1]}})
            own = from_terms({k: c for k, c in of_row.items() if self.mine in places[k]})
            if not any(len(p) > 1 for p in self.others(own)):
                return f.add(own, f.div(rows, self.counts["row"]))
        elif all(p[:1] == self.mine[:1] for k in of_row for p in places[k]):
            mean = f.mul(self.counts["row"], single(atom("var", "mean", *self.mine)))
            found = self.gathered(from_terms(of_row))
            sums = [v for v in self.sums if v in f.free(found)]
            reads_tokens = any(len(v.args) > 2 for v in f.free(found) if v not in sums)
            if not reads_tokens and [self.sums[v][:3] for v in sums] == [
                ("row", 0, single(atom("var", "x", *self.mine)))
            ]:
                return f.substituted([found], {sums[0]: mean})[0]
        raise Lack(f"a loss that is no sum over {form}")

    def tree(self, x: Any, inside: bool = False) -> Tree:
        """A formula of own numbers and sums. `inside` a sum, where no residual is read."""
        if is_number(x):
            return leaf(x)
        if isinstance(x, Formula):
            shared = [(a, p) for a, p in next(iter(x.terms))[0] if p < 0 and all((a, p) in m for m, _ in x.terms)]
            if shared and len(x.terms) > 1:
                rest = functools.reduce(lambda y, factor: f.mul(y, single(factor[0], -factor[1])), shared, x)
                divisors = [Tree("power", (self.tree(a, inside), p)) for a, p in shared]
                return Tree("product", (leaf(1), self.tree(rest, inside), *sorted(divisors, key=lambda t: t.order)))
            x_key = ((atom("var", "x", *self.mine), 1),), None
            ratio = f.exp(from_terms({x_key: 1}))
            parts, constant = [], x.terms.get(((), None), 0)
            for (m, e), c in x.terms.items():
                if not m and e is None:
                    continue
                if not inside and not m and from_terms({(m, e): 1}) is ratio:
                    constant += c
                    parts.append(Tree("product", (leaf(c), Tree("residual"))))
                    continue
                factors = [Tree("power", (self.tree(a, inside), p)) if p != 1 else self.tree(a, inside) for a, p in m]
                if e is not None:
                    k = 0 if inside else e.terms.get(x_key, 0)
                    if isinstance(k, int) and k:
                        factors.append(Tree("power", (Tree("ratio"), k)) if k != 1 else Tree("ratio"))
                        e = f.sub(e, from_terms({x_key: k}))
                    if e != 0:
                        factors.append(Tree("exp", (self.tree(e, inside),)))
                parts.append(Tree("product", (leaf(c), *sorted(factors, key=lambda t: t.order))))
            parts += [leaf(constant)] if constant else []
            return parts[0] if len(parts) == 1 else Tree("sum", tuple(sorted(parts, key=lambda t: t.order)))
        if x.op == "var":
            if x not in self.sums:
                return Tree("log ratio") if x.args[0] == "x" and not inside else Tree("own", x.args[:1])
            over, weight, unit, of_rows = self.sums[x]
            of_rows = of_rows and weight == -1
            return Tree("total" if x.args[0] == "sum" else x.args[0], (over, weight, self.tree(unit, True), of_rows))
        if x.op in ("lt", "le", "eq"):
            constant = x.args[0].terms.get(((), None), 0)
            left = self.tree(f.sub(x.args[0], constant), inside)
            if left == Tree("product", (leaf(1), Tree("log ratio"))) and abs(constant) < WIDE:
                return Tree(x.op, (Tree("residual"), leaf(math.expm1(-constant))))
            return Tree(x.op, (left, leaf(-constant)))
        if x.op == "of":
            return self.tree(x.args[0], inside)
        if x.op not in (*WORDS, "choose", "and", "not"):
            raise Lack(f"the function {x.op}")
        parts = [self.tree(a, inside) for a in x.args]
        return Tree(x.op, tuple(sorted(parts, key=lambda t: t.order) if x.op == "and" else parts))


@functools.lru_cache(64)
def _spreads(batch: Batch, row: int) -> list[tuple[str, bool, Any, Any, int]]:
    """Squares of rewards around their mean, over a row's group and the batch, summed over rows or over tokens: over
    what, whether over rows, of which formula, the sum, and of how many.
    """
    groups, rows = [r.group for r in batch.rows], range(len(batch.rows))
    rewards = [single(atom("var", "rewards", r)) for r in rows]

    def mean(of: Sequence[Any]) -> Any:
        return f.div(f.add(*of), len(of))

    centred = [f.sub(rewards[r], mean([rewards[i] for i in rows if groups[i] == groups[r]])) for r in rows]
    found = []
    for place, units, of_rows in itertools.product(("group", "batch"), (rewards, centred), (True, False)):
        inside = [r for r in rows if place == "batch" or groups[r] == groups[row]]
        each = [units[r] for r in inside for _ in range(1 if of_rows else batch.lengths[r])]
        squares = f.add(*(f.power(f.sub(u, mean(each)), 2) for u in each))
        found.append((place, of_rows, units[row], squares, len(each)))
    return found


def _place(x: Any) -> Place:
    return max((v.args[1:] for v in f.free(x)), key=len, default=())


def _conjuncts(x: Atom) -> list[Any]:
    """What has to hold of each place for a condition to hold, as 1 or 0."""
    found, todo = dict[Place, Any](), [x]
    while todo:
        if (c := todo.pop()).op == "and":
            todo += c.args
        else:
            found[_place(c)] = f.both(c, found.get(_place(c), True))
    return [f.choose(c, 1, 0) for c in found.values()]


def _leaves(x: Any, sign: int) -> list[Any]:
    """Of what a formula of choices is the largest (`sign` 1) or the smallest (-1); itself, of other formulas."""
    choice = next(iter(f.below(x)), None) if isinstance(x, Formula) and len(x.terms) == 1 else None
    if not isinstance(choice, Atom) or choice.op != "choose" or x is not single(choice):
        return [x]
    condition, one, two = choice.args
    try:  # p < 0 chooses `one`
        is_so = condition.op in ("lt", "le") and sign * _ratio(f.sub(one, two), condition.args[0]) < 0
    except Lack:
        is_so = False
    return list(dict.fromkeys((*_leaves(one, sign), *_leaves(two, sign)))) if is_so else [x]


def _ratio(x: Any, y: Any) -> Any:
    """By what number one formula is another. Raises Lack if there is none."""
    if not is_number(x) and not is_number(y) and x.terms.keys() == y.terms.keys():
        k = Fraction(x.terms[f.first_term(y)]) / Fraction(y.terms[f.first_term(y)])
        if all(close(v, k * y.terms[t]) for t, v in x.terms.items()):
            return k
    raise Lack("a sum of unequal parts")


def close(x: Any, y: Any) -> bool:
    return bool(abs(x - y) <= EXACT * abs(y))
