"""The law `inward`: the slopes of a proved gate along its residuals, for pulls of either sign, on random batches.

The gate's other operands have their values in the batch. If the gate's pull is its advantage, the opposite pull
negates all advantages of the batch. Densities that the gate reads are scaled with its residual.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from fibration import (
    Gate,
    Hierarchy,
    absolute,
    advantage,
    clip,
    count,
    exp,
    largest,
    log,
    log1p,
    log_prob,
    maximum,
    mean,
    minimum,
    residual,
    sign,
    some,
    sqrt,
    stop,
    tanh,
    token_log_ratio,
    where,
)
from fibration.errors import FibrationError
from fibration.language.atoms import Density, Gated, Reading, Stratum, channel_sign, density, in_channel, mass, pull
from fibration.language.expressions import Apply, Expression
from fibration.language.statistics import Aggregate
from fibration.language.traversal import atoms
from fuzz.batches import constants
from fuzz.dual_numbers import Dual, Illegal, NoValue, Unclear, slopes_of, value_of
from fuzz.generate import PARAMETERS, SETTINGS, Formulas, attributes, old, prompt_group, trajectory
from fuzz.judges.judge import SEARCHED, SEARCHES, NothingDrawn, OfHierarchy, of_batch, proofs_alone, verdicts, worlds
from fuzz.world import World

WORLDS = 4
SIZES = [Fraction(1, 1000)] + [Fraction(n, 8) * 2**k for k in range(-4, 5, 2) for n in (5, 8, 11)] + [Fraction(10**6)]
SMOOTH = ("tanh", "exp", "sigmoid", "atan", "softplus")
PASSES = 1e-7  # a slope this small is rounding
Slopes = list[tuple[Fraction, float]]  # of residuals, from 0 outwards


# ---------------------------------------------------------------- gates, right and nearly right


class Gates:
    """Draws gates of one stratum."""

    def __init__(self, f: Formulas, stratum: Stratum) -> None:
        self.f, self.stratum = f, stratum
        s = f.setting
        self.leaf = stratum in s.leaves
        coarser = Hierarchy.coarser(f.hierarchy(), stratum) if s.fibrations else ()
        self.above = [t for t in coarser if t != stratum]
        self.has_advantage = self.leaf or stratum == trajectory or stratum in s.within

    def budget(self) -> Any:
        f = self.f
        tokens = f.setting.tokens(self.stratum)
        found: list[Any] = [*PARAMETERS[:3], Fraction(1, 4), Fraction(1, 2), 1, 3]
        if f.rng.random() < 0.3:
            found = [
                f.pick(*found) * tokens,
                absolute(f.atom(self.stratum, 0)),
                sqrt(tokens),
                f.pick(*found) ** 2,
                log(1 + tokens),
            ]
            found += [minimum(*f.rng.sample([*PARAMETERS[:3]], 2)), absolute(f.pick(*attributes(f.setting)[:2]))]
            if self.above:
                found += [f.pick(*PARAMETERS[:3]) + absolute(density(f.pick(*self.above)))]
                found += [f.pick(*PARAMETERS[:3]) * (1 + density(f.pick(*self.above)))]
            if self.has_advantage:
                found += [f.pick(*PARAMETERS[:3]) * absolute(advantage)]
            if self.leaf:
                found += [exp(log_prob(old)), -log_prob(old)]
        return f.pick(*found)

    def condition(self) -> Expression:
        """What has nothing to do with the residual."""
        f, b = self.f, self.budget()
        found = [f.condition(0, self.stratum, 0), pull > 0, pull * residual > 0, pull * residual < 0]
        over = f.pick(trajectory, *f.setting.below) if self.stratum not in f.setting.below else self.stratum
        if self.has_advantage:
            found += [advantage > 0, advantage >= 0, advantage * residual > 0, advantage * residual < 0, absolute(advantage) < b,
                      advantage > b]  # fmt: skip
        found += [mean(advantage, over=over) > 0, some(advantage > 0, over=over), mean(token_log_ratio, over=over) > b,
                  largest(advantage, over=over) < b]  # fmt: skip
        if self.above:
            d = density(f.pick(*self.above))
            found += [d > b, absolute(d) < b, d * residual > 0, d < -b]
        if self.leaf:
            found += [log_prob(old) < -f.pick(1, 3, 30)]
        return f.pick(*found)

    def near(self, b: Any) -> Expression:
        """A condition on the residual, that holds near 0."""
        size = absolute(residual)
        return self.f.pick(
            size <= b, size < b, residual <= b, residual >= -b, residual**2 <= b * b, residual**2 < b, size**3 <= b,
            exp(residual) <= 1 + b, size <= b * (1 + size / 2), exp(size) - 1 < b, size * (1 + size) < b, (residual - b) * (residual + b) < 0,
        )  # fmt: skip

    def beyond(self, b: Any, c: Any) -> Any:
        """What a gate may be beyond a budget."""
        side = sign(residual)
        return self.f.pick(
            side * b, 0, stop(residual), b, side * b + (residual - stop(residual)) / 2, residual / 2, residual,
            2 * side * b - residual, 2 * stop(residual) - residual, residual - side * c, b - (residual - stop(residual)),
            side * b * log1p(absolute(residual)), residual**3, side * (b + tanh(absolute(residual))),
        )  # fmt: skip

    def draw(self, depth: int = 2) -> Expression:
        f, b, c = self.f, self.budget(), self.budget()
        roll = f.rng.randrange(12)
        if depth and roll < 3:
            return where(self.condition(), self.draw(depth - 1), self.draw(depth - 1))
        if depth and roll < 5:
            return where(self.near(b), self.draw(depth - 1), self.beyond(b, c))
        if roll < 7:
            return where(self.near(b), residual, where(self.near(c), self.beyond(b, c), self.beyond(b, c)))
        if roll < 8:
            return f.pick(
                b * tanh(residual / b), residual / (1 + absolute(residual)), residual / (1 + residual**2), log1p(absolute(residual)),
                residual * exp(-absolute(residual)), residual + residual**3, residual - residual**3, residual / (1 + 3 * log1p(residual**2)),
                stop(residual) + (residual - stop(residual)) * b,
            )  # fmt: skip
        by = advantage if self.has_advantage else pull
        return f.pick(
            residual, clip(residual, -b, c), where(by > 0, minimum(residual, b), maximum(residual, -c)),
            where(by > 0, maximum(residual, -b), minimum(residual, c)), where(self.near(b), residual, self.beyond(b, c)),
        )  # fmt: skip

    def gate(self) -> Gate:
        made = Gate(self.draw())
        if self.f.rng.random() < 0.3:
            ceiling = self.f.pick(None, None, 1 + PARAMETERS[0])
            by = channel_sign * advantage if self.has_advantage and self.f.rng.random() < 0.2 else pull
            made = made.inward(ceiling, self.f.pick(by, by, by, -by))
        if self.f.rng.random() < 0.3:
            made = made.per(
                self.f.pick(
                    mass, 2, count(trajectory, over=prompt_group) if prompt_group in self.f.setting.strata else 1
                )
            )
        if self.f.rng.random() < 0.2:
            made = Gate(self.f.mutated(made.expression, 0))
        return made


# ---------------------------------------------------------------- brute force


def frozen(formula: Expression, found: dict[Expression, Expression]) -> Expression:
    """The formula with what it stops replaced by new atoms."""
    if isinstance(formula, Apply):
        if formula.operator == "stop":
            return found.setdefault(formula, Reading(f"stopped {len(found)}"))
        return Apply(formula.operator, tuple(frozen(a, found) for a in formula.arguments))
    return formula


@dataclass
class Followed:
    """One gate at one element of a batch."""

    world: World
    stratum: Stratum
    channel: str
    element: Any

    def __post_init__(self) -> None:
        w, s = self.world, self.stratum.name
        self.formula = in_channel(w.h.gate(self.stratum), self.channel)
        self.read = set(atoms(self.formula))
        found = [a for a in atoms(w.h.pull(self.stratum)) if isinstance(a, Aggregate)]
        self.base: Expression = found[0] if found else advantage
        self.densities = {
            a: value_of(w.density[a.stratum.name, a.channel or ""][w.below(s, self.element, a.stratum.name)])
            for a in self.read
            if isinstance(a, Density)
        }
        self.mass = value_of(w.value(w.h.masses[self.stratum], s, self.element))

    def is_told(self, rho: Fraction) -> bool:
        """Whether a slope of 0 is one: that of `tanh(residual / beta)` is rounded to 0 far out."""
        return abs(rho) * Fraction(self.mass) < Fraction(1, 32) or not any(w in str(self.formula) for w in SMOOTH)

    def is_of_ratios(self, share: Any) -> bool:
        """Whether densities of deviations, times `share`, are still above minus their mass, as ratios are above 0."""
        w, split = self.world, self.world.h.decomposition
        if "expm1" not in str(split.densities[0][1]) or split.channels != ("",):
            return True
        strata = {a: a.stratum for a in self.densities if isinstance(a, Density)}
        at = {a: (s.name, w.below(self.stratum.name, self.element, s.name)) for a, s in strata.items()}
        return all(
            float(share) * float(self.densities[a]) > -float(value_of(w.value(w.h.masses[s], *at[a])))
            for a, s in strata.items()
        )

    def value(self, rho: Any, way: int, share: Any = 1) -> Any:
        bound: dict[Expression, Any] = {a: share * v for a, v in self.densities.items()}
        if self.base != advantage:
            bound[self.base] = self.world.by.number(way)
        return self.world.value(self.formula, self.stratum.name, self.element, {**bound, residual: rho})

    def slope(self, rho: Fraction, way: int, share: Any = 1) -> float | None:
        """The slope at a residual, by the chain rule; None where it cannot be told."""
        at = self.world.by.number(rho * Fraction(self.mass))
        try:
            found = self.value(Dual(at, {-1: self.world.by.number(1)}), way, share)
        except (Unclear, Illegal, OverflowError, NoValue):
            return None
        return float(slopes_of(found).get(-1, 0))

    def difference(self, rho: Fraction, way: int) -> float | None:
        """The same by a small difference, with what is stopped as it stands."""
        stopped: dict[Expression, Expression] = {}
        plain = frozen(self.formula, stopped)
        w, s, e, at = self.world, self.stratum.name, self.element, float(rho * Fraction(self.mass))
        held: dict[Expression, Any] = {**self.densities}
        if self.base != advantage:
            held[self.base] = w.by.number(way)
        try:
            held |= {
                atom: value_of(w.value(of.arguments[0], s, e, {**held, residual: at})) for of, atom in stopped.items()
            }  # type: ignore[attr-defined]
            step = 1e-5 * max(1e-3, abs(at))
            high, here, low = (value_of(w.value(plain, s, e, {**held, residual: at + d})) for d in (step, 0, -step))
        except (Unclear, Illegal, OverflowError, NoValue):
            return None
        above, below = float(high - here) / step, float(here - low) / step
        return (above + below) / 2 if abs(above - below) <= 1e-2 * max(1, abs(above)) else None  # of a kink, none


def follow(world: World, turned: World, stratum: Stratum, element: Any, channel: str, rng: random.Random) -> str:
    """What contradicts a proof at one element, '' for nothing."""
    h = world.h
    f = Followed(world, stratum, channel, element)
    away = Followed(turned, stratum, channel, element)
    up = _way_up(h, world, stratum, channel, element)
    if not up:
        return ""
    pulls = {1: f, -1: f}
    if f.base == advantage:
        own = value_of(world.advantage(world.over[stratum.name][element][0]))
        if not own:
            return ""
        sense = 1 if own * up > 0 else -1
        pulls = {sense: f, -sense: away}
    split = len(h.decomposition.channels) > 1
    for side in (1, -1):
        if side < 0 and split and stratum in h.roots:
            continue
        sizes = sorted({*SIZES, *_sizes(h, world, stratum, rng)})
        places = [side * t for t in sizes if _is_reached(h, world, f, stratum, channel, element, side * t)]
        lines = {}
        for way in (1, -1):
            known = ((rho, pulls[way].slope(rho, way * up)) for rho in places)
            lines[way] = [(rho, s) for rho, s in known if s is not None]
        rho = rng.choice(places) if places else Fraction(1)
        near, by_chain = f.difference(rho, up), f.slope(rho, up)
        if (
            near is not None
            and by_chain is not None
            and abs(near - by_chain) > 1e-3 * max(1, abs(near))
            and abs(rho) < 100
        ):
            again = f.difference(rho * Fraction(10001, 10000), up)  # a jump, or a kink between the two places
            if again is not None and abs(again - near) < 1e-3 * max(1, abs(near)):
                return f"the slope at {float(rho)} is {by_chain} by the chain rule, {near} by differences"
        if said := _contradiction(lines[-side], lines[side], f, pulls[side], side, up):
            return f"{said} on {stratum} {element} channel '{channel}', turned {turned is not world}"
    return ""


def _contradiction(inward: Slopes, outward: Slopes, f: Followed, out: Followed, side: int, up: int) -> str:
    for rho, s in inward:
        if s < -PASSES:
            return f"at residual {float(rho)} an inward pull is turned round by {s}"
    rays = outward
    if f.densities:
        found = (
            (t * rho, out.slope(t * rho, side * up, float(t)))
            for rho, _ in outward[len(outward) // 2 :][:1]
            for t in SIZES
            if out.is_of_ratios(t)
        )
        rays = [(rho, s) for rho, s in found if s is not None]
    stop_at = next((rho for rho, s in rays if s <= 0 and f.is_told(rho)), None)
    if stop_at is not None:
        for rho, s in rays:
            if abs(rho) > abs(stop_at) and s > PASSES:
                return f"an outward pull is stopped at residual {float(stop_at)} and passes {s} of it at {float(rho)}"
    lost = next((rho for rho, s in inward if s <= 0 and f.is_told(rho)), None)
    if lost is not None and not f.densities and outward and all(s > PASSES for _, s in outward):
        return f"at residual {float(lost)} an inward pull is stopped, and no outward one is anywhere"
    return ""


def _way_up(h: Hierarchy, world: World, stratum: Stratum, channel: str, element: Any) -> int:
    i = world.over[stratum.name][element][0]
    leaf, _ = world.place(i)
    down: dict[Expression, Any] = {Gated(c): value_of(world.density[leaf, c][i]) for c in h.decomposition.channels}
    down[Gated(channel)] = Dual(down[Gated(channel)], {-1: world.by.number(1)})
    recovery = h.with_mass(h.decomposition.recovery, Stratum(leaf))
    s = slopes_of(world.value(recovery, leaf, i, down)).get(-1, 0)
    return (s > 0) - (s < 0)


def _sizes(h: Hierarchy, world: World, stratum: Stratum, rng: random.Random) -> Iterator[Fraction]:
    """Residuals around numbers of the gate and of the batch."""
    numbers = [abs(c) for c in constants([h.gate(stratum)])]
    given = list(world.batch.parameters.values())
    for v in given:  # numbers, by channel, by element, or both
        if isinstance(v, dict):
            given += v.values()
        else:
            numbers.append(abs(Fraction(v)))
    numbers = [n for n in numbers if 0 < n < 1000]
    numbers += [a * b for a in numbers for b in numbers][:20]
    for n in rng.sample(numbers, min(6, len(numbers))):
        yield from (n * k for k in (Fraction(999, 1000), Fraction(1001, 1000), Fraction(rng.randint(1, 40), 10)))


def _is_reached(
    h: Hierarchy, world: World, f: Followed, stratum: Stratum, channel: str, element: Any, rho: Fraction
) -> bool:
    """Whether a residual can come to a gate: a deviation of ratios is above -1, a density of a sign channel not below 0."""
    channels = h.decomposition.channels
    if "expm1" in str(h.decomposition.densities[0][1]) and channels == ("",) and rho <= -1 and stratum in h.roots:
        return False
    if len(h.order) == 1 and log_prob(old) in f.read:
        top = -Fraction(world.batch.policies["old"][world.over[stratum.name][element][0]])
        if (
            rho >= top
            if "exp" not in str(h.decomposition.densities[0][1])
            else 1 + float(rho) >= float(2.718281828 ** float(top))
        ):
            return False
    if len(channels) > 1 and f.densities:
        if not all(f.densities.values()):  # densities of finer elements add up to it, and none of them is below 0
            return False
        own = float(rho)
        for u, c in h.shape.moebius(stratum).items():
            e = world.below(stratum.name, element, u.name)
            m = value_of(world.value(h.masses[u], u.name, e))
            own += float(c * value_of(world.density[u.name, channel][e]) / m)
        return own > 0
    return True


# ---------------------------------------------------------------- the judge


@dataclass(frozen=True)
class OfGates:
    name: str = "inward"
    timeout: float = 2.0

    def draw(self, rng: random.Random) -> OfHierarchy:
        f = Formulas(rng.choice(SETTINGS), rng, moving=False)
        for _ in range(20):
            try:
                stratum = rng.choice(f.setting.strata)
                gate: Any = Gates(f, stratum).gate()
                split = f.decomposition()
                if len(split.channels) > 1 and rng.random() < 0.2:
                    gate = {"+": gate, "-": Gates(f, stratum).gate()}
                return OfHierarchy(f.hierarchy(gates={stratum: gate}, decomposition=split))
            except FibrationError:
                continue
        raise NothingDrawn

    def judge(self, case: OfHierarchy, rng: random.Random) -> tuple[list[str], str]:
        h = case.h
        with proofs_alone(SEARCHES if rng.randrange(SEARCHED) else ()):
            asked_first = verdicts(h, ("locality",), self.timeout, foundations=True)
            if not asked_first or any(v.status != "proved" for v in asked_first):
                return [], ""
            found = verdicts(h, ("inward",), self.timeout)
        found = [v for v in found if v.subject.startswith("gate on ")]
        found = [v for v in found if str(h.gates[Stratum(v.subject.removeprefix("gate on "))]) != "identity_gate()"]
        asked = [Stratum(v.subject.removeprefix("gate on ")) for v in found if v.status == "proved"]
        for world in worlds(h, rng, WORLDS, most=8) if asked else ():
            turned = World(h, _turned(world.batch))
            for stratum in asked:
                elements = list(world.over[stratum.name])
                for element in rng.sample(elements, min(2, len(elements))):
                    for channel in h.decomposition.channels:
                        try:
                            said = follow(world, turned, stratum, element, channel, rng)
                        except (NoValue, Unclear, Illegal, OverflowError):
                            continue
                        if said:
                            return [v.status for v in found], f"wrong proof: {said} {of_batch(world.batch)}"
        return [v.status for v in found], ""


def _turned(batch: Any) -> Any:
    return replace(batch, advantages=[-a for a in batch.advantages])


JUDGES = (OfGates(),)
