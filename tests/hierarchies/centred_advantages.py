"""Formulas of advantages, centred and not, each with what it makes of rewards, written out a second time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from oracles.definition import World

from fibration import Parameter, centred, clip, count, deviation, largest, mean, reward, standardised, strata, where
from fibration.language.expressions import Expression
from hierarchies.builders import T, domain, prompt_group, token, trajectory

F = Fraction
(batch,) = strata("batch")
share = Parameter("share", default=0.75, upper=1)
others = {s: mean(reward, over=s, of=trajectory, others=True) for s in (prompt_group, domain)}
several = count(trajectory, over=prompt_group) > 1


@dataclass(frozen=True)
class Answer:
    """One row: its reward and length, and the (reward, length) of all rows of its group, domain and batch."""

    reward: Fraction
    length: int
    group: list[tuple[Fraction, int]]
    domain: list[tuple[Fraction, int]]
    batch: list[tuple[Fraction, int]]

    def above(self, rows: list[tuple[Fraction, int]]) -> Fraction:
        """The reward less the mean of these rows."""
        return self.reward - average(rows)

    def without_own(self, rows: list[tuple[Fraction, int]]) -> Fraction:
        return (sum((r for r, _ in rows), F(0)) - self.reward) / (len(rows) - 1)


def average(rows: list[tuple[Fraction, int]]) -> Fraction:
    return sum((r for r, _ in rows), F(0)) / len(rows)


def by_tokens(rows: list[tuple[Fraction, int]]) -> Fraction:
    return sum((r * n for r, n in rows), F(0)) / sum(n for _, n in rows)


def spread(rows: list[tuple[Fraction, int]]) -> Fraction:
    return F(float(sum((r - average(rows)) ** 2 for r, _ in rows) / max(len(rows) - 1, 1)) ** 0.5)


E = F(1, 10**6)
ADVANTAGES: dict[str, tuple[Expression, Callable[[Answer], Fraction]]] = {
    "group": (centred(reward, over=prompt_group), lambda a: a.above(a.group)),
    "domain": (centred(reward, over=domain), lambda a: a.above(a.domain)),
    "batch": (centred(reward, over=batch), lambda a: a.above(a.batch)),
    "leave one out": (
        centred(reward, over=prompt_group, leave_one_out=True),
        lambda a: a.reward - a.without_own(a.group),
    ),
    "leave one out of the domain": (
        centred(reward, over=domain, leave_one_out=True),
        lambda a: a.reward - a.without_own(a.domain),
    ),
    "standardised": (standardised(reward, over=prompt_group), lambda a: a.above(a.group) / (spread(a.group) + E)),
    "standardised in the domain": (
        standardised(reward, over=domain),
        lambda a: a.above(a.domain) / (spread(a.domain) + E),
    ),
    "deviation of the batch": (
        centred(reward, over=prompt_group) / (1 + deviation(reward, over=batch, of=trajectory)),
        lambda a: a.above(a.group) / (1 + spread(a.batch)),
    ),
    "twice": (2 * reward - mean(reward, over=prompt_group, of=trajectory) * 2, lambda a: 2 * a.above(a.group)),
    "by tokens": (reward - mean(reward, over=prompt_group), lambda a: a.reward - by_tokens(a.group)),
    "domain by tokens": (reward - mean(reward, over=domain), lambda a: a.reward - by_tokens(a.domain)),
    "not quite": (
        reward - mean(reward, over=prompt_group, of=trajectory) * 2,
        lambda a: a.reward - 2 * average(a.group),
    ),
    "reward": (reward - share, lambda a: a.reward - F(3, 4)),
    "largest": (
        reward - largest(reward, over=prompt_group, of=trajectory),
        lambda a: a.reward - max(r for r, _ in a.group),
    ),
    "hierarchical": (
        reward - share * others[prompt_group] - (1 - share) * others[domain],
        lambda a: a.reward - F(3, 4) * a.without_own(a.group) - F(1, 4) * a.without_own(a.domain),
    ),
    "square": (
        centred(reward * reward, over=prompt_group),
        lambda a: a.reward**2 - average([(r * r, n) for r, n in a.group]),
    ),
    "times itself": (reward * centred(reward, over=prompt_group), lambda a: a.reward * a.above(a.group)),
    "by length": (centred(reward, over=prompt_group) / T, lambda a: a.above(a.group) / a.length),
    "where several": (
        where(several, centred(reward, over=prompt_group), 0),
        lambda a: a.above(a.group) if len(a.group) > 1 else F(0),
    ),
    "clipped": (clip(centred(reward, over=prompt_group), -1, 1), lambda a: max(min(a.above(a.group), F(1)), F(-1))),
}


def advantages_of(kind: str, world: World, rewards: list[Fraction]) -> list[Fraction]:
    """The advantage of every row."""
    rows = range(world.size(trajectory))
    given = [(rewards[r], len(world.over(token, trajectory, r))) for r in rows]

    def beside(row: int, s: object) -> list[tuple[Fraction, int]]:
        return [given[q] for q in rows if world.below(trajectory, q, s) == world.below(trajectory, row, s)]

    answers = (Answer(*given[r], beside(r, prompt_group), beside(r, domain), given) for r in rows)
    return [ADVANTAGES[kind][1](a) for a in answers]
