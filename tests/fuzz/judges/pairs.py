"""`equivalent`, on pairs that are equal by rewriting, on pairs that differ on few batches, and on other pairs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from fibration import (
    Gate,
    Hierarchy,
    Penalty,
    absolute,
    advantage,
    clip,
    count,
    decomposition,
    exp,
    gated,
    largest,
    log_prob,
    mean,
    on_policy,
    position,
    residual,
    same,
    some,
    stop,
    tanh,
    total,
    where,
)
from fibration.errors import FibrationError
from fibration.language.atoms import Summary
from fibration.language.conditions import Equal, One
from fibration.language.expressions import Expression
from fibration.language.pairs import pair
from fibration.language.traversal import atoms
from fibration.laws.budget import Budget
from fibration.laws.equivalent.same_loss import NoBatchError, is_the_same, same_loss
from fibration.laws.equivalent.search import difference
from fibration.laws.law import Proved, Unknown
from fuzz.batches import Batches, constants
from fuzz.dual_numbers import value_of
from fuzz.generate import (
    PARAMETERS,
    SETTINGS,
    Formulas,
    attributes,
    current,
    old,
    prompt_group,
    reference,
    rollout,
    trajectory,
    x,
)
from fuzz.judges.judge import NothingDrawn, OfHierarchy, attempt, of_batch, verdicts
from fuzz.rewriting import Rewriting
from fuzz.witnesses import are_close, world_of
from fuzz.world import Batch, World

SAME, RARE, ANY, NONE = "same", "rare", "any", "no batch"
EPSILON, C = PARAMETERS[:2]
OFF = 1e-6
TRIES = 12
Make = Callable[[Expression], Hierarchy]


# ---------------------------------------------------------------- batches of two hierarchies


class OfBoth:
    """Two hierarchies of one setting as what batches are drawn for."""

    def __init__(self, *both: Hierarchy) -> None:
        self.first, self.both = max(both, key=lambda h: len(h.strata)), both
        for name in ("attributes", "parameters", "policies", "penalties"):
            setattr(self, name, {k: v for h in both for k, v in getattr(h, name).items()})

    def __getattr__(self, name: str) -> Any:
        return getattr(self.first, name)

    def _expressions(self) -> Iterator[Expression]:
        for h in self.both:
            yield from h._expressions()


@dataclass
class Demands:
    """What a batch must have for a rare condition to hold."""

    tokens: int = 0  # of every row
    rows: int = 0
    numbers: dict[str, Fraction] = field(default_factory=dict)  # attributes, policies, `x`, `A`

    def __and__(self, other: Demands) -> Demands:
        numbers = {**self.numbers, **other.numbers}
        return Demands(max(self.tokens, other.tokens), max(self.rows, other.rows), numbers)


class Demanded(Batches):
    """Batches on which a rare condition holds, and conditions of the pair do."""

    def __init__(self, both: Any, rng: random.Random, demands: Demands | None, when: tuple[Any, ...]) -> None:
        super().__init__(both, rng)
        self.demands, self.when = demands, when
        self.hints = constants(self.formulas)

    def _lengths(self) -> list[int]:
        d = self.demands
        if d is None or not (d.tokens or d.rows):
            return super()._lengths()
        lengths = [d.tokens or 1] * (d.rows or self.rng.choice([1, 2]))
        return [*lengths, 1] if d.rows == 0 and self.rng.random() < 0.3 else lengths

    def __call__(self, together: str | None = None) -> Batch:
        b = super().__call__("exact" if any(c == on_policy for c in self.when) else together)
        d = self.demands
        if d is not None and d.rows:
            b.labels = {s: [0] * b.size if s == prompt_group.name else v for s, v in b.labels.items()}
        for name, v in (d.numbers if d else {}).items():
            if name == "x":
                b.x = [v] * b.size
                b.policies["old"] = [min(o, -abs(v)) for o in b.policies["old"]]
            elif name == "A":
                b.advantages = [v] * b.size
            elif name in b.attributes:
                b.attributes[name] = dict.fromkeys(b.attributes[name], v)
            elif name in b.policies:
                b.policies[name] = [v] * b.size
                if any(c == on_policy for c in self.when):
                    b.policies = dict.fromkeys(b.policies, [v] * b.size)
        if any(c == same(old, rollout) for c in self.when) and "rollout" in b.policies:
            b.policies["rollout"] = list(b.policies["old"])
        return b


# ---------------------------------------------------------------- rare conditions


def rare(f: Formulas, on_policy_only: bool, of_rows: bool = False) -> tuple[Expression, Demands]:
    """A condition that few batches meet, and what those have."""
    n, s = f.pick(5, 7, 12, 30), f.setting
    tokens, own = s.tokens, s.tokens(trajectory)
    far = f.pick(-40, -90, -700)
    found: list[Any] = [
        (own > n, Demands(tokens=n + 1)),
        (own >= n, Demands(tokens=n)),
        (own * own > n * n + 1, Demands(tokens=n + 1)),
        (own * (n - own) < 0, Demands(tokens=n + 1)),
        (tokens(prompt_group) > 2 * n, Demands(tokens=2 * n + 1)),
        (count(trajectory, over=prompt_group) > 6, Demands(rows=7)),
        (total(own, over=prompt_group, of=trajectory) > 40, Demands(tokens=14, rows=3)),
    ]
    v, u = attributes(s)[:2]
    found += [
        (v > 1000, Demands(numbers={"v": Fraction(1001)})),
        (v * v > 10**6, Demands(numbers={"v": Fraction(-1001)})),
        (u * 16384 < 1, Demands(numbers={"u": Fraction(1, 16385)})),
        (largest(v, over=prompt_group, of=trajectory) > 1000, Demands(numbers={"v": Fraction(1001)})),
    ]
    if not of_rows:
        o, r = log_prob(old), log_prob(rollout)
        found += [
            (o < far, Demands(numbers={"old": Fraction(far - 1)})),
            (o * o < Fraction(1, 4096), Demands(numbers={"old": Fraction(-1, 65)})),
            (mean(o, over=trajectory) < far, Demands(numbers={"old": Fraction(far - 1)})),
            (some(o < far, over=trajectory), Demands(numbers={"old": Fraction(far - 1)})),
            (largest(o, over=trajectory) >= 0, Demands(numbers={"old": Fraction(0)})),
            (total(o, over=trajectory) < 3 * far, Demands(tokens=3, numbers={"old": Fraction(far - 1)})),
            (position(over=trajectory) > n, Demands(tokens=n + 2)),
        ]
        if not on_policy_only:
            found += [
                (r < far, Demands(numbers={"rollout": Fraction(far - 1)})),
                (x > 5, Demands(numbers={"x": Fraction(6)})),
                (x * x * 4096 < 1, Demands(numbers={"x": Fraction(1, 65)})),
                ((x >= 2) & (x <= 2), Demands(numbers={"x": Fraction(2)})),
                (mean(x, over=trajectory) < -5, Demands(numbers={"x": Fraction(-6)})),
            ]
        else:
            found += [(log_prob(current) < far, Demands(numbers={"old": Fraction(far - 1)}))]
        w = next((a for a in attributes(s) if a.name == "w"), None)
        if w is not None:
            found += [
                (w > 1000, Demands(numbers={"w": Fraction(1001)})),
                (total(w, over=trajectory) > 5000, Demands(tokens=6, numbers={"w": Fraction(1001)})),
            ]
    one = f.rng.choice(found)
    if f.rng.random() < 0.3:
        other = f.rng.choice(found)
        if not one[1].numbers.keys() & other[1].numbers.keys():
            return one[0] & other[0], one[1] & other[1]
    return one  # type: ignore[no-any-return]


def impossible(f: Formulas) -> tuple[Any, ...]:
    """Conditions that no batch meets together."""
    s, n, o, r = f.setting, f.pick(1, 2, 5, 12), log_prob(old), log_prob(rollout)
    own, wide, u, v = s.tokens(trajectory), s.tokens(prompt_group), *reversed(attributes(s)[:2])
    c = restriction(f)[0]
    found: Any = f.pick(
        (c, ~c), (own > n, own < n + 1), (own * 2 >= 2 * n + 1, own * 2 <= 2 * n + 1), (own > n, wide <= n),
        (own * own > n * n, own * own < (n + 1) ** 2), (own + wide < 2,), (own / wide > 1,), (o + x > 0,), (x > n, o > -n),
        (same(old, rollout), r > o), (on_policy, x > 0), (exp(x) <= 0,), (o > r, r > o), (u > 4,), (v * 2 > n, v * 4 < n),
        (EPSILON >= 1,), (C < EPSILON,), (v * v < -n,), (log_prob(current) > o, x <= 0),
    )  # fmt: skip
    return found  # type: ignore[no-any-return]


def restriction(f: Formulas) -> tuple[Expression, Demands]:
    """A condition that few batches meet and that `when` may be, and what those have."""
    while True:
        condition, demands = rare(f, False)
        if not any(isinstance(a, Summary) for a in atoms(condition)):
            return condition, demands


# ---------------------------------------------------------------- where a formula stands


def places(f: Formulas, rng: random.Random) -> tuple[str, Make, Callable[[], Expression]]:
    """What the formulas of a pair are, the hierarchy with one of them, and how a first one is drawn."""
    base: dict[str, Any] = {}
    objective = f.objective()
    s = f.setting
    kind = rng.choice(["weight", "weight", "condition", "kept", "penalty", "penalty", "penalty of rows", "gate", "gate", "advantages", "score", "density"])  # fmt: skip
    if rng.random() < 0.2 and kind in ("penalty", "condition", "kept", "gate"):
        objective = objective.weigh(1 + tanh(f.number(0)))
    if rng.random() < 0.3:
        base["decomposition"] = f.split()

    def depth() -> int:
        return rng.choice([0, 1, 1, 2])

    if kind in ("weight", "score"):
        own = objective.score() if kind == "score" else objective
        return kind, lambda e: f.hierarchy(**base, objective=own.weigh(e)), lambda: f.number(depth())
    if kind in ("condition", "kept"):
        normaliser = "kept" if kind == "kept" else "all"
        return (
            kind,
            lambda e: f.hierarchy(**base, objective=objective.keep(e, normaliser)),
            lambda: f.condition(depth()),
        )  # type: ignore[arg-type]
    if kind == "penalty":
        moving = f.pick(x**2 / 2, exp(-x) - 1 + x, log_prob(current), x * log_prob(current), (log_prob(current) - log_prob(reference)) ** 2 / 2, mean(x, over=trajectory) ** 2, exp(x), x)  # fmt: skip
        own = f.pick(None, None, objective.weigh(1 + tanh(f.number(0)) / 2)) if rng.random() < 0.3 else None
        make: Make = lambda e: f.hierarchy(**base, objective=objective, penalties={"p": Penalty(e, own)})  # noqa: E731
        return kind, make, lambda: f.pick(moving, moving * f.number(depth()), f.number(depth()) + moving, where(f.condition(0), moving, f.number(0)))  # fmt: skip
    if kind == "penalty of rows":
        moving = f.pick(mean(x, over=trajectory), total(x, over=trajectory), exp(mean(log_prob(current), over=trajectory)), total(x * x, over=trajectory))  # fmt: skip
        make = lambda e: f.hierarchy(**base, objective=objective, penalties={"p": Penalty(e, over=trajectory)})  # noqa: E731
        return kind, make, lambda: f.pick(moving, moving**2, moving * f.number(depth(), trajectory))
    if kind == "advantages":
        g = replace(f, with_reward=True, moving=False, with_advantage=False)
        return kind, lambda e: f.hierarchy(**base, objective=objective, advantages=e), lambda: g.number(depth())
    if kind == "density":
        log_r = f.pick(x, x + f.pick(1, 2) * (x - x), clip(x, -C, C), x * (1 + length_of(f)) / length_of(f), tanh(x))
        scale = s.scale
        back = exp(gated("") / scale)
        split = lambda e: decomposition(density=e * scale, recovery=back, scale=scale)  # noqa: E731
        return kind, lambda e: f.hierarchy(objective=objective, decomposition=split(e)), lambda: log_r
    stratum = rng.choice([v for v in s.strata])
    g = residual
    gates = [g, clip(g, -C, C), clip(g, -EPSILON, C), where(g > C, C - (g - C) * 2, g), g / (1 + absolute(g)), where(advantage > 0, clip(g, -1, EPSILON), g), g * exp(-g * g), tanh(g), 0 * g]  # fmt: skip
    return (
        f"gate on {stratum}",
        lambda e: f.hierarchy(**base, objective=objective, gates={stratum: Gate(e)}),
        lambda: f.pick(*gates),
    )


def length_of(f: Formulas) -> Expression:
    return f.setting.tokens(trajectory)


# ---------------------------------------------------------------- cases


@dataclass(frozen=True)
class OfPair:
    """Two hierarchies; how they were made, and for a rare difference what a batch has to have."""

    kind: str
    first: Hierarchy
    second: Hierarchy
    when: tuple[Any, ...] = ()
    demands: Any = None

    def __str__(self) -> str:
        return f"{self.kind} when {self.when} {self.demands}\n{self.first!r}\n{self.second!r}"

    def simpler(self) -> Iterator[OfPair]:
        if self.kind == SAME:
            return  # made smaller, they would be others
        for one in OfHierarchy(self.first).simpler():
            yield replace(self, first=one.h)
        for one in OfHierarchy(self.second).simpler():
            yield replace(self, second=one.h)
        if self.when:
            yield replace(self, when=self.when[1:])

    def is_met(self, batch: Batch) -> bool:
        """Whether the conditions hold on a batch, beside those on policies, as which it is drawn."""
        world = World(self.first, batch)
        held, no = attempt(lambda: all(self._holds(c, world) for c in self.when))
        return not no and bool(held)

    @staticmethod
    def _holds(c: Any, world: World) -> bool:
        if isinstance(c, One):
            return len(world.over[c.stratum.name]) == 1
        if isinstance(c, Equal):
            each = (tokens for tokens in world.over[c.on.name].values())
            return all(len({value_of(world.at_token(c.value, i)) for i in tokens}) == 1 for tokens in each)
        return not isinstance(c, Expression) or all(bool(world.at_token(c, i)) for i in range(world.n))

    def has_batch(self, rng: random.Random, n: int) -> bool:
        """Whether a batch is drawn that meets the conditions."""
        draw = Demanded(OfBoth(self.first, self.second), rng, self.demands, self.when)
        return any(self.is_met(draw()) for _ in range(n))

    def told_apart(self, rng: random.Random, n: int) -> str:
        """A batch on which a coefficient differs, or has a value in one of them alone; '' if none is drawn."""
        draw = Demanded(OfBoth(self.first, self.second), rng, self.demands, self.when)
        for _ in range(n):
            batch = draw()
            if not self.is_met(batch):
                continue
            (mine, no), (yours, neither) = (
                attempt(lambda h=h, batch=batch: World(h, batch).coefficients) for h in (self.first, self.second)
            )
            if no or neither:
                continue
            for i, (a, b) in enumerate(zip(mine, yours, strict=True)):
                if abs(a - b) > OFF * max(1e-3, abs(a), abs(b)):
                    return f"token {i}: {a} and {b} {of_batch(batch)}"
        return ""


class Pairs:
    name = "equivalent"
    timeout = 2.0

    def draw(self, rng: random.Random) -> OfPair:
        for _ in range(20):
            try:
                return self._draw(rng)
            except FibrationError:
                continue
        raise NothingDrawn

    def _draw(self, rng: random.Random) -> OfPair:
        f = Formulas(rng.choice(SETTINGS), rng, depth_of_statistics=1)
        kind = rng.choice([SAME, SAME, RARE, RARE, RARE, ANY, NONE])
        when: tuple[Any, ...] = rng.choice([(), (), (), (on_policy,), (on_policy,), (same(old, rollout),)])
        what, make, draw = places(f, rng)
        e, rewrite = draw(), Rewriting(f)
        if when and what == "advantages":
            when = ()
        if kind == SAME:
            other = rewrite(e, rng.choice([1, 2, 3]))
            made = OfPair(kind, make(e), make(other), when)
        elif kind in (ANY, NONE):
            other = f.mutated(e, rng.randrange(2))
            made = OfPair(kind, make(e), make(other), impossible(f) if kind == NONE else when)
        else:
            of_rows = what == "penalty of rows" or what.startswith("gate")
            condition, demands = rare(f, when == (on_policy,), of_rows)
            if what not in ("advantages", "density") and rng.random() < 0.5 and not of_rows:
                condition, demands = restriction(f)  # on the batches that meet it, or on those that do not
                kind, when = (RARE, (condition,)) if rng.random() < 0.6 else (SAME, (~condition,))
            if e.is_condition:
                other = f.pick(e | condition, e & ~condition, where_condition(condition, ~e, e))
            else:
                moving = [log_prob(current), x, 2 * x] if what == "penalty" else []
                changed = f.pick(*(e + m for m in moving), 2 * e, e + 1, -e, f.mutated(e, 0), *([stop(e)] if what.startswith(("penalty", "gate", "density")) else []))  # fmt: skip
                other = where(condition, changed, e)
            if rng.random() < 0.5:
                other = rewrite(other, 1)
            made = OfPair(kind, make(e), make(other), when, demands if kind == RARE else None)
        if what.startswith("gate"):
            for h in (made.first, made.second):
                if any(v.status != "proved" for v in verdicts(h, ("locality",), 5)):
                    raise NothingDrawn
        pair(made.first, made.second, made.when)
        if kind == RARE and not made.told_apart(random.Random(0), 6):
            raise NothingDrawn
        return made

    def judge(self, case: OfPair, rng: random.Random) -> tuple[list[str], str]:
        both = pair(case.first, case.second, case.when)
        found, searched = list[Proved | Unknown](), list[Any]()
        try:
            Budget(self.timeout).allows(lambda: found.append(same_loss(both)))
        except NoBatchError as error:
            asked = error.what if case.kind != NONE and case.has_batch(rng, TRIES) else ""
            return ["no batch"], f"wrong: {asked}" if asked else ""
        proof = next((p for p in found if isinstance(p, Proved)), None)
        status = "proved" if proof else "undecided"
        if case.kind == NONE and proof and not is_the_same(both):
            return [status], f"proved on no batch: {proof.argument}"
        if case.kind == SAME and rng.random() < 0.3:
            Budget(self.timeout).allows(lambda: searched.append(difference(both, {1: 8, 2: 8, 3: 4})))
            if searched and searched[0] is not None:
                return ["refuted"], f"wrong refutation: {searched[0].text}"
        if proof and case.kind in (RARE, ANY):
            apart = case.told_apart(random.Random(0), 6) if case.kind == RARE else case.told_apart(rng, TRIES)
            if apart:
                return [status], f"wrong proof: {proof.argument}: {apart}"
        return [status], ""


def told_apart(p: Any, n: int = 20) -> str:
    """A batch of `n` on which two losses with conditions and parameters (`loss_pairs.Pair`) differ."""
    both = pair(p.first, p.second, p.when, p.parameters)
    return OfPair(ANY, both.first, both.second, both.when).told_apart(random.Random(0), n)


def shows(witness: Any, p: Any) -> None:
    """The coefficients of a counterexample to such a pair are those of the definition, and differ."""
    values, both = witness.values, pair(p.first, p.second, p.when, p.parameters)
    for h, key in ((both.first, "coefficients"), (both.second, "other_coefficients")):
        assert are_close(world_of(h, witness).coefficients, values[key])
    place = values["tokens"].index(values["token"])
    assert values["coefficients"][place] != values["other_coefficients"][place]


def where_condition(c: Expression, a: Expression, b: Expression) -> Expression:
    return (c & a) | (~c & b)


JUDGES = (Pairs(),)
