"""Pairs of losses with penalties, advantages from rewards and order: some pairs are equal, some differ."""

from __future__ import annotations

from typing import Any

from fibration import (
    Hierarchy,
    Parameter,
    Penalty,
    advantage,
    after,
    before,
    centred,
    count,
    decomposition,
    deviation,
    exp,
    gated,
    identity_gate,
    largest,
    log,
    log_prob,
    mean,
    policies,
    position,
    ratio_deviation,
    reward,
    standardised,
    stop,
    strata,
    token_log_ratio,
    token_mean,
    total,
    trajectory_mean,
    where,
)
from hierarchies.loss_pairs import Pair

token, trajectory, prompt_group, batch = strata("token trajectory prompt_group batch")
current, old, reference = policies("current old reference")
r, x = token_log_ratio, log_prob(current) - log_prob(reference)
T, G, N = count(token, over=trajectory), count(trajectory, over=prompt_group), count(trajectory, over=batch)
beta, gamma = Parameter("beta", default=0.25), Parameter("gamma", default=0.5, upper=1)
k2, k3 = x**2 / 2, exp(-x) - 1 + x
ROWS, OPEN = trajectory, "as it was published"


def loss(**changes: Any) -> Hierarchy:
    given: dict[str, Any] = dict(
        name="ours",
        gates={token: identity_gate()},
        decomposition=ratio_deviation(),
        objective=trajectory_mean(),
        groups=[prompt_group],
        gives_up={"kl_gradient": OPEN, "baseline": OPEN, "causal": OPEN},
    )
    return Hierarchy(**{**given, **changes})


def less(*penalties: Any, **changes: Any) -> Hierarchy:
    return loss(penalties={f"p{k}": p for k, p in enumerate(penalties)}, **changes)


def penalised(first: Any, second: Any, *when: str) -> Pair:
    return Pair(less(first), less(second), when)


def rewarded(first: Any, second: Any, *when: str) -> Pair:
    return Pair(*(loss(advantages=e, objective=token_mean()) for e in (first, second)), when)


def weighed(first: Any, second: Any) -> Pair:
    return Pair(*(loss(objective=trajectory_mean().weigh(e)) for e in (first, second)))


def split(density: Any) -> Hierarchy:
    return loss(decomposition=decomposition(density=density, recovery=exp(gated(""))))


def over_rows(formula: Any) -> Penalty:
    return Penalty(formula, over=trajectory)


C, own = centred(reward, over=prompt_group), trajectory_mean()
others = mean(reward, over=prompt_group, of=ROWS, others=True)
prefix, later = before(r, over=trajectory), after(r, over=trajectory)
margin = total(where(advantage > 0, exp(-mean(r, over=trajectory)), 0), over=prompt_group, of=trajectory)
said = log_prob(current) ** 2 - 2 * log_prob(current) * log_prob(reference) + log_prob(reference) ** 2

SAME = {
    "k2 in two ways": penalised(k2, said / 2),
    "two penalties are one": Pair(less(k2, beta * k3), less(k2 / 2 + beta * (k3 + k2 / beta / 2))),
    "a penalty of its own weights": Pair(
        loss(penalties={"kl": where(advantage > 0, x**2, 0)}), less(Penalty(x**2, objective=own.keep(advantage > 0)))
    ),
    "a penalty is not weighed with the rest": Pair(
        less(k2, objective=own.weigh(2)), less(Penalty(k2, objective=own), objective=own.weigh(2))
    ),
    "a penalty of rows is one of tokens": penalised(over_rows(mean(r**2, over=trajectory)), r**2),
    "a square of rows": penalised(over_rows(total(r, over=trajectory) ** 2), over_rows((T * mean(r, over=trajectory)) ** 2)),
    "a margin of groups": penalised(
        Penalty(log(1 + margin), over=prompt_group), Penalty(log((2 + 2 * margin) / 2) - 1, over=prompt_group)
    ),
    "order is linear": penalised((prefix + before(x, over=trajectory)) ** 2, before(2 * r + 2 * x, over=trajectory) ** 2 / 4),
    "a discount of 0": penalised((r + before(r, over=trajectory, discount=0)) ** 2, r**2),
    "a weight of what came before": weighed(exp(2 * prefix), exp(before(2 * r, over=trajectory))),
    "a prefix ratio": Pair(split(r + prefix), split(before(3 * r, over=trajectory) / 3 + r)),
    "leave one out": rewarded(reward - others, where(G > 1, C * G / (G - 1), 0)),
    "a mean of rows is a total": rewarded(C, reward - total(reward, over=prompt_group, of=ROWS) / G),
    "OPO of rows of one length": rewarded(reward - mean(reward, over=prompt_group), C, "equal(count(token, over=trajectory))"),
    "standardised of what is shifted": rewarded(
        standardised(reward, over=prompt_group), standardised(reward + G, over=prompt_group)
    ),
    "a deviation of one number": weighed(1 + deviation(T, over=trajectory), 1),
    "a mean of a row's own reward": rewarded(C, mean(C, over=trajectory)),
    "what is after": rewarded(reward + after(reward, over=trajectory), reward + after(2 * reward, over=trajectory) / 2),
}  # fmt: skip

DIFFERENT = {
    "k2 and k3": penalised(k2, k3),
    "k2 and none": Pair(less(k2), loss()),
    "another factor": penalised(k2, beta * k2),
    "a ratio that is stopped": penalised(exp(r) * k3, stop(exp(r)) * k3),
    "other weights": penalised(k2, Penalty(k2, objective=token_mean())),
    "weights of the loss": Pair(less(k2, objective=own.weigh(2)), less(Penalty(k2, objective=own.weigh(2)), objective=own.weigh(2))),
    "a square of a sum": penalised(over_rows(total(r, over=trajectory) ** 2), over_rows(total(r**2, over=trajectory))),
    "before and after": penalised(prefix**2, later**2),
    "order that is stopped": penalised(r * prefix, r * stop(prefix)),
    "a prefix that is stopped": Pair(split(r + prefix), split(r + stop(prefix))),
    "other discounts": penalised(prefix**2, before(r, over=trajectory, discount=gamma) ** 2),
    "weights of what comes after": weighed(exp(prefix), exp(later)),
    "places of tokens and of rows": weighed(1 + position(over=trajectory), 1 + position(over=batch)),
    "a mean of tokens and of rows": weighed(mean(T, over=prompt_group), mean(T, over=prompt_group, of=trajectory)),
    "a deviation and its number": weighed(1 + deviation(T, over=trajectory), 1 + T),
    "a deviation of tokens and of rows": weighed(
        1 + deviation(T, over=prompt_group), 1 + deviation(T, over=prompt_group, of=trajectory)
    ),
    "leave one out, and not": rewarded(reward - others, C),
    "standardised and centred": rewarded(standardised(reward, over=prompt_group), C),
    "OPO and centred": rewarded(reward - mean(reward, over=prompt_group), C),
    "the best and the mean": rewarded(reward - largest(reward, over=prompt_group, of=trajectory), C),
    "rewards that are discounted": rewarded(
        reward + after(reward, over=trajectory), reward + after(reward, over=trajectory, discount=gamma)
    ),
}  # fmt: skip
