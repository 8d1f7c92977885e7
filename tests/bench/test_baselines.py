"""`fibration bench`: its baselines compute the specs' losses, its batches suit them, and its counts are right."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from oracles.interpreter import Interpreter
from support import Batch, operator, spec

import fibration
from fibration.bench.baselines import BASELINES, baseline, prepare
from fibration.bench.batches import Shape, make_batch, parse_count, row_lengths
from fibration.bench.measure import COPY, EAGER, disagreement, reference, start
from fibration.errors import BatchError

SMALL = Shape(600, 20)
KI = 1024


# ---------------------------------------------------------------- the baselines are the same losses


@pytest.mark.sampled
@pytest.mark.parametrize(("layout", "length"), [("packed", 20), ("packed", 2), ("padded", 20), ("padded", 1)])
@pytest.mark.parametrize("spread", ["equal", "lognormal"])
@pytest.mark.parametrize("name", sorted(BASELINES))
def test_a_baseline_is_the_loss_of_its_spec(name: str, spread: str, layout: str, length: int) -> None:
    """Against the float64 interpreter on the program as lowered: J, and ∂J/∂log π on every token."""
    h = spec(name)
    p = make_batch(h, Shape(600, length, spread, layout), "float64", seed=3)
    lengths = p.offsets.diff().numpy()
    where = torch.arange(len(p.log_probs)) if p.mask is None else p.mask.reshape(-1).nonzero()[:, 0]
    x = (p.log_probs - p.old_log_probs).reshape(-1)[where].numpy()
    assert np.abs(x).min() > 5e-4, "at 0 the hand-written losses have another slope"
    per_token = p.advantages.shape == p.log_probs.shape
    advantages = p.advantages.reshape(-1)[where].numpy() if per_token else np.repeat(p.advantages.numpy(), lengths)
    if h.shape.is_chain and not h.policies:
        oracle = Interpreter.of(h, Batch(tuple(lengths), x, advantages, {k: v.tolist() for k, v in p.labels.items()}))
        expected, objective = oracle.coefficients(), oracle.objective()
    else:  # the torch backend in float64, which test_shipped.py compares with explicit matrices
        result = operator(h).coefficients(
            p.log_probs, p.old_log_probs, p.advantages, p.index(operator(h)), policies=p.policies, metrics=False
        )
        expected, objective = result.values.reshape(-1)[where].numpy(), float(result.objective)

    leaf = p.log_probs.clone().requires_grad_()
    written = baseline(h)
    assert written is not None
    loss = written(leaf, p.old_log_probs, p.advantages, prepare(p))
    (gradient,) = torch.autograd.grad(loss, leaf)
    assert float(loss.detach()) == pytest.approx(-objective, rel=1e-12, abs=1e-15)
    np.testing.assert_allclose(
        -gradient.reshape(-1)[where].numpy(), expected, rtol=1e-9, atol=1e-12 * abs(expected).max()
    )
    if p.mask is not None:
        assert (gradient[~p.mask] == 0).all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_baseline_in_another_dtype_is_near_the_reference(dtype: str) -> None:
    h = spec("fiberpo_domain")
    p = make_batch(h, SMALL, dtype)
    assert disagreement(EAGER, start(h, p, EAGER)(), reference(h, p)) < (1e-5 if dtype == "float32" else 1e-2)


@pytest.mark.parametrize("name", ["fiberpo", "fiberpo_domain"])
def test_at_a_log_ratio_of_0_the_baselines_have_slope_2_as_documented(name: str) -> None:
    h = spec(name)
    p = make_batch(h, SMALL, "float64")
    p = replace(p, log_probs=p.old_log_probs.clone())
    torch.testing.assert_close(-start(h, p, EAGER)(), 2 * reference(h, p))


def test_only_the_shipped_hierarchy_has_its_baseline() -> None:
    ppo = spec("ppo")
    assert baseline(ppo) is not None
    assert baseline(ppo.model_copy(update={"objective": fibration.trajectory_mean()})) is None
    assert baseline(spec("gspo").model_copy(update={"name": "mine"})) is None


# ---------------------------------------------------------------- batches


@pytest.mark.parametrize("name", sorted(BASELINES))
def test_the_batches_pass_and_exceed_each_gate(name: str) -> None:
    h = spec(name)
    p = make_batch(h, Shape(8 * KI, 64))
    op = operator(h)
    metrics = op.coefficients(p.log_probs, p.old_log_probs, p.advantages, p.index(op), policies=p.policies).metrics
    passed = [float(v) for k, v in metrics.items() if k.endswith("/passed") and "[" not in k]
    assert any(0 < v < 1 for v in passed), metrics


@pytest.mark.parametrize("spread", ["equal", "lognormal"])
@pytest.mark.parametrize(("tokens", "length"), [(1, 1), (7, 512), (600, 20), (4096, 1), (4096, 4096), (10000, 64)])
def test_row_lengths_add_up_to_the_tokens(tokens: int, length: int, spread: str) -> None:
    lengths = row_lengths(Shape(tokens, length, spread), np.random.default_rng(0))
    assert lengths.min() >= 1
    assert tokens - max(length, len(lengths)) < lengths.sum() <= max(tokens, len(lengths))
    assert spread == "lognormal" or len(set(lengths)) == 1


def test_bytes_moved_counts_inputs_and_results() -> None:
    packed = make_batch(spec("fiberpo"), Shape(640, 64, "equal"))
    assert packed.bytes_moved == 640 * 12 + 10 * 4 + 11 * 8
    padded = make_batch(spec("fiberpo"), Shape(640, 64, "equal", "padded"))
    assert padded.bytes_moved == 640 * 12 + 10 * 4 + 640
    assert make_batch(spec("ppo"), Shape(640, 64, "equal")).bytes_moved == 640 * 16 + 11 * 8  # advantages per token
    narrow = make_batch(spec("fiberpo"), Shape(640, 64, "equal"), "bfloat16")
    assert narrow.bytes_moved == 640 * 8 + 10 * 2 + 11 * 8


def test_the_copy_moves_as_many_bytes() -> None:
    batch = make_batch(spec("fiberpo"), Shape(640, 64, "equal"))
    copied = start(spec("fiberpo"), batch, COPY)()
    assert 2 * copied.numel() * copied.element_size() == batch.bytes_moved
    assert (copied == 1).all()


def test_a_batch_has_the_policies_that_its_hierarchy_is_given() -> None:
    """Near the old policy and never above probability 1, and 0 under the mask as all inputs; they too must be read."""
    assert not make_batch(spec("dapo"), SMALL).policies
    shape = Shape(640, 64, "equal", "padded")
    p = make_batch(spec("tis"), shape)
    assert list(p.policies) == ["rollout"] and p.policies["rollout"].dtype == torch.float32
    assert p.mask is not None
    apart = (p.policies["rollout"] - p.old_log_probs)[p.mask]
    assert 0.03 < apart.std() < 0.06 and p.policies["rollout"][p.mask].max() < 0
    assert p.bytes_moved == make_batch(spec("dapo"), shape).bytes_moved + 4 * 640


def test_equal_seeds_give_equal_batches() -> None:
    first, again = (make_batch(spec("fiberpo_crossed"), SMALL, seed=4) for _ in range(2))
    other = make_batch(spec("fiberpo_crossed"), SMALL, seed=5)
    assert torch.equal(first.log_probs, again.log_probs) and torch.equal(first.offsets, again.offsets)
    assert first.log_probs.shape != other.log_probs.shape or not torch.equal(first.log_probs, other.log_probs)
    assert set(first.labels["domain"].tolist()) <= {0, 1, 2, 3}


def test_counts_are_read() -> None:
    assert [parse_count(t) for t in ("65536", "64Ki", " 4 Mi ")] == [64 * KI, 64 * KI, 4 * KI * KI]
    for text in ("0", "-1", "1.5", "many", "4MiB", ""):
        with pytest.raises(BatchError, match="is not a number of tokens"):
            parse_count(text)
