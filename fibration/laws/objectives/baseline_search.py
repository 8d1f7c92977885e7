"""Searches batches on which an advantage is not its own reward less a baseline: by differences, in rationals."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, NamedTuple

from fibration.errors import an
from fibration.language.atoms import Attribute, Stratum
from fibration.language.expressions import Expression
from fibration.language.hierarchy import Hierarchy
from fibration.language.places import whole_batch
from fibration.language.policies import CURRENT, LogProb
from fibration.language.statistics import atoms_within
from fibration.language.traversal import desugar
from fibration.laws.batches import caps
from fibration.laws.batches.coefficients import Point, rows_of
from fibration.laws.batches.concrete import Concrete, rounding
from fibration.laws.batches.search import concretes, find
from fibration.laws.batches.words import Witness
from fibration.laws.values.numerals import in_brief, number, rounded

ZERO, ONE, LOWER = Fraction(0), Fraction(1), Fraction(-2)  # a log-prob, where all others are -1


class Varied(NamedTuple):
    """A sample, how it differs from the first one of a list, in words, and whether its own row differs."""

    how: str
    sample: Sample
    is_own: bool = False


@dataclass(frozen=True)
class Sample:
    """A batch with a reward per token (equal along a row if rewards belong to rows), and one token of its first row.

    The search reads the advantage of that token, and changes what its row samples from there on.
    """

    h: Hierarchy
    tokens: Point
    policy: str = ""  # the policy under which that token's log-prob differs from all others
    token: int = 0

    @cached_property
    def rows(self) -> list[int]:
        return rows_of(self.h, self.tokens.concrete)

    @property
    def own(self) -> list[int]:
        """The tokens of the first row."""
        return [k for k, row in enumerate(self.rows) if row == self.rows[0]]

    @property
    def onward(self) -> Iterator[Sample]:
        """Yields the sample with each token of the first row in turn, as far as they belong to the first leaf."""
        places = self.tokens.places
        yield from (replace(self, token=k) for k in self.own if places[k][0] == places[0][0])

    def under(self, policy: str) -> Sample:
        """The sample with a lower log-prob of the token under one policy."""
        return replace(self, tokens=self.tokens.changed(policy, self.token, LOWER), policy=policy)

    def value(self, formula: Expression) -> Fraction | None:
        """The advantage of the token."""
        found: Fraction | None = self.tokens.attempt(formula, self.token)
        return found

    def given(self, tokens: Sequence[int], value: Fraction) -> Sample:
        """The sample with another reward for some tokens."""
        rewards = tuple(value if k in tokens else r for k, r in enumerate(self.tokens.rewards))
        return replace(self, tokens=replace(self.tokens, rewards=rewards))

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
        longer = Point.alike(self.h, Concrete(c.shape, maps, attributes, c.parameters), (ONE,) * (len(places) + 1))
        return replace(self, tokens=replace(longer, rewards=(*given[:last], given[0], *given[last:])))

    @property
    def grown(self) -> Iterator[Varied]:
        """Yields the sample with one more token in the first row, then with the token in a turn of its own.

        A turn is an element of any stratum between tokens and rows. Under assumptions there is no such turn, because
        one token alone may break them.
        """
        yield Varied("its row has one token more", self.longer(), True)
        shape, leaf = whole_batch(self.h), self.tokens.places[0][0]
        inside = [s for s in shape.coarser(leaf) if self.h.rows in shape.coarser(s)]
        for stratum in inside if not self.h.assume else ():
            new_in = [s for s in inside if s == stratum or stratum in shape.coarser(s)]
            yield Varied(f"its row has one token more, {an(stratum.name)} of its own", self.longer(new_in), True)


def not_its_own(h: Hierarchy, formula: Expression, by_token: bool) -> Witness | None:
    """A batch on which an advantage does not rise evenly with its own rewards, whatever else is sampled."""
    exact = rounding(desugar(formula))
    read = (a.policy.name for a in atoms_within(formula, LogProb))
    policies = [p for p in dict.fromkeys(read) if p != CURRENT]

    def fails(resting: Sample) -> Witness | None:
        varied = (v for at in resting.onward for v in _samples(at, policies))
        return find(varied, lambda v: _uneven(v, formula, by_token, exact)) or _along(resting, formula, by_token, exact)

    return find(_resting(h, concretes(h, [formula], caps.BASELINE, whole_batch(h))), fails)


def raised(h: Hierarchy, formula: Expression) -> Iterator[tuple[Fraction, Witness]]:
    """Yields how an advantage rises with its own rewards from the token on, where everything else is alike."""
    exact = rounding(desugar(formula))
    found = concretes(h, [formula], caps.RISING, whole_batch(h))
    alike = (c for c in found if all(len(set(values)) == 1 for values in c.attributes.values()))
    for sample in (s for resting in _resting(h, alike) for s in resting.onward):
        onward = [k for k in sample.own if k >= sample.token]
        values = [sample.given(onward, Fraction(r)).value(formula) for r in (-1, 0, 1)]
        for (low, high), step in zip(itertools.pairwise(values), ("from -1 to 0", "from 0 to 1"), strict=True):
            if low is None or high is None or 0 < abs(high - low) <= _tolerance(exact, low, high):
                continue
            words = f"by {{}} as its own rewards go {step}"
            yield high - low, _witness(sample, sample, [(words, high - low)], exact)


def _resting(h: Hierarchy, found: Iterator[Concrete]) -> Iterator[Sample]:
    """Yields batches in which every row is compared with others and all rewards are 0, a number of each size."""
    tried: Counter[int] = Counter()
    for concrete in found:
        n = concrete.tokens
        if tried[n] < caps.BASELINE.few and _is_compared(h, concrete):
            tried[n] += 1
            yield Sample(h, replace(Point.alike(h, concrete, (ONE,) * n), rewards=(ZERO,) * n))


def _is_compared(h: Hierarchy, concrete: Concrete) -> bool:
    """Whether several rows lie over every element that rows lie over."""
    below = [s for s in whole_batch(h).coarser(h.rows) if s in concrete.size]
    fibres = (concrete.over(h.rows, s, e) for s in below for e in range(concrete.size[s]))
    return concrete.size[h.rows] > 1 and all(len(f) > 1 for f in fibres)


def _samples(sample: Sample, policies: list[str]) -> Iterator[list[Varied]]:
    """Yields lists of samples that differ in one thing other than the own reward; a list must have a single slope."""
    others = [k for k in range(len(sample.rows)) if k not in sample.own]
    rewarded = sample.given(others, ONE)
    yield [Varied("", sample), Varied("the others have rewards of 1", rewarded), *sample.grown]
    far = sample
    for n, k in enumerate(others):
        far = far.given([k], Fraction(n + 1))
    yield [Varied("", rewarded), Varied("the others have rewards 1, 2, ...", far), *rewarded.grown]
    for p in policies:
        for s in (sample, rewarded):
            yield [Varied("", s), Varied(f"its log_prob({p}) is {LOWER} instead of -1", s.under(p), True)]


def _along(sample: Sample, formula: Expression, by_token: bool, exact: Fraction) -> Witness | None:
    """Two tokens of a row whose advantages rise unequally with the reward of its last token, or of the row."""
    tokens = sample.own[-1:] if by_token else sample.own
    which = f"the reward of token {tokens[-1] + 1}" if by_token else "its own reward"
    first: tuple[str, Fraction] | None = None
    for at in (replace(sample, token=k) for k in sample.own):
        low, high = (at.given(tokens, r).value(formula) for r in (ZERO, ONE))
        if low is None or high is None:
            return None
        words = f"by {{}} as {which} goes from 0 to 1"
        if first is not None and abs(high - low - first[1]) > _tolerance(exact, low, high):
            steps = [first, (f"that of token {at.token + 1} {words}", high - low)]
            return _witness(sample, at, steps, exact)
        first = first or (words, high - low)
    return None


def _tolerance(exact: Fraction, *values: Fraction) -> Fraction:
    """How far a difference of these numbers may be off."""
    return exact * max(ONE, *map(abs, values))


def _uneven(varied: list[Varied], formula: Expression, by_token: bool, exact: Fraction) -> Witness | None:
    """Two unequal steps of an advantage with its own reward; or one step that is not above 0."""
    first: tuple[str, Fraction] | None = None
    first_off = exact
    for how, sample, _ in varied:
        for tokens in [[k] for k in sample.own if k >= sample.token] if by_token else [sample.own]:
            values = [sample.given(tokens, Fraction(r)).value(formula) for r in (-1, 0, 1, 2)]
            if None in values:
                return None
            low_end, a, b, c = (v for v in values if v is not None)
            which = f"the reward of token {tokens[0] + 1}" if by_token else "its own reward"
            for low, high, said in ((a, b, "from 0 to 1"), (b, c, "from 1 to 2"), (low_end, a, "from -1 to 0")):
                step, words = high - low, f"by {{}} as {which} goes {said}{f' where {how}' if how else ''}"
                off = _tolerance(exact, low, high)
                if first is not None and abs(step - first[1]) > max(off, first_off):
                    return _witness(varied[0].sample, sample, [first, (words, step)], exact)
                if step < -off or not step:
                    return _witness(varied[0].sample, sample, [(words, step)], exact)
                if first is None:
                    first, first_off = (words, step), off
    return _crossed(varied, formula, exact)


def _crossed(varied: list[Varied], formula: Expression, exact: Fraction) -> Witness | None:
    """Two samples between which the effect of the others' rewards on an advantage changes with its own sample."""
    first: tuple[str, Fraction] | None = None
    off = exact
    for how, sample, is_own in varied:
        others = [k for k in range(len(sample.rows)) if k not in sample.own]
        values = [sample.given(others, Fraction(r)).value(formula) for r in (0, 1)]
        if None in values:
            return None
        low, high = (v or ZERO for v in values)
        step, off = high - low, max(off, _tolerance(exact, low, high))
        words = f"by {{}} as the rewards of all others go from 0 to 1{f' where {how}' if how else ''}"
        if is_own and first is not None and abs(step - first[1]) > off:
            return _witness(varied[0].sample, sample, [first, (words, step)], exact)
        first = first or (words, step)
    return None


def _witness(base: Sample, sample: Sample, steps: list[tuple[str, Fraction]], exact: Fraction) -> Witness:
    c, rewards = base.tokens.concrete, base.tokens.rewards
    sizes = [base.rows.count(row) for row in dict.fromkeys(base.rows)]
    each = (
        f"{sizes[0]} token{'s' * (sizes[0] > 1)} each"
        if len(set(sizes)) == 1
        else f"{' and '.join(map(str, sizes))} tokens"
    )
    place = f"a batch of {number(c.size[base.h.rows], base.h.rows)} of {each}"
    verb = "rises" if all(v >= 0 for _, v in steps) else "changes"
    how = ", and ".join(words.format(in_brief(rounded(v, exact))) for words, v in steps)
    text = f"in {place} with rewards {in_brief(*rewards)}, the advantage of token {base.token + 1} {verb} {how}"
    values: dict[str, Any] = {"rewards": rewards, "row": tuple(base.rows), "steps": tuple(v for _, v in steps)}
    values |= {"after_row": tuple(sample.rows), "after_rewards": sample.tokens.rewards, "policy": sample.policy}
    values["token"] = base.token
    return Witness.on(c, text, values)
