"""Searches batches on which a formula of tokens has no value, or a forbidden sign, whatever the policies are."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import NamedTuple

from fibration.language.atoms import Stratum, advantage, at, reward, token_log_ratio
from fibration.language.expressions import Expression
from fibration.language.hierarchy import Hierarchy
from fibration.language.operators import ANY, Signs
from fibration.language.places import whole_batch
from fibration.language.policies import CURRENT, LogProb
from fibration.language.statistics import atoms_within, within
from fibration.laws.batches import caps
from fibration.laws.batches.coefficients import ADVANTAGE, LOG_RATIO, Point
from fibration.laws.batches.concrete import rounding
from fibration.laws.batches.search import concretes, find, is_read_at
from fibration.laws.batches.words import Witness, in_batch
from fibration.laws.values.numerals import in_brief, rounded
from fibration.laws.values.probes import between, crossings, turning


class Batch(NamedTuple):
    """A batch whose tokens are alike, except for one number of its first token."""

    tokens: Point
    advantage: Fraction
    changed: str = ""  # a policy, `LOG_RATIO` or `ADVANTAGE`
    to: Fraction = Fraction(0)


def without_its_sign(
    h: Hierarchy, formula: Expression, signs: Signs, what: str, place: Stratum | None = None
) -> Witness | None:
    """A token, or an element of `place`, at which a formula has no value, or is negative unless `signs` is ANY.

    `what`: the name of the formula in the witness.
    """
    exact = rounding(formula)

    def fails(batch: Batch) -> Witness | None:
        for k in range(len(batch.tokens.places)):
            value = batch.tokens.attempt(formula, k, place)
            if value is None or (signs != ANY and value < -exact):
                return _witness(h, batch, k, what, None if value is None else rounded(value, exact))
        return None

    return find(_batches(h, formula), fails)


def _batches(h: Hierarchy, formula: Expression) -> Iterator[Batch]:
    read = atoms_within(formula)
    given = advantage in read or reward in read  # rewards get the same numbers as advantages
    signs = [Fraction(a) for a in (1, -1, 0)] if given else [Fraction(1)]
    few: list[Batch] = []
    for concrete in concretes(h, [formula], caps.TOKEN_FORMULAS, whole_batch(h)):
        yield from (found := [Batch(Point.alike(h, concrete, (a,) * concrete.tokens), a) for a in signs])
        few += found if len(few) < caps.TOKEN_FORMULAS.few * len(signs) else []
    policies = [a.policy.name for a in atoms_within(formula, LogProb)]
    varied = [LOG_RATIO] * (token_log_ratio in read or CURRENT in policies) + [p for p in policies if p != CURRENT]
    for batch, what in itertools.product(few, [*dict.fromkeys(varied), *[ADVANTAGE] * given]):
        for v in _changes(batch.tokens, formula, what):
            if what in (LOG_RATIO, ADVANTAGE) or v <= 0:  # no log-prob is above 0
                yield Batch(batch.tokens.changed(what, 0, v), batch.advantage, what, v)


def _changes(batch: Point, formula: Expression, what: str) -> list[Fraction]:
    """Values of one number of the first token around which a branch, a sign or a domain changes, and large ones."""
    leaf, _ = batch.places[0]

    def along(e: Expression) -> Callable[[Fraction], Fraction | None]:
        return lambda v: batch.changed(what, 0, v).attempt(e, 0)

    read = [e for e in (at(e, leaf) for e in within(formula)) if is_read_at(batch.concrete.shape, e, leaf)]
    deciding = [*turning(read), *(e for e in read if not e.is_condition)]
    found = {c for e in deciding for c in crossings(along(e), near=-6, far=2)}
    return [*(s * Fraction(n) for n in (1, 20) for s in (1, -1)), *between(sorted(found))]


def _witness(h: Hierarchy, batch: Batch, k: int, what: str, value: Fraction | None) -> Witness:
    tokens, _, changed, to = batch
    word = "reward" if what == "advantage" else "advantage"
    parts = [f"{word} {tokens.advantages[k]}"] if changed == ADVANTAGE or batch.advantage != 1 else []
    if changed == LOG_RATIO:
        parts.append(f"log ratio {in_brief(to)}")
    elif changed and changed != ADVANTAGE:
        parts.append(f"log_prob({changed}) = {in_brief(to)}, all others -1")
    given = f" with {' and '.join(parts)}" if parts else ""
    n = len(tokens.places)
    of = "the first token" if k == 0 and n > 1 else f"token {k + 1}" if k else "the token"
    got = "has no value" if value is None else f"is {in_brief(value)}"
    text = f"{in_batch(h, tokens.concrete)}{given}, the {what} of {of} {got}"
    return Witness.on(tokens.concrete, text, {"element": k, "value": value, **tokens.numbers})
