"""The laws `causal` and `baseline`, by their definitions: on which samples a token's quantities depend."""

from __future__ import annotations

import random
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

from fibration import (
    Hierarchy,
    after,
    before,
    centred,
    count,
    exp,
    log_prob,
    mean,
    minimum,
    position,
    reward,
    standardised,
    token_log_ratio,
    total,
    where,
)
from fibration.errors import FibrationError
from fibration.language.atoms import BATCH
from fibration.language.expressions import Expression
from fibration.language.report import Verdict
from fuzz.batch_changes import Changes
from fuzz.batches import Batches
from fuzz.dual_numbers import value_of
from fuzz.generate import PARAMETERS, SETTINGS, Formulas, old, rollout, token, trajectory, turn
from fuzz.judges.judge import SEARCHED, SEARCHES, NothingDrawn, OfHierarchy, attempt, of_batch, proofs_alone, verdicts
from fuzz.judges.token_laws import subjects
from fuzz.world import Batch, World

BATCHES, MOST_TOKENS = 6, 12
LARGE = 1e6  # beside such numbers floats lose what a reward adds
C = PARAMETERS[1]
k = log_prob(old) - log_prob(rollout)
x, r = token_log_ratio, exp(token_log_ratio)


def differ(a: float, b: float, *scale: float) -> bool:
    return abs(a - b) > 1e-7 * max(1.0, abs(a), abs(b), *map(abs, scale))


def number(world: World, e: Expression, i: int) -> Any:
    return value_of(world.at_token(e, i))


@dataclass(frozen=True)
class OfSamples:
    """A law of what a token has of samples."""

    name: str
    timeout: float = 1.0

    def hierarchy(self, f: Formulas) -> Hierarchy:
        raise NotImplementedError

    def wrong(self, h: Hierarchy, v: Verdict, rng: random.Random) -> str:
        """What contradicts a proof on some batches."""
        raise NotImplementedError

    def draw(self, rng: random.Random) -> OfHierarchy:
        for _ in range(20):
            try:
                return OfHierarchy(self.hierarchy(self.formulas(rng)))
            except FibrationError:
                continue
        raise NothingDrawn

    def formulas(self, rng: random.Random) -> Formulas:
        return Formulas(rng.choice(SETTINGS), rng)

    def judge(self, case: OfHierarchy, rng: random.Random) -> tuple[list[str], str]:
        h = case.h
        with proofs_alone(SEARCHES if rng.randrange(SEARCHED) else ()):
            found = verdicts(h, (self.name,), self.timeout)
        for v in found:
            if v.status == "proved" and (said := self.wrong(h, v, rng)):
                return [v.status for v in found], f"wrong proof: {v.subject}: {v.argument}: {said}"
        return [v.status for v in found], ""


# ---------------------------------------------------------------- causal


@dataclass(frozen=True)
class Causal(OfSamples):
    name: str = "causal"

    def hierarchy(self, f: Formulas) -> Hierarchy:
        made = f.objective().weigh(self.weight(f))
        return f.hierarchy(objective=made.keep(f.condition(1)) if f.rng.random() < 0.3 else made)

    def weight(self, f: Formulas) -> Expression:
        if f.rng.random() < 0.25:
            return f.number(f.rng.randrange(1, 3))
        s, z = f.setting, f.number(0, None, 1)
        rows = f.pick(*s.below)
        right = [
            minimum(exp(k), C), exp(before(k, over=trajectory) + k), exp(before(x, over=trajectory, discount=Fraction(1, 2))),
            where(position(over=trajectory) < 3, r, 1), 1 / count(trajectory, over=rows), before(z, over=trajectory),
            exp(mean(mean(k, over=trajectory), over=rows, of=trajectory, others=True)),
            exp(total(k, over=trajectory) - total(k, over=trajectory) + k), before(before(z, over=trajectory), over=trajectory),
            mean(mean(z, over=trajectory), over=rows, of=trajectory, others=True),
            mean(mean(z, over=rows), over=rows, of=trajectory, others=True), f.statistic(None, 2),
            before(total(z, over=trajectory), over=rows, of=trajectory),
        ]  # fmt: skip
        if s.within:
            right += [before(mean(z, over=turn), over=trajectory, of=turn), position(over=trajectory, of=turn)]
            right += [before(z, over=turn), before(count(token), over=trajectory, of=turn)]
        e = f.rng.choice(right)
        return f.mutated(e, f.rng.randrange(2)) if f.rng.random() < 0.7 else e

    def wrong(self, h: Hierarchy, v: Verdict, rng: random.Random) -> str:
        draw = Batches(h, rng)
        changes, e = Changes(h, rng, draw), subjects(h)[v.subject]
        for _ in range(BATCHES):
            b = draw()
            world = World(h, b)
            for i in rng.sample(range(b.size), min(b.size, 3)):
                one, why = attempt(partial(number, world, e, i))
                if why:
                    continue
                for as_many in (True, False, False):
                    other = changes.ends(b, i, as_many)
                    then, why = attempt(partial(number, World(h, other), e, i))
                    if not why and (one is not then if isinstance(one, bool) else differ(one, then)):
                        return f"token {i}: {one} {of_batch(b)}, and {then} {of_batch(other)}"
        return ""


# ---------------------------------------------------------------- baseline


@dataclass(frozen=True)
class Baseline(OfSamples):
    name: str = "baseline"

    def formulas(self, rng: random.Random) -> Formulas:
        return Formulas(rng.choice(SETTINGS), rng, moving=False, with_reward=True)

    def hierarchy(self, f: Formulas) -> Hierarchy:
        return f.hierarchy(advantages=self.advantages(f))

    def advantages(self, f: Formulas) -> Expression:
        s = f.setting
        if f.rng.random() < 0.2:
            return f.number(f.rng.randrange(1, 3))
        rows, z = f.pick(*s.below), f.number(f.rng.randrange(2), None, 1)
        to_go = reward + after(reward, over=trajectory)
        others = mean(reward, over=rows, of=trajectory, others=True)
        n = count(trajectory, over=rows)
        right = [
            centred(reward, over=rows), centred(reward, over=rows, leave_one_out=True), reward - others * z, reward - z, reward * z,
            (reward - others) * z, to_go, to_go - z, to_go * z, total(reward, over=trajectory) - z, to_go - before(reward, over=trajectory),
            centred(reward - total(k, over=trajectory), over=rows), centred(reward, over=rows) * n / (n - 1), where(f.condition(1), reward - z, reward),
            where(f.condition(1), reward, 2 * reward), reward * where(n > f.pick(1, 2, 3, 30), 1, f.pick(0, 1, -1, 2)),
            reward - mean(reward * z, over=rows, of=trajectory, others=True), to_go - after(z, over=trajectory),
            reward - mean(mean(reward, over=rows, of=trajectory), over=rows, of=trajectory), reward * f.of_row(), standardised(reward, over=rows),
            reward - total(z, over=trajectory), centred(total(reward, over=trajectory), over=rows), reward + after(reward + z, over=trajectory),
            reward * position(over=rows, of=trajectory), to_go - mean(total(reward, over=trajectory), over=rows, of=trajectory, others=True),
        ]  # fmt: skip
        e = f.rng.choice(right)
        return f.mutated(e, f.rng.randrange(2)) if f.rng.random() < 0.6 else e

    def wrong(self, h: Hierarchy, v: Verdict, rng: random.Random) -> str:
        draw = Batches(h, rng, MOST_TOKENS)
        for _ in range(BATCHES):
            if said := no_baseline(h, draw(), rng, draw, adds="own sample" in v.argument):
                return said
        return ""


def no_baseline(h: Hierarchy, b: Batch, rng: random.Random, draw: Batches, adds: bool) -> str:
    """By definition: the own rewards raise an advantage alike, whatever else there is; and nothing else of the own
    sample has a part in it, or in what others do to it."""
    e, changes = h.advantages, Changes(h, rng, draw)
    assert e is not None and b.rewards is not None

    def value(batch: Batch, i: int) -> float | None:
        found, why = attempt(partial(number, World(h, batch), e, i))
        return None if why else float(found)

    def rise(batch: Batch, i: int, more: Any, token: int) -> tuple[float, float] | None:
        low, high = value(batch, i), value(changes.rewarded(batch, i, more, token), i)
        return None if low is None or high is None else ((high - low) / float(more), max(abs(low), abs(high)))

    i = rng.randrange(b.size)
    row = changes.row(b, i)
    below = [labels for s, labels in b.labels.items() if s in _coarse(h)] + [[0] * b.size]
    rows = b.labels[h.rows.name]
    several = all(len({r for r, e in zip(rows, labels, strict=True) if e == labels[i]}) > 1 for labels in below)
    batches = [b, changes.others(b, i), changes.ends(b, i, rng.random() < 0.5), changes.token(b, i, changes.numbers)]
    batches.append(changes.others(batches[2], i))
    first: tuple[float, float] | None = None
    for batch in batches:
        for t in [i, *rng.sample(row, min(len(row), 2))] if batch is b else [i]:
            onward = [q for q in changes.row(batch, i) if q >= t]
            for j in rng.sample(onward, min(len(onward), 2)) if b.by_token else [t]:
                step = rise(batch, t, rng.choice([Fraction(1), Fraction(-1, 2), Fraction(5)]), j)
                if step is None:
                    continue
                if first is not None and differ(step[0], first[0], step[1], first[1]):
                    return f"token {t} rises by {step[0]}, not {first[0]}, with the reward of {j} {of_batch(batch)}"
                if step[0] < -1e-7 * step[1] or (several and step[0] <= 0 and step[1] < LARGE):
                    return f"token {t} rises by {step[0]} with the reward of {j} {of_batch(batch)}"
                first = first or step
    other = changes.others(b, i)
    ends = changes.ends(changes.token(b, i, changes.numbers), i, as_many=True)
    changed = changes.others_of(ends, other, i)
    values = [value(batch, i) for batch in (b, ends, other, changed)]
    if None not in values[:2] and not adds and differ(*values[:2]):  # type: ignore[arg-type]
        return f"token {i}: {values[0]} {of_batch(b)}, and {values[1]} {of_batch(ends)}"
    if None not in values:
        one, two, three, four = (float(w) for w in values if w is not None)
        if differ(one - two, three - four, one, two, three, four):
            return f"token {i}: {values} {of_batch(b)} {of_batch(changed)}"
    return ""


def _coarse(h: Hierarchy) -> set[str]:
    found = {s.name for s in h.groups} | ({s.name for s in h.coarser(h.rows)} if h.rows in h.strata else set())
    return found - {BATCH}


JUDGES = (Causal(), Baseline())
