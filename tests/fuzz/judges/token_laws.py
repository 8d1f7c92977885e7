"""Laws of weights and conditions of tokens: objective, agreement, mask_open."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from fibration import Hierarchy, exp, log_prob, minimum, token_log_ratio
from fibration.errors import FibrationError
from fibration.language.expressions import Expression
from fibration.language.report import Verdict
from fuzz.dual_numbers import value_of
from fuzz.generate import PARAMETERS, SETTINGS, Formulas, old, rollout
from fuzz.judges.judge import (
    SEARCHED,
    SEARCHES,
    TOLERANCE,
    TRIES,
    NothingDrawn,
    OfHierarchy,
    attempt,
    of_batch,
    proofs_alone,
    verdicts,
    worlds,
)
from fuzz.world import World

C = PARAMETERS[1]
rho = exp(log_prob(old) - log_prob(rollout))


def right_weights(f: Formulas) -> list[Expression]:
    """Weights that agree: 1 where policies coincide."""
    from fibration import before, mean
    from fuzz.generate import trajectory

    sequence = exp(mean(log_prob(old) - log_prob(rollout), over=trajectory))
    prefix = exp(before(log_prob(old) - log_prob(rollout), over=trajectory))
    return [rho, minimum(rho, C), sequence, exp(token_log_ratio), prefix, 1 / rho, (rho + 1) / 2]


def weight(f: Formulas) -> Expression:
    if f.rng.random() < 0.3:
        return f.number(f.rng.randrange(1, 3))
    right = f.rng.choice(right_weights(f))
    return f.mutated(right, f.rng.randrange(2)) if f.rng.random() < 0.8 else right


def condition(f: Formulas) -> Expression:
    if f.rng.random() < 0.5:
        return f.condition(f.rng.randrange(1, 3))
    right = f.rng.choice(right_weights(f))
    made = f.rng.choice(
        [right < C, right <= C, ~(right > 2), (right < 2) & (right > f.pick(0, 1, C)), abs_close(right)]
    )
    return f.mutated(made, f.rng.randrange(2)) if f.rng.random() < 0.8 else made


def abs_close(e: Expression) -> Expression:
    from fibration import absolute

    return absolute(e - 1) < PARAMETERS[0]


@dataclass(frozen=True)
class OfTokens:
    """A law whose subjects are weights and conditions: `wrong` says what contradicts a proof of one on a batch."""

    name: str
    wrong: Callable[[World, Verdict, Expression, int], str]
    together: tuple[str | None, ...]
    timeout: float = 1.0

    def draw(self, rng: random.Random) -> OfHierarchy:
        f = Formulas(rng.choice(SETTINGS), rng)
        for _ in range(20):
            try:
                made = f.objective()
                made = made.weigh(weight(f)) if rng.random() < 0.8 or self.name == "agreement" else made
                made = made.weigh(weight(f)) if rng.random() < 0.5 else made
                if self.name != "agreement":
                    made = made.keep(condition(f), rng.choice(["all", "kept"]))
                return OfHierarchy(f.hierarchy(objective=made))
            except FibrationError:
                continue
        raise NothingDrawn

    def judge(self, case: OfHierarchy, rng: random.Random) -> tuple[list[str], str]:
        h = case.h
        with proofs_alone(SEARCHES if rng.randrange(SEARCHED) else ()):
            asked_first = verdicts(h, ("locality",), self.timeout)
            if any(v.status != "proved" for v in asked_first):
                return [], ""
            found = verdicts(h, (self.name,), self.timeout)
        formulas = subjects(h)
        asked = [(v, formulas[v.subject]) for v in found if v.status == "proved" and v.subject in formulas]
        if asked:
            for together in self.together:
                for world in worlds(h, rng, TRIES // len(self.together), together):
                    for v, e in asked:
                        for i in range(world.n):
                            if said := self.wrong(world, v, e, i):
                                return [
                                    v.status for v in found
                                ], f"wrong proof: {v.subject}: {said} {of_batch(world.batch)}"
        return [v.status for v in found], ""


def subjects(h: Hierarchy) -> dict[str, Expression]:
    """The formulas that verdicts speak of, by their subjects."""
    found: dict[str, Expression] = {f"weight {w}": w for w in h.objective.weighed}
    return found | {f"condition {k.condition}": k.condition for k in h.objective.kept}


def _has_a_value(world: World, v: Verdict, e: Expression, i: int) -> str:
    """Of a condition at every token; of a weight, and at least 0, at those that are kept."""
    if v.subject.startswith("weight "):
        kept, why = attempt(lambda: all(world.at_token(k.condition, i) for k in world.h.objective.kept))
        if why or not kept:
            return ""
    value, why = attempt(lambda: value_of(world.at_token(e, i)))
    if why == "no value":
        return f"no value at token {i}"
    if v.subject.startswith("weight ") and not why and value < -TOLERANCE:
        return f"{value} at token {i}"
    return ""


def _is_one(world: World, v: Verdict, e: Expression, i: int) -> str:
    value, why = attempt(lambda: value_of(world.at_token(e, i)))
    # a root has an infinite slope at 0, and some small differences are multiplied by many tokens
    return f"{value} at token {i}" if not why and abs(value - 1) > 1e-3 else "no value" if why == "no value" else ""


def _holds(world: World, v: Verdict, e: Expression, i: int) -> str:
    value, why = attempt(lambda: world.at_token(e, i))
    return "" if why == "unclear" or value else f"{why or value} at token {i}"


JUDGES = (
    OfTokens("objective", _has_a_value, (None,)),
    OfTokens("agreement", _is_one, ("exact", "near")),
    OfTokens("mask_open", _holds, ("exact", "near")),
)
