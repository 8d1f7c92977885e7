"""`fibration bench`: its baselines compute the specs' losses, and its counts are right. Nothing is timed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from oracles.interpreter import Interpreter
from support import Batch, operator, spec

import fibration
from fibration.bench import candidates as candidates_module
from fibration.bench.baselines import BASELINES, baseline, prepare
from fibration.bench.candidates import EAGER, Candidate
from fibration.bench.measure import Failed, Timing, copy_call, interleave, median_of, ratio, reason
from fibration.bench.shapes import KI, MI, SPREADS, Shape, count, make_problem, parse_count, row_lengths, sweep
from fibration.errors import BatchError

SMALL = Shape(600, 20)
CPU = torch.device("cpu")


class Ticks:
    """A clock on which every call takes as long as it is told; it remembers who was called."""

    def __init__(self, seconds: dict[str, list[float]]) -> None:
        self.seconds = {name: iter(values) for name, values in seconds.items()}
        self.called: list[str] = []

    def __call__(self, call: Any) -> float:
        name = call()
        self.called.append(name)
        return next(self.seconds[name])


# ---------------------------------------------------------------- the baselines are the same losses


@pytest.mark.sampled
@pytest.mark.parametrize(("layout", "length"), [("packed", 20), ("packed", 2), ("padded", 20)])
@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("name", sorted(BASELINES))
def test_a_baseline_is_the_loss_of_its_spec(name: str, spread: str, layout: str, length: int) -> None:
    """Against the float64 interpreter on the program as lowered: J, and ∂J/∂log π on every token."""
    h = spec(name)
    p = make_problem(h, Shape(600, length, spread, layout), torch.float64, seed=3)
    where = torch.arange(len(p.log_probs)) if p.mask is None else p.mask.reshape(-1).nonzero()[:, 0]
    x = (p.log_probs - p.old_log_probs).reshape(-1)[where].numpy()
    assert np.abs(x).min() > 5e-4, "at 0 the hand-written losses have another slope"
    per_token = p.advantages.shape == p.log_probs.shape
    advantages = p.advantages.reshape(-1)[where].numpy() if per_token else np.repeat(p.advantages.numpy(), p.lengths)
    labels = {k: list(v) for k, v in p.labels.items()}
    if h.shape.is_chain and not h.policies:
        oracle = Interpreter.of(h, Batch(tuple(p.lengths), x, advantages, labels))
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


@pytest.mark.parametrize("name", sorted(BASELINES))
def test_the_batches_pass_and_exceed_each_gate(name: str) -> None:
    h = spec(name)
    p = make_problem(h, Shape(8 * KI, 64))
    op = operator(h)
    metrics = op.coefficients(p.log_probs, p.old_log_probs, p.advantages, p.index(op), policies=p.policies).metrics
    passed = [float(v) for k, v in metrics.items() if k.endswith("/passed") and "[" not in k]
    assert any(0 < v < 1 for v in passed), metrics


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_baseline_in_another_dtype_is_near_the_reference(dtype: torch.dtype) -> None:
    h = spec("fiberpo_domain")
    p = make_problem(h, SMALL, dtype)
    expected = candidates_module.reference(h, p)
    got = candidates_module.start(Candidate(EAGER), h, p)()
    assert candidates_module.disagreement(Candidate(EAGER), got, expected)[0] < (
        1e-5 if dtype == torch.float32 else 1e-2
    )


@pytest.mark.parametrize("name", ["fiberpo", "fiberpo_domain"])
def test_at_a_log_ratio_of_0_the_baselines_have_slope_2_as_documented(name: str) -> None:
    h = spec(name)
    p = make_problem(h, SMALL, torch.float64)
    p = replace(p, log_probs=p.old_log_probs.clone())
    compiled, written = candidates_module.reference(h, p), -candidates_module.start(Candidate(EAGER), h, p)()
    torch.testing.assert_close(written, 2 * compiled)


def test_only_the_shipped_hierarchy_has_its_baseline() -> None:
    ppo = spec("ppo")
    assert baseline(ppo) is BASELINES["ppo"]
    assert baseline(ppo.model_copy(update={"objective": fibration.trajectory_mean()})) is None
    assert baseline(spec("gspo").model_copy(update={"name": "mine"})) is None


# ---------------------------------------------------------------- taking turns, medians, ratios


def test_candidates_take_turns_after_a_warm_up() -> None:
    clock = Ticks({"a": [9, 9, 1, 3, 2], "b": [9, 9, 4, 6, 5], "c": [9, 9, 7, 9, 8]})
    timed = interleave({n: (lambda n=n: n) for n in "abc"}, 3, clock, warm_up=2)  # type: ignore[misc]
    assert "".join(clock.called) == "abc" * 5
    assert {n: t.samples for n, t in timed.items()} == {"a": (1, 3, 2), "b": (4, 6, 5), "c": (7, 9, 8)}
    assert [t.median for t in timed.values()] == [2, 5, 8]


def test_a_candidate_that_fails_does_not_stop_the_others() -> None:
    turns = iter([0, 0, 1])

    def falter() -> str:
        if next(turns):
            raise RuntimeError("out of\n\nmemory")
        return "b"

    clock = Ticks({"a": [1] * 4, "b": [1] * 4})
    timed = interleave({"a": lambda: "a", "b": falter}, 3, clock, warm_up=1)
    assert timed["a"] == Timing((1, 1, 1))
    assert timed["b"] == Failed("RuntimeError: out of memory")


def test_the_median_and_quartiles_of_timings_are_right() -> None:
    t = Timing((5.0, 1.0, 2.0, 4.0, 3.0))
    assert (t.median, t.quartiles) == (3, (2, 4))
    assert t.record() == {"median_s": 3, "quartiles_s": [2, 4], "best_s": 1, "samples_s": [5, 1, 2, 4, 3]}
    assert Timing((7.0,)).quartiles == (7, 7)
    assert ratio(t, Timing((6.0,))) == 0.5
    assert ratio(t, Failed("no")) is ratio(None, t) is None
    assert median_of(lambda: None, 3, lambda call: 2.0) == Timing((2, 2, 2))
    assert len(reason(ValueError("x" * 1000))) == 300


@pytest.mark.parametrize("bytes_moved", [8, 4096, 12 * KI])
def test_the_copy_moves_as_many_bytes(bytes_moved: int) -> None:
    copied = copy_call(bytes_moved, CPU)()
    assert isinstance(copied, torch.Tensor)
    assert 2 * copied.numel() * copied.element_size() == bytes_moved
    assert (copied == 1).all()


# ---------------------------------------------------------------- shapes


@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize(("tokens", "length"), [(1, 1), (7, 512), (600, 20), (4096, 1), (4096, 4096), (10000, 64)])
def test_row_lengths_add_up_to_the_tokens(tokens: int, length: int, spread: str) -> None:
    lengths = row_lengths(Shape(tokens, length, spread), np.random.default_rng(0))
    assert lengths.min() >= 1
    assert tokens - max(length, len(lengths)) < lengths.sum() <= max(tokens, len(lengths))
    if spread == "giant" and tokens > 2 * length > 2:
        assert lengths.max() >= tokens // 2
        assert sorted(lengths)[-2] == length
    if spread == "equal":
        assert len(set(lengths)) == 1


def test_bytes_moved_counts_inputs_and_results() -> None:
    packed = make_problem(spec("fiberpo"), Shape(640, 64, "equal"))
    assert packed.bytes_moved == 640 * 12 + 10 * 4 + 11 * 8
    padded = make_problem(spec("fiberpo"), Shape(640, 64, "equal", "padded"))
    assert padded.bytes_moved == 640 * 12 + 10 * 4 + 640
    assert make_problem(spec("ppo"), Shape(640, 64, "equal")).bytes_moved == 640 * 16 + 11 * 8  # advantages per token
    assert (
        make_problem(spec("fiberpo"), Shape(640, 64, "equal"), torch.bfloat16).bytes_moved == 640 * 8 + 10 * 2 + 11 * 8
    )


def test_a_batch_has_the_policies_that_its_hierarchy_is_given() -> None:
    """Near the old policy and never above probability 1, and 0 under the mask as all inputs; they too must be read."""
    assert not make_problem(spec("dapo"), SMALL).policies
    shape = Shape(640, 64, "equal", "padded")
    p = make_problem(spec("tis"), shape)
    assert list(p.policies) == ["rollout"] and p.policies["rollout"].dtype == torch.float32
    assert p.mask is not None
    apart = (p.policies["rollout"] - p.old_log_probs)[p.mask]
    assert 0.03 < apart.std() < 0.06 and p.policies["rollout"][p.mask].max() < 0
    assert p.bytes_moved == make_problem(spec("dapo"), shape).bytes_moved + 4 * 640


def test_equal_seeds_give_equal_batches() -> None:
    first, again = (make_problem(spec("fiberpo_domain"), SMALL, seed=4) for _ in range(2))
    other = make_problem(spec("fiberpo_domain"), SMALL, seed=5)
    assert torch.equal(first.log_probs, again.log_probs) and torch.equal(first.offsets, again.offsets)
    assert first.log_probs.shape != other.log_probs.shape or not torch.equal(first.log_probs, other.log_probs)
    assert set(first.labels["domain"]) <= {0, 1, 2, 3}


def test_padding_that_is_too_large_is_refused() -> None:
    with pytest.raises(BatchError, match="would be padded to 4097 × 32768"):
        make_problem(spec("ppo"), Shape(64 * KI, 8, "giant", "padded"))


def test_a_sweep_varies_one_thing_at_a_time() -> None:
    plan = sweep([], 512, quick=False)
    assert plan.centre == Shape(MI)
    shapes = plan.shapes()
    assert len(set(shapes)) == len(shapes) == 4 + 5 + 2 + 1 + 1
    fields = ("tokens", "length", "spread", "layout")
    assert all(sum(getattr(s, f) != getattr(plan.centre, f) for f in fields) <= 1 for s in shapes)
    assert {s.tokens for s in sweep([1000, 3000, 2000], 512, quick=False).shapes()} == {1000, 2000, 3000}
    assert max(s.length for s in sweep([1000], 512, quick=False).shapes()) <= 1000


def test_counts_are_read_and_written() -> None:
    assert [parse_count(t) for t in ("65536", "64Ki", " 4 Mi ")] == [64 * KI, 64 * KI, 4 * MI]
    assert [count(n) for n in (1000, 64 * KI, 4 * MI, 1025)] == ["1000", "64 Ki", "4 Mi", "1025"]
    assert str(Shape(64 * KI, 8, "giant", "padded")) == "64 Ki tokens, padded, length 8 (short but one)"
    for text in ("0", "-1", "1.5", "many", "4MiB", ""):
        with pytest.raises(BatchError, match="is not a number of tokens"):
            parse_count(text)
