"""Searches rows in which a formula at one token changes with the values, or the presence, of a later token."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any, NamedTuple

from fibration.language.atoms import Attribute, Stratum, advantage, at, token_log_ratio
from fibration.language.exact import TooLarge
from fibration.language.expressions import Expression
from fibration.language.hierarchy import Hierarchy
from fibration.language.places import whole_batch
from fibration.language.policies import CURRENT, OLD, LogProb
from fibration.language.statistics import atoms_within, within
from fibration.language.traversal import desugar
from fibration.laws.batches import caps
from fibration.laws.batches.coefficients import LOG_RATIO, Point, rows_of
from fibration.laws.batches.concrete import Concrete, rounding
from fibration.laws.batches.search import concretes, find, is_of_one_token, is_read_at
from fibration.laws.batches.words import Witness, in_batch
from fibration.laws.values.duals import value_of
from fibration.laws.values.numerals import in_brief, plural, rounded
from fibration.laws.values.probes import between, crossings, turning

MOVES = tuple(Fraction(v) for v in ("-2", "-1/2", "-30", "-1/100"))
RISE = Fraction(1, 2)  # of a log ratio: a log-prob of -1 may rise by it
SIGNS = ((1, 1), (-1, -1), (3, -3))  # advantages of every other row


class Compared(NamedTuple):
    """Two batches whose tokens are alike, except for what comes after the token `k` in its row.

    The token `later` has the number `what`, which is `was` before and `to` after. If `what` is None, `before` lacks the
    token.
    """

    before: Point
    after: Point
    k: int
    later: int
    what: str | Attribute | None = None
    was: Fraction = Fraction(0)
    to: Fraction = Fraction(0)


def changed_by_later(h: Hierarchy, formula: Expression, what: str) -> Witness | None:
    """A row in which a later token changes the value of a formula at an earlier one."""
    exact = rounding(desugar(formula))

    def fails(found: Compared) -> Witness | None:
        one, other = _value(found.before, formula, found.k), _value(found.after, formula, found.k)
        if None not in (one, other) and abs(one - other) > exact:
            return _witness(h, found, what, one, other, exact)
        return None

    return find(_compared(h, formula), fails)


def _value(batch: Point, formula: Expression, k: int) -> Any:
    """A formula at a token; None where it has no value, or one with too many digits to compare."""
    try:
        return batch.attempt(formula, k)
    except TooLarge:
        return None


def _compared(h: Hierarchy, formula: Expression) -> Iterator[Compared]:
    read = atoms_within(formula)
    signs = SIGNS if advantage in read else SIGNS[:1]
    policies = [p for p in (OLD, *h.policies) if p != CURRENT and any(_is_of(a, p) for a in read)]
    varied = [LOG_RATIO] * any(a == token_log_ratio or _is_of(a, CURRENT) for a in read) + policies
    attributes = [a for a in read if isinstance(a, Attribute) and a.on in h.leaves]
    few: list[tuple[Point, int, int]] = []
    for concrete in concretes(h, [formula], caps.CAUSAL.of_any_size, whole_batch(h)):
        if not caps.CAUSAL.allow(concrete.tokens):
            if is_of_one_token(formula):
                yield from _longer_by_one(h, _batch(h, concrete, signs[0]))
            continue
        for batch in (_batch(h, concrete, s) for s in signs):
            pairs = list(_in_order(h, batch))
            for k, j in pairs:
                rises = [(LOG_RATIO, RISE)] * (LOG_RATIO in varied)
                yield from (_changed(batch, k, j, w, v) for w, v in [*itertools.product(varied, MOVES), *rises])
                own = (a for a in attributes if a.on == batch.places[j][0])
                yield from (_changed(batch, k, j, a, v) for a in own for v in _other(a, batch, j))
                shorter = _without(h, batch, j)
                yield from [Compared(shorter, batch, k, j)] if shorter is not None else []
            few += [(batch, k, j) for k, j in pairs] if len(few) < caps.CAUSAL.few * len(signs) else []
    for batch, k, j in few:
        whats: list[str | Attribute] = [*varied, *(a for a in attributes if a.on == batch.places[j][0])]
        for w in whats:
            yield from (_changed(batch, k, j, w, v) for v in _changes(batch, formula, w, k, j))


def _changed(batch: Point, k: int, j: int, what: str | Attribute, to: Fraction) -> Compared:
    return Compared(batch, _moved(batch, what, j, to), k, j, what, _number(batch, what, j), to)


def _moved(batch: Point, what: str | Attribute, j: int, to: Fraction) -> Point:
    """The batch with another number at a token. A log ratio leaves all frozen log-probs as they are."""
    if what != LOG_RATIO:
        return batch.changed(what, j, to)
    return replace(batch, log_ratios=(*batch.log_ratios[:j], to, *batch.log_ratios[j + 1 :]))


def _number(batch: Point, what: str | Attribute, j: int) -> Any:
    """The log ratio, the attribute or the log-prob of a token."""
    if isinstance(what, Attribute):
        return batch.concrete.attributes[what][batch.places[j][1]]
    return (batch.log_ratios if what == LOG_RATIO else batch.log_probs[what])[j]


def _longer_by_one(h: Hierarchy, batch: Point) -> Iterator[Compared]:
    """Yields a batch without and with its last token, and the first token of that row."""
    rows = rows_of(h, batch.concrete)
    last = len(rows) - 1
    if (first := rows.index(rows[last])) < last and (shorter := _without(h, batch, last)) is not None:
        yield Compared(shorter, batch, first, last)


def _batch(h: Hierarchy, concrete: Concrete, of_rows: tuple[int, int]) -> Point:
    """A batch whose rows have these two advantages alternately."""
    return Point.alike(h, concrete, tuple(Fraction(of_rows[row % 2]) for row in rows_of(h, concrete)))


def _is_of(a: Expression, policy: str) -> bool:
    return isinstance(a, LogProb) and a.policy.name == policy


def _in_order(h: Hierarchy, batch: Point) -> Iterator[tuple[int, int]]:
    """Yields pairs of tokens of one row, the earlier first."""
    rows = rows_of(h, batch.concrete)
    for j in range(len(rows)):
        yield from ((k, j) for k in range(j) if rows[k] == rows[j])


def _other(a: Attribute, batch: Point, j: int) -> Iterator[Fraction]:
    """Other values of a token's attribute."""
    now = _number(batch, a, j)
    yield from (
        v for v in dict.fromkeys(a.nearest(now + d) for d in (1, -1, 30)) if v != now and (v > 0 or not a.positive)
    )


def _changes(batch: Point, formula: Expression, what: str | Attribute, k: int, j: int) -> list[Fraction]:
    """Values for one number of the later token `j` around which a branch changes at the earlier token `k`."""
    leaf = batch.places[k][0]

    def along(e: Expression) -> Callable[[Fraction], Fraction | None]:
        return lambda v: _value(_moved(batch, what, j, v), e, k)

    read = [e for e in (at(e, leaf) for e in within(formula)) if is_read_at(batch.concrete.shape, e, leaf)]
    found = {c for e in turning(read) for c in crossings(along(e), near=-4, far=2)}
    most = -value_of(batch.log_probs[OLD][j]) if what == LOG_RATIO else Fraction(0)  # log-probs are at most 0
    low, high = what.ends if isinstance(what, Attribute) else (None, most)
    return [v for v in between(sorted(found)) if (low is None or v > low) and (high is None or v <= high)]


def _without(h: Hierarchy, batch: Point, j: int) -> Point | None:
    """The batch without a token, and without the elements of its row, such as turns, that have this token alone.

    None unless the token and these elements are the last of their strata, and no other element has this token alone.
    """
    c, (leaf, _) = batch.concrete, batch.places[j]
    finer = (s for s in c.shape.coarser(leaf) if h.rows in c.shape.coarser(s))
    last = {s: c.below(*batch.places[j], s) for s in (leaf, *finer)}
    alone = {s for s, e in last.items() if s == leaf or [c.below(*p, s) for p in _over(batch, s)].count(e) == 1}
    if any(last[s] != c.size[s] - 1 for s in alone):
        return None
    maps = {(s, t): m[:-1] if s in alone else m for (s, t), m in c.maps.items()}
    if any(set(m) != {e for e in c.maps[s, t] if t not in alone or e != last[t]} for (s, t), m in maps.items()):
        return None
    left = tuple(a for k, a in enumerate(batch.advantages) if k != j)
    attributes = {a: v[:-1] if a.on in alone else v for a, v in c.attributes.items()}
    return Point.alike(h, Concrete(c.shape, maps, attributes, c.parameters), left)


def _over(batch: Point, stratum: Stratum) -> list[tuple[Stratum, int]]:
    """The tokens that lie over the elements of a stratum."""
    return [(leaf, i) for leaf, i in batch.places if leaf in batch.concrete.shape.leaves_over(stratum)]


def _witness(h: Hierarchy, found: Compared, what: str, one: Any, other: Any, exact: Fraction) -> Witness:
    before, after, k, j, changed, _, _ = found
    concrete = after.concrete if changed is None else before.concrete
    of_row = dict(zip(rows_of(h, concrete), after.advantages, strict=True))
    several = f"{plural(h.rows.name)} of advantages" if len(of_row) > 1 else "advantage"
    given = f" with {several} {in_brief(*(of_row[r] for r in sorted(of_row)))}" if set(after.advantages) != {1} else ""
    named = f"token {k + 1}" if isinstance(one, bool) else f"the {what} of token {k + 1}"
    was, now = (
        ("kept" if v else "dropped") if isinstance(v, bool) else in_brief(rounded(v, exact)) for v in (one, other)
    )
    later = f"token {j + 1}"
    how = f"without {later}, which comes later"
    if changed is None:
        was, now = now, was
    else:
        word = str(changed) if changed == LOG_RATIO or isinstance(changed, Attribute) else f"log_prob({changed})"
        how = f"where {later}, which comes later, has {word} {in_brief(found.to)} instead of {in_brief(found.was)}"
    text = f"{in_batch(h, concrete)}{given}, {named} is {was}, and {now} {how}"
    values = {"element": k, "before": one, "after": other, "later": j}
    values |= {} if changed is None else {"changed": str(changed), "from": found.was}
    return Witness.on(concrete, text, values | after.numbers)
