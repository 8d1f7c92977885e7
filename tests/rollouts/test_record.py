"""Recording, without running a language model: advantages, micro-batches, exact updates, and the model's plumbing."""

from __future__ import annotations

import copy
import importlib.util
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from example_loops import example
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import fibration
from fibration.errors import FibrationError, MissingDependency
from fibration.rollouts import load_rollouts

record: Any = example("record_rollouts")

EOS, LINE_BREAK = 0, 1


def test_advantages_are_standardised_per_group() -> None:
    advantages = record.group_advantages([[1, 0, 0, 0], [1, 1, 1, 1], [0.1, 0.1, 0.1, 0.1], [1, 1, 0, 0]])
    assert advantages.dtype == np.float32
    np.testing.assert_allclose(advantages[0], np.array([3, -1, -1, -1]) / np.sqrt(3), rtol=1e-5)
    np.testing.assert_array_equal(advantages[1:3], 0)
    np.testing.assert_allclose(advantages[3], [1, 1, -1, -1], rtol=1e-5)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=20), st.integers(1, 25))
def test_micro_batches_keep_trajectories_whole_and_in_order(lengths: list[int], trajectories: int) -> None:
    offsets = np.cumsum([0, *lengths])
    pieces = record.micro_batches(offsets, trajectories)
    tokens = np.arange(offsets[-1])
    np.testing.assert_array_equal(np.concatenate([tokens[piece] for piece in pieces]), tokens)
    assert len(pieces) == -(-len(lengths) // trajectories)
    assert {piece.start for piece in pieces} <= set(offsets.tolist())


class Policy(nn.Module):
    """A stand-in with what `record` uses of a language model: next-token logits, a growing cache, gradients."""

    def __init__(self, vocabulary: int = 11, width: int = 7, cache: str = "past_key_values") -> None:
        super().__init__()
        self.cache = cache
        self.embedding = nn.Embedding(vocabulary, width)
        self.step = nn.GRUCell(width, width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor, use_cache: bool = True, logits_to_keep: int = 0, **given: Any) -> SimpleNamespace:
        assert set(given) <= {self.cache}
        cache = given.get(self.cache) or State()
        logits = []
        for token in tokens.T:
            cache.state = self.step(self.embedding(token), cache.state)
            logits.append(self.head(cache.state))
        return SimpleNamespace(logits=torch.stack(logits, dim=1)[:, -logits_to_keep:], **{self.cache: cache})


class State:
    state: Tensor | None = None

    def batch_repeat_interleave(self, samples: int) -> None:
        assert self.state is not None
        self.state = self.state.repeat_interleave(samples, dim=0)


def policy(cache: str = "past_key_values") -> Policy:
    torch.manual_seed(0)
    return Policy(cache=cache)


@pytest.mark.thorough
@pytest.mark.parametrize("cache", ["past_key_values", "cache"])  # of transformers up to 5.23, and from 5.24 on
def test_the_sampler_and_the_teacher_forced_pass_agree(cache: str) -> None:
    model, stop = policy(cache), torch.tensor([EOS, LINE_BREAK])
    generator = torch.Generator().manual_seed(5)
    completions, sampled = record.sample(model, [4, 5, 6], 40, 9, stop, generator)
    lengths = {len(tokens) for tokens in completions}
    assert len(completions) == 40
    assert {1, 9} <= lengths <= set(range(1, 10))
    for tokens in completions:
        assert not {EOS, LINE_BREAK} & set(tokens[:-1])
        assert len(tokens) == 9 or tokens[-1] in (EOS, LINE_BREAK)

    forced = record.completion_log_probs(model, [4, 5, 6], completions)
    record.check_agreement(forced, sampled)
    alone = [record.completion_log_probs(model, [4, 5, 6], [tokens]) for tokens in completions]
    torch.testing.assert_close(forced, torch.cat(alone))
    with pytest.raises(FibrationError, match=r"-\d\.\d+ sampled, -\d\.\d+ forced, at token 3"):
        record.check_agreement(forced, sampled.index_add(0, torch.tensor([3]), torch.tensor([0.01])))
    with pytest.raises(FibrationError, match="at token 2"):
        record.check_agreement(forced, sampled.index_fill(0, torch.tensor([2]), torch.nan))


def batch(model: Policy) -> tuple[list[list[list[int]]], np.ndarray, Tensor, Tensor]:
    """6 prompt groups of 4: completions, offsets, old log-probs and advantages."""
    generator = torch.Generator().manual_seed(2)
    stop = torch.tensor([EOS, LINE_BREAK])
    groups, old = [], []
    for k in range(6):
        completions, _ = record.sample(model, [k], 4, 8, stop, generator)
        groups.append(completions)
        old.append(record.completion_log_probs(model, [k], completions).detach())
    rewards = torch.rand(6, 4, generator=generator).round()
    offsets = np.cumsum([0, *(len(tokens) for group in groups for tokens in group)])
    return groups, offsets, torch.cat(old), torch.from_numpy(record.group_advantages(rewards).ravel())


def test_updates_in_micro_batches_equal_updates_on_the_whole_batch() -> None:
    """Three SGD steps by coefficients and micro-batches equal three by autograd through `loss`, to rounding."""
    operator = fibration.compile(fibration.load("fiberpo_domain"), backend="torch")
    start = policy()
    groups, offsets, old, advantages = batch(start)
    index = operator.index(
        offsets=torch.from_numpy(offsets),
        prompt_group=[k for k in range(6) for _ in range(4)],
        domain=["odd" if k % 2 else "even" for k in range(6) for _ in range(4)],
    )

    def run(exactly: bool) -> tuple[Policy, list[float]]:
        model = copy.deepcopy(start)
        optimiser = torch.optim.SGD(model.parameters(), lr=2.0)
        objectives = []

        def log_probs(k: int) -> Tensor:
            return record.completion_log_probs(model, [k], groups[k])

        for _ in range(3):
            if exactly:
                optimiser.zero_grad()
                result = operator.loss(torch.cat([log_probs(k) for k in range(6)]), old, advantages, index)
                result.loss.backward()
                optimiser.step()
                objectives.append(-result.loss.item())
            else:
                pieces = record.micro_batches(offsets, 4)
                step = record.training_step(operator, index, log_probs, pieces, old, advantages, optimiser)
                objectives.append(step)
        return model, objectives

    whole, whole_objectives = run(exactly=True)
    pieces, pieces_objectives = run(exactly=False)
    np.testing.assert_allclose(pieces_objectives, whole_objectives, rtol=1e-4, atol=1e-7)
    for before, a, b in zip(start.parameters(), whole.parameters(), pieces.parameters(), strict=True):
        torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-6)
        assert not torch.equal(a, before)
    assert pieces_objectives[-1] > pieces_objectives[0]


def recorded(path: Any, monkeypatch: pytest.MonkeyPatch, engine: str | None) -> tuple[Any, list[torch.dtype]]:
    """A batch of the small policy, and in what it sampled."""
    used: list[torch.dtype] = []

    def sample_domain(model: Policy, tokenizer: Any, domain: str, *_: Any) -> list[Any]:
        used.append(model.embedding.weight.dtype)
        generator, groups = torch.Generator().manual_seed(7), []
        for k in (4, 5):
            found, sampled = record.sample(model, [k], 4, 8, torch.tensor([EOS]), generator)
            groups.append(record.Group(domain, f"{domain}/{k}", [k], found, sampled, [0.0, 1.0, 0.0, 1.0]))
        return groups

    monkeypatch.setattr(record, "load_model", lambda: (policy(), SimpleNamespace(decode=str)))
    monkeypatch.setattr(record, "sample_domain", sample_domain)
    given: Any = {"domains": {"words": (), "sums": ()}, "samples_per_prompt": 4, "updates": 1}
    return record.record(path, **given, learning_rate=1e-2, engine=engine), used


def test_the_log_probs_of_the_engine_are_recorded(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What sampled is another policy than the old one, whose log-probs are the float32 model's."""
    batch, used = recorded(tmp_path / "batch", monkeypatch, "bfloat16")
    assert set(used) == {torch.bfloat16} and list(batch.policies) == ["rollout"]
    kept = load_rollouts(tmp_path / "batch")
    np.testing.assert_array_equal(kept.policies["rollout"], batch.policies["rollout"])
    difference = np.abs(batch.policies["rollout"] - batch.old_log_probs)
    assert 0 < difference.mean() < 0.05 and np.abs(batch.log_probs - batch.old_log_probs).mean() > 0
    with torch.no_grad():
        first = batch.token_ids[: batch.offsets[1]].tolist()
        exact = record.completion_log_probs(policy(), [4], [first])
    np.testing.assert_array_equal(batch.old_log_probs[: len(first)], exact)


def test_without_an_engine_there_are_two_policies(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    batch, used = recorded(tmp_path / "batch", monkeypatch, None)
    assert set(used) == {torch.float32} and not batch.policies
    with pytest.raises(FibrationError, match=r"'int8'(.|\n)*bfloat16, float16"):
        recorded(tmp_path / "batch", monkeypatch, "int8")


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match=r"the package transformers(.|\n)*pip install '\.\[record\]'"):
        record.load_model()
    with pytest.raises(MissingDependency, match="reasoning-gym"):
        record.sample_domain(None, None, "logic", (), 8, 8, 32, 0)
