"""The law `kl_gradient` by its definition, over all actions of a state: a penalty's gradient is a divergence's."""

from __future__ import annotations

import functools
import random
import re
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from fibration import Hierarchy, Penalty, before, exp, log_prob, mean, minimum, position, stop, token_mean, where
from fibration.language.expressions import Expression
from fibration.language.report import Verdict
from fibration.laws import topic
from fuzz.batch_changes import Changes, Token, of_tokens, tokens_of
from fuzz.batches import Batches
from fuzz.generate import SETTINGS, Formulas, attributes, current, old, reference, rollout, token, trajectory
from fuzz.judges.judge import attempt, of_batch
from fuzz.judges.samples import BATCHES, MOST_TOKENS, C, OfSamples, k, r, x
from fuzz.world import Batch, World, h_of_penalties

ACTIONS = 5
d = log_prob(current) - log_prob(reference)
k3 = exp(-d) - 1 + d


@dataclass(frozen=True)
class KLGradient(OfSamples):
    name: str = "kl_gradient"

    def formulas(self, rng: random.Random) -> Formulas:
        return Formulas(rng.choice(SETTINGS), rng, with_advantage=False, passed=(rollout, reference))

    def hierarchy(self, f: Formulas) -> Hierarchy:
        made: Any = self.formula(f)
        if f.rng.random() < 0.3:
            own = token_mean()
            own = own.weigh(self.factor(f)) if f.rng.random() < 0.6 else own
            own = own.keep(f.condition(1)) if f.rng.random() < 0.5 else own
            made = Penalty(made, objective=own)
        objective = f.objective()
        objective = objective.keep(f.condition(0), "kept") if f.rng.random() < 0.1 else objective
        return f.hierarchy(penalties={"term": made}, objective=objective)

    def factor(self, f: Formulas) -> Expression:
        others = mean(log_prob(rollout), over=f.pick(*f.setting.below), of=None)
        return f.pick(
            exp(k), minimum(exp(k), C), r, position(over=trajectory), 1 + position(over=trajectory), f.of_row(), f.constant(),
            f.number(1, None, 1), exp(before(k, over=trajectory)), exp(log_prob(old)), others, exp(d),
            *(a for a in attributes(f.setting) if a.on == token),
        )  # fmt: skip

    def formula(self, f: Formulas) -> Expression:
        lp = log_prob(current)
        right = [
            d**2 / 2, r * k3, r * d, stop(d) * x, r * stop(d), x**2 / 2, r * x, exp(-x) - 1 + x, lp**2 / 2, r * (lp - 1),
            stop(lp) * x, d**2 / 2 + lp**2 / 2, d**2 / 2 + (lp - log_prob(rollout)) ** 2 / 2, k3, d, x, where(f.condition(0), d**2 / 2, d**2),
            where(f.condition(1), d**2 / 2, 0), where(f.condition(1), x**2 / 2, 0), d**2 / 2 - (lp - log_prob(rollout)) ** 2 / 2,
            (log_prob(old) - log_prob(reference)) * x, r * k3 * self.factor(f), minimum(d, 1) ** 2,
        ]  # fmt: skip
        e = f.rng.choice(right)
        e = e * self.factor(f) if f.rng.random() < 0.4 else e
        return f.mutated(e, f.rng.randrange(2)) if f.rng.random() < 0.4 else e

    def wrong(self, h: Hierarchy, v: Verdict, rng: random.Random) -> str:
        penalty = next(p for name, p in h.penalties.items() if v.subject == topic.penalty(name))
        draw = Batches(h, rng, MOST_TOKENS)
        argument = v.argument
        targets = list(dict.fromkeys(re.findall(r"KL\(current‖(\w+)\)", argument)))
        for _ in range(BATCHES):
            b = draw("exact")
            for i in rng.sample(range(b.size), min(b.size, 2)):
                if said := no_divergence(h, penalty, b, i, rng, draw, targets, argument):
                    return f"{said} token {i} {of_batch(b)}"
        return ""


def no_divergence(
    h: Hierarchy, penalty: Penalty, b: Batch, i: int, rng: random.Random, draw: Batches, targets: list[str], said: str
) -> str:
    """By definition: of a state with a few actions, what a penalty's derivatives are that of."""
    changes = Changes(h, rng, draw)
    names = [p for p in b.policies if p != "old"]
    gen = np.random.default_rng(rng.randrange(2**32))
    states = []
    exact, near_old = "off policy too" in said, targets == ["old"]
    as_old = re.findall(r"where (\w+) is old", said)
    for kind in ["on", *(["off"] if exact else []), *(["near"] if near_old and not exact else [])]:
        current = gen.dirichlet(np.ones(ACTIONS) * 2) * 0.98 + 0.02 / ACTIONS
        before_it = current if kind == "on" else gen.dirichlet(np.ones(ACTIONS) * 2) * 0.98 + 0.02 / ACTIONS
        if kind == "near":
            away = current * np.exp(1e-5 * gen.normal(size=ACTIONS))
            before_it = away / away.sum()
        of = {p: gen.dirichlet(np.ones(ACTIONS) * 2) * 0.98 + 0.02 / ACTIONS for p in names}
        of |= dict.fromkeys(as_old, before_it)
        states.append((kind, current, before_it, {**of, "old": before_it}))
    for kind, current, before_it, of in states:
        if kind == "on" and near_old and not exact:
            continue
        c, batches = [], list[Batch]()
        for a in range(ACTIONS):
            batch = changes.token(b, i, functools.partial(sampled, current=current, of=of, a=a))
            batches.append(ended(changes, batch, i, as_old, kind != "on"))
            slope, why = attempt(functools.partial(derivative, h, penalty, batches[-1], i))
            if why:
                return ""
            c.append(slope)
        values = np.array(c)
        weights = [before_it / current] if kind == "off" else [np.ones(ACTIONS)]
        weights += [before_it / current] if kind == "near" else []
        for w in weights:
            wrong = misfit(values * w, current, of, targets, kind, said)
            if wrong and all(is_clear(h, penalty, b, i, v) for b, v in zip(batches, c, strict=True)):
                return f"{kind}: {wrong}: c = {c}, current = {current}, {of}"
    return ""


def sampled(t: Token, current: np.ndarray, of: dict[str, np.ndarray], a: int) -> Token:
    """A token that is the action `a` of a state with these probabilities."""
    log_probs = {p: Fraction(float(np.log(q[a]))) for p, q in of.items()}
    return replace(t, log_probs=log_probs, x=Fraction(float(np.log(current[a] / of["old"][a]))))


def ended(changes: Changes, b: Batch, i: int, as_old: list[str], off: bool) -> Batch:
    """Other tokens behind it, as another action has; where policies are the same, they stay so."""
    made = changes.ends(b, i, as_many=True, together=True)
    tokens = tokens_of(changes.h, made)
    for j in (j for j in changes.row(made, i) if j > i):
        t = tokens[j]
        lp = {
            p: v if p == "old" or p in as_old else min(v + changes.draw._number(), Fraction(0))
            for p, v in t.log_probs.items()
        }
        lp |= dict.fromkeys(as_old, lp["old"])
        tokens[j] = replace(t, log_probs=lp, x=changes.draw._log_ratio(lp["old"]) if off else Fraction(0))
    return of_tokens(changes.h, made, tokens)


def is_clear(h: Hierarchy, penalty: Penalty, b: Batch, i: int, c: float) -> bool:
    """Whether a derivative in floats is that to fifty digits: large numbers that cancel leave nothing."""
    exact, why = attempt(functools.partial(derivative, h, penalty, b, i, exact=True))
    return not why and abs(exact - c) <= 1e-9 * max(1.0, abs(c))


def derivative(h: Hierarchy, penalty: Penalty, b: Batch, i: int, exact: bool = False) -> float:
    """`∂P/∂log π` of a token, with the penalty's own weights and without `μ`."""
    world = World(h, b, exact)
    own = penalty.objective or h_of_penalties(h)
    found = 0.0
    factors = world.factors(own)
    for j in range(b.size):
        slopes = getattr(world.at_token(penalty.formula, j, flows="sums"), "slopes", {}) if factors[j] else {}
        found += float(factors[j] * slopes.get(i, 0.0))
    return found


def misfit(
    c: np.ndarray, current: np.ndarray, of: dict[str, np.ndarray], targets: list[str], kind: str, said: str
) -> str:
    """Why derivatives are not `Σ κ·(log π - log q) + κ_0·log π + const`, with `κ` of policies at least 0."""
    columns = [np.log(current / of[q]) for q in targets] + ([np.log(current)] if "entropy" in said else [])
    size = np.abs(c).max()
    if kind == "near":
        columns = [col / 1e-5 for col in columns]
    matrix = np.stack([*columns, np.ones(len(c))], axis=1)
    kappa, *_ = np.linalg.lstsq(matrix, c, rcond=None)
    left = np.abs(matrix @ kappa - c).max()
    # near it, 1e-5 away, 1e-9 is of second order
    room = max(1e-3 * size, 1e-9) if kind == "near" else 1e-6 * max(size, 1e-12)
    if left > room:
        return f"no combination, by {left} of {size}"
    negative = [q for q, v in zip(targets, kappa, strict=False) if v < -room]
    return f"below 0: {negative} of {kappa}" if negative else ""


JUDGES = (KLGradient(),)
