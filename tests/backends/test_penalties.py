"""Penalties on every backend, against formulas that know nothing of lowering: values and gradients, off policy."""

import functools

import numpy as np
import pytest
import torch
from hierarchies import chains, random_quivers
from hierarchies.penalised import with_penalties
from hierarchies.token_words import with_policies
from oracles.backends_here import BACKENDS_HERE, F32, F64, ROUNDOFF, TORCH, Bounded, Case, case, holds_training
from oracles.dense_case import LONGEST, against_dense
from oracles.matrices import dense
from thorough import ALL

MIX = (F64, F32, torch.bfloat16, F64, F32, torch.float16)
SEEDS = range(200 if ALL else 9)


@functools.cache
def penalised(seed, dtype=F64):
    """Even seeds are chains, odd ones trees and quivers."""
    if seed % 2:
        h = random_quivers.quiver(seed // 2 % random_quivers.COUNT)
        made = random_quivers.batch_for(h, seed, small=True)
    else:
        h = chains.candidate(seed // 2)
        made = chains.batch_for(h, seed, small=True)
    find = against_dense if seed % 2 else case
    return find(with_penalties(h, seed), with_policies(made, seed), dtype, seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_interpreter_gives_what_is_written(seed):
    c = penalised(seed)
    layout = c.layout(TORCH, "packed")
    found = Case.bounds(c, layout, ROUNDOFF[F64]).run("evaluate")
    d = dense(c.hierarchy, c.batch, c.now, c.old)
    assert np.abs(d.coefficients - dense(c.hierarchy.replace(penalties={}), c.batch, c.now, c.old).coefficients).any()
    for word, value in (("coefficients", d.coefficients), ("objective", d.objective.value)):
        error = found[word].error + LONGEST * np.abs(value).max()
        Bounded(value.astype(float), error.astype(float)).check(found[word].value, F64, word)


# ---------------------------------------------------------------- backends


def seeds_of(backend):
    """Building takes time: of compiled backends few everyday, of trees and quivers and of chains."""
    few = {"torch": [0, 1, 3, 5, 6], "c": [4, 3], "triton": [2]}[backend.name]
    return SEEDS if ALL else few


@pytest.mark.parametrize(
    ("seed", "backend"), [(s, b) for b in BACKENDS_HERE for s in seeds_of(b)], ids=lambda v: str(v)
)  # fmt: skip
def test_backends_give_what_is_written(seed, backend):
    """In every precision, packed and padded, with and without metrics."""
    c = penalised(seed, MIX[seed // 2 % len(MIX)])
    holds_training(backend, c, "padded" if seed % 3 else "packed")
    if ALL or backend.name == "torch":
        holds_training(backend, c, "packed" if seed % 3 else "padded", metrics=False)
