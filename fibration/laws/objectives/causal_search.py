"""Searches rows in which a formula at one token changes with the values, or the presence, of a later token."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any

from fibration.language.atoms import BATCH, Attribute, Stratum, advantage, at, token_log_ratio
from fibration.language.exact import TooLarge
from fibration.language.expressions import Expression
from fibration.language.hierarchy import Hierarchy
from fibration.language.places import whole_batch
from fibration.language.policies import CURRENT, OLD, LogProb
from fibration.language.statistics import atoms_within, within
from fibration.language.traversal import desugar
from fibration.laws.batches.concrete import Concrete, Witness, in_brief, plural, rounded, rounding, settings
from fibration.laws.batches.direct_operator import DirectOperator
from fibration.laws.batches.first_update import attempt
from fibration.laws.batches.search import concretes, is_of_one_token, is_read_at
from fibration.laws.values.duals import value_of
from fibration.laws.values.probes import between, crossings, turning

MOST_TRIED, MOST_TOKENS, FEW = 201, 4, 6  # FEW batches are also searched around changes of branch
MOVES = tuple(Fraction(v) for v in ("-2", "-1/2", "-30", "-1/100"))
SIGNS = ((1, 1), (-1, -1), (3, -3))  # advantages of every other row
RATIO = "log ratio"


@dataclass(frozen=True)
class Row:
    """A batch whose tokens are alike, except that one has another log-prob, log ratio or attribute."""

    h: Hierarchy
    concrete: Concrete
    advantages: tuple[Fraction, ...]
    start: Fraction = Fraction(-1)  # the log-prob of every token
    changed: str | Attribute | None = None
    token: int = 0
    to: Fraction = Fraction(0)

    @cached_property
    def places(self) -> tuple[tuple[Stratum, int], ...]:
        return DirectOperator(self.h, self.concrete).tokens

    def value(self, formula: Expression, k: int) -> Any:
        """A formula at a token; None where it has no value, or one with too many digits to compare."""
        c = self.concrete
        if isinstance(self.changed, Attribute):
            values = list(c.attributes[self.changed])
            values[self.places[self.token][1]] = self.to
            c = replace(c, attributes={**c.attributes, self.changed: tuple(values)})
        log_probs = {p: self.given(p) for p in (OLD, *self.h.policies) if p != CURRENT}
        here = DirectOperator(self.h, c).at_tokens(self.given(RATIO), self.advantages, log_probs)
        try:
            found = attempt(lambda: here.value(formula, k))
        except TooLarge:
            return None
        return found if found is None or isinstance(found, bool) else value_of(found)

    def given(self, what: str) -> tuple[Fraction, ...]:
        """One number per token."""
        usual = Fraction(0) if what == RATIO else self.start
        return tuple(self.to if what == self.changed and k == self.token else usual for k in range(len(self.places)))

    @property
    def was(self) -> Fraction:
        """The value of the changed token before the change."""
        if isinstance(self.changed, Attribute):
            return self.concrete.attributes[self.changed][self.places[self.token][1]]
        return Fraction(0) if self.changed == RATIO else self.start


def changed_by_later(h: Hierarchy, formula: Expression, what: str) -> Witness | None:
    """A row in which a later token changes the value of a formula at an earlier one."""
    exact = rounding(desugar(formula))
    for before, after, k in _pairs(h, formula):
        one, other = before.value(formula, k), after.value(formula, k)
        if None not in (one, other) and (abs(one - other) > exact):
            return _witness(after, k, what, one, other, exact)
    return None


def _pairs(h: Hierarchy, formula: Expression) -> Iterator[tuple[Row, Row, int]]:
    """Yields two batches that differ in what comes after a token, and the number of that token."""
    read = atoms_within(formula)
    signs = SIGNS if advantage in read else SIGNS[:1]
    policies = [p for p in (OLD, *h.policies) if p != CURRENT and any(_is_of(a, p) for a in read)]
    moving = [RATIO] * any(a == token_log_ratio or _is_of(a, CURRENT) for a in read) + policies
    own = [a for a in read if isinstance(a, Attribute) and a.on in h.leaves]
    few: list[tuple[Row, int, int]] = []
    for concrete in concretes(h, [formula], whole_batch(h), most=MOST_TRIED):
        if sum(concrete.size[leaf] for leaf in h.leaves) > MOST_TOKENS:
            if is_of_one_token(formula):
                yield from _longer_by_one(_row(h, concrete, signs[0]))
            continue
        for row in (_row(h, concrete, s) for s in signs):
            pairs = list(_in_order(row))
            for k, j in pairs:
                yield from ((row, _put(row, w, j, v), k) for w in moving for v in MOVES)
                yield from (
                    (row, _put(row, a, j, v), k) for a in own if a.on == row.places[j][0] for v in _other(a, row, j)
                )
                shorter = _without(row, j)
                yield from [(shorter, row, k)] if shorter is not None else []
            few += [(row, k, j) for k, j in pairs] if len(few) < FEW * len(signs) else []
    for row, k, j in few:
        whats: list[str | Attribute] = [*moving, *(a for a in own if a.on == row.places[j][0])]
        for w in whats:
            yield from ((row, _put(row, w, j, v), k) for v in _changes(row, formula, w, k, j))


def _longer_by_one(row: Row) -> Iterator[tuple[Row, Row, int]]:
    """Yields a batch without and with its last token, and the first token of that row."""
    last = len(row.places) - 1
    below = [row.concrete.below(*p, row.h.rows) for p in row.places]
    if (first := below.index(below[last])) < last and (shorter := _without(row, last)) is not None:
        yield shorter, row, first


def _row(h: Hierarchy, concrete: Concrete, of_rows: tuple[int, int]) -> Row:
    """A batch whose rows have these two advantages alternately."""
    below = [concrete.below(leaf, i, h.rows) for leaf in h.leaves for i in range(concrete.size[leaf])]
    return Row(h, concrete, tuple(Fraction(of_rows[b % 2]) for b in below))


def _is_of(a: Expression, policy: str) -> bool:
    return isinstance(a, LogProb) and a.policy.name == policy


def _put(row: Row, what: str | Attribute, j: int, value: Fraction) -> Row:
    return replace(row, changed=what, token=j, to=value)


def _in_order(row: Row) -> Iterator[tuple[int, int]]:
    """Yields pairs of tokens of one row, the earlier first."""
    below = [row.concrete.below(*p, row.h.rows) for p in row.places]
    for j in range(len(below)):
        yield from ((k, j) for k in range(j) if below[k] == below[j])


def _other(a: Attribute, row: Row, j: int) -> Iterator[Fraction]:
    """Other values of a token's attribute."""
    now = row.concrete.attributes[a][row.places[j][1]]
    yield from (
        v for v in dict.fromkeys(a.nearest(now + d) for d in (1, -1, 30)) if v != now and (v > 0 or not a.positive)
    )


def _changes(row: Row, formula: Expression, what: str | Attribute, k: int, j: int) -> list[Fraction]:
    """Values for one number of the later token `j` around which a branch changes at the earlier token `k`."""
    leaf = row.places[k][0]

    def along(e: Expression) -> Callable[[Fraction], Fraction | None]:
        return lambda v: _put(row, what, j, v).value(e, k)

    read = [e for e in (at(e, leaf) for e in within(formula)) if is_read_at(row.concrete.shape, e, leaf)]
    found = {c for e in turning(read) for c in crossings(along(e), near=-4, far=2)}
    most = Fraction(0) if isinstance(what, str) else None
    low, high = what.ends if isinstance(what, Attribute) else (None, most)
    return [v for v in between(sorted(found)) if (low is None or v > low) and (high is None or v <= high)]


def _without(row: Row, j: int) -> Row | None:
    """The batch without a token; None unless it is the last of its leaf and no element has this token alone."""
    c, (leaf, i) = row.concrete, row.places[j]
    if i != c.size[leaf] - 1:
        return None
    maps = {(s, t): m[:-1] if s == leaf else m for (s, t), m in c.maps.items()}
    if any(set(m) != set(c.maps[e]) for e, m in maps.items()):
        return None
    left = (a for k, a in enumerate(row.advantages) if k != j)
    attributes = {a: v[:-1] if a.on == leaf else v for a, v in c.attributes.items()}
    return replace(row, concrete=Concrete(c.shape, maps, attributes, c.parameters), advantages=tuple(left))


def _witness(after: Row, k: int, what: str, one: Any, other: Any, exact: Fraction) -> Witness:
    h, concrete = after.h, after.concrete
    rows = concrete.size[h.rows]
    place = concrete.describe(h.rows) if rows == 1 else concrete.describe(Stratum(BATCH))
    of_row = sorted(
        {concrete.below(*p, h.rows): a for p, a in zip(after.places, after.advantages, strict=True)}.items()
    )
    several = f"{plural(h.rows.name)} of advantages" if rows > 1 else "advantage"
    given = f" with {several} {', '.join(str(a) for _, a in of_row)}" if set(after.advantages) != {1} else ""
    named = f"token {k + 1}" if isinstance(one, bool) else f"the {what} of token {k + 1}"
    was, now = (
        ("kept" if v else "dropped") if isinstance(v, bool) else in_brief(rounded(v, exact)) for v in (one, other)
    )
    j = len(after.places) - 1 if after.changed is None else after.token
    later = f"token {j + 1}"
    how = f"without {later}, which comes later"
    if after.changed is None:
        was, now = now, was
    else:
        plain = after.changed == RATIO or isinstance(after.changed, Attribute)
        word = after.changed if plain else f"log_prob({after.changed})"
        how = f"where {later}, which comes later, has {word} {in_brief(after.to)} instead of {in_brief(after.was)}"
    text = f"in {place}{given}, {named} is {was}, and {now} {how}"
    values = {"element": k, "before": one, "after": other, "later": j}
    values |= {} if after.changed is None else {"changed": str(after.changed), "from": after.was}
    values |= {"log_ratios": after.given(RATIO), "advantages": after.advantages}
    values |= {f"log_probs of {p}": after.given(p) for p in (OLD, *h.policies) if p != CURRENT}
    return Witness(text + settings(concrete), concrete, values)
