"""What whole objectives are where they were published: advantages from rewards, sums of terms, and order in a row.

As `published.py`, of which this is the rest. Advantages are taken group by group, future sums token by token and chances
set by set, as their sources say it, and not as a formula of statistics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from oracles.published import (
    Found,
    Parameters,
    Rows,
    ppo,
    token_mean,
)


@dataclass(frozen=True)
class Scored(Rows):
    """Rows with rewards `[rows, width]`, where one of the row is in every place, and what is known of their prompts."""

    reference: Tensor
    rewards: Tensor
    values: Tensor
    greedy: Tensor
    prompt_group: tuple[int, ...]
    domain: tuple[int, ...]

    @property
    def to_reference(self) -> Tensor:
        return self.log_prob - self.reference

    def alone(self, label: tuple[int, ...], row: int) -> list[int]:
        return [i for i, other in enumerate(label) if other == label[row]]

    def spread(self, of_rows: Tensor | list[Tensor]) -> Tensor:
        """A number for each row, in all of its places."""
        return torch.stack(list(of_rows))[:, None].expand_as(self.mask)

    @property
    def of_row(self) -> Tensor:
        return self.rewards[:, 0]

    def tokens(self) -> Iterator[tuple[int, list[int]]]:
        for i in range(len(self.mask)):
            yield i, [t for t in range(self.mask.shape[1]) if self.mask[i, t]]


def ppo_entropy(b: Scored, p: Parameters) -> Found:
    """In value; its gradient, `-bonus·r·log π`, is the entropy's of tokens that `old` sampled."""
    terms, branches = ppo(b, p)
    return token_mean(b, terms + p["bonus"] * b.x.exp() * (1 - b.log_prob)), branches[:2]


def ppo_nll(b: Scored, p: Parameters) -> Found:
    terms, branches = ppo(b, p)
    good = b.mask & (b.advantages > 0)
    return token_mean(b, terms) + p["share"] * b.log_prob[good].mean(), [*branches[:2], good]


def dro(b: Scored, p: Parameters) -> Found:
    return token_mean(b, b.log_prob * b.advantages - 0.5 * p["beta"] * b.x.square()), [b.advantages > 0]


def prime_rl(b: Scored, p: Parameters) -> Found:
    moved, a = b.at.exp() - b.old.exp(), b.advantages
    invalid = torch.where(a > 0, moved > p["high"], moved < -p["low"])
    terms = (~invalid) * a * b.x.exp() - p["tau"] * b.x**2
    return token_mean(b, terms), [(a > 0) & invalid, (a < 0) & invalid]


def kl_cov(b: Scored, p: Parameters) -> Found:
    """The covariances of the tokens that are among the largest, one after another."""
    a, own = b.advantages, b.at[b.mask]
    cov = ((a - b.batch_mean(a)) * (b.at - own.mean()))[b.mask]
    rank = p["level"] * (len(cov) - 1)
    taken = torch.zeros_like(b.mask)
    order = cov.argsort()
    places = torch.nonzero(b.mask)[order]
    for n, (i, t) in enumerate(places.tolist()):
        taken[i, t] = n > rank
    terms = b.x.exp() * a - torch.where(taken, p["coef"] * b.x.abs(), 0)
    return token_mean(b, terms), [taken, taken & (b.held > 0), taken & (b.held < 0)]


OBJECTIVES: Mapping[str, Callable[[Scored, Parameters], Found]] = {
    f.__name__: f for f in (ppo_entropy, ppo_nll, dro, prime_rl, kl_cov)
}
