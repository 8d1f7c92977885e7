"""Formulas for advantages: rewards minus a baseline, and slips that are no baseline.

`of` computes the same advantage in plain numbers: of row `i` of a group, or of token `t` of a row.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

from fibration import (
    Attribute,
    Hierarchy,
    Parameter,
    after,
    before,
    centred,
    clip,
    count,
    deviation,
    identity_gate,
    largest,
    log_prob,
    maximum,
    mean,
    policies,
    ratio_deviation,
    reward,
    standardised,
    strata,
    token_mean,
    total,
    where,
)

token, trajectory, prompt_group, domain, batch = strata("token trajectory prompt_group domain batch")
old, reference = policies("old reference")
kl = log_prob(old) - log_prob(reference)
value = Attribute("value", on=token, positive=False)
greedy = Attribute("greedy", on=trajectory, positive=False)
gamma = Parameter("gamma", default=0.9, lower=0, upper=1)
lam = Parameter("lam", default=0.8, lower=0, upper=1)
G = count(trajectory, over=prompt_group)
T = count(token, over=trajectory)
others = mean(reward, over=prompt_group, of=trajectory, others=True)
Rows = list[SimpleNamespace]  # with `r` rewards, `T` lengths, `k` log ratios, `v` values
Half = Fraction(1, 2)


def spec(formula: Any, **more: Any) -> Hierarchy:
    return Hierarchy(
        name="one", gates={token: identity_gate()}, decomposition=ratio_deviation(), objective=token_mean(),
        groups=[prompt_group, domain], advantages=formula, **more,
    )  # fmt: skip


@dataclass(frozen=True)
class Compared:
    """The advantages of rows, and `κ` for a number of these."""

    formula: Any
    of: Callable[[int, Rows], Any]
    kappa: Callable[[int], Fraction] = lambda n: Fraction(1)
    adds: bool = False  # something of its own sample to the reward


@dataclass(frozen=True)
class Onward:
    """The advantages of the tokens of one row."""

    formula: Any
    of: Callable[[int, list[Fraction], list[Fraction]], Any]  # the token, rewards, and values


def average(found: Any) -> Any:
    known = list(found)
    return sum(known, Fraction(0)) / len(known)


def rest(i: int, rows: Rows) -> Any:
    return average(row.r for j, row in enumerate(rows) if j != i)


def spread(rows: Rows) -> float:
    m = average(row.r for row in rows)
    return math.sqrt(sum((row.r - m) ** 2 for row in rows) / (len(rows) - 1))


def share(n: int) -> Fraction:
    return Fraction(n - 1, n)


RIGHT: dict[str, Compared] = {
    "leave one out": Compared(centred(reward, over=prompt_group, leave_one_out=True), lambda i, b: b[i].r - rest(i, b)),
    "the group's mean": Compared(centred(reward, over=prompt_group), lambda i, b: b[i].r - average(x.r for x in b), share),
    "the batch's mean": Compared(centred(reward, over=batch), lambda i, b: b[i].r - average(x.r for x in b), share),
    "the others, by G": Compared(
        reward - (total(reward, over=prompt_group, of=trajectory) - reward) / G,
        lambda i, b: b[i].r - (sum(x.r for x in b) - b[i].r) / len(b),
    ),
    "a constant": Compared(reward - Half, lambda i, b: b[i].r - Half),
    "half of the mean": Compared(
        reward - mean(reward, over=prompt_group, of=trajectory) / 2,
        lambda i, b: b[i].r - average(x.r for x in b) / 2, lambda n: 1 - Fraction(1, 2 * n),
    ),
    "a greedy answer": Compared(reward - greedy, lambda i, b: b[i].r - Half),
    "two baselines": Compared(
        reward - others / 2 - mean(reward, over=domain, of=trajectory, others=True) / 2, lambda i, b: b[i].r - rest(i, b)
    ),
    "a divergence in the reward": Compared(
        centred(reward - total(kl, over=trajectory) / 2, over=prompt_group, leave_one_out=True),
        lambda i, b: b[i].r - b[i].k / 2 - average(x.r - x.k / 2 for j, x in enumerate(b) if j != i), adds=True,
    ),
    "length in the reward": Compared(reward - T / 4, lambda i, b: b[i].r - Fraction(b[i].T, 4), adds=True),
    "squares of the others": Compared(
        reward - mean(reward * 2 - 1, over=prompt_group, of=trajectory, others=True) ** 2,
        lambda i, b: b[i].r - (2 * rest(i, b) - 1) ** 2,
    ),
    "the groups' mean": Compared(
        reward - mean(mean(reward, over=prompt_group, of=trajectory), over=batch, of=prompt_group),
        lambda i, b: b[i].r - average(x.r for x in b), share,
    ),
}  # fmt: skip

WRONG: dict[str, Compared] = {
    "by the deviation": Compared(
        standardised(reward, over=prompt_group), lambda i, b: (b[i].r - average(x.r for x in b)) / (spread(b) + 1e-6)
    ),
    "whitened over the batch": Compared(
        standardised(reward, over=batch, epsilon=Fraction(1, 10)),
        lambda i, b: (b[i].r - average(x.r for x in b)) / (spread(b) + 0.1),
    ),
    "left out above, not below": Compared(
        (reward - others) / (deviation(reward, over=prompt_group, of=trajectory) + 1),
        lambda i, b: (b[i].r - rest(i, b)) / (spread(b) + 1),
    ),
    "a mean of tokens": Compared(
        reward - mean(reward, over=prompt_group), lambda i, b: b[i].r - Fraction(sum(x.T * x.r for x in b), sum(x.T for x in b))
    ),
    "by the length": Compared(reward / T - Half, lambda i, b: b[i].r / b[i].T - Half),
    "by the mean": Compared(
        reward / (1 + mean(reward, over=prompt_group, of=trajectory)), lambda i, b: b[i].r / (1 + average(x.r for x in b))
    ),
    "the wrong way round": Compared(
        mean(reward, over=prompt_group, of=trajectory) - reward, lambda i, b: average(x.r for x in b) - b[i].r
    ),
    "the best as the baseline": Compared(
        reward - largest(reward, over=prompt_group, of=trajectory), lambda i, b: b[i].r - max(x.r for x in b)
    ),
    "cut": Compared(clip(reward, 0, 1) - others, lambda i, b: min(b[i].r, 1) - rest(i, b)),
    "less its square": Compared(reward - reward**2 / 8, lambda i, b: b[i].r - b[i].r ** 2 / 8),
    "of at least one right": Compared(
        reward * (1 - others) ** 2, lambda i, b: b[i].r * (1 - rest(i, b)) ** 2
    ),
    "the better ones alone": Compared(
        maximum(reward - others, 0), lambda i, b: max(b[i].r - rest(i, b), 0)
    ),
    "where the group has failed": Compared(
        where(others > 0, reward, 2 * reward), lambda i, b: b[i].r if rest(i, b) > 0 else 2 * b[i].r
    ),
    "weighed by its length": Compared(
        reward - others * T / 2, lambda i, b: b[i].r - rest(i, b) * Fraction(b[i].T, 2)
    ),
    "weighed by its drift": Compared(
        reward * (1 + total(kl, over=trajectory)), lambda i, b: b[i].r * (1 + b[i].k)
    ),
    "no reward": Compared(greedy - others, lambda i, b: Half - rest(i, b)),
}  # fmt: skip


def onward(t: int, r: list[Fraction], discount: Any = 1) -> Any:
    return sum(discount ** (s - t) * r[s] for s in range(t, len(r)))


ONWARD_RIGHT: dict[str, Onward] = {
    "returns less values": Onward(reward + after(reward, over=trajectory) - value, lambda t, r, v: onward(t, r) - v[t]),
    "the whole return": Onward(total(reward, over=trajectory) - value, lambda t, r, v: sum(r) - v[t]),
    "what came before, as a baseline": Onward(
        reward + after(reward, over=trajectory) - before(reward, over=trajectory),
        lambda t, r, v: onward(t, r) - sum(r[:t]),
    ),
    "steps of potentials": Onward(
        reward + after(reward + value, over=trajectory), lambda t, r, v: onward(t, r) + sum(v[t + 1 :])
    ),
}  # fmt: skip

ONWARD_WRONG: dict[str, Onward] = {
    "discounted": Onward(
        reward + after(reward, over=trajectory, discount=Fraction(9, 10)) - value,
        lambda t, r, v: onward(t, r, Fraction(9, 10)) - v[t],
    ),
    "generalised": Onward(
        reward - value + after(reward + (1 - lam) / lam * value, over=trajectory, discount=gamma * lam),
        lambda t, r, v: r[t] - v[t] + sum(
            Fraction(72, 100) ** (s - t) * (r[s] + v[s] / 4) for s in range(t + 1, len(r))
        ),
    ),
    "the discount on the first too": Onward(
        reward / 2 + after(reward, over=trajectory), lambda t, r, v: r[t] / 2 + sum(r[t + 1 :])
    ),
    "after without its own": Onward(after(reward, over=trajectory) - value, lambda t, r, v: sum(r[t + 1 :]) - v[t]),
    "before for after": Onward(reward + before(reward, over=trajectory), lambda t, r, v: r[t] + sum(r[:t])),
    "a mean per token": Onward(
        (reward + after(reward, over=trajectory)) / T, lambda t, r, v: onward(t, r) / len(r)
    ),
}  # fmt: skip
