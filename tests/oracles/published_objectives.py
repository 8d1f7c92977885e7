"""Whole objectives as published: advantages from rewards, sums of terms, and order in a row. It continues `published.py`.

As in the sources, loops compute advantages group by group, future sums token by token, and chances set by set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from oracles.published import (
    Found,
    Parameters,
    Rows,
    clipped,
    either,
    per_trajectory,
    ppo,
    token_mean,
    trajectory_mean,
)


@dataclass(frozen=True)
class Scored(Rows):
    """Rows with rewards `[rows, width]`, where one of the row is in every place, and what is known of their prompts."""

    reference: Tensor
    rewards: Tensor
    values: Tensor
    greedy: Tensor
    teacher: Tensor
    entropy: Tensor
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


def by_group(b: Scored, value: Callable[[Tensor, int], Tensor]) -> Tensor:
    """An advantage of each row, of its group's rewards and its own place among them."""
    found = []
    for i in range(len(b.mask)):
        members = b.alone(b.prompt_group, i)
        found.append(value(b.of_row[members], members.index(i)))
    return b.spread(found)


def standardised(epsilon: float) -> Callable[[Tensor, int], Tensor]:
    return lambda rewards, own: (rewards[own] - rewards.mean()) / (rewards.std() + epsilon)


def leave_one_out(rewards: Tensor, own: int) -> Tensor:
    return rewards[own] - torch.cat([rewards[:own], rewards[own + 1 :]]).mean()


def with_advantages(b: Scored, a: Tensor, p: Parameters) -> tuple[Tensor, list[Tensor]]:
    """PPO's terms and branches, with other advantages than those of the batch."""
    low, high, r = 1 - p["epsilon_low"], 1 + p["epsilon_high"], b.held.exp()
    return clipped(b.x.exp(), a, low, high), [(a > 0) & (r > high), (a < 0) & (r < low)]


def grpo_rewards(b: Scored, p: Parameters) -> Found:
    terms, branches = with_advantages(b, by_group(b, standardised(1e-6)), p)
    return trajectory_mean(b, terms), branches


def dapo_rewards(b: Scored, p: Parameters) -> Found:
    terms, branches = with_advantages(b, by_group(b, standardised(1e-6)), p)
    return token_mean(b, terms), branches


def dr_grpo_rewards(b: Scored, p: Parameters) -> Found:
    terms, branches = with_advantages(b, by_group(b, lambda r, own: r[own] - r.sum() / len(r)), p)
    return per_trajectory(b, terms) / p["length"], branches


def rloo(b: Scored, p: Parameters) -> Found:
    a = by_group(b, leave_one_out)
    return per_trajectory(b, a * b.log_prob), [a > 0]


def rloo_kl(b: Scored, p: Parameters) -> Found:
    drift = [sum((b.old - b.reference)[i, t] for t in places) for i, places in b.tokens()]
    shaped = b.of_row - p["beta"] * torch.stack(drift)
    a = by_group(Scored(**{**vars(b), "rewards": b.spread(shaped)}), leave_one_out)
    return per_trajectory(b, a * b.log_prob), [a > 0]


def reinforce_pp(b: Scored, p: Parameters) -> Found:
    returns = torch.zeros_like(b.old)
    for i, places in b.tokens():
        left = b.of_row[i]
        for t in reversed(places):
            left = left - p["beta"] * (b.old[i, t] - b.reference[i, t])
            returns[i, t] = left
    own = returns[b.mask]
    a = (returns - own.mean()) * torch.rsqrt(own.var() + 1e-8)
    terms, branches = with_advantages(b, a, p)
    return trajectory_mean(b, terms), branches


def reinforce_pp_baseline(b: Scored, p: Parameters) -> Found:
    a = by_group(b, lambda r, own: r[own] - r.mean())
    a = a / (a[:, 0].std() + 1e-8)
    terms, branches = with_advantages(b, a, p)
    return trajectory_mean(b, terms), branches


def opo(b: Scored, p: Parameters) -> Found:
    found = []
    for i in range(len(b.mask)):
        members = b.alone(b.prompt_group, i)
        lengths = b.mask[members].sum(-1).double()
        found.append(b.of_row[i] - (lengths * b.of_row[members]).sum() / lengths.sum())
    a = b.spread(found)
    return per_trajectory(b, a * b.log_prob), [a > 0]


def remax(b: Scored, p: Parameters) -> Found:
    a = b.spread(b.of_row - b.greedy)
    return per_trajectory(b, a * b.log_prob), [a > 0]


def chances(rewards: Tensor, own: int) -> Tensor:
    """By all sets of four answers: what those with this one are worth beyond all, by their deviation; none: 0."""
    sets = list(combinations(range(len(rewards)), 4))
    if not sets:
        return torch.tensor(0.0, dtype=torch.float64)
    worth = torch.tensor([float((rewards[list(s)] > 0.5).any()) for s in sets], dtype=torch.float64)
    with_own = torch.tensor([own in s for s in sets])
    return (worth[with_own].mean() - worth.mean()) / (worth.std(correction=0) + 1e-6)


def pass_at_k(b: Scored, p: Parameters) -> Found:
    a = by_group(b, chances)
    terms, branches = with_advantages(b, a, p)
    return token_mean(b, terms), [*branches, a == 0]


def best_of_group(b: Scored, p: Parameters) -> Found:
    def best(rewards: Tensor, own: int) -> Tensor:
        first, second = rewards.sort(descending=True).values[:2]
        others = torch.cat([rewards[:own], rewards[own + 1 :]])
        return (rewards[own] > others).all() * (first - second) / (rewards.std() + 1e-6)

    a = by_group(b, best)
    terms, branches = with_advantages(b, a, p)
    return token_mean(b, terms), [branches[0], a == 0]


def hierarchical_grpo(b: Scored, p: Parameters) -> Found:
    found = []
    for i in range(len(b.mask)):
        near, far = ([j for j in b.alone(label, i) if j != i] for label in (b.prompt_group, b.domain))
        baseline = p["share"] * b.of_row[near].mean() + (1 - p["share"]) * b.of_row[far].mean()
        found.append(b.of_row[i] - baseline)
    terms, branches = with_advantages(b, b.spread(found), p)
    return per_trajectory(b, terms) / p["length"], branches


def gae(b: Scored, p: Parameters) -> Tensor:
    found = torch.zeros_like(b.values)
    for i, places in b.tokens():
        following, trace = 0.0, 0.0
        for t in reversed(places):
            trace = b.rewards[i, t] + p["gamma"] * following - b.values[i, t] + p["gamma"] * p["lam"] * trace
            following = b.values[i, t]
            found[i, t] = trace
    return found


def ppo_gae(b: Scored, p: Parameters) -> Found:
    terms, branches = with_advantages(b, gae(b, p), p)
    return token_mean(b, terms), branches


def maxrl(b: Scored, p: Parameters) -> Found:
    a = by_group(b, lambda r, own: (r[own] - r.sum() / len(r)) / (r.sum() / len(r) + 1e-6))
    terms, branches = with_advantages(b, a, p)
    return token_mean(b, terms), [*branches, a == 0]


def gdpo(b: Scored, p: Parameters) -> Found:
    """The second reward is `greedy`, whose deviation a group of equal rewards has not: TRL's code, row by row."""
    total = torch.zeros(len(b.mask), dtype=torch.float64)
    for weight, rewards in ((p["weight_1"], b.of_row), (p["weight_2"], b.greedy)):
        for i in range(len(b.mask)):
            alike = rewards[b.alone(b.prompt_group, i)]
            total[i] += weight * (rewards[i] - alike.mean()) / (alike.std() + 1e-4)
    a = b.spread((total - total.mean()) / (total.std() + 1e-4))
    terms, branches = with_advantages(b, a, p)
    return token_mean(b, terms), branches


def opd(b: Scored, p: Parameters) -> Found:
    a = -p["beta"] * (b.old - b.teacher)
    return token_mean(b, b.x.exp() * a), [a > 0]


def opd_reward(b: Scored, p: Parameters) -> Found:
    """Centred rewards times `G/(G - 1)`, plus the negative reverse KL of one sample, as in Tinker's recipe."""
    a = by_group(b, lambda r, own: (r[own] - r.mean()) * len(r) / (len(r) - 1)) - p["beta"] * (b.old - b.teacher)
    return token_mean(b, b.x.exp() * a), [a > 0]


def entropy_mask(b: Scored, p: Parameters) -> Found:
    kept = b.entropy >= torch.quantile(b.entropy[b.mask], p["level"])
    terms, branches = with_advantages(b, b.advantages, p)
    return token_mean(b, terms * kept), [kept, *(branch & kept for branch in branches)]


# ---------------------------------------------------------------- terms


def grpo_k3(b: Scored, p: Parameters) -> Found:
    terms, branches = with_advantages(b, by_group(b, standardised(1e-4)), p)
    turned = b.reference - b.log_prob
    return trajectory_mean(b, terms - p["beta"] * (turned.exp() - turned - 1)), [*branches, turned > 0]


def grpo_k2(b: Scored, p: Parameters) -> Found:
    terms, branches = with_advantages(b, by_group(b, standardised(1e-6)), p)
    return trajectory_mean(b, terms - p["beta"] * 0.5 * b.to_reference.square()), [*branches, b.at > b.reference]


def grpo_rk3(b: Scored, p: Parameters) -> Found:
    """`r·k3` is `π_reference/π_old - r·(1 - x)`: the first does not move."""
    terms, branches = with_advantages(b, by_group(b, standardised(1e-6)), p)
    r_k3 = (b.reference - b.old).exp() - b.x.exp() * (1 - b.to_reference)
    return trajectory_mean(b, terms - p["beta"] * r_k3), [*branches, b.at > b.reference]


def ppo_entropy(b: Scored, p: Parameters) -> Found:
    """In value; its gradient, `-bonus·r·log π`, is the entropy's of tokens that `old` sampled."""
    terms, branches = ppo(b, p)
    return token_mean(b, terms + p["bonus"] * b.x.exp() * (1 - b.log_prob)), branches[:2]


def ppo_nll(b: Scored, p: Parameters) -> Found:
    terms, branches = ppo(b, p)
    good = b.mask & (b.advantages > 0)
    return token_mean(b, terms) + p["share"] * b.log_prob[good].mean(), [*branches[:2], good]


def kimi_k15(b: Scored, p: Parameters) -> Found:
    a = by_group(b, lambda r, own: r[own] - r.mean())[:, 0]
    whole = b.sum(b.x)[:, 0]
    return (a * b.sum(b.log_prob)[:, 0] - p["tau"] / 2 * whole.square()).mean(), [(a > 0)[:, None].expand_as(b.mask)]


def kimi_k2(b: Scored, p: Parameters) -> Found:
    """The regression itself, with what does not move taken back: `A²`, and `log π_old` times `A`."""
    a = by_group(b, lambda r, own: r[own] - r.mean())[:, 0]
    squared = (a - p["tau"] * b.sum(b.x)[:, 0]).square()
    still = a.square() + 2 * p["tau"] * a * b.sum(b.old)[:, 0]
    return (still - squared).mean(), [(a > 0)[:, None].expand_as(b.mask)]


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


def real(b: Scored, p: Parameters) -> Found:
    s, losses = b.mean(b.x)[:, 0] / p["tau"], []
    right = b.of_row > 0.5
    for g in sorted(set(b.prompt_group)):
        members = [i for i, other in enumerate(b.prompt_group) if other == g]
        zero = torch.zeros(1, dtype=torch.float64)
        losses += [
            torch.logsumexp(torch.cat([zero, *(-s[i : i + 1] for i in members if right[i])]), 0)
            + torch.logsumexp(torch.cat([zero, *(s[i : i + 1] for i in members if not right[i])]), 0)
        ]
    return -torch.stack(losses).mean(), [right[:, None].expand_as(b.mask)]


# ---------------------------------------------------------------- order


def prefix(b: Scored) -> Tensor:
    """What the ratios of a row multiply to, up to every token and with it."""
    return torch.where(b.mask, b.held.exp(), 1).cumprod(-1)


def ctpo(b: Scored, p: Parameters) -> Found:
    a, root = b.advantages, b.mask.double().cumsum(-1).clamp(min=1).sqrt()
    ratio = prefix(b) * (b.log_prob - b.at).exp()
    low, high, top = (-p["low"] * root).exp(), (p["high"] * root).exp(), (p["ceiling"] * root).exp()
    terms = torch.minimum(ratio * a, torch.minimum(torch.maximum(ratio, low), high) * a)
    terms = torch.where(a < 0, torch.maximum(terms, top * a), terms)
    found = prefix(b)
    branches = [(a > 0) & (found > high), (a < 0) & (found < low), (a < 0) & (found > top)]
    return trajectory_mean(b, terms), branches


def fipo(b: Scored, p: Parameters) -> Found:
    low, high, top = 1 - p["epsilon_low"], 1 + p["epsilon_high"], p["ceiling"]
    r, a, future = b.held.exp(), b.advantages, torch.zeros_like(b.at)
    for i, places in b.tokens():
        for t in places:
            later = [p["gamma"] ** (s - t) * b.held[i, s] for s in places if s >= t and r[i, s] <= top]
            future[i, t] = sum(later)
    weight = future.exp().clamp(1, 1 + p["range"])
    weight = torch.where((a < 0) & (r > p["safety"]), weight.clamp(0.8, 1), weight)
    terms = clipped(b.x.exp().clamp(max=top), a, low, high)
    branches = [(a > 0) & (r > high), (a < 0) & (r < low), r > top, (a < 0) & (r > p["safety"]) & (future > 0)]
    return token_mean(b, weight * terms), [*branches, weight == 1, weight == 1 + p["range"]]


def prefix_is(b: Scored, p: Parameters) -> Found:
    weight = prefix(b).clamp(max=p["ceiling"])
    return per_trajectory(b, weight * b.advantages * b.log_prob), [weight == p["ceiling"]]


def attenuated(b: Scored, p: Parameters, drift: Tensor) -> Found:
    """An outward token beyond its budget counts `C/d`."""
    outward, budget = b.advantages * b.held > 0, either(b.advantages > 0, p["C_high"], p["C_low"])
    far = (drift > budget).expand_as(b.mask)
    weight = torch.where(outward, budget / torch.maximum(drift, budget), 1)
    return trajectory_mean(b, weight * b.x.exp() * b.advantages), [outward & far, ~outward & far]


def over_label(b: Scored, label: tuple[int, ...]) -> Tensor:
    """The mean `|log r|` of all tokens with the label of a row."""
    members = [b.alone(label, i) for i in range(len(b.mask))]
    return b.spread([b.held[m][b.mask[m]].abs().mean() for m in members])


def attenuated_trajectory(b: Scored, p: Parameters) -> Found:
    return attenuated(b, p, b.mean(b.held.abs()))


def attenuated_group(b: Scored, p: Parameters) -> Found:
    return attenuated(b, p, over_label(b, b.prompt_group))


def attenuated_domain(b: Scored, p: Parameters) -> Found:
    return attenuated(b, p, over_label(b, b.domain))


OBJECTIVES: Mapping[str, Callable[[Scored, Parameters], Found]] = {
    f.__name__: f
    for f in (
        grpo_rewards, dapo_rewards, dr_grpo_rewards, rloo, rloo_kl, reinforce_pp, reinforce_pp_baseline, opo, remax,
        pass_at_k, best_of_group, ppo_gae, maxrl, gdpo, opd, opd_reward, entropy_mask,
        grpo_k3, grpo_k2, grpo_rk3, ppo_entropy, ppo_nll, kimi_k15, kimi_k2, dro, prime_rl, kl_cov, real,
        ctpo, fipo, prefix_is, hierarchical_grpo,
        attenuated_trajectory, attenuated_group, attenuated_domain,
    )
}  # fmt: skip
