"""The weight of each token, and whether it is kept, from the interpreter; for tables and pictures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, reduce

import numpy as np
from numpy.typing import NDArray

from fibration.compiler.interpret import interpret
from fibration.compiler.ir import Input, Matrix, part
from fibration.compiler.lower import from_log_probs, lower
from fibration.compiler.optimise import optimise
from fibration.compiler.program import Program
from fibration.language.hierarchy import Hierarchy
from fibration.runtime.index.index import Index

Vector = NDArray[np.float64]
KEPT, WEIGHT = "kept", "weight_"  # names of outputs; weights are numbered from 1


@dataclass(frozen=True)
class Weights:
    """Of the unmasked tokens: `each` has a vector per `weigh(...)`; `kept` tells whether all conditions of `keep(...)`
    hold.

    Dropped tokens have weights too.
    """

    each: tuple[Vector, ...]
    kept: NDArray[np.bool_]

    @property
    def product(self) -> Vector:
        """The product of all weights, 0 at dropped tokens."""
        return np.where(self.kept, reduce(np.multiply, self.each, np.ones(len(self.kept))), 0.0)


def effective(weights: Vector) -> float:
    """The effective sample size of weights as a share of their number, `(Σw)²/(n·Σw²)`; 0 if all are 0."""
    squares = float(np.square(weights).sum())
    return float(weights.sum()) ** 2 / (len(weights) * squares) if squares else 0.0


def weights_of(hierarchy: Hierarchy, index: Index, inputs: Mapping[Input | Matrix, Vector]) -> Weights:
    """The weights of all unmasked tokens. `inputs`: of the program "evaluate", from `Operator.inputs`."""
    program, objective = read_of_tokens(hierarchy), hierarchy.objective
    found = interpret(program, inputs, index.sizes(program.edges))

    def tokens(word: str) -> Vector:
        whole = np.full(index.shape, np.nan).reshape(-1)
        for leaf in index.leaves:
            whole[index.positions_of(leaf).numpy()] = found[part(word, leaf, index.leaves)]
        return whole[index.positions.numpy()]

    each = tuple(tokens(f"{WEIGHT}{i}") for i in range(1, 1 + len(objective.weighed)))
    kept = tokens(KEPT) > 0 if objective.kept else np.ones(len(index.positions), bool)
    return Weights(each, kept)


@lru_cache(maxsize=8)
def read_of_tokens(hierarchy: Hierarchy) -> Program:
    """The program that computes the weights and conditions of tokens."""
    base = lower(hierarchy)
    read = {k: v for k, v in base.outputs.items() if k.word == KEPT or k.word.startswith(WEIGHT)}
    return optimise(from_log_probs(replace(base, outputs=read)))
