"""Searches batches on which a formula of tokens has no value, or a forbidden sign, whatever the policies are."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from fibration.language.atoms import BATCH, Stratum, advantage, at, reward, token_log_ratio
from fibration.language.expressions import Expression
from fibration.language.hierarchy import Hierarchy
from fibration.language.operators import ANY, Signs
from fibration.language.places import whole_batch
from fibration.language.policies import CURRENT, OLD, LogProb
from fibration.language.statistics import atoms_within, within
from fibration.laws.batches.concrete import Concrete, Witness, in_brief, rounded, rounding, settings
from fibration.laws.batches.direct_operator import DirectOperator
from fibration.laws.batches.first_update import attempt
from fibration.laws.batches.search import concretes, is_read_at
from fibration.laws.values.duals import value_of
from fibration.laws.values.probes import between, crossings, turning

MOST_TRIED, MOST_TOKENS, FEW = 201, 6, 12  # FEW batches are also searched around changes of branch
CURRENT_CHANGE = "token_log_ratio"


@dataclass(frozen=True)
class Batch:
    """A batch whose tokens are alike, except for one number of its first token."""

    h: Hierarchy
    concrete: Concrete
    advantage: Fraction = Fraction(1)
    changed: str = ""  # a policy, `token_log_ratio` or the advantage
    by: Fraction = Fraction(0)

    @property
    def size(self) -> int:
        return sum(self.concrete.size[leaf] for leaf in self.h.leaves)

    def given(self, what: str) -> tuple[Fraction, ...]:
        """One number per token."""
        rest = {"advantage": self.advantage, CURRENT_CHANGE: Fraction(0)}.get(what, self.start)
        return (self.by if self.changed == what else rest, *[rest] * (self.size - 1))

    def value(self, formula: Expression, k: int, place: Stratum | None = None) -> Any:
        """A formula at a token, or at the element of `place` that it lies over; None where it has no value."""
        log_probs = {p: self.given(p) for p in (OLD, *self.h.policies) if p != CURRENT}
        here = DirectOperator(self.h, self.concrete).at_tokens(
            self.given(CURRENT_CHANGE), self.given("advantage"), log_probs
        )
        here = replace(here, rewards=self.given("advantage"))
        if place is None:
            found = attempt(lambda: here.value(formula, k))
        else:
            element = self.concrete.below(*here.places[k], place)
            found = attempt(lambda: here.value_at(formula, place, element))
        return found if found is None or isinstance(found, bool) else value_of(found)

    @property
    def start(self) -> Fraction:
        """The log-prob of unchanged tokens, so low that the current log-probs are below 0 too."""
        return -1 - max(self.by, Fraction(0)) if self.changed == CURRENT_CHANGE else Fraction(-1)

    @property
    def is_possible(self) -> bool:
        """Whether no log-prob is above 0."""
        return self.changed in ("", CURRENT_CHANGE, "advantage") or self.by <= 0


def without_its_sign(
    h: Hierarchy, formula: Expression, signs: Signs, what: str, place: Stratum | None = None
) -> Witness | None:
    """A token, or an element of `place`, at which a formula has no value, or is negative unless `signs` is ANY.

    `what`: the name of the formula in the witness.
    """
    exact = rounding(formula)
    for batch in _batches(h, formula):
        for k in range(batch.size):
            value = batch.value(formula, k, place)
            if value is None or (signs != ANY and value < -exact):
                return _witness(batch, k, what, None if value is None else rounded(value, exact))
    return None


def _batches(h: Hierarchy, formula: Expression) -> Iterator[Batch]:
    read = atoms_within(formula)
    given = bool({advantage, reward}.intersection(read))  # rewards get the same numbers as advantages
    signs = [Fraction(a) for a in (1, -1, 0)] if given else [Fraction(1)]
    few: list[Batch] = []
    for concrete in concretes(h, [formula], whole_batch(h), most=MOST_TRIED):
        if sum(concrete.size[leaf] for leaf in h.leaves) <= MOST_TOKENS:
            yield from (found := [Batch(h, concrete, a) for a in signs])
            few += found if len(few) < FEW * len(signs) else []
    policies = [a.policy.name for a in atoms_within(formula, LogProb)]
    moving = [CURRENT_CHANGE] * (token_log_ratio in read or CURRENT in policies) + [p for p in policies if p != CURRENT]
    for batch, changed in itertools.product(few, [*dict.fromkeys(moving), *["advantage"] * given]):
        made = (replace(batch, changed=changed, by=v) for v in _changes(batch, formula, changed))
        yield from (b for b in made if b.is_possible)


def _changes(batch: Batch, formula: Expression, changed: str) -> list[Fraction]:
    """Values of one number of the first token around which a branch, a sign or a domain changes, and large ones."""
    leaf, _ = DirectOperator(batch.h, batch.concrete).tokens[0]

    def along(e: Expression) -> Callable[[Fraction], Fraction | None]:
        return lambda v: replace(batch, changed=changed, by=v).value(e, 0)

    read = [e for e in (at(e, leaf) for e in within(formula)) if is_read_at(batch.concrete.shape, e, leaf)]
    deciding = [*turning(read), *(e for e in read if not e.is_condition)]
    found = {c for e in deciding for c in crossings(along(e), near=-6, far=2)}
    return [*(s * Fraction(n) for n in (1, 20) for s in (1, -1)), *between(sorted(found))]


def _witness(batch: Batch, k: int, what: str, value: Fraction | None) -> Witness:
    h, concrete = batch.h, batch.concrete
    rows = concrete.size[h.rows]
    place = concrete.describe(h.rows) if rows == 1 else concrete.describe(Stratum(BATCH))
    word = "reward" if what == "advantage" else "advantage"
    parts = [f"{word} {batch.given('advantage')[k]}"] if batch.changed == "advantage" or batch.advantage != 1 else []
    if batch.changed == CURRENT_CHANGE:
        parts.append(f"log ratio {in_brief(batch.by)}")
    elif batch.changed and batch.changed != "advantage":
        parts.append(f"log_prob({batch.changed}) = {in_brief(batch.by)}, all others {batch.start}")
    given = f" with {' and '.join(parts)}" if parts else ""
    of = "the first token" if k == 0 and batch.size > 1 else f"token {k + 1}" if k else "the token"
    got = "has no value" if value is None else f"is {in_brief(value)}"
    text = f"in {place}{given}, the {what} of {of} {got}"
    values: dict[str, Any] = {"element": k, "value": value, "advantages": batch.given("advantage")}
    values |= {"log_ratios": batch.given(CURRENT_CHANGE)}
    values |= {f"log_probs of {p}": batch.given(p) for p in (OLD, *h.policies) if p != CURRENT}
    return Witness(text + settings(concrete), concrete, values)
