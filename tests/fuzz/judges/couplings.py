"""The coupling against brute force: the losses of micro-batches add up to `-J`, and their gradients to that of `J`.

Micro-batches are as small as the coupling allows. `J` and its gradient are those of `World`, of the whole step.
"""

from __future__ import annotations

import contextlib
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fibration import (
    Gate,
    Hierarchy,
    Penalty,
    absolute,
    density,
    log_prob,
    mass,
    mean,
    residual,
    stop,
    tanh,
    token_log_ratio,
    total,
    zero_gate,
)
from fibration.errors import BatchError, FibrationError, HierarchyIndexError, SpecError
from fibration.language.atoms import Stratum
from fibration.language.outline import whole_batch
from fuzz.batches import Batches
from fuzz.generate import current, old
from fuzz.judges.judge import NothingDrawn, OfHierarchy, attempt, of_batch
from fuzz.judges.level_facts import found_facts, tower
from fuzz.operators import Call, call
from fuzz.random_hierarchies import whole
from fuzz.world import World

CLOSE = 1e-7  # relative: of sums in another order


def meeting(rng: random.Random) -> Hierarchy:
    """A tower of which gates, weights or penalties read sums over coarser strata, with or without a gradient."""
    h = tower(rng)
    coarse = [s for s in whole_batch(h).strata if s not in h.leaves]
    x = token_log_ratio

    def gathered(over: Stratum) -> Any:
        e = rng.choice([x, log_prob(current), log_prob(old), x * x, absolute(x)])
        return rng.choice([mean, total])(e, over=over)

    gates = dict(h.gates) if rng.random() < 0.5 else dict.fromkeys(h.gates, Gate(residual))
    for s in rng.sample(list(gates), rng.choice([0, 1, 1, 2])):
        own = [u for u in coarse if u == s or u in whole_batch(h).coarser(s)]
        more = [zero_gate(), Gate(residual / 2), Gate(residual), Gate(stop(residual))]
        more += [Gate(residual + mass * tanh(gathered(rng.choice(own)))) for _ in own[:1]]
        more += [Gate(residual + density(u) / 3) for u in own if u in h.strata and u != s]
        gates[s] = rng.choice(more)
    fields: dict[str, Any] = {"gates": gates}
    roll, over = rng.random(), rng.choice(coarse)
    if roll < 0.15:
        fields["objective"] = h.objective.weigh(rng.choice([1 + absolute(gathered(over)), stop(gathered(over))]))
    elif roll < 0.3:
        fields["objective"] = h.objective.keep(x < gathered(over), rng.choice(["all", "kept"]))
    if rng.random() < 0.25:
        e = gathered(over)
        formulas = (
            e, e * x, stop(e), stop(e) * x, x * x / 2, x + 1, log_prob(old), Penalty(e, over=over), Penalty(stop(e), over=over),
        )  # fmt: skip
        fields["penalties"] = {"p": rng.choice(formulas)}
    if rng.random() < 0.1:
        fields["objective"] = fields.get("objective", h.objective).score()
    return h.replace(**fields)


def values(world: World) -> tuple[float, list[float], list[float]]:
    """`J`, its gradient, and the advantages of tokens."""
    _ = world.ratios  # each has to be a number: the program multiplies by a weight of 0, where the sum leaves it out
    advantages = [float(world.advantage(i)) for i in range(world.n)]
    return float(world.objective), [float(c) for c in world.coefficients], advantages


@dataclass(frozen=True)
class OfParts:
    """What parts of a step say, beside the whole."""

    name: str = "coupling"
    timeout: float = 6.0
    tries: int = 4

    def draw(self, rng: random.Random) -> OfHierarchy:
        for _ in range(20):
            try:
                return OfHierarchy(meeting(rng) if rng.random() < 0.7 else whole(rng))
            except FibrationError:
                continue
        raise NothingDrawn

    def judge(self, case: OfHierarchy, rng: random.Random) -> tuple[list[str], str]:
        h, statuses = case.h, list[str]()
        draw = Batches(h, rng, 16)
        # `World` has no least-squares fits, and programs of kernels that break a law are not run
        if h.orthogonalise or found_facts(h, (), ()) is None:
            return statuses, ""
        for _ in range(self.tries):
            b = draw()
            with contextlib.suppress(HierarchyIndexError, SpecError):  # a batch that the index refuses; exp(1e21)
                made = call(h, b)
                found = made.op.coupling
                statuses = ["couples" if found.strata else "frozen sums" if found.frozen else "row-local"]
                if complaint := self._off(made, World(h, b)):
                    return statuses, f"{complaint} {found} {made.closed()} {of_batch(b)}"
        return statuses, ""

    def _off(self, made: Call, world: World) -> str:
        """What parts add up to instead of `J` and its gradient."""
        found, why = attempt(lambda: values(world))
        if why or any(abs(v) > 1e6 for v in (found[0], *found[1])):
            return ""
        objective, coefficients, advantages = found
        loss, gradient = 0.0, torch.zeros(world.n, dtype=torch.float64)
        try:
            for at, part, slope in made.parts(torch.tensor(advantages, dtype=torch.float64)):
                loss, gradient[at] = loss + part, slope
        except BatchError:  # an input or a frozen sum is not finite
            return ""
        size = 1 + max(map(abs, (objective, *coefficients)))
        whole, slopes = made.whole(torch.tensor(advantages, dtype=torch.float64))
        if np.allclose([loss, *gradient], [whole, *slopes], CLOSE, CLOSE, equal_nan=True):
            return ""  # at a kink, and where a slope has no value, `World` may say something else
        if not abs(loss + objective) <= CLOSE * size:
            return f"value: the losses of parts add up to {loss}, and J is {objective}"
        if any(not abs(g + c) <= CLOSE * size for g, c in zip(gradient.tolist(), coefficients, strict=True)):
            return f"gradient: parts have {gradient.tolist()}, and the coefficients are {coefficients}"
        return ""


JUDGES = (OfParts(),)
