"""Weights and conditions of tokens in plain numpy, on random batches and on counterexamples from JSON.

The module uses no code of the library. A statistic of a row is a loop over rows. A slope is a difference of float64
numbers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

Array = Any
CLOSE = 1e-6
STEP = 1e-6


@dataclass
class Batch:
    """One number per token; `row` is the trajectory of each."""

    row: Array
    x: Array
    a: Array
    lp: Mapping[str, Array]
    given: Mapping[str, Array] = field(default_factory=dict)  # attributes, at the tokens
    p: Mapping[str, float] = field(default_factory=dict)  # parameters

    @property
    def k(self) -> Array:
        """`log ρ`, of the old policy over the rollout engine's."""
        return self.lp["old"] - self.lp["rollout"]

    @property
    def current(self) -> Array:
        return self.lp["old"] + self.x

    @property
    def size(self) -> Array:
        return self.per_row(np.ones(len(self.row)), np.sum)

    def per_row(self, values: Array, f: Callable[[Array], Any]) -> Array:
        values = np.asarray(values)
        return np.array([f(values[self.row == r]) for r in self.row])

    def of_all(self, values: Array, f: Callable[[Array], Any]) -> Array:
        return np.full(len(self.row), f(np.asarray(values)))


def read(counterexample: Mapping[str, Any]) -> Batch:
    """The batch of a counterexample, from its JSON."""
    shape, values = counterexample["hierarchy"], counterexample["values"]
    row = np.array(shape["parents"]["token"]["trajectory"])
    lp = {name.removeprefix("log_probs of "): numbers(v) for name, v in values.items() if name.startswith("log_probs")}
    x = numbers(values["log_ratios"])
    lp.setdefault("old", -1 - np.maximum(x, 0))
    lp.setdefault("rollout", lp["old"])
    given = {name: numbers(v) for name, v in shape["attributes"].items()}
    assert all(len(v) == len(row) for v in given.values())  # all attributes here are of tokens
    parameters = {name: float(Fraction(v)) for name, v in shape["parameters"].items()}
    return Batch(row, x, numbers(values["advantages"]), lp, given, parameters)


def numbers(texts: list[str]) -> Array:
    return np.array([float(Fraction(t)) for t in texts])


def is_possible(b: Batch) -> bool:
    """Whether all log-probs are those of probabilities."""
    return all((v <= 1e-15).all() for v in (*b.lp.values(), b.current))


def coincide(b: Batch, within: float = 2e-12) -> bool:
    """Whether all policies are one, or as near to one as a counterexample is."""
    return all((abs(v - b.lp["old"]) <= within).all() for v in (*b.lp.values(), b.current))


def drawn(seed: int, spread: float, parameters: Mapping[str, float]) -> Batch:
    """Ragged rows, with policies that are as far apart as is said."""
    rng = random.Random(seed)
    row = np.array([r for r in range(4) for _ in range(rng.randint(1, 5))])
    n = len(row)

    def near(scale: float) -> Array:
        return np.array([scale * rng.uniform(-1, 1) for _ in range(n)])

    old = np.array([-rng.uniform(0.5, 4) for _ in range(n)])
    a = np.array([rng.choice([-1.5, 0.5, 2.0]) for _ in range(4)])[row]
    lp = {"old": old, "rollout": np.minimum(old + near(spread), 0)}
    x = np.minimum(near(spread), -old)
    given = {"entropy": np.array([rng.uniform(0, 3) for _ in range(n)])}
    return Batch(row, x, a, lp, given, dict(parameters))


def coefficients(b: Batch, gated: Callable[[Array, Array, Batch], Array]) -> Array:
    """`∂J/∂log π` by differences, `μ = 1/(rows·T)`: of `gated(x, held, batch)`, in which `held` is what is stopped."""
    mu = 1 / (b.size * len(set(b.row.tolist())))

    def loss(x: Array) -> float:
        return float((mu * b.a * gated(x, b.x, b)).sum())

    unit = np.eye(len(b.x)) * STEP
    return np.array([(loss(b.x + e) - loss(b.x - e)) / (2 * STEP) for e in unit])
