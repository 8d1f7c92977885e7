"""Every shipped hierarchy on every backend against the dense matrices of `matrices.py`, its C optimised as it is shipped.

A generated function is built once per dtype and layout. C of every kind meets padded float32, and of some one more;
Triton's interpreter meets two of them in turn; torch meets two each, all of them in turn.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from hierarchies.random_quivers import batch_for
from oracles.backend_cases import BACKENDS_HERE, F32, F64, Backend, holds_gate, holds_training
from oracles.dense_case import DenseCase, against_dense, dense_case
from support import DTYPES, OF_EVERY_KIND, Batch, spec, spread_batch
from thorough import ALL, some

LAYOUTS = [(kind, dtype) for dtype in DTYPES for kind in ("padded", "packed")]
USUAL = "padded", F32
OTHERS = [x for x in LAYOUTS if x != USUAL]
# Programs of the same statements as another's, or that `test_triton.py` holds too.
LIKE_OTHERS = ("dapo", "dr_grpo", "fiberpo_domain", "fiberpo_inward_clip", "fiberpo_turns", "grpo")


def layouts_of(number: int, backend: Backend) -> list[tuple[str, torch.dtype]]:
    """The layouts that a hierarchy meets on a backend: building takes time, and Triton's interpreter more."""
    if backend.name == "torch":
        return some(LAYOUTS, 4, number % 4)
    if backend.slow:
        both = [USUAL, ("packed", F64)]
        return both if ALL else both[number % 2 :][: OF_EVERY_KIND[number] not in LIKE_OTHERS]
    usual = [USUAL] if ALL or OF_EVERY_KIND[number] not in LIKE_OTHERS else []
    return usual + some([OTHERS[number % len(OTHERS)]], 4, number % 4)


@functools.cache
def shipped_case(name: str, dtype: torch.dtype, direct: bool, small: bool) -> DenseCase:
    return dense_case(spec(name), OF_EVERY_KIND.index(name), dtype, direct, small=small)


MET = [(name, *met, b) for b in BACKENDS_HERE for i, name in enumerate(OF_EVERY_KIND) for met in layouts_of(i, b)]


@pytest.mark.sampled
@pytest.mark.usefixtures("shipped_c")
@pytest.mark.parametrize(("name", "kind", "dtype", "backend"), MET, ids=str)
def test_shipped_hierarchies_match_dense_matrices(name, kind, dtype, backend):
    """One-token and empty trajectories among others; NaN or infinity under the mask."""
    holds_training(backend, shipped_case(name, dtype, False, backend.slow), kind)
    holds_gate(backend, shipped_case(name, dtype, True, backend.slow), kind)


@pytest.mark.sampled
@pytest.mark.parametrize("name", [n for n in OF_EVERY_KIND if n != "fiberpo_crossed" and (ALL or n not in LIKE_OTHERS)])
def test_trajectories_of_one_token_match_dense_matrices(name, backend):
    """Fibres of one; the packed form has as many tokens as rows."""
    b = batch_for(spec(name), 3)
    tokens = [int(np.flatnonzero(b.row == r)[0]) for r in np.unique(b.row)][:6]
    rows = [int(b.row[i]) for i in tokens]
    batch = Batch(
        (1,) * len(tokens),
        b.x[tokens],
        b.advantages[tokens],
        {k: [v[r] for r in rows] for k, v in b.labels.items()},
        {k: [v[i] for i in tokens] for k, v in b.token_labels.items()},
    )
    free = backend.name == "torch"
    for kind in ("padded", "packed") if free else ("padded",):
        holds_training(backend, against_dense(spec(name), batch, F64 if free else F32, 1), kind, metrics=free)


# ---------------------------------------------------------------- the on-policy point

LEARNING = [
    n for n in OF_EVERY_KIND if n not in ("gspo", "gspo_residual", "sapo", "cispo")
]  # these give up first order
TOKEN_MEAN = ("ppo", "dapo", "truly_ppo", "apc_obj", "fiberpo_experts")
IN_EITHER = [
    (n, d, b)
    for b in BACKENDS_HERE
    for n in LEARNING
    for d in (F64, F32)
    if ALL or b.name == "torch" or (n not in LIKE_OTHERS and (d == F32 or not b.slow))
]


@pytest.mark.sampled
@pytest.mark.parametrize(("name", "dtype", "backend"), IN_EITHER, ids=str)
def test_on_policy_the_coefficients_are_mu_times_the_advantage(name, dtype, backend):
    """At x = 0 exactly `c_i = mu_i A_i` to two roundings, not 0 and not twice as much; where strata cross, to the largest's."""
    h = spec(name)
    batch = dense_case(h, 3, dtype, small=backend.slow, zeros="all").batch
    n, rows = batch.tokens, np.count_nonzero(batch.lengths)
    lengths = np.array(batch.lengths)[batch.row]
    mu = 1 / n if name in TOKEN_MEAN else 1 / (rows * (1024 if name == "dr_grpo" else lengths))
    wanted = mu * batch.advantages
    layout, op = backend.padded(h, batch), backend.operator(h)
    a = layout.tensor(batch.advantages, dtype)
    minus_zero, zero = (layout.tensor(np.full(n, z), dtype) for z in (-0.0, 0.0))
    size = np.abs(wanted) if h.shape.is_tree else np.abs(wanted).max()
    allowed = (4 * 2.0**-53 if dtype == F64 else 3e-7) * (1 if h.shape.is_chain else 8) * size + 1e-300
    for now, old in ((minus_zero, zero), (x := layout.tensor(np.cos(np.arange(n)) - 2, dtype), x)):
        found = op.coefficients(now, old, a, layout.index, batch.parameters)
        assert (np.abs(layout.read(found.values) - wanted) <= allowed).all()
        assert float(found.objective) == pytest.approx(wanted.sum(), abs=1e-13 if dtype == F64 else 1e-6)
        ratio = op.gate(now - old, layout.index, batch.parameters, advantages=a)
        assert layout.read(ratio).tolist() == [1.0] * n


@pytest.mark.parametrize("name", ["gspo", "gspo_residual"])
def test_on_policy_gspo_has_the_policy_gradient_for_advantages_per_trajectory(name, backend):
    """Advantages that are constant on trajectories: the policy gradient; its first order is given up token by token."""
    batch = spread_batch(lengths=(3, 1, 7, 2, 5, 6), seed=5, per_row=True)
    op, layout = backend.operator(spec(name)), backend.packed(spec(name), batch)
    x, a = layout.tensor(np.zeros(24)), layout.tensor(batch.advantages)
    wanted = batch.advantages / (6 * np.array(batch.lengths)[batch.row])
    assert layout.read(op.coefficients(x, x, a, layout.index).values) == pytest.approx(wanted, rel=1e-15)
