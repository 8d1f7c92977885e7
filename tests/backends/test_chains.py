"""Every backend of this machine against the float64 interpreter: shipped hierarchies and a hundred random chains.

`oracles/backend_cases.py` lists the backends and explains the tolerances.
"""

from __future__ import annotations

import functools
import math
from functools import partial

import numpy as np
import pytest
import torch
from hierarchies.random_chains import ROOT, batch_for, chain
from oracles.backend_cases import (
    BACKENDS_HERE,
    F32,
    F64,
    ROUNDOFF,
    TORCH,
    Backend,
    Case,
    Truth,
    case,
    holds_random,
    holds_training,
    indexed,
)
from support import OF_EVERY_KIND, spec, spread_batch, token
from thorough import ALL

from fibration import Fibration, FibrationError, Hierarchy, Stratum, identity_gate, log_ratio, trajectory_mean, uniform
from fibration.language.grammar import CONSTRUCTORS

CHAINS = 100
LABELLED = ("apc_obj", "fiberpo_crossed", "fiberpo_experts", "fiberpo_modal")  # batches of their own: test_shipped.py
MIX = (F64, F32, torch.bfloat16, F64, F32, torch.float16, F32)  # the precision of a chain's batch, by its seed


@functools.cache
def random_case(seed: int, dtype: torch.dtype, direct: bool = False, small: bool = False) -> Case:
    h = chain(seed)
    return case(h, batch_for(h, seed + 1000 * direct, small), dtype, seed, direct)


@functools.cache
def shipped_case(name: str, dtype: torch.dtype, direct: bool = False, small: bool = False) -> Case:
    number = OF_EVERY_KIND.index(name)
    return case(spec(name), batch_for(spec(name), number + 7, small), dtype, number, direct)


def on_backends(seeds, slow=()):
    """Seed by seed on every backend; slow ones get the seeds in `slow`."""
    pairs = [(seed, b) for seed in seeds for b in BACKENDS_HERE if not b.slow or seed in slow]
    return pytest.mark.parametrize(("seed", "backend"), pairs, ids=lambda v: str(v))


# ---------------------------------------------------------------- against the interpreter


@pytest.mark.sampled
@on_backends([s for s in range(CHAINS) if ALL or s % 8 == 1], slow=range(CHAINS) if ALL else (33,))
def test_random_chains_match_the_interpreter(seed, backend):
    holds_random(backend, partial(random_case, seed, MIX[seed % len(MIX)]), seed)


def test_the_rounding_bounds_are_tight():
    """No bound may hide a wrong number: most coefficients are held to a few roundings, none to less than a percent."""
    for dtype, usual in ((F64, 1e-12), (F32, 1e-4)):
        found = []
        for name in (
            n for n in OF_EVERY_KIND if n not in (*LABELLED, "gspo_residual")
        ):  # its one-token row cancels to 0
            c = shipped_case(name, dtype)
            layout = indexed(c.hierarchy, c.batch)
            found.append(c.bounds(layout, ROUNDOFF[dtype]).run("objective")["coefficients"].uncertainty)
        assert np.median(found) < usual / 10
        assert max(found) < usual


@pytest.mark.thorough
def test_the_random_chains_cover_every_shape_and_gate():
    """Or the tests above show less than they seem to: every depth, every gate, rows beside the chain, a common root."""
    chains = [chain(seed) for seed in range(CHAINS)]
    assert {len(h.order) for h in chains} == {1, 2, 3, 4, 5, 6}
    written = " ".join(g.written for h in chains for g in h.gates.values())
    for made in CONSTRUCTORS.values():
        texts = " ".join([written, *(f"{h.decomposition} {h.objective} {h.fibrations}" for h in chains)])
        assert made.name in texts, made.name
    assert sum(h.rows not in h.order and len(h.order) > 1 for h in chains) > 5
    assert sum(h.order[0] == ROOT for h in chains) > 10
    assert sum(h.rows.name == "sample" for h in chains) > 5
    for word in ("density", "advantage", "count", "where", "tanh", "sigmoid", "log1p", "expm1", "sqrt", "w_", ".per("):
        assert word in written, word
    batches = [batch_for(h, seed) for seed, h in enumerate(chains)]
    assert sum(max(b.lengths) > 400 for b in batches) > 10
    assert sum(1 in b.lengths for b in batches) > 50
    assert sum(0 in b.lengths for b in batches) > 10
    assert sum((b.x == 0).all() for b in batches) > 10
    assert sum(bool((b.x == 0).any() and (b.x != 0).any()) for b in batches) > 20
    values = [v for b in batches for v in b.parameters.values() if isinstance(v, dict)]
    assert sum(set(v) == {"+", "-"} for v in values) > 5
    assert sum(set(v) != {"+", "-"} for v in values) > 10


@pytest.mark.thorough
def test_every_regime_occurs_in_random_chains():
    seen: dict[str, float] = dict.fromkeys(("passed", "rolled_back", "zeroed", "limited", "attenuated"), 0)
    for seed in range(1, CHAINS, 4):
        h = chain(seed)
        b = batch_for(h, seed)
        layout = indexed(h, b)
        for name, value in Truth(layout, b.x, b.advantages, b.parameters, ROUNDOFF[F64]).run("evaluate").items():
            regime = next((r for r in seen if name.startswith(f"{r}_")), None)
            if regime:
                seen[regime] += (value.value > 0).any()
    assert min(seen.values()) >= 3, seen


# ---------------------------------------------------------------- bad input


def mistakes(backend: Backend):
    """Calls that must be refused, by what is wrong with them."""
    op, batch = backend.operator(spec("fiberpo")), spread_batch()
    layout = backend.padded(spec("fiberpo"), batch)
    now, a = layout.tensor(batch.x), layout.tensor(batch.advantages)
    old, index = torch.zeros_like(now), layout.index
    slot = tuple(int(i) for i in np.argwhere(np.isfinite(now.cpu().numpy()))[3])

    def spoilt(t: torch.Tensor, value: float) -> torch.Tensor:
        t = t.clone()
        t[slot] = value
        return t

    return {  # what is refused before a kernel runs, runtime/test_bad_input.py has
        "log-probs of another shape": lambda: op.loss(now[:, :-1], old, a, index),
        "NaN on a token": lambda: op.loss(spoilt(now, math.nan), old, a, index),
        "infinite old log-prob": lambda: op.coefficients(now, spoilt(old, -math.inf), a, index),
        "NaN for the gate": lambda: op.gate(spoilt(now, math.nan), index),
        "infinite for the levels": lambda: op.levels(spoilt(now, math.inf), index),
        "NaN advantage": lambda: op.loss(now, old, spoilt(a, math.nan), index),
    }


# which results of a call are NaN where values are not looked at
UNSEEN = {
    "NaN on a token": lambda r: r.loss,
    "infinite old log-prob": lambda r: r.objective,
    "NaN for the gate": lambda r: r.log().sum(),
    "infinite for the levels": lambda r: torch.cat([*r.residual.values(), *r.gated.values()]),
    "NaN advantage": lambda r: r.loss,
}


@pytest.mark.sampled
@pytest.mark.parametrize("which", list(mistakes(TORCH)))
def test_every_backend_raises_the_same_errors(which, backend):
    """But for values on a device, which say it themselves."""
    said = []
    for b in (TORCH, backend):
        if which in UNSEEN and b.device != "cpu":
            assert UNSEEN[which](mistakes(b)[which]()).isnan().all()
            return
        with pytest.raises(FibrationError) as caught:
            mistakes(b)[which]()
        said.append((type(caught.value), str(caught.value).replace(b.device, "")))
    assert said[0] == said[1]


# ---------------------------------------------------------------- rows beside the chain


@pytest.mark.sampled
@pytest.mark.parametrize("over", [ROOT, Stratum("prompt_group")], ids=str)
def test_the_rows_may_lie_outside_the_chain(over, backend):
    h = Hierarchy(
        name="rows_beside",
        fibrations=[Fibration(token, over, uniform())],
        gates={token: identity_gate(), over: identity_gate()},
        decomposition=log_ratio(),
        objective=trajectory_mean(),
    )
    assert h.verify().ok
    holds_training(backend, case(h, batch_for(h, 1), F64), "packed")
