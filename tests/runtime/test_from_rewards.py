"""The example of a loop with rewards and a reference model: micro-batches have the gradient of the whole batch."""

import importlib
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


@pytest.mark.thorough
def test_the_example_with_rewards_has_the_gradient_of_the_whole_batch(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    example, toy = (importlib.import_module(name) for name in ("from_rewards", "toy"))
    op = example.fibration.compile(example.near, backend="torch")
    policy, frozen = (toy.Policy(seed).double() for seed in (1, 2))
    batch = toy.rollouts(toy.Policy().double())
    index = op.index(offsets=batch.offsets, prompt_group=batch.prompt_group, domain=batch.domain)
    rewards, now, theirs = example.scores(batch), policy(batch), frozen(batch).detach()
    same = torch.tensor([[a == b for b in batch.prompt_group] for a in batch.prompt_group]).double()
    advantages = rewards - (same @ rewards - rewards) / (same.sum(1) - 1)
    plain = example.fibration.compile(example.fibration.load("fiberpo_domain"), backend="torch")
    at = plain.index(offsets=batch.offsets, prompt_group=batch.prompt_group, domain=batch.domain)
    lengths = torch.tensor(batch.lengths)
    square = ((now - theirs) ** 2 / 2 / lengths.repeat_interleave(lengths)).sum() / len(lengths)
    loss = plain.loss(now, batch.old_log_probs, advantages, at).loss + 0.05 * square
    wanted = torch.autograd.grad(loss, list(policy.parameters()))
    coef = example.backward(op, policy, frozen, batch.split(5))
    assert float(coef.objective) == pytest.approx(-float(loss.detach()), rel=1e-12)
    assert float(coef.metrics["penalty/kl"]) == pytest.approx(0.05 * float(square.detach()), rel=1e-12)
    assert index.size["prompt_group"] == 8 and max(float(g.abs().max()) for g in wanted) > 1e-3
    for parameter, gradient in zip(policy.parameters(), wanted, strict=True):
        assert torch.allclose(parameter.grad, gradient, rtol=1e-10, atol=1e-14)
    example.main()
    assert capsys.readouterr().out.count("update") == 4
