"""Losses that read the tokens before or after a token give the same on ranks as in one process, for every cut."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles.backend_cases import BACKENDS_HERE, F32, F64
from rank_batches import alone, close, in_order, part, scattered, spread, whole_rows
from support import Batch, operator, packed, prompt_group, refuses, token, trajectory, turn
from thorough import ALL, examples
from thread_ranks import ThreadGroup, on_ranks

from fibration import (
    Attribute,
    Fibration,
    Gate,
    Hierarchy,
    HierarchyIndexError,
    Parameter,
    after,
    aggregate_gate,
    before,
    clip_gate,
    decomposition,
    exp,
    gated,
    identity_gate,
    log_ratio,
    mean,
    minimum,
    position,
    residual,
    reward,
    strata,
    token_log_ratio,
    trajectory_mean,
    uniform,
    where,
)

x, gamma = token_log_ratio, Parameter("gamma", default=0.75, upper=1)
text, image = strata("text image")
PREFIX = before(x, over=trajectory)


def loss(*edges, token_gate=None, objective=None, split=None) -> Hierarchy:
    fibrations = [Fibration(a, b, uniform()) for a, b in edges]
    found = {s for f in fibrations for s in (f.source, f.target)}
    leaves = {f.source for f in fibrations} - {f.target for f in fibrations}
    gates = {s: token_gate or clip_gate(0.5) if s in leaves else identity_gate() for s in found}
    if trajectory in found and split is None:
        gates[trajectory] = aggregate_gate(0.05, rollback=3)
    return Hierarchy(
        name="ordered", fibrations=fibrations, gates=gates, decomposition=split or log_ratio(),
        objective=objective or trajectory_mean(),
    )  # fmt: skip


LOSSES = {
    # a gate and weights that read what comes before, what follows, and how many
    "rows": loss(
        (token, trajectory), (trajectory, prompt_group),
        token_gate=Gate(where(PREFIX < 0.2, residual, residual / 2)),
        objective=trajectory_mean().weigh(exp(minimum(after(x, over=trajectory, discount=gamma) / 4, 0.3) - position(over=trajectory) / 50)),
    ),
    # gradients flow from every token to what came before it, and from there on
    "prefix ratios": loss(
        (token, trajectory), token_gate=clip_gate(0.6), split=decomposition(density=before(after(x * x, over=trajectory, discount=0.5) + x, over=trajectory, discount=gamma) / 3 + x, recovery=exp(gated(""))),
    ),
    "turns": loss(
        (token, turn), (turn, trajectory), (trajectory, prompt_group),
        objective=trajectory_mean().weigh(exp(before(mean(x, over=turn), over=trajectory, discount=gamma, of=turn) + before(x / 9, over=turn))),
    ),
    "two leaves": loss(
        (text, trajectory), (image, trajectory), (trajectory, prompt_group),
        objective=trajectory_mean().weigh(exp(before(x / 3, over=trajectory, discount=0.875))),
    ),
    # of several rows each, on several ranks where every row is on one
    "episodes": loss(
        (token, trajectory), (trajectory, prompt_group),
        objective=trajectory_mean().weigh(exp(after(x / 9, over=prompt_group, discount=gamma) + before(mean(x, over=trajectory), over=prompt_group, of=trajectory))),
    ),
}  # fmt: skip
LENGTHS, GROUPS = (4, 1, 9, 0, 6, 13, 3), list("abaaccb")
KINDS = st.sampled_from(["packed", "padded"])


def batch_of(h: Hierarchy) -> Batch:
    """Rows that are interleaved by their positions, which have gaps."""
    n, rng = sum(LENGTHS), np.random.default_rng(11)
    row = np.repeat(np.arange(len(LENGTHS)), LENGTHS)
    place = np.concatenate([np.arange(m) for m in LENGTHS])
    labels = {
        "turn": (row * 20 + place // 3).tolist(),
        "image": (seen := rng.random(n) < 0.4).tolist(),
        "text": (~seen).tolist(),
    }
    advantages = np.repeat(rng.normal(size=len(LENGTHS)), LENGTHS)
    found = Batch(LENGTHS, rng.normal(size=n) / 2, advantages, {"prompt_group": GROUPS}, token_labels=labels)
    positions = place * 3 * len(LENGTHS) + row
    return replace(found, positions=positions)


@pytest.mark.sampled
@pytest.mark.parametrize("name", LOSSES)
@examples(12)
@given(data=st.data())
def test_losses_with_order_on_whole_rows_equal_one_process(name, data):
    """In bits, but for what reads an order over several rows."""
    h, kind = LOSSES[name], data.draw(KINDS)
    op, batch = operator(h), batch_of(h)
    found, one = (
        spread(op, batch, data.draw(in_order(batch, data.draw(st.integers(1, 4)))), kind=kind),
        alone(op, batch, kind),
    )
    if name == "episodes":
        close(found, one)
    else:
        assert found.bits() == one.bits()


@pytest.mark.sampled
@pytest.mark.parametrize("name", LOSSES)
@examples(20)
@given(data=st.data(), cut=st.booleans())
def test_losses_with_order_on_rows_with_keys_equal_one_process(name, data, cut):
    """On any ranks in any order; whole, or in pieces down to one token, which others' pieces come between."""
    h = LOSSES[name]
    op, batch = operator(h), batch_of(h)
    kind, worlds = data.draw(KINDS), [data.draw(scattered(batch, data.draw(st.integers(1, 4)), cut)) for _ in range(2)]
    first, second = (spread(op, batch, pieces, True, kind) for pieces in worlds)
    close(first, alone(op, batch), numbered=False)
    assert first.cut != second.cut or first.bits() == second.bits()


COMPILED = [b for b in BACKENDS_HERE[1:] if b.device == "cpu"]


def test_generalised_advantages_of_rows_in_pieces_equal_the_recursion():
    """From rewards and given values, tokens dealt out one by one: against the recursion."""
    value, lam = Attribute("value", on=token, positive=False), Parameter("lam", default=0.8, upper=1)
    later = after(reward + (1 - lam) / lam * value, over=trajectory, discount=gamma * lam)
    op, rng = operator(LOSSES["prefix ratios"].replace(advantages=reward - value + later)), np.random.default_rng(5)
    row, place, n = (
        np.repeat(np.arange(len(LENGTHS)), LENGTHS),
        np.concatenate([np.arange(m) for m in LENGTHS]),
        sum(LENGTHS),
    )
    rewards, values, expected = rng.normal(size=n), rng.normal(size=n), np.zeros(n)
    for t in reversed(range(n)):
        last = t + 1 == n or row[t + 1] != row[t]
        known, following = (0.0, 0.0) if last else (values[t + 1], expected[t + 1])
        expected[t] = rewards[t] + 0.75 * known - values[t] + 0.75 * 0.8 * following
    owner = rng.integers(0, 3, n)

    def work(group: ThreadGroup) -> tuple[np.ndarray, torch.Tensor]:
        mine = np.flatnonzero(owner == group.rank)
        rows, sizes = np.unique(row[mine], return_counts=True)
        index = op.index(
            offsets=np.append(0, np.cumsum(sizes)), trajectory=rows.tolist(), attributes={"value": values[mine]},
            positions=place[mine], group=group,
        )  # fmt: skip
        return mine, op.advantages(torch.from_numpy(rewards[mine]), index)

    for mine, found in on_ranks(3, work):
        np.testing.assert_allclose(found, expected[mine], rtol=0, atol=1e-14)


def test_pieces_of_a_row_in_one_process_are_one_trajectory():
    """Rows of one name, whose tokens have positions, are one trajectory without a group, too."""
    h, pieces = LOSSES["rows"], [(r, a, b) for a, b in ((2, 99), (0, 2)) for r, n in enumerate(LENGTHS)]
    op, batch = operator(h), batch_of(h)
    mine = part(batch, [(r, a, min(b, LENGTHS[r])) for r, a, b in pieces if a < LENGTHS[r]])
    rows = list(mine.rows)
    found = op.coefficients(*tensors(mine.batch), packed(op, mine.batch, trajectory=rows).index)
    whole = op.coefficients(*tensors(batch), packed(op, replace(batch, positions=None)).index)
    assert len(set(rows)) < len(rows)
    np.testing.assert_allclose(found.values, whole.values[mine.places], rtol=0, atol=1e-15)
    assert float(found.objective) == pytest.approx(float(whole.objective), rel=1e-13)
    refuses(
        HierarchyIndexError, lambda: packed(op, replace(mine.batch, positions=None), trajectory=rows),
        what="two rows are called", remedy="if they are pieces of one trajectory, order their tokens: pass positions=",
    )  # fmt: skip
    twice = replace(mine.batch, positions=np.arange(len(mine.places)) % 5)
    refuses(HierarchyIndexError, lambda: packed(op, twice, trajectory=rows), what="index of 'ordered': token [")


def tensors(batch: Batch) -> list[torch.Tensor]:
    return [torch.from_numpy(v) for v in (batch.x, np.zeros(batch.tokens), batch.advantages)]


SOME = {"c": ("rows", "episodes"), "triton": ("turns",)}
BUILT = [(n, b, F64 if i % 2 else F32) for b in COMPILED for i, n in enumerate(LOSSES) if ALL or n in SOME[b.name]]


@pytest.mark.sampled
@pytest.mark.thorough
@pytest.mark.parametrize(("name", "backend", "dtype"), BUILT, ids=str)
def test_compiled_backends_equal_one_process_on_losses_with_order(name, backend, dtype):
    """Whole rows in order, one rank without any; and cut ones, dealt out token by token."""
    h = LOSSES[name]
    op, batch = backend.operator(h), batch_of(h)
    one = alone(op, batch, "packed", dtype, gates=False)
    found = spread(op, batch, whole_rows(batch, 2, 2), False, "packed", dtype, gates=False)
    if name == "episodes":
        close(found, one, dtype=dtype)
    else:
        many, single = found.bits(), one.bits()
        if backend.name == "triton" and dtype == F64:  # a program adds its rows' metrics: ranks have other programs
            close(found, one, dtype=dtype)
            many["metrics"] = single["metrics"]
        assert many == single
    strewn = [(r, i, i + 1) for r, n in enumerate(LENGTHS) for i in range(n) if i % 3 == 0]
    rest = [(r, i, i + 1) for r, n in enumerate(LENGTHS) for i in range(n) if i % 3]
    found = spread(op, batch, (strewn, [], rest[::-1]), True, "packed", dtype, gates=False)
    assert found.cut
    close(found, one, numbered=False, dtype=dtype)
