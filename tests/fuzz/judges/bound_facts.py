"""The facts `radius` and `bounds` of gates whose bounds are formulas with `maximum`, `minimum`, `absolute` and `where`.

They are read at sizes and parameters drawn at random, and compared with what the gates do to log ratios on a grid.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from oracles.fact_text import interval, number

from fibration import (
    Gate,
    Hierarchy,
    absolute,
    advantage,
    clip_gate,
    count,
    identity_gate,
    log_ratio,
    mass,
    maximum,
    minimum,
    pessimistic_clip_gate,
    ratio_deviation,
    residual,
    signed_log_ratio,
    trajectory_mean,
    where,
)
from fibration.errors import FibrationError
from fuzz.dual_numbers import value_of
from fuzz.generate import PARAMETERS, SETTINGS, Setting, token, trajectory
from fuzz.judges.judge import NothingDrawn, OfHierarchy, attempt
from fuzz.judges.level_facts import found_facts
from fuzz.world import Batch, World

T = count(token, over=trajectory)
EPSILON, C, BETA, _ = PARAMETERS
ONE, TWO = (next(s for s in SETTINGS if s.name == name) for name in ("tokens", "chain"))


def bound(rng: random.Random, depth: int) -> Any:
    """A formula of sizes and parameters."""
    if depth == 0:
        return rng.choice([EPSILON, C, BETA, 1 / T, EPSILON - 1 / T, C / T, EPSILON * T - 1, Fraction(1, 20), 2])
    a, b = bound(rng, depth - 1), bound(rng, rng.randrange(depth))
    if (roll := rng.randrange(5)) == 4:
        a = a if hasattr(a, "is_condition") else EPSILON
        return rng.choice([a + b, a * BETA, a / (1 + T)])
    chosen = where(rng.choice([T > 2, T <= 3, EPSILON > BETA, BETA * T >= 1]), a, b)
    return [maximum(a, b), minimum(a, b), absolute(a) + Fraction(1, 100), chosen][roll]


def positive(rng: random.Random) -> Any:
    b = bound(rng, rng.choice([1, 1, 2]))
    return rng.choice([maximum(b, 1e-6), absolute(b) + 1e-3, maximum(b, EPSILON / 9), minimum(maximum(b, BETA), C)])


def drawn(rng: random.Random) -> Hierarchy:
    setting: Setting = rng.choice([ONE, TWO, TWO])
    on = rng.choice(setting.strata)
    low, high = positive(rng), positive(rng)
    per = 1 / T if setting == TWO and on == token else 1
    gates = [clip_gate(low).per(per), clip_gate(low).per(per), pessimistic_clip_gate(low, high).per(per)]
    if setting == ONE or on == trajectory:
        gates += [Gate(where(T > 2, where(residual > low, low, residual), residual)), clip_gate(low).inward()]
        gates += [Gate(where(advantage > 0, minimum(residual, low), maximum(residual, -high)))]
    split = rng.choice(
        [log_ratio, signed_log_ratio, ratio_deviation] if setting == TWO else [log_ratio, ratio_deviation]
    )
    chosen = dict.fromkeys(setting.strata, identity_gate()) | {on: rng.choice(gates)}
    return Hierarchy(
        name="bounded", fibrations=setting.fibrations, gates=chosen, objective=trajectory_mean(),
        decomposition=split(scale=mass if setting == TWO else 1),
    )  # fmt: skip


def steps(n: int) -> Iterator[list[int]]:
    """Log ratios in units of the radius: all alike, and one against the others."""
    for side in (1, -1):
        yield [side] * n
        yield [side] + [-side] * (n - 1)
        yield [side] + [0] * (n - 1)


def gated(h: Hierarchy, xs: list[float], sign: int, parameters: dict[str, Any]) -> list[float]:
    """`𝒢(r)` of the tokens of one row."""
    n = len(xs)
    labels = {s.name: [0] * n for s in (trajectory, *h.strata) if s != token}
    b = Batch([token] * n, labels, xs, [sign] * n, {"old": [-99.0] * n}, parameters=parameters)
    return [float(value_of(g)) for g in World(h, b, flat=True).ratios]


def changed(h: Hierarchy, xs: list[float], sign: int, parameters: dict[str, Any]) -> float:
    """By what share a ratio changes, beyond rounding.

    A row's mean is taken off each ratio and put back, so that the largest ratio rounds the smallest.
    """
    ratios = [math.exp(x) for x in xs]
    pairs = zip(gated(h, xs, sign, parameters), ratios, strict=True)
    return max(abs(g - r) / r if abs(g - r) > 1e-12 * max(ratios) else 0.0 for g, r in pairs)


@dataclass(frozen=True)
class BoundFacts:
    """`radius`, and `bounds` of a single gate, at random sizes."""

    name: str = "bounds"
    timeout: float = 2.0
    tries: int = 4

    def draw(self, rng: random.Random) -> OfHierarchy:
        for _ in range(20):
            try:
                return OfHierarchy(drawn(rng))
            except FibrationError:
                continue
        raise NothingDrawn

    def judge(self, case: OfHierarchy, rng: random.Random) -> tuple[list[str], str]:
        h, laws = case.h, ("identity", "first_order", "recovery", "positivity")
        told = {(f.name, f.subject): f.value for f in found_facts(h, ("radius", "bounds"), laws) or ()}
        radius, whole = told.get(("radius", "hierarchy"), ""), told.get(("bounds", "log 𝒢"))
        kind = "by sizes" if re.search("where|m(ax|in)imum", radius) else "plain" if radius else "no radius"
        for _ in range(self.tries if radius not in ("", "0", "not certified") else 0):
            n, epsilon, c, beta = (
                rng.choice(v) for v in ((1, 2, 3, 4, 7, 20), (0.0513, 0.317, 0.91), (1.13, 3.1), (0.0107, 0.23, 5.3))
            )
            values, sizes = {"epsilon": epsilon, "C": c, "beta": beta}, {"count(token, over=trajectory)": n}
            complaint, why = attempt(lambda n=n, v=values, s=sizes: _off(h, n, v, number(radius, v, s)))
            if complaint and not why:
                return [kind], f"{complaint}: {radius}, at {n} tokens and {values}"
            ends = [(x, sign) for x in (-80.0, -1.0, 0.0, 1.0, 80.0) for sign in (1, -1)]
            seen = [math.log(gated(h, [x] * n, sign, values)[0]) for x, sign in ends] if whole else []
            low, high = interval(whole, values, sizes) if whole else (0, 0)
            if seen and not low - 1e-9 <= min(seen) <= max(seen) <= high + 1e-9:
                return [kind], f"log 𝒢 is in {whole}, and from {min(seen)} to {max(seen)} at {n} tokens and {values}"
            if seen and any(-50 < e < 50 and abs(e - s) > 1e-9 for e, s in ((low, min(seen)), (high, max(seen)))):
                return [kind], f"log 𝒢 is in {whole}, but from {min(seen)} to {max(seen)} at {n} tokens and {values}"
        return [kind], ""


def _off(h: Hierarchy, n: int, values: dict[str, Any], radius: float) -> str:
    """What is wrong with a radius: something changes within it, or nothing beyond it."""
    if not radius > 0:
        return f"the radius is {radius}"
    signs = (1, -1)
    within = [[w * min(radius, 9.0) * (1 - 1e-6) for w in way] for way in steps(n)]
    if any(changed(h, xs, sign, values) for xs in within for sign in signs):
        return f"a ratio changes within {radius}"
    on = next(s for s, g in h.gates.items() if str(g) != "identity_gate()")
    # the residual x - mean is at most 2·R·(1 - 1/n), where the radius is that of the largest row
    room = 1.0 if on in h.roots else n / max(n - 1, 1)
    is_known = on in h.roots or (n > 1 and h.decomposition.channels == ("",) and "exp" in str(h.decomposition.recovery))
    beyond = [[1.001 * radius * room * w for w in way] for way in steps(n)]
    if is_known and radius < 9 and not any(changed(h, xs, s, values) > 1e-5 * radius for xs in beyond for s in signs):
        return f"no ratio changes beyond {radius}"
    return ""


JUDGES = (BoundFacts(),)
