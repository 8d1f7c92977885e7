"""What is said of all levels together: recovery, positivity, `reversal`, `amplification`, and what is left of `gradient`."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from sympy import oo

from fibration import Hierarchy, identity_gate
from fibration.errors import FibrationError
from fibration.language.atoms import Gated, Stratum
from fibration.language.hierarchy import FOUNDATIONS
from fibration.language.report import Verdict
from fibration.language.sympy_bridge import from_sympy
from fibration.laws import LAWS
from fibration.laws.budget import Budget
from fibration.laws.facts import levels
from fibration.laws.facts.amplification_bounds import Amplified, Bound
from fibration.laws.gates.coordinates import coordinate, lines
from fibration.laws.subject import Subject
from fuzz.dual_numbers import value_of
from fuzz.generate import SETTINGS, Formulas
from fuzz.judges.inward_law import Gates
from fuzz.judges.judge import TRIES, NothingDrawn, OfHierarchy, attempt, of_batch, of_levels, proofs_alone, worlds
from fuzz.world import World

ASKED = (*FOUNDATIONS, "recovery", "identity", "first_order", "gradient", "positivity", "inward")
SEARCHES = (
    "gates.recovery.ratio_not_recovered", "on_policy.identity.gate_off_identity", "on_policy.first_order._felt",
    "on_policy.gradient.wrong_coefficients", "on_policy.first_order.first_update.wrong_coefficients",
    "on_policy.first_order.first_update.start_not_recovered",
    "on_policy.gradient.opposed_advantage", "off_policy.positivity.of_one_token",
    "off_policy.positivity.ratio_not_positive", "off_policy.inward.pushed_further_out",
    "off_policy.inward.reversed_token", "facts.levels.reversed_token",
)  # fmt: skip


@dataclass
class Said:
    """What is certified of a hierarchy. `is_along`: with reasons for every law, `gradient` would be given up."""

    h: Hierarchy
    recovers: bool = False
    is_positive: bool = False
    is_along: bool = False
    reverses_none: bool = False
    turns_none: bool = False  # the decomposition, if gates pass everything
    bounds: dict[int, Bound] | None = None

    @property
    def statuses(self) -> list[str]:
        found = [self.recovers, self.is_positive, self.is_along, self.reverses_none, self.turns_none]
        found += [b.most != oo for b in (self.bounds or {}).values()]
        return ["proved" if f else "undecided" for f in found]


def said_of(h: Hierarchy, timeout: float) -> Said | None:
    """What is said within the time; None of what cannot be read."""
    said, subject = Said(h), Subject(h, [])

    def ask() -> None:
        for name in ASKED:
            subject.verdicts += list(LAWS[name].decide(subject))
            if name in FOUNDATIONS and subject.first_failure(name):
                return
        given_up = [v for v in subject.verdicts if v.law == "gradient" and v.status != "proved"]
        left: list[Verdict] = list(LAWS["gradient"].decide_rest(subject, given_up))
        said.recovers, said.is_positive = subject.proved("recovery"), subject.proved("positivity")
        said.is_along = all(v.status == "proved" for v in left)
        said.turns_none = subject.proved("inward", "decomposition")
        table, known = lines(h, subject), coordinate(h, subject)
        said.bounds = Amplified(subject, known, table).bounds()
        [fact] = levels.reversal(subject, known, table)
        said.reverses_none = fact.value.startswith("none")

    Budget(timeout).allows(ask)
    if any(v.internal_error for v in subject.verdicts):
        raise AssertionError(next(v.found for v in subject.verdicts if v.internal_error))
    is_read = all(v.status == "proved" for v in subject.verdicts if v.law in FOUNDATIONS)
    return said if is_read and subject.verdicts else None


# ---------------------------------------------------------------- brute force


def off(said: Said, world: World) -> str:
    """What a batch contradicts, '' for nothing."""
    h = said.h
    flat = World(h, world.batch, flat=True)  # a root has a value at 0, and no slope
    if said.recovers:
        for i in range(world.n):
            found, why = attempt(partial(_back, flat, i))
            right, _ = attempt(lambda i=i: world.by.call("exp", world.x[i].value))
            if why == "no value" or (not why and right and abs(value_of(found) - right) > 1e-6 * max(1, right)):
                return f"wrong recovery: {found} instead of {right} at token {i}"
    ratios, why = attempt(lambda: flat.ratios)
    if said.is_positive and (why == "no value" or (not why and min(map(value_of, ratios)) < -1e-9)):
        return f"wrong positivity: {ratios}"
    mu, lacks = attempt(lambda: world.mu(h.objective))
    found, why = attempt(lambda: world.coefficients)
    if lacks or why or not all(abs(c) < 1e12 for c in found):
        return ""
    own = [value_of(world.advantage(i)) for i in range(world.n)]
    plain = World(h.replace(gates=dict.fromkeys(h.order, identity_gate())), world.batch)
    passed, why = attempt(lambda: plain.coefficients) if said.turns_none else ([], "")
    for i, c in enumerate(passed or ()):
        if (
            c * value_of(world.x[i]) > 1e-9 * max(1, abs(c)) * abs(value_of(world.x[i]))
            and own[i] * value_of(world.x[i]) < 0
        ):
            return f"wrong inward: coefficient {c} at token {i}, with gates that pass everything"
    most = max(map(abs, own))
    for i, c in enumerate(found):
        x, small = value_of(world.x[i]), 1e-9 * max(1, *map(abs, found))
        if said.reverses_none and c * x > small * abs(x) and own[i] * x < 0:
            return f"wrong reversal: coefficient {c} at token {i}"
        bound = (said.bounds or {}).get(0) or (said.bounds or {}).get(1 if own[i] > 0 else -1)
        if bound is not None and bound.most != oo and own[i] and mu[i] > 0:
            limit, why = attempt(lambda b=bound, i=i: value_of(world.value(from_sympy(b.most), *world.place(i))))
            if not why and abs(c) > (limit * (1 + 1e-6) + 1e-9) * mu[i] * most:
                return f"wrong amplification: {bound}, {limit}: coefficient {c / mu[i] / most} at token {i}"
    return ""


def _back(world: World, i: int) -> Any:
    """`R(F(r))` of a token."""
    leaf, _ = world.place(i)
    h = world.h
    down: dict[Any, Any] = {Gated(c): value_of(world.density[leaf, c][i]) for c in h.decomposition.channels}
    return world.value(h.with_mass(h.decomposition.recovery, Stratum(leaf)), leaf, i, down)


def _alone(world: World, rng: random.Random) -> Iterator[World]:
    """The batch at one log ratio near 0, where a row alone has an advantage."""
    rows = world.label[world.h.rows.name]
    own = rng.choice(rows)
    for x, a in ((0.0, 1.0), (0.0, -1.0), (2.0**-40, 1.0), (-(2.0**-40), 1.0)):
        yield World(world.h, replace(world.batch, x=[x] * world.n, advantages=[a * (r == own) for r in rows]))


def against(world: World) -> str:
    """Coefficients of a row that add up against the advantage that it alone has."""
    found, why = attempt(lambda: world.coefficients)
    if why:
        return ""
    along = sum(c * a for c, a in zip(found, world.batch.advantages, strict=True))
    return (
        ""
        if along >= -1e-6 * max(1, *map(abs, found))
        else f"wrong direction: {along} of advantages {world.batch.advantages}"
    )


def with_rows(world: World) -> World:
    """The batch with one advantage per row."""
    rows, first = world.label[world.h.rows.name], dict[Any, Any]()
    own = [first.setdefault(r, a) for r, a in zip(rows, world.batch.advantages, strict=True)]
    return World(world.h, replace(world.batch, advantages=own))


# ---------------------------------------------------------------- the judge


@dataclass(frozen=True)
class OfLevels:
    name: str = "directions"
    timeout: float = 4.0

    def draw(self, rng: random.Random) -> OfHierarchy:
        f = Formulas(rng.choice(SETTINGS), rng, moving=False)
        for _ in range(20):
            try:
                chosen = rng.sample(f.setting.strata, rng.randrange(min(2, len(f.setting.strata)) + 1))
                gates = {s: Gates(f, s).gate() for s in chosen}
                return OfHierarchy(f.hierarchy(gates=gates, decomposition=f.decomposition(), objective=f.objective()))
            except FibrationError:
                continue
        raise NothingDrawn

    def judge(self, case: OfHierarchy, rng: random.Random) -> tuple[list[str], str]:
        h = of_levels(case.h)
        with proofs_alone(SEARCHES):
            said = said_of(h, self.timeout)
        if said is None:
            return [], ""
        for world in map(with_rows, worlds(h, rng, TRIES // 2, most=8)):
            if complaint := off(said, world):
                return said.statuses, f"{complaint} {of_batch(world.batch)}"
            for alone in _alone(world, rng) if said.is_along else ():
                if complaint := against(alone):
                    return said.statuses, f"{complaint} {of_batch(alone.batch)}"
        return said.statuses, ""


JUDGES = (OfLevels(),)
