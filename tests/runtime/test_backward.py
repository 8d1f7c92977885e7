"""The tensors that `backward()` returns: the forward call's own if no factor scales them, and never shared memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from oracles.issued_operations import counted
from support import operator, padded, spec, spread_batch

from fibration.runtime import devices

DTYPES = [torch.float32, torch.float64, torch.bfloat16]


def case(dtype=torch.float64):
    """`loss(log_probs)`, log-probs that require grad, and the gradient that a plain call says: minus its coefficients."""
    op, batch = operator(spec("fiberpo"), "torch"), spread_batch(scale=0.3)
    layout = padded(op, batch)
    x, a = (layout.tensor(v).to(dtype) for v in (batch.x, batch.advantages))
    old = torch.zeros_like(x)
    values = op.coefficients(x, old, a, layout.index, metrics=False).values
    assert len(values.unique()) > 4
    return lambda now: op.loss(now, old, a, layout.index).loss, x.requires_grad_(), values


def same(found, expected):
    """To the bit, signs of zeros too."""
    return found.dtype == expected.dtype and torch.equal(found, expected) and torch.equal(
        found.signbit(), expected.signbit()
    )  # fmt: skip


@pytest.mark.sampled
@pytest.mark.parametrize("look", [True, False], ids=["looked at", "not looked at"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [1.0, 3.0, -0.5])
def test_the_gradient_is_minus_the_coefficients_times_the_incoming_gradient(scale, dtype, look, monkeypatch):
    loss, x, values = case(dtype)
    value = loss(x)
    monkeypatch.setattr(devices, "can_sync", lambda device: look) if not look else None
    value = loss(x)
    (scale * value).backward()
    assert same(x.grad, (-torch.tensor(scale, dtype=values.dtype) * values).to(dtype))


def test_a_backward_pass_without_a_factor_copies_nothing():
    """`loss.backward()` hands out what is there, and a leaf keeps that very memory."""
    loss, x, values = case()
    value = loss(x)
    with pytest.MonkeyPatch.context() as patch, counted(patch, "cpu") as issued:
        value.backward()
    assert set(issued.work) <= {"ones_like", "_local_scalar_dense"}, issued.work
    assert same(x.grad, -values)


def test_each_backward_pass_of_a_kept_graph_returns_its_own_memory():
    """Accumulation adds to `x.grad` in place: had a pass handed out what the next one needs, that would add to it."""
    loss, x, values = case()
    value = loss(x)
    for times in (1, 2, 3):
        value.backward(retain_graph=times < 3)
        assert torch.equal(x.grad, -times * values), times
    with pytest.raises(RuntimeError, match="second time"):
        value.backward()


def test_the_users_tensors_are_never_written_to():
    loss, x, values = case()
    value = loss(x)
    first = torch.autograd.grad(value, x, retain_graph=True)[0]
    second = torch.autograd.grad(value, x, retain_graph=True)[0]
    first.zero_()
    assert torch.equal(second, -values)
    value.backward()
    held = x.grad
    loss(x).backward()
    assert x.grad is held and torch.equal(held, -2 * values)
    assert torch.equal(second, -values)


def test_gradients_of_one_tensor_on_several_paths_add_up():
    """Inside a graph too, where autograd adds in place to what is its own."""
    loss, x, values = case()
    inside = x * 1.0
    kept = []
    inside.register_hook(lambda g: kept.append(g.clone()))
    one, other = loss(inside), loss(inside)
    (one + other).backward(retain_graph=True)
    (one + inside.sum()).backward()
    assert torch.equal(kept[0], -2 * values)
    assert torch.equal(kept[1], 1 - values)
    assert torch.equal(x.grad, -2 * values + (1 - values))


def test_saved_tensor_hooks_change_nothing():
    loss, x, values = case()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        value = loss(x)
    value.backward(retain_graph=True)
    value.backward()
    assert torch.equal(x.grad, -2 * values)


def test_without_torchs_flag_the_graph_is_treated_as_kept(monkeypatch):
    loss, x, values = case()
    monkeypatch.delattr(torch._C._autograd, "_get_current_graph_task_keep_graph")
    value = loss(x)
    value.backward(retain_graph=True)
    value.backward()
    assert np.array_equal(x.grad, -2 * values)
