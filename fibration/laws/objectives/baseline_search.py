"""Searches batches on which an advantage is not its own reward less a baseline: by differences, in rationals."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, NamedTuple

from fibration.errors import an
from fibration.language.atoms import Attribute, Stratum
from fibration.language.declared import CURRENT
from fibration.language.exact import NoValue
from fibration.language.expressions import Expression
from fibration.language.hierarchy import Hierarchy
from fibration.language.outline import whole_batch
from fibration.language.traversal import desugar
from fibration.laws.batches import caps
from fibration.laws.batches.coefficients import Point, attempt, policies_read, rows_of
from fibration.laws.batches.concrete import Concrete, Witness, rounding
from fibration.laws.batches.search import concretes, find
from fibration.laws.values.numerals import in_brief, number, rounded

ZERO, ONE, LOWER = Fraction(0), Fraction(1), Fraction(-2)  # a log-prob, where all others are -1


class Rise(NamedTuple):
    """How an advantage rises between two batches, with words for it, and how far the number may be off."""

    words: str
    step: Fraction
    off: Fraction
    sample: Sample
    must_rise: bool = False


Varied = list[tuple[str, "Sample"]]  # samples, each with how it differs from the first, in words


@dataclass(frozen=True)
class Sample:
    """A batch with a reward per token (equal along a row if rewards belong to rows), and one token of its first row.

    The search reads the advantage of that token, and changes what its row samples from there on.
    """

    tokens: Point
    formula: Expression  # the advantage
    exact: Fraction  # how far a number of size 1 may be off
    policy: str = ""  # the policy under which that token's log-prob differs from all others
    token: int = 0

    @cached_property
    def rows(self) -> list[int]:
        return rows_of(self.tokens.h, self.tokens.concrete)

    @property
    def own(self) -> list[int]:
        """The tokens of the first row."""
        return [k for k, row in enumerate(self.rows) if row == self.rows[0]]

    @property
    def others(self) -> list[int]:
        """The tokens of all other rows."""
        return [k for k, row in enumerate(self.rows) if row != self.rows[0]]

    @property
    def onward(self) -> Iterator[Sample]:
        """Yields the sample with each token of the first row in turn, as far as they belong to the first leaf."""
        places = self.tokens.places
        yield from (replace(self, token=k) for k in self.own if places[k][0] == places[0][0])

    def given(self, tokens: Sequence[int], value: Fraction) -> Sample:
        """The sample with another reward for some tokens."""
        rewards = tuple(value if k in tokens else r for k, r in enumerate(self.tokens.rewards))
        return replace(self, tokens=replace(self.tokens, rewards=rewards))

    def rises(self, tokens: Sequence[int], rewards: Iterable[int], words: str, how: str = "") -> list[Rise]:
        """How the advantage rises from each of some rewards of these tokens to the next. Raises `NoValue`.

        `words`: what goes from one reward to the next. `how`: what else differs in this sample.
        """
        values = [(r, self.given(tokens, Fraction(r)).tokens.attempt(self.formula, self.token)) for r in rewards]
        if any(v is None for _, v in values):
            raise NoValue("an advantage without a value")
        where = f" where {how}" if how else ""
        return [
            Rise(f"by {{}} as {words} from {r} to {s}{where}", b - a, self.exact * max(ONE, abs(a), abs(b)), self)
            for (r, a), (s, b) in itertools.pairwise(values)
        ]

    def longer(self, new_in: Collection[Stratum] = ()) -> Sample:
        """The sample with one more token at the end of the first row, over new elements of the strata `new_in`."""
        c, places, given = self.tokens.concrete, self.tokens.places, self.tokens.rewards
        leaf, i = next(places[k] for k in reversed(self.own) if places[k][0] == places[0][0])
        new = (leaf, *new_in)
        maps = {
            (s, t): (*m, c.size[t] if t in new_in else c.below(leaf, i, t)) if s in new else m
            for (s, t), m in c.maps.items()
        }
        attributes: dict[Attribute, tuple[Fraction, ...]] = {
            a: (*v, v[c.below(leaf, i, a.on)]) if a.on in new else v for a, v in c.attributes.items()
        }
        last = max(k for k, p in enumerate(places) if p[0] == leaf) + 1
        longer = Point.alike(
            self.tokens.h, Concrete(c.shape, maps, attributes, c.parameters), (ONE,) * (len(places) + 1)
        )
        return replace(self, tokens=replace(longer, rewards=(*given[:last], given[0], *given[last:])))

    @property
    def grown(self) -> Iterator[tuple[str, Sample]]:
        """Yields the sample with one more token in the first row, then with the token in a turn of its own.

        A turn is an element of any stratum between tokens and rows. Under assumptions there is no such turn, because
        one token alone may break them.
        """
        yield "its row has one token more", self.longer()
        h, leaf = self.tokens.h, self.tokens.places[0][0]
        shape = whole_batch(h)
        inside = [s for s in shape.coarser(leaf) if h.rows in shape.coarser(s)]
        for stratum in inside if not h.assume else ():
            new_in = [s for s in inside if s == stratum or stratum in shape.coarser(s)]
            yield f"its row has one token more, {an(stratum.name)} of its own", self.longer(new_in)


def not_its_own(h: Hierarchy, formula: Expression, by_token: bool) -> Witness | None:
    """A batch on which an advantage does not rise evenly with its own rewards, whatever else is sampled."""
    policies = [p for p in policies_read(formula) if p != CURRENT]

    def is_uneven(varied: Varied) -> Witness | None:
        base = varied[0][1]  # unequal steps with the own reward, or one that is not above 0; unequal effects of others
        return attempt(lambda: _odd(base, _with_its_own(varied, by_token)) or _odd(base, _with_others(base, varied)))

    def fails(resting: Sample) -> Witness | None:
        found = find((v for at in resting.onward for v in _samples(at, policies)), is_uneven)
        return found or attempt(lambda: _odd(resting, _along(resting, by_token)))

    return find(_resting(h, formula, concretes(h, [formula], caps.BASELINE, whole_batch(h))), fails)


def raised(h: Hierarchy, formula: Expression) -> Iterator[tuple[Fraction, Witness]]:
    """Yields how an advantage rises with its own rewards from the token on, where everything else is alike."""
    found = concretes(h, [formula], caps.RISING, whole_batch(h))
    alike = (c for c in found if all(len(set(values)) == 1 for values in c.attributes.values()))
    for sample in (s for resting in _resting(h, formula, alike) for s in resting.onward):
        onward = [k for k in sample.own if k >= sample.token]
        for low in (-1, 0):
            rises = attempt(lambda s=sample, k=onward, r=low: s.rises(k, (r, r + 1), "its own rewards go"))  # type: ignore[misc]
            for rise in rises or ():
                if not 0 < abs(rise.step) <= rise.off:
                    yield rise.step, _witness(sample, [rise])


def _resting(h: Hierarchy, formula: Expression, found: Iterator[Concrete]) -> Iterator[Sample]:
    """Yields batches in which every row is compared with others and all rewards are 0, a number of each size."""
    tried: Counter[int] = Counter()
    exact = rounding(desugar(formula))
    for concrete in found:
        n = concrete.tokens
        if tried[n] == caps.BASELINE.few:
            continue
        below = [s for s in whole_batch(h).coarser(h.rows) if s in concrete.size]
        fibres = (concrete.over(h.rows, s, e) for s in below for e in range(concrete.size[s]))
        if concrete.size[h.rows] > 1 and all(len(rows) > 1 for rows in fibres):
            tried[n] += 1
            yield Sample(replace(Point.alike(h, concrete, (ONE,) * n), rewards=(ZERO,) * n), formula, exact)


def _samples(sample: Sample, policies: list[str]) -> Iterator[Varied]:
    """Yields lists of samples that differ in one thing other than the own reward; a list must have a single slope."""
    rewarded = sample.given(sample.others, ONE)
    yield [("", sample), ("the others have rewards of 1", rewarded), *sample.grown]
    far = sample
    for n, k in enumerate(sample.others):
        far = far.given([k], Fraction(n + 1))
    yield [("", rewarded), ("the others have rewards 1, 2, ...", far), *rewarded.grown]
    for p in policies:
        for s in (sample, rewarded):
            under = replace(s, tokens=s.tokens.changed(p, s.token, LOWER), policy=p)
            yield [("", s), (f"its log_prob({p}) is {LOWER} instead of -1", under)]


def _odd(base: Sample, rises: Iterator[Rise]) -> Witness | None:
    """The first rise that is not equal to the first of all, or that must be above 0 and is not."""
    first: Rise | None = None
    for rise in rises:
        first = first or rise
        if abs(rise.step - first.step) > max(rise.off, first.off):
            return _witness(base, [first, rise])
        if rise.must_rise and (rise.step < -rise.off or not rise.step):
            return _witness(base, [rise])
    return None


def _with_its_own(varied: Varied, by_token: bool) -> Iterator[Rise]:
    """The rises of an advantage with its own reward, or with those of its token and of later ones."""
    for how, sample in varied:
        for tokens in [[k] for k in sample.own if k >= sample.token] if by_token else [sample.own]:
            which = f"the reward of token {tokens[0] + 1} goes" if by_token else "its own reward goes"
            below, *above = sample.rises(tokens, (-1, 0, 1, 2), which, how)
            yield from (rise._replace(must_rise=True) for rise in (*above, below))


def _with_others(base: Sample, varied: Varied) -> Iterator[Rise]:
    """The rises of an advantage with the rewards of all others, in the samples whose own row differs, or none does."""
    for how, sample in varied:
        rises = sample.rises(sample.others, (0, 1), "the rewards of all others go", how)
        yield from rises if sample is base or sample.policy or len(sample.rows) > len(base.rows) else ()


def _along(sample: Sample, by_token: bool) -> Iterator[Rise]:
    """The rises of the advantages of a row's tokens with the reward of its last token, or of the row."""
    tokens = sample.own[-1:] if by_token else sample.own
    which = f"the reward of token {tokens[-1] + 1} goes" if by_token else "its own reward goes"
    for n, k in enumerate(sample.own):
        (rise,) = replace(sample, token=k).rises(tokens, (0, 1), which)
        yield rise._replace(words=f"that of token {k + 1} {rise.words}") if n else rise


def _witness(base: Sample, rises: list[Rise]) -> Witness:
    c, rewards, after = base.tokens.concrete, base.tokens.rewards, rises[-1].sample
    sizes = [base.rows.count(row) for row in dict.fromkeys(base.rows)]
    each = (
        f"{sizes[0]} token{'s' * (sizes[0] > 1)} each"
        if len(set(sizes)) == 1
        else f"{' and '.join(map(str, sizes))} tokens"
    )
    h = base.tokens.h
    place = f"a batch of {number(c.size[h.rows], h.rows)} of {each}"
    verb = "rises" if all(r.step >= 0 for r in rises) else "changes"
    how = ", and ".join(r.words.format(in_brief(rounded(r.step, base.exact))) for r in rises)
    text = f"in {place} with rewards {in_brief(*rewards)}, the advantage of token {base.token + 1} {verb} {how}"
    values: dict[str, Any] = {"rewards": rewards, "row": tuple(base.rows), "steps": tuple(r.step for r in rises)}
    values |= {"after_row": tuple(after.rows), "after_rewards": after.tokens.rewards, "policy": after.policy}
    return Witness.on(c, text, {**values, "token": base.token})
