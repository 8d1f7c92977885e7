"""Laws of gates on and near policy: identity, first_order, gradient; and the fact `second_moment` of weights."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import sympy

from fibration import (
    Gate,
    after,
    before,
    clip,
    count,
    exp,
    largest,
    log_prob,
    mean,
    minimum,
    residual,
    some,
    tanh,
    total,
    where,
)
from fibration.errors import FibrationError
from fibration.language.atoms import BATCH, Parameter, Stratum
from fibration.language.expressions import Expression
from fibration.language.report import Verdict
from fibration.language.sympy_bridge import ATOM_OF
from fibration.laws.facts.weights import supremum
from fuzz.dual_numbers import Dual, slopes_of, value_of
from fuzz.generate import PARAMETERS, SETTINGS, Formulas, batch, old, rollout, trajectory
from fuzz.judges.judge import (
    TRIES,
    NothingDrawn,
    OfHierarchy,
    attempt,
    of_batch,
    of_levels,
    proofs_alone,
    verdicts,
    worlds,
)
from fuzz.judges.token_laws import condition, weight
from fuzz.world import Batch, World

EPSILON, C = PARAMETERS[:2]
TREES = tuple(s for s in SETTINGS if len(s.leaves) > 1) * 2  # where a branch may be empty
SMALL = 2.0**-40
LAWS = ("identity", "first_order", "gradient")
BEFORE = ("locality", "markov", "reflecting", "recovery")
SEARCHES = (
    "on_policy.identity.gate_off_identity",
    "on_policy.first_order._felt",
    "on_policy.gradient.wrong_coefficients",
    "on_policy.first_order.first_update.wrong_coefficients",
    "on_policy.first_order.first_update.start_not_recovered",
)


class Gates(Formulas):
    """What gates read: of the current policy nothing but statistics."""

    def statistic(self, *given: Any, **more: Any) -> Expression:
        was, self.moving = self.moving, True
        try:
            return super().statistic(*given, **more)
        finally:
            self.moving = was

    def gated(self, stratum: Stratum) -> Expression:
        """A gate that passes small residuals, or nearly."""
        place = None if stratum in self.setting.leaves else stratum
        asked = self.condition(self.rng.randrange(2), place, self.pick(1, 1, 2))
        asked = of_a_branch(self) if self.rng.random() < 0.4 else asked
        other = self.pick(2 * residual, residual / 2, 0 * residual, tanh(residual), -residual)
        right = self.pick(
            where(asked, residual, other), where(asked, residual, other), where(asked, residual, other),
            where(asked, other, residual), clip(residual, -EPSILON, C), tanh(residual), residual,
            residual * where(asked, 1, 2), minimum(residual, self.number(1, place, 1)),
            residual * self.number(0, place, 1) / self.number(0, place, 1),
        )  # fmt: skip
        return self.mutated(right, 1) if place is None and self.rng.random() < 0.3 else right  # type: ignore[no-any-return]


def of_a_branch(f: Formulas) -> Expression:
    """A condition on what lies over a row of one leaf, which may be nothing; and on the same of other rows."""
    leaf = f.pick(*f.setting.leaves)
    over = f.pick(trajectory, trajectory, *f.setting.below)
    inner = f.pick(
        log_prob(old) <= 0,
        log_prob(old) < 1,
        count(leaf, over=leaf) > 0,
        count(leaf, over=trajectory) > 0,
        f.condition(0, leaf, 1),
    )
    summed = f.pick(count(leaf, over=leaf), exp(log_prob(old)), 1 - log_prob(old), f.number(1, leaf, 1))
    row = count(leaf, over=trajectory)
    least = -largest(-f.pick(row, row + f.number(0, trajectory, 0)), over=f.pick(*f.setting.below))
    made = f.pick(
        some(inner, over=over, of=leaf), ~some(~inner, over=over, of=leaf), total(summed, over=over, of=leaf) > f.pick(0, 0, 1),
        least > 0, least - largest(-count(f.setting.leaves[0], over=trajectory), over=batch) > f.pick(0, 1),
        some(some(inner, over=trajectory, of=leaf), over=batch, of=f.pick(None, trajectory)),
        total(total(summed, over=trajectory, of=leaf), over=batch, of=trajectory) > 0, total(row, over=over) > 0,
        f.pick(before, after)(row, over=trajectory) >= 0, f.pick(before, after)(row, over=trajectory) > 0,
        mean(row, over=batch, of=trajectory) > 0,
    )  # fmt: skip
    return f.pick(made, made, made & f.condition(0), made | f.condition(0), ~made)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class OfGates:
    """`g(0) = 0` and `g'(0) = 1`; `𝒢(r) = r` and `c = μ·A` to first order, at `r = 1` and beside it."""

    name: str = "gates"
    timeout: float = 2.0

    def draw(self, rng: random.Random) -> OfHierarchy:
        f = Gates(rng.choice(SETTINGS + TREES), rng, moving=False)
        for _ in range(20):
            try:
                chosen = rng.sample(f.setting.strata, min(rng.choice([1, 1, 2]), len(f.setting.strata)))
                gates = {s: Gate(f.gated(s)) for s in chosen}
                return OfHierarchy(f.hierarchy(gates=gates, decomposition=f.decomposition()))
            except FibrationError:
                continue
        raise NothingDrawn

    def judge(self, case: OfHierarchy, rng: random.Random) -> tuple[list[str], str]:
        h = of_levels(case.h)
        with proofs_alone(SEARCHES):
            found = verdicts(h, (*BEFORE, *LAWS), self.timeout, foundations=True)
        if any(v.status != "proved" for v in found if v.law == "locality"):
            return [], ""
        own = [v for v in found if v.law in LAWS]
        asked = [v for v in own if v.status == "proved" and v.subject != "decomposition"]
        for together in ("exact", "near") if asked else ():
            for world in worlds(h, rng, TRIES // 3, together):
                for v in asked:
                    if said := _gate_off(world, v) if v.law == "identity" else _start_off(world, v):
                        return [
                            v.status for v in own
                        ], f"wrong proof: {v.law} of {v.subject}: {said} {of_batch(world.batch)}"
        return [v.status for v in own], ""


def _gate_off(world: World, v: Verdict) -> str:
    """How a gate is not the identity at residual 0 of one of its elements; where policies are near, with statistics near."""
    s = v.subject.removeprefix("gate on ")
    for channel in world.h.decomposition.channels:
        for e in world.elements(s):
            for rho in (0.0, SMALL, -SMALL):
                there = Dual(rho, {-1: 1.0})
                found, why = attempt(partial(world.gate, s, e, channel, there))
                if why == "no value":
                    return f"no value at residual {rho} of {e}"
                if why:
                    continue
                value, slope = value_of(found), slopes_of(found).get(-1, 0)
                if abs(value - rho) > 1e-3 * SMALL + 1e-15:
                    return f"{value} at residual {rho} of {e}"
                if abs(slope - 1) > 1e-3:
                    return f"slope {slope} at residual {rho} of {e}"
    return ""


def _start_off(world: World, v: Verdict) -> str:
    """How ratios are not what went in, or coefficients not `μ·A`, on policy and near it."""
    h = world.h
    if v.subject.startswith("advantages constant on each "):
        world = World(h, _constant_on(world.batch, v.subject.rpartition(" ")[2]))
    ratios, why = attempt(lambda: world.ratios)
    if why:
        return "no value of a ratio" if why == "no value" else ""
    off = max(abs(x.value) for x in world.x) * 1e-2 + 1e-13
    if v.subject == "hierarchy" and v.law == "first_order":
        for i, r in enumerate(ratios):
            if abs(value_of(r) - 1 - world.x[i].value) > off:
                return f"ratio {value_of(r)} of token {i}"
    mu, why = attempt(lambda: world.mu(h.objective))
    coefficients, lacks = attempt(lambda: world.coefficients)
    if why or lacks:
        return ""
    for i, c in enumerate(coefficients):
        right = mu[i] * world.advantage(i)
        if abs(c - right) > 1e-5 * max(1, abs(right)):
            return f"coefficient {c} instead of {right} at token {i}"
    return ""


def _constant_on(b: Batch, stratum: str) -> Batch:
    labels = [0] * b.size if stratum == BATCH else b.labels.get(stratum, range(b.size))
    first: dict[Any, Any] = {}
    return replace(b, advantages=[first.setdefault(e, a) for e, a in zip(labels, b.advantages, strict=True)])


# ---------------------------------------------------------------- second moments


def bounded_weight(f: Formulas) -> Expression:
    ratio = exp(log_prob(old) - log_prob(rollout))
    made = f.pick(
        minimum(ratio, C), where(f.condition(1), minimum(ratio, C), f.pick(1, 2, C)), ratio, where(ratio > C, 0, ratio),
        where(f.condition(1), 1, 2), where(of_a_branch(f), 1, 2), weight(f), f.number(1),
    )  # fmt: skip
    return f.mutated(made, 0) if f.rng.random() < 0.3 else made  # type: ignore[no-any-return]


def bounding(f: Formulas) -> Expression:
    far = f.pick(log_prob(old) - log_prob(rollout), exp(log_prob(old) - log_prob(rollout)), f.number(0))
    each = f.pick(None, None, trajectory, *f.setting.leaves)
    over = f.pick(trajectory, *f.setting.below) if each != trajectory else f.pick(*f.setting.below)
    asked = far > f.pick(1, C, 3) if each is None or each in f.setting.leaves else f.condition(0, each)
    return f.pick(~some(asked, over=over, of=each), ~asked, far <= C, of_a_branch(f), condition(f))  # type: ignore[no-any-return]


@dataclass(frozen=True)
class OfWeights:
    """No weight of a kept token is above what the fact `second_moment` says."""

    name: str = "second_moment"
    timeout: float = 2.0

    def draw(self, rng: random.Random) -> OfHierarchy:
        f = Formulas(rng.choice(SETTINGS + TREES), rng)
        for _ in range(20):
            try:
                made = f.objective().weigh(bounded_weight(f))
                made = made.keep(bounding(f)) if rng.random() < 0.6 else made
                return OfHierarchy(f.hierarchy(objective=made))
            except FibrationError:
                continue
        raise NothingDrawn

    def judge(self, case: OfHierarchy, rng: random.Random) -> tuple[list[str], str]:
        h = case.h
        if len(h.objective.weighed) != 1:
            return [], ""
        [w] = h.objective.weighed
        with proofs_alone():
            if any(v.status != "proved" for v in verdicts(h, ("locality", "objective"), self.timeout)):
                return [], ""  # `verify` then states no facts
        most = supremum(h, w)
        if most == sympy.oo:
            return ["undecided"], ""
        for world in worlds(h, rng, TRIES):
            bound = _number(most, world)
            for i in range(world.n):
                kept, why = attempt(partial(_is_kept, world, i))
                found, lacks = attempt(partial(world.at_token, w, i))
                value = value_of(found)
                if not why and kept and not lacks and value > bound + 1e-9 * max(1, abs(bound)):
                    return ["proved"], f"wrong bound: {most}: {value} at token {i} {of_batch(world.batch)}"
        return ["proved"], ""


def _is_kept(world: World, i: int) -> bool:
    return all(world.at_token(k.condition, i) for k in world.h.objective.kept)


def _number(bound: Any, world: World) -> float:
    values = {
        s: float(world.batch.parameters[a.name]) for s in bound.free_symbols if isinstance(a := ATOM_OF[s], Parameter)
    }
    return float(bound.subs(values))


JUDGES = (OfGates(), OfWeights())
