"""A batch on ranks gives the results of one process, for every cut: levels, coefficients, gates and metrics.

In bits where rows stay whole and in order, and, where keys name them, for any distribution of whole rows and any of cut
ones. Strata beside the rows have tokens on several ranks whatever becomes of rows.
"""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import pytest
from example_loops import narrow
from hierarchies.random_chains import batch_for as chain_batch
from hierarchies.random_chains import chain
from hierarchies.random_quivers import COUNT, batch_for, quiver
from hierarchies.random_token_formulas import with_words
from hypothesis import given
from hypothesis import strategies as st
from oracles.backend_cases import BACKENDS_HERE, F32, F64
from rank_batches import alone, close, in_order, scattered, spread, whole_rows
from support import OF_EVERY_KIND, Batch, operator, packed, spec
from thorough import ALL, examples

from fibration import Hierarchy

STEEP = {2, 12, 14, 16}  # gates that roundings are multiplied by thousands in, or a batch of one row


@functools.cache
def words(seed: int) -> Hierarchy:
    """Weights, conditions and statistics of tokens; even seeds are chains."""
    return with_words(quiver(seed // 2) if seed % 2 else chain(seed // 2), seed)


def words_batch(h: Hierarchy, seed: int) -> Batch:
    """Log-probs of further policies, those of `old` being 0."""
    batch = (batch_for if seed % 2 else chain_batch)(h, seed)
    drawn = np.random.default_rng(seed).normal(scale=0.4, size=(2, batch.tokens))
    return replace(batch, policies={"rollout": drawn[0], "reference": drawn[1] - 2})


BATCHES = {name: (functools.partial(spec, name), batch_for, 7) for name in OF_EVERY_KIND}
BATCHES |= {f"quiver {s}": (functools.partial(quiver, s), batch_for, s) for s in range(COUNT)}
BATCHES |= {f"chain {s}": (functools.partial(chain, s), chain_batch, s) for s in range(20) if s != 12}  # m of 1e-9
BATCHES |= {f"words {s}": (functools.partial(words, s), words_batch, s) for s in range(24) if s not in STEEP}
# Levels, a crossing by least squares, experts that cross rows, a score estimator, a gate on trajectories that reads the
# advantage, three leaves with all of the latter and an attribute; weights, conditions and statistics over all strata.
NAMES = (
    list(BATCHES)
    if ALL
    else ["fiberpo_domain", "fiberpo_crossed", "fiberpo_experts", "cispo", "gspo", "quiver 10", "words 4", "words 9"]
)
KINDS = st.sampled_from(["packed", "padded"])


@functools.cache
def case(name: str) -> tuple[Hierarchy, Batch]:
    make, batch_of, seed = BATCHES[name]
    return make(), off_policy(make(), batch_of(make(), seed))


def off_policy(h: Hierarchy, batch: Batch) -> Batch:
    """Away from ratio 1, where ties may fall either way; elements of FiberPO's levels are rolled back and zeroed."""
    batch = replace(batch, x=np.where(batch.x == 0, 0.013, batch.x))
    if not h.name.startswith("fiberpo"):
        return batch
    op = operator(h)
    layout = packed(op, batch)
    batch = replace(batch, parameters=narrow(op, layout.index, layout.tensor(batch.x)))
    metrics = alone(op, batch).metrics
    for level in h.gates.keys() - {*h.leaves}:
        for regime in ("rolled_back", "zeroed"):
            assert any(metrics[f"{level}/{channel}/{regime}"][0] > 0 for channel in "+-"), (level, regime)
    return batch


def beside_rows(h: Hierarchy) -> list[str]:
    """Strata of which the rows say nothing: tokens of one element lie in any rows."""
    near = {*h.coarser(h.rows), h.rows, *h.leaves} if h.rows in h.strata else {*h.leaves}
    return [s.name for s in h.strata if s not in near and h.rows not in h.coarser(s)]


@pytest.mark.sampled
@pytest.mark.parametrize("name", NAMES)
@examples(12)
@given(data=st.data())
def test_whole_rows_on_ranks_equal_one_process(name, data):
    """Without keys; some ranks may have nothing."""
    h, batch = case(name)
    op, kind, ranks = operator(h), data.draw(KINDS), data.draw(st.integers(1, 4))
    found, one = spread(op, batch, data.draw(in_order(batch, ranks)), kind=kind), alone(op, batch, kind)
    if beside_rows(h):
        close(found, one)
    else:
        assert found.bits() == one.bits()


@pytest.mark.sampled
@pytest.mark.thorough
@pytest.mark.parametrize("name", NAMES)
@examples(12)
@given(data=st.data(), cut=st.booleans())
def test_rows_with_keys_on_ranks_equal_one_process(name, data, cut):
    """On any ranks in any order; whole, or in pieces down to one token."""
    h, batch = case(name)
    op = operator(h)
    first, second = (
        spread(op, batch, data.draw(scattered(batch, data.draw(st.integers(1, 4)), cut)), True, data.draw(KINDS))
        for _ in range(2)
    )
    if first.cut == second.cut:
        assert first.bits() == second.bits()
    close(first, alone(op, batch), numbered=False)


COMPILED = [b for b in BACKENDS_HERE[1:] if b.device == "cpu"]
FEW = ["gspo", "fiberpo_experts", "fiberpo_domain"]
CHOSEN = {"c": OF_EVERY_KIND if ALL else FEW[1:], "triton": FEW if ALL else FEW[:1]}
BUILT = [(n, b, F64 if i % 2 else F32) for b in COMPILED for i, n in enumerate(CHOSEN[b.name])]


@pytest.mark.sampled
@pytest.mark.thorough
@pytest.mark.parametrize(("name", "backend", "dtype"), BUILT, ids=str)
def test_compiled_backends_on_ranks_equal_one_process(name, backend, dtype):
    """Coefficients, objective and metrics: whole rows in order, and two ways of cutting them, one of which rank 1 misses."""
    h, batch = case(name)
    op, rows = backend.operator(h), list(enumerate(batch.lengths))
    one = alone(op, batch, "packed", dtype, gates=False)
    found = spread(op, batch, whole_rows(batch, 1, 1), False, "packed", dtype, gates=False)
    if beside_rows(h):
        close(found, one, dtype=dtype)
    else:
        assert found.bits() == one.bits()
    halves = [(r, 0, n // 2) for r, n in rows], [(r, n // 2, n) for r, n in rows]
    strewn = [(r, i, i + 1) for r, n in rows for i in range(n) if i % 3 == 0]
    rest = [(r, i, i + 1) for r, n in rows for i in range(n) if i % 3]
    first, second = (
        spread(op, batch, pieces, True, "packed", dtype, gates=False) for pieces in (halves, (strewn, [], rest[::-1]))
    )
    assert first.cut and second.cut
    assert first.bits() == second.bits()
    close(first, one, dtype=dtype)
