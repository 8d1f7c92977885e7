"""The certified facts of a hierarchy, and batches on which tests check them."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from fibration.language.atoms import Component, Count, Stratum
from oracles.definition import World
from oracles.fact_text import number, parameter_values


@functools.cache
def report(h):
    return h.verify()


def facts(h, name):
    return {f.subject: f.value for f in report(h).facts if f.name == name}


def forest(h, fans, roots=1, **given):
    """A regular hierarchy: `fans` elements over each, root first; parameters at their defaults, or as given."""
    parents, width = {}, roots
    for stratum, fan in zip(h.order[1:], fans, strict=True):
        parents[stratum] = [i for i in range(width) for _ in range(fan)]
        width *= fan
    return World.chain(h, parents, settings_of(h, given), roots)


def settings_of(h, given):
    values = parameter_values(h, **given)
    found = {}
    for p in h.parameters.values():
        for c in ("", "+", "-"):
            if c and p.per_channel:
                found[Component(p, c)] = Fraction(repr(values[f"{p.name}[{c}]"]))
        if not p.per_channel:
            found[p] = Fraction(repr(values[p.name]))
    return found


def ragged(h, seed):
    """A random small hierarchy, several roots."""
    rng = np.random.default_rng(seed)
    parents, width = {}, int(rng.integers(1, 3))
    roots = width
    for _ in h.order[1:]:
        fan = rng.integers(1, 4, size=width)
        parents[h.order[len(parents) + 1]] = np.repeat(np.arange(width), fan).tolist()
        width = int(fan.sum())
    return World.chain(h, parents, settings_of(h, {}), roots)


def levels(n, xs, advantages=None):
    """What every level gives, as it is added up: per stratum, the plus channel less the minus channel."""
    outputs = n.run("levels", xs, advantages)
    found = {}
    for s in n.h.order:
        if n.h.decomposition.channels == ("",):
            found[s] = outputs[f"gated_{s}"]
        else:
            found[s] = outputs[f"gated_{s}_plus"] - outputs[f"gated_{s}_minus"]
    return found


def climb(goal, size, seed, rounds=250, scale=1.0):
    """A large value of `goal(xs)`, by random changes of single values and of whole stretches."""
    rng = np.random.default_rng(seed)
    best = rng.normal(size=size) * scale
    value = goal(best)
    for _ in range(rounds):
        trial = best.copy()
        where_ = rng.random(size) < rng.choice([1 / size, 0.3, 1.0])
        trial[where_] = (trial + rng.normal(size=size) * scale * rng.choice([1, 0.1, 0.01]))[where_] * rng.choice(
            [1, 1, -1, 3]
        )
        if (new := goal(trial)) >= value:
            best, value = trial, new
    return best, value


def regular(h, size):
    depth = len(h.order) - 1
    return (2,) * (depth - 1) + (size,) if depth else ()


UNIT, TINY = Fraction(1, 10**12), Fraction(1, 10**30)


def fixed(h, plain):
    """The batch with every parameter at its default."""
    values = {p: Fraction(str(p.default)) for p in h.parameters.values()}
    return World(h, plain.sizes, plain.parents, {**plain.values, **values})


def signs(n, rng):
    yield [1] * n
    yield [-1] * n
    for _ in range(6):
        yield [rng.choice([-1, 0, 1]) for _ in range(n)]
        yield [rng.choice([-1, 1]) for _ in range(n)]


# ---------------------------------------------------------------- amplification


@dataclass(frozen=True)
class Pulled:
    """What a fact says of `|c|/(μ·max|A|)` for advantages of one sign, in the words of the report."""

    most: str
    least: str
    reached: dict[int, float]

    def at_most(self, concrete, leaf, element):
        """The bound as read at one token of a batch."""
        return _read(self.most, concrete, leaf, element)

    def at_least(self, concrete, leaf, element):
        return _read(self.least or self.most, concrete, leaf, element)


def amplified(h):
    """By the sign of the advantage, 0 for any; nothing where the fact names no bound."""
    found, parts = {}, facts(h, "amplification")["hierarchy"].split("; ")
    while parts:
        said, _, where = parts.pop(0).partition(" where ")
        reached = {}
        if parts and parts[0].startswith("reached: "):
            numbers, _, where = parts.pop(0).removeprefix("reached: ").partition(" where ")
            values, sizes = numbers.removesuffix(" tokens").split(" with ")
            reached = {int(n): float(v) for n, v in zip(sizes.split(", "), values.split(", "), strict=True)}
        if "without bound" not in said:
            most, _, least = said.removeprefix("at most ").partition(", at least ")
            side = 1 if "is above 0" in where else -1 if "is below 0" in where else 0
            found[side] = Pulled("" if most in ("no bound known", "not certified") else most, least, reached)
    return found


def _read(text, concrete, leaf, element):
    counts = {
        said: concrete.atom(Count(Stratum(of), Stratum(over)), leaf, element)
        for said, of, over in re.findall(r"(count\((\w+), over=(\w+)\))", text)
    }
    return number(text, {str(p): float(v) for p, v in concrete.parameters.items()}, counts)
