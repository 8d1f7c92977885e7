"""Penalties of tokens: formulas with the gradient of a divergence or the entropy, and slips with another gradient.

Each has a formula in plain numbers of one sampled token: `P` as a function of the token's log-prob `l` and of stopped
values `h`. Tests compute expected gradients from it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from fibration import (
    Attribute,
    Hierarchy,
    Parameter,
    Penalty,
    absolute,
    before,
    clip,
    count,
    exp,
    identity_gate,
    largest,
    log,
    log_prob,
    mean,
    minimum,
    policies,
    position,
    ratio_deviation,
    sigmoid,
    stop,
    strata,
    token_log_ratio,
    token_mean,
    total,
    trajectory_mean,
    where,
)

token, trajectory = strata("token trajectory")
current, old, reference, rollout = policies("current old reference rollout")
beta = Parameter("beta", default=0.1)
entropy = Attribute("entropy", on=token, positive=False, lower=0)
x, r = token_log_ratio, exp(token_log_ratio)
d = log_prob(current) - log_prob(reference)
k3 = exp(-d) - 1 + d
PerToken = Callable[
    [Any], float
]  # of l, o, q, w: the log-probs of current, old, reference and rollout; held ones end in _


@dataclass(frozen=True)
class Term:
    """A penalty, and the same in plain numbers."""

    formula: Any
    of: PerToken
    target: str = "reference"  # of the divergence; "" is the entropy
    kappa: float = 1.0
    exact: bool = False  # off policy too
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def hierarchy(self) -> Hierarchy:
        return Hierarchy(
            name="one", gates={token: identity_gate()}, decomposition=ratio_deviation(), objective=trajectory_mean(),
            penalties={"term": self.formula}, **self.more,
        )  # fmt: skip


def _k3(t: Any) -> float:
    return math.exp(t.q - t.l) - 1 + t.l - t.q


def own(formula: Any, **objective: Any) -> Penalty:
    made = token_mean()
    made = made.weigh(objective["weigh"]) if "weigh" in objective else made
    return Penalty(formula, objective=made.keep(objective["keep"]) if "keep" in objective else made)


RIGHT: dict[str, Term] = {
    "k2": Term(beta * d**2 / 2, lambda t: 0.1 * (t.l - t.q) ** 2 / 2, kappa=0.1),
    "ratio times k3": Term(beta * r * k3, lambda t: 0.1 * math.exp(t.l - t.o) * _k3(t), kappa=0.1, exact=True),
    "ratio times k1": Term(r * d, lambda t: math.exp(t.l - t.o) * (t.l - t.q), exact=True),
    "score times k1": Term(stop(d) * x, lambda t: (t.l_ - t.q) * (t.l - t.o)),
    "ratio times what is held": Term(r * stop(d), lambda t: math.exp(t.l - t.o) * (t.l_ - t.q), exact=True),
    "k2 weighed by the ratio": Term(own(d**2 / 2, weigh=r), lambda t: math.exp(t.l_ - t.o) * (t.l - t.q) ** 2 / 2, exact=True),
    "k2 weighed by the engine's": Term(
        own(d**2 / 2, weigh=minimum(exp(log_prob(old) - log_prob(rollout)), 2)),
        lambda t: min(math.exp(t.o - t.w), 2) * (t.l - t.q) ** 2 / 2,
    ),
    "k2 of the first tokens": Term(own(d**2 / 2, keep=position(over=trajectory) < 3), lambda t: (t.l - t.q) ** 2 / 2),
    "k2 of certain states": Term(where(entropy < 2, d**2 / 2, d**2), lambda t: (t.l - t.q) ** 2 / 2),
    "k2 from the second token on": Term(
        where(position(over=trajectory) > 0, d**2 / 2, 0), lambda t: (t.l - t.q) ** 2 / 2
    ),
    "k2 by the length": Term(d**2 / count(token, over=trajectory), lambda t: (t.l - t.q) ** 2, kappa=2),
    "k2 after its prefix": Term(
        d**2 / 2 * exp(before(log_prob(old) - log_prob(reference), over=trajectory)), lambda t: (t.l - t.q) ** 2 / 2
    ),
    "drift from a frozen one": Term((log_prob(old) - log_prob(reference)) * x, lambda t: (t.o - t.q) * (t.l - t.o)),
    "right where x is 0": Term(r * stop(d) + x**3, lambda t: math.exp(t.l - t.o) * (t.l_ - t.q) + (t.l - t.o) ** 3),
    "k2 to old": Term(beta * x**2 / 2, lambda t: 0.1 * (t.l - t.o) ** 2 / 2, target="old", kappa=0.1),
    "k3 to old": Term(exp(-x) - 1 + x, lambda t: math.exp(t.o - t.l) - 1 + t.l - t.o, target="old"),
    "ratio times k1 to old": Term(r * x, lambda t: math.exp(t.l - t.o) * (t.l - t.o), target="old", exact=True),
    "entropy, squared": Term(log_prob(current) ** 2 / 2, lambda t: t.l**2 / 2, target=""),
    "entropy, by ratios": Term(
        r * (log_prob(current) - 1), lambda t: math.exp(t.l - t.o) * (t.l - 1), target="", exact=True
    ),
    "entropy, by scores": Term(stop(log_prob(current)) * x, lambda t: t.l_ * (t.l - t.o), target=""),
}  # fmt: skip

WRONG: dict[str, Term] = {
    "k1": Term(beta * d, lambda t: 0.1 * (t.l - t.q)),
    "k3": Term(beta * k3, lambda t: 0.1 * _k3(t)),
    "k3 with the sign turned": Term(beta * (exp(d) - 1 - d), lambda t: 0.1 * (math.exp(t.l - t.q) - 1 - t.l + t.q)),
    "k3 times a held ratio": Term(stop(r) * k3, lambda t: math.exp(t.l_ - t.o) * _k3(t)),
    "k2 as a bonus": Term(-beta * d**2 / 2, lambda t: -0.1 * (t.l - t.q) ** 2 / 2),
    "to old for the reference, held": Term(stop(d) + beta * 0 * x, lambda t: t.l_ - t.q),
    "absolute": Term(absolute(d), lambda t: abs(t.l - t.q)),
    "k2, cut where most tokens are": Term(clip(d, -1, 1) ** 2 / 2, lambda t: min(max(t.l - t.q, -1), 1) ** 2 / 2),
    "k2, cut at 5": Term(clip(d, -5, 5) ** 2 / 2, lambda t: min(max(t.l - t.q, -5), 5) ** 2 / 2),
    "k2, cut at 20": Term(clip(d, -20, 20) ** 2 / 2, lambda t: min(max(t.l - t.q, -20), 20) ** 2 / 2),
    "k3 from the second token on": Term(where(position(over=trajectory) > 0, k3, 0), _k3),
    "k3 from the third token on": Term(own(k3, keep=position(over=trajectory) >= 2), _k3),
    "k2 as a bonus from the second token on": Term(
        where(position(over=trajectory) > 0, -(d**2) / 2, 0), lambda t: -((t.l - t.q) ** 2) / 2
    ),
    "k1 beside the largest": Term(
        d * largest(d, over=trajectory) * position(over=trajectory), lambda t: (t.l - t.q) * max(t.l_ - t.q, 0)
    ),
    "k2, cut": Term(clip(d, -10, 10) ** 2 / 2, lambda t: min(max(t.l - t.q, -10), 10) ** 2 / 2),
    "ratio times k3, cut": Term(r * minimum(k3, 10), lambda t: math.exp(t.l - t.o) * min(_k3(t), 10)),
    "of what is likely alone": Term(own(d**2 / 2, keep=d > 0), lambda t: (t.l - t.q) ** 2 / 2 if t.l_ > t.q else 0.0),
    "weighed by the probability": Term(
        own(d**2 / 2, weigh=exp(log_prob(current))), lambda t: math.exp(t.l_) * (t.l - t.q) ** 2 / 2
    ),
    "of probabilities": Term(
        (exp(log_prob(current)) - exp(log_prob(reference))) ** 2, lambda t: (math.exp(t.l) - math.exp(t.q)) ** 2
    ),
    "to its own logarithm": Term(log(1 + d**2), lambda t: math.log(1 + (t.l - t.q) ** 2)),
    "squashed": Term(sigmoid(d), lambda t: 1 / (1 + math.exp(t.q - t.l))),
    "entropy as log π": Term(beta * log_prob(current), lambda t: 0.1 * t.l, target=""),
    "entropy as -π·log π": Term(
        exp(log_prob(current)) * log_prob(current), lambda t: math.exp(t.l) * t.l, target=""
    ),
    "k1 to old": Term(x, lambda t: t.l - t.o, target="old"),
    "the ratio itself": Term(r, lambda t: math.exp(t.l - t.o), target="old"),
    "k2 to old as a bonus": Term(-(x**2) / 2, lambda t: -((t.l - t.o) ** 2) / 2, target="old"),
}  # fmt: skip

UNDECIDED = {
    "by a later entropy": d**2 / 2 * total(entropy, over=trajectory),
    "a mean of k2": mean(d**2 / 2, over=trajectory),
}


def slope(term: PerToken, **log_probs: float) -> float:
    """`∂P/∂l` at a token, by a central difference; what is held has a `_`."""
    step = 1e-6

    def at(moved: float) -> float:
        return term(SimpleNamespace(**{**log_probs, "l": moved}, l_=log_probs["l"]))

    return (at(log_probs["l"] + step) - at(log_probs["l"] - step)) / (2 * step)
