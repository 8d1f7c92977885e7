"""Searches batches with a token at which a formula is not as a law requires, by trying values in exact numbers.

- `without_its_sign`: it has no value, or a forbidden sign, whatever the policies are;
- `off_one`: it is not 1, or does not hold, where all policies coincide, or beside that;
- `changed_by_later`: it changes with the values, or the presence, of a later token of the row.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, NamedTuple

from fibration.errors import an
from fibration.language.atoms import Attribute, Stratum, advantage, at, reward, token_log_ratio
from fibration.language.declared import CURRENT, OLD
from fibration.language.exact import TooLarge
from fibration.language.expressions import Expression
from fibration.language.hierarchy import Hierarchy
from fibration.language.operators import ANY, Signs
from fibration.language.outline import whole_batch
from fibration.language.statistics import atoms_within, within
from fibration.language.traversal import desugar
from fibration.laws.batches import caps
from fibration.laws.batches.coefficients import ADVANTAGE, LOG_RATIO, Point, attempt, policies_read, rows_of
from fibration.laws.batches.concrete import Concrete, Witness, in_batch, rounding
from fibration.laws.batches.first_update import CLOSE, NO_VALUE, STEPS, directions
from fibration.laws.batches.search import concretes, find, is_of_one_token, is_read_at
from fibration.laws.values.duals import value_of
from fibration.laws.values.numerals import in_brief, rounded
from fibration.laws.values.probes import between, crossings, turning

What = str | Attribute  # a number of a token: `LOG_RATIO`, `ADVANTAGE`, a policy's log-prob, or an attribute


def _crossed(
    batch: Point, formula: Expression, k: int, value: Callable[[Expression, Fraction], Any], near: int, signs: bool
) -> list[Fraction]:
    """Values of one number around which a formula at a token changes its branch, or (`signs`) its own sign.

    `value`: what a formula is at the token if the number has a value. `near`: the power of ten of the closest ones.
    """
    leaf = batch.places[k][0]
    read = [e for e in (at(e, leaf) for e in within(formula)) if is_read_at(batch.concrete.shape, e, leaf)]
    deciding = [*turning(read), *(e for e in read if signs and not e.is_condition)]
    return between(sorted({c for e in deciding for c in crossings(lambda v, e=e: value(e, v), near=near, far=2)}))  # type: ignore[misc]


# ---------------------------------------------------------------- values and signs


# A batch of tokens that are alike, except for a number of the first one: a policy, `LOG_RATIO` or `ADVANTAGE`, or none.
Batch = tuple[Point, str, Fraction]


def without_its_sign(
    h: Hierarchy, formula: Expression, signs: Signs, what: str, place: Stratum | None = None
) -> Witness | None:
    """A token, or an element of `place`, at which a formula has no value, or is negative unless `signs` is ANY.

    `what`: the name of the formula in the witness.
    """
    exact = rounding(formula)

    def fails(batch: Batch) -> Witness | None:
        tokens, changed, to = batch
        n = len(tokens.places)
        for k in range(n):
            value = tokens.attempt(formula, k, place)
            if value is not None and (signs == ANY or value >= -exact):
                continue
            word, own = "reward" if what == "advantage" else "advantage", tokens.advantages[k]
            parts = [f"{word} {own}"] if changed == ADVANTAGE or own != 1 else []
            if changed == LOG_RATIO:
                parts.append(f"log ratio {in_brief(to)}")
            elif changed and changed != ADVANTAGE:
                parts.append(f"log_prob({changed}) = {in_brief(to)}, all others -1")
            given = f" with {' and '.join(parts)}" if parts else ""
            of = "the first token" if k == 0 and n > 1 else f"token {k + 1}" if k else "the token"
            value = None if value is None else rounded(value, exact)
            got = f"has {NO_VALUE}" if value is None else f"is {in_brief(value)}"
            text = f"{in_batch(h, tokens.concrete)}{given}, the {what} of {of} {got}"
            return Witness.on(tokens.concrete, text, {"element": k, "value": value, **tokens.numbers})
        return None

    return find(_batches(h, formula), fails)


def _batches(h: Hierarchy, formula: Expression) -> Iterator[Batch]:
    read, policies = atoms_within(formula), policies_read(formula)
    given = advantage in read or reward in read  # rewards get the same numbers as advantages
    signs = [Fraction(a) for a in (1, -1, 0)] if given else [Fraction(1)]
    few: list[Point] = []
    for concrete in concretes(h, [formula], caps.TOKEN_FORMULAS, whole_batch(h)):
        found = [Point.alike(h, concrete, (a,) * concrete.tokens) for a in signs]
        yield from ((batch, "", Fraction(0)) for batch in found)
        few += found if len(few) < caps.TOKEN_FORMULAS.few * len(signs) else []
    varied = [LOG_RATIO] * (token_log_ratio in read or CURRENT in policies) + [p for p in policies if p != CURRENT]
    large = [s * Fraction(n) for n in (1, 20) for s in (1, -1)]
    for batch, what in itertools.product(few, [*varied, *[ADVANTAGE] * given]):

        def at_value(v: Fraction, batch: Point = batch, what: str = what) -> Point:
            return (batch.lowered(max(v, Fraction(0))) if what == LOG_RATIO else batch).changed(what, 0, v)

        turns = _crossed(batch, formula, 0, lambda e, v, at=at_value: at(v).attempt(e, 0), near=-6, signs=True)  # type: ignore[misc]
        allowed = (v for v in (*large, *turns) if what in (LOG_RATIO, ADVANTAGE) or v <= 0)  # no log-prob is above 0
        yield from ((at_value(v), what, v) for v in allowed)


# ---------------------------------------------------------------- where all policies coincide

# Log-probs of the tokens of one batch: all equal, all different, with ties, all 0.
BASES: tuple[Callable[[int], Fraction], ...] = (
    lambda k: Fraction(-1),
    lambda k: Fraction(-1 - k),
    lambda k: Fraction(-1 - k * k % 3, 2),
    lambda k: Fraction(0),
)


def off_one(h: Hierarchy, formula: Expression) -> Witness | None:
    """A token whose weight is not 1, or whose condition fails, where policies coincide, or beside that; or None.

    Beside that: at each of a few steps of one policy, the last of which is tiny.
    """
    exact, few = rounding(desugar(formula)), list[Point]()
    others = dict.fromkeys(p for p in (CURRENT, *h.policies) if p != OLD)

    def is_off(batch: Point, k: int, tolerance: Fraction) -> bool:
        value = batch.attempt(formula, k)  # True is 1
        return value is None or abs(value - 1) > tolerance

    def wrong(batch: Point) -> Witness | None:
        n = len(batch.places)
        tokens: Sequence[int] = range(n)
        if not caps.COINCIDING.allow(n):  # the first token of every row
            tokens = sorted({row: k for k, row in reversed([*enumerate(rows_of(h, batch.concrete))])}.values())
        elif any(batch.log_probs[OLD]):  # a log-prob of 0 can only move down
            few.append(batch)
        return next((_off_one(formula, batch, k, exact) for k in tokens if is_off(batch, k, exact)), None)

    def far(tried: tuple[Point, str]) -> Witness | None:
        batch, policy = tried
        for way in directions(n := len(batch.places)):
            changes = [tuple(s * d for d in way) for s in STEPS]
            found = [_moved(batch, policy, change) for change in changes]
            for k in range(n):
                if all(is_off(f, k, CLOSE) for f in found):
                    return _off_one(formula, found[0], k, exact, policy, changes[0])
        return None

    return find(_coinciding(h, formula), wrong) or find(itertools.product(few, others), far)


def _coinciding(h: Hierarchy, formula: Expression) -> Iterator[Point]:
    read = set(atoms_within(formula))
    most = caps.COINCIDING.of_any_size if is_of_one_token(formula) else caps.COINCIDING
    for concrete in concretes(h, [formula], most, whole_batch(h)):
        n, rows = concrete.tokens, rows_of(h, concrete)
        advantages = [(Fraction(a),) * n for a in ((1, -1, 0) if advantage in read else (1,))]
        if advantage in read and len(set(rows)) > 1:
            advantages.append(tuple(Fraction(1 + row, -2 if row % 2 else 1) for row in rows))
        bases = BASES if caps.COINCIDING.allow(n) else BASES[:1]
        for base in dict.fromkeys(tuple(b(k) for k in range(n)) for b in bases):
            yield from (Point.alike(h, concrete, given, base) for given in advantages)


def _moved(batch: Point, policy: str, change: tuple[Fraction, ...]) -> Point:
    """The batch with the log-probs of one policy off by `change`."""
    if policy == CURRENT:
        return replace(batch, log_ratios=change)
    own = tuple(b + c for b, c in zip(batch.log_probs[OLD], change, strict=True))
    return replace(batch, log_probs={**batch.log_probs, policy: own})


def _off_one(
    formula: Expression, batch: Point, k: int, exact: Fraction, policy: str = OLD, change: tuple[Fraction, ...] = ()
) -> Witness:
    """A witness such as `in a trajectory of 1 token, where all policies coincide, the weight is 2 instead of 1`."""
    base, value, is_one = batch.log_probs[OLD], batch.attempt(formula, k), len(batch.places) == 1
    given = "" if set(batch.advantages) == {1} else _listed("advantage", batch.advantages)
    given += _listed("log-prob", base) if len(set(base)) > 1 else ""  # type: ignore[arg-type]
    where = "where all policies coincide"
    where += f" but {policy}, which is off by {', '.join(map(in_brief, change))}" if any(change) else ""
    values = {"element": k, **batch.numbers}
    if formula.is_condition:
        what = "the token" if is_one else "the condition"
        got = "is dropped" if is_one else "fails"
    else:
        values["weight"] = value = None if value is None else rounded(value, exact)
        what, got = "the weight", "" if value is None else f"is {in_brief(value)} instead of 1"
    what += "" if is_one else f" of token {k + 1}"
    got = f"has {NO_VALUE}" if value is None else got
    return Witness.on(batch.concrete, f"{in_batch(batch.h, batch.concrete)}{given}, {where}, {what} {got}", values)


def _listed(word: str, values: Sequence[Fraction]) -> str:
    if len(set(values)) == 1:
        return f" with {an(word)} of {in_brief(values[0])}"
    return f" with {word}s {', '.join(map(in_brief, values))}"


# ---------------------------------------------------------------- later tokens

MOVES = tuple(Fraction(v) for v in ("-2", "-1/2", "-30", "-1/100"))
RISE = Fraction(1, 2)  # of a log ratio: a log-prob of -1 may rise by it
SIGNS = ((1, 1), (-1, -1), (3, -3))  # advantages of every other row


class Compared(NamedTuple):
    """Two batches whose tokens are alike, except for what comes after the token `k` in its row.

    The token `later` has the number `what`, which is `to` after. If `what` is None, `before` lacks the token.
    """

    before: Point
    after: Point
    k: int
    later: int
    what: What | None = None
    to: Fraction = Fraction(0)


def changed_by_later(h: Hierarchy, formula: Expression, what: str) -> Witness | None:
    """A row in which a later token changes the value of a formula at an earlier one."""
    exact = rounding(desugar(formula))

    def fails(found: Compared) -> Witness | None:
        one, other = _value(found.before, formula, found.k), _value(found.after, formula, found.k)
        if None not in (one, other) and abs(one - other) > exact:
            return _by_later(h, found, what, one, other, exact)
        return None

    return find(_compared(h, formula), fails)


def _value(batch: Point, formula: Expression, k: int) -> Any:
    """A formula at a token; None where it has no value, or one with too many digits to compare."""
    return attempt(lambda: batch.attempt(formula, k), TooLarge)


def _compared(h: Hierarchy, formula: Expression) -> Iterator[Compared]:
    read, policies = atoms_within(formula), policies_read(formula)
    signs = SIGNS if advantage in read else SIGNS[:1]
    varied = [LOG_RATIO] * (token_log_ratio in read or CURRENT in policies)
    varied += [p for p in (OLD, *h.policies) if p != CURRENT and p in policies]
    attributes = [a for a in read if isinstance(a, Attribute) and a.on in h.leaves]
    few: list[tuple[Point, int, int]] = []
    for concrete in concretes(h, [formula], caps.CAUSAL.of_any_size, whole_batch(h)):
        rows = rows_of(h, concrete)
        is_small, last = caps.CAUSAL.allow(len(rows)), len(rows) - 1
        for two in signs if is_small else signs[: is_of_one_token(formula)]:
            batch = Point.alike(h, concrete, tuple(Fraction(two[row % 2]) for row in rows))
            if not is_small:  # without the last token alone
                yield from _lacking(h, batch, rows.index(rows[last]), last)
                continue
            pairs = [(k, j) for j in range(len(rows)) for k in range(j) if rows[k] == rows[j]]
            for k, j in pairs:
                for what, v in [*itertools.product(varied, MOVES), *[(LOG_RATIO, RISE)] * (LOG_RATIO in varied)]:
                    yield Compared(batch, batch.changed(what, j, v), k, j, what, v)
                for a in (a for a in attributes if a.on == batch.places[j][0]):
                    now = _number(batch, a, j)
                    others = dict.fromkeys(a.nearest(now + d) for d in (1, -1, 30))
                    others.pop(now, None)
                    allowed = (v for v in others if v > 0 or not a.positive)
                    yield from (Compared(batch, batch.changed(a, j, v), k, j, a, v) for v in allowed)
                yield from _lacking(h, batch, k, j)
            few += [(batch, k, j) for k, j in pairs] if len(few) < caps.CAUSAL.few * len(signs) else []
    for batch, k, j in few:
        whats: list[What] = [*varied, *(a for a in attributes if a.on == batch.places[j][0])]
        for w in whats:
            yield from (Compared(batch, batch.changed(w, j, v), k, j, w, v) for v in _turns(batch, formula, w, k, j))


def _number(batch: Point, what: What, j: int) -> Any:
    """The log ratio, the attribute or the log-prob of a token."""
    if isinstance(what, Attribute):
        return batch.concrete.attributes[what][batch.places[j][1]]
    return (batch.log_ratios if what == LOG_RATIO else batch.log_probs[what])[j]


def _turns(batch: Point, formula: Expression, what: What, k: int, j: int) -> list[Fraction]:
    """Values for one number of the later token `j` around which a branch changes at the earlier token `k`."""
    most = -value_of(batch.log_probs[OLD][j]) if what == LOG_RATIO else Fraction(0)  # log-probs are at most 0
    low, high = what.ends if isinstance(what, Attribute) else (None, most)
    found = _crossed(batch, formula, k, lambda e, v: _value(batch.changed(what, j, v), e, k), near=-4, signs=False)
    return [v for v in found if (low is None or v > low) and (high is None or v <= high)]


def _lacking(h: Hierarchy, batch: Point, k: int, j: int) -> Iterator[Compared]:
    """Compares the batch with one that lacks a later token, and the elements of its row, such as turns, of it alone.

    Nothing unless the token and these elements are the last of their strata, and no other element has this token alone.
    """
    c, (leaf, _), shape = batch.concrete, batch.places[j], batch.concrete.shape
    finer = (s for s in shape.coarser(leaf) if h.rows in shape.coarser(s))
    last = {s: c.below(*batch.places[j], s) for s in (leaf, *finer)}
    alone = {s for s, e in last.items() if s == leaf or len(batch.over(s, e)) == 1}
    maps = {(s, t): m[:-1] if s in alone else m for (s, t), m in c.maps.items()}
    if (
        k < j
        and all(last[s] == c.size[s] - 1 for s in alone)
        and all(set(m) == {e for e in c.maps[s, t] if t not in alone or e != last[t]} for (s, t), m in maps.items())
    ):
        attributes = {a: v[:-1] if a.on in alone else v for a, v in c.attributes.items()}
        left = tuple(a for i, a in enumerate(batch.advantages) if i != j)
        yield Compared(Point.alike(h, Concrete(shape, maps, attributes, c.parameters), left), batch, k, j)


def _by_later(h: Hierarchy, found: Compared, what: str, one: Any, other: Any, exact: Fraction) -> Witness:
    before, after, k, j, changed, to = found
    batch = after if changed is None else before
    given = f" with {after.advantages_of_rows}" if set(after.advantages) != {1} else ""
    named = f"token {k + 1}" if isinstance(one, bool) else f"the {what} of token {k + 1}"
    was, now = (
        ("kept" if v else "dropped") if isinstance(v, bool) else in_brief(rounded(v, exact)) for v in (one, other)
    )
    later = f"token {j + 1}, which comes later"
    values = {"element": k, "before": one, "after": other, "later": j}
    if changed is None:
        was, now, how = now, was, f"without {later}"
    else:
        number = _number(before, changed, j)
        word = str(changed) if changed == LOG_RATIO or isinstance(changed, Attribute) else f"log_prob({changed})"
        how = f"where {later}, has {word} {in_brief(to)} instead of {in_brief(number)}"
        values |= {"changed": str(changed), "from": number}
    text = f"{in_batch(h, batch.concrete)}{given}, {named} is {was}, and {now} {how}"
    return Witness.on(batch.concrete, text, values | after.numbers)
