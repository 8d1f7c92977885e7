"""Laws of kernels, decompositions and residuals: locality, markov, reflecting, coherent, recovery, orthogonality, positivity."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from fibration import Fibration, Hierarchy, log_ratio, mass, ratio_deviation, signed_log_ratio
from fibration.errors import FibrationError
from fibration.language.atoms import Gated
from fibration.language.report import Verdict
from fibration.laws import topic
from fuzz.dual_numbers import Dual, value_of
from fuzz.generate import SETTINGS, Setting
from fuzz.judges.judge import (
    SEARCHED,
    TOLERANCE,
    NothingDrawn,
    OfHierarchy,
    attempt,
    of_batch,
    proofs_alone,
    verdicts,
    worlds,
)
from fuzz.random_hierarchies import QUIVERS, TREES, Anything, whole
from fuzz.witnesses import batch_of
from fuzz.world import World

EVERY = tuple(s for s in (*SETTINGS, *QUIVERS, *TREES) if s.name != "balanced rows")  # no batch is drawn so
JOINED = tuple(s for s in EVERY if s.fibrations)
CROSSED = tuple(s for s in EVERY if s in QUIVERS)
SEARCHES = (
    "kernels.reflecting.negative_weight", "gates.recovery.ratio_not_recovered", "off_policy.positivity.of_one_token",
    "off_policy.positivity.ratio_not_positive", "kernels.orthogonality.residuals_that_do_not_sum_to_0",
    "kernels.coherent.element_of_two_masses",
)  # fmt: skip
SLOWEST = "kernels.reflecting._other_sum"
KERNELS = ("structure", "locality", "markov", "reflecting", "coherent")


def is_off(value: Any, expected: float) -> bool:
    return bool(abs(value - expected) > TOLERANCE * max(1.0, abs(expected)))


# ---------------------------------------------------------------- what contradicts a law on a batch


def of_formulas(world: World, v: Verdict) -> str:
    """A formula that reads what is not there raises an error that no judge catches."""
    h = world.h
    for s in h.strata:
        for e in world.elements(s.name):
            for f in h.shape.below(s):
                attempt(lambda f=f, s=s, e=e: world.value(f.weight, s.name, e))
    attempt(lambda: world.ratios)
    return ""


def of_weights(world: World, v: Verdict) -> str:
    for f in kernels_of(world.h, v.subject):
        for e in world.elements(f.source.name):
            value, why = attempt(lambda e=e, f=f: value_of(world.value(f.weight, f.source.name, e)))
            if why == "no value" or (not why and value < 0):
                return f"{why or value} at {f.source} {e}"
    return ""


def kernels_of(h: Hierarchy, subject: str) -> tuple[Fibration, ...]:
    """The kernels that a verdict is about."""
    covers = [(f,) for f in h.fibrations] + [c for f in h.fibrations for c in h.shape.covers(f.target)]
    return next((c for c in covers if topic.kernel(*c) == subject), ())


def sums(world: World, kernels: Iterable[Fibration]) -> dict[Any, Any]:
    """What the weights of some kernels sum to, over every element of their target."""
    found: dict[Any, Any] = {}
    for f in kernels:
        for e in world.elements(f.source.name):
            below = world.below(f.source.name, e, f.target.name)
            found[below] = found.get(below, 0) + value_of(world.value(f.weight, f.source.name, e))
    return found


def of_sums(world: World, v: Verdict) -> str:
    cover = kernels_of(world.h, v.subject)
    found, why = attempt(lambda: sums(world, cover))
    if why:
        return why if why == "no value" else ""
    wanted = dict.fromkeys(found, 1.0)
    if cover and cover not in (covers := list(world.h.shape.covers(cover[0].target))):
        wanted = share(world, cover, next(c for c in covers if not {*c} & {*cover}))
    off = (b for b in {*found, *wanted} if is_off(found.get(b, 0), wanted.get(b, 0)))
    return next((f"the weights over {b} sum to {found.get(b, 0)}, of {wanted.get(b, 0)}" for b in off), "")


def share(world: World, part: tuple[Fibration, ...], cover: tuple[Fibration, ...]) -> dict[Any, float]:
    """What the tokens over some sources weigh in each element of the target, by the way of a cover."""
    found: dict[Any, float] = {}
    for i in range(world.n):
        leaf, e = world.place(i)
        under = {leaf, *world.coarser[leaf]}
        if any(f.source.name in under for f in part):
            f = next(f for f in cover if f.source.name in under)
            at = world.below(leaf, e, f.source.name)
            weight = world.kernel(leaf, e, f.source.name) * value_of(world.value(f.weight, f.source.name, at))
            below = world.below(leaf, e, f.target.name)
            found[below] = found.get(below, 0) + weight
    return found


def of_paths(world: World, v: Verdict) -> str:
    def products(s: str, e: Any) -> dict[str, list[float]]:
        found: dict[str, list[float]] = {s: [1.0]}
        for f in world.h.fibrations:
            if f.source.name == s:
                own = value_of(world.value(f.weight, s, e))
                for t, more in products(f.target.name, world.below(s, e, f.target.name)).items():
                    found[t] = [*found.get(t, []), *(float(own * p) for p in more)]
        return found

    for leaf in world.h.leaves:
        for e in world.elements(leaf.name):
            paths, why = attempt(lambda leaf=leaf, e=e: products(leaf.name, e))
            for t, found in ({} if why else paths).items():
                if is_off(max(found), min(found)):
                    return f"{leaf} {e} has the weights {found} over {t}"
    return ""


def of_ratios(world: World, v: Verdict) -> str:
    """`R(F(r)) = r`, of every token alone."""
    h = world.h
    for i in range(world.n):
        leaf = next(s for s in h.leaves if s.name == world.place(i)[0])

        def back(leaf: Any = leaf, i: int = i) -> Any:
            d = h.decomposition
            down = {Gated(c): value_of(world.value(h.with_mass(d[c], leaf), leaf.name, i)) for c in d.channels}
            return value_of(world.value(h.with_mass(d.recovery, leaf), leaf.name, i, down))

        x = float(value_of(world.x[i]))
        value, why = attempt(back)
        # with an exponential of a far log ratio nothing is left of floats
        if abs(x) < 20 and (why == "no value" or (not why and is_off(value, math.exp(x)))):
            return f"token {i} comes back as {why or value} instead of {math.exp(x)}"
    return ""


def of_residuals(world: World, v: Verdict) -> str:
    h = world.h
    s = next(s for s in h.strata if v.subject == f"residual on {s}")
    covers = [{f.source for f in cover} for t in h.strata for cover in h.shape.covers(t)]
    for u in h.coarser(s):
        alone = h.shape.leaves_over(s) == h.shape.leaves_over(u)
        together = {s} if alone else next((c for c in covers if s in c and all(u in h.coarser(t) for t in c)), ())
        for c in h.decomposition.channels:
            sums, size = dict.fromkeys(world.elements(u.name), 0.0), 1.0
            found, why = attempt(lambda: world.residual)
            if why:
                return ""
            for t in together:
                for e, rho in found[t.name, c].items():
                    sums[world.below(t.name, e, u.name)] += float(value_of(rho))
                    size = max(size, abs(float(value_of(rho))))
            if any(abs(n) > TOLERANCE * size for n in sums.values()):
                return f"the residuals on channel {c!r} over {u} sum to {sums}"
    return ""


def of_gated(world: World, v: Verdict) -> str:
    world.x = [Dual(x.value, {}) for x in world.x]  # without slopes, which a root has none of at 0
    found, why = attempt(lambda: [value_of(g) for g in world.ratios])
    if why:
        return why if why == "no value" else ""
    if min(found) == 0:  # an exponential may vanish in floats
        found, why = attempt(lambda: [value_of(g) for g in World(world.h, world.batch, exact=True).ratios])
    return f"the gated ratios are {[float(g) for g in found]}" if not why and min(found) <= 0 else ""


# ---------------------------------------------------------------- what is drawn


def any_whole(rng: random.Random) -> Hierarchy:
    return whole(rng)


def with_paths(rng: random.Random) -> Hierarchy:
    return with_kernels(rng, CROSSED)


def with_kernels(rng: random.Random, settings: tuple[Setting, ...] = JOINED) -> Hierarchy:
    f = Anything(rng.choice(settings), rng)
    fibrations = list(f.kernels() if rng.random() < 0.8 else f.setting.fibrations)
    if rng.random() < 0.3:
        k = rng.randrange(len(fibrations))
        place = fibrations[k].source
        weight = replace(f, own=(), moving=False, with_advantage=False).mutated(fibrations[k].weight)
        fibrations[k] = Fibration(place, fibrations[k].target, kernel=weight)
    return f.hierarchy(fibrations=fibrations, decomposition=rng.choice([log_ratio, signed_log_ratio])(scale=mass))


def with_split(rng: random.Random) -> Hierarchy:
    f = Anything(rng.choice(EVERY), rng)
    return f.hierarchy(decomposition=f.split())


def with_gates(rng: random.Random) -> Hierarchy:
    f = Anything(rng.choice(EVERY), rng)
    gates = {s: f.gate_on(s) for s in rng.sample(f.setting.strata, rng.randint(1, len(f.setting.strata)))}
    split = rng.choice([log_ratio, signed_log_ratio, ratio_deviation, ratio_deviation])(scale=mass)
    return f.hierarchy(gates=gates, decomposition=f.split() if rng.random() < 0.3 else split)


@dataclass(frozen=True)
class OlderLaw:
    """`wrong` says what contradicts a proof on a batch; where it speaks of whole batches, a refutation's batch must."""

    name: str
    wrong: Callable[[World, Verdict], str]
    make: Callable[[random.Random], Hierarchy]
    needs: tuple[str, ...] = KERNELS
    checks_refutations: bool = False
    timeout: float = 1.0
    tries: int = 12

    def draw(self, rng: random.Random) -> OfHierarchy:
        for _ in range(20):
            try:
                return OfHierarchy(self.make(rng))
            except FibrationError:
                continue
        raise NothingDrawn

    def judge(self, case: OfHierarchy, rng: random.Random) -> tuple[list[str], str]:
        h = case.h
        asked = SEARCHES if rng.randrange(SEARCHED) else ()
        if self.name != "reflecting" or rng.randrange(4):  # of sums, refutations are judged too
            asked = (*asked, SLOWEST)
        with proofs_alone(asked):
            found = verdicts(h, (*self.needs, self.name), self.timeout)
        failed = {v.law for v in found if v.status != "proved"} - {self.name}
        mine = [v for v in found if v.law == self.name]
        if failed & {"structure", "locality", "objective"}:
            return [], ""
        statuses = [v.status for v in mine]
        proofs = [v for v in mine if v.status == "proved"]
        if self.name == "locality" and len(proofs) < len(mine):
            return statuses, ""  # what reads too much may be what is evaluated
        if proofs and not (h.orthogonalise and self.name == "orthogonality"):
            for world in worlds(h, rng, self.tries, None, 24):
                for v in proofs:
                    if said := self.wrong(world, v):
                        return statuses, f"wrong proof: {v.subject}: {said} {of_batch(world.batch)}"
        for v in mine if self.checks_refutations else ():
            concrete = getattr(v.counterexample, "concrete", None)
            if v.status == "refuted" and concrete is not None:
                world = World(h, batch_of(h, v.counterexample))
                if not self.wrong(world, v):
                    return statuses, f"wrong refutation: {v.subject}: {v.counterexample}"
        return statuses, ""


JUDGES = (
    OlderLaw("locality", of_formulas, any_whole, ("structure",)),
    OlderLaw("markov", of_weights, with_kernels, ("structure", "locality"), True),
    OlderLaw("reflecting", of_sums, with_kernels, ("structure", "locality", "markov"), True),
    OlderLaw("coherent", of_paths, with_paths, ("structure", "locality", "markov", "reflecting")),
    OlderLaw("recovery", of_ratios, with_split),
    OlderLaw("orthogonality", of_residuals, with_kernels),
    OlderLaw("positivity", of_gated, with_gates, (*KERNELS, "objective")),
)
