"""One optimizer step beside the declared loss: every planted mistake is found and named, and right steps pass."""

import copy
import random

import numpy as np
import pytest
import torch
from support import refuses
from torch import nn
from training_steps import ROWS, K, Trainer, data, declared, grpo, in_parts, policy

from fibration import AuditError, audit_step


@pytest.fixture
def model():
    return policy()


def said(found, name):
    return next((f.text for f in found.failures if f.name == name), "")


# ------------------------------------------------------------ right steps


@pytest.mark.parametrize("loss", [declared, in_parts])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_right_step_passes(loss, dtype):
    model = policy(dtype)
    d = data(model)
    found = audit_step(model, Trainer(model, d), loss(model, d))
    assert found.ok, str(found)
    assert found.factor == pytest.approx(1, abs=0.02 if dtype == torch.bfloat16 else 1e-5)
    assert found.passes == K and set(found.factors) == {"embed.weight", "body.weight", "body.bias", "head.weight"}
    found.raise_for_status()


@pytest.mark.parametrize("norm", [0.5, 0.0123])
def test_a_clipped_step_passes_and_the_factor_is_the_one_before(model, norm):
    d = data(model)
    trainer = Trainer(model, d, after=lambda: nn.utils.clip_grad_norm_(model.parameters(), norm * 1e-2))
    found = audit_step(model, trainer, declared(model, d), max_grad_norm=norm * 1e-2)
    assert found.ok and found.factor == pytest.approx(1, rel=1e-4)
    assert "clipped to the norm" in str(found)


def test_a_clipped_step_in_bfloat16_passes():
    model = policy(torch.bfloat16)
    d = data(model)
    trainer = Trainer(model, d, after=lambda: nn.utils.clip_grad_norm_(model.parameters(), 0.02))
    found = audit_step(model, trainer, declared(model, d))
    assert found.ok and found.factor == pytest.approx(1, abs=0.03)


def test_a_gradient_of_zeros_is_missing(model):
    d = data(model)

    def zero():
        for p in model.parameters():
            p.grad.zero_()

    found = audit_step(model, Trainer(model, d, after=zero), declared(model, d))
    assert "no gradient but 0" in said(found, "missing") and found.factor is None


def test_a_wrong_step_that_is_clipped_is_found(model):
    d = data(model)
    trainer = Trainer(model, d, divide=1, after=lambda: nn.utils.clip_grad_norm_(model.parameters(), 0.01))
    found = audit_step(model, trainer, declared(model, d))
    assert found.factor == pytest.approx(K, rel=1e-3) and not found.ok


@pytest.mark.parametrize(("divided", "factor"), [(1, 1), (K, 1 / K)])
def test_gradients_may_be_divided_once_at_the_end(model, divided, factor):
    def divide():
        for p in model.parameters():
            p.grad /= K

    d = data(model)
    found = audit_step(model, Trainer(model, d, divide=divided, after=divide), declared(model, d))
    assert found.factor == pytest.approx(factor, rel=1e-5) and found.ok == (factor == 1)
    assert found.ok or "once too often" in said(found, "factor")


def test_the_optimizer_step_and_zero_grad_are_part_of_a_step(model):
    d, optimizer = data(model), torch.optim.AdamW(model.parameters(), lr=0.1)
    before = copy.deepcopy(model.state_dict())

    def end():
        optimizer.step()
        optimizer.zero_grad()

    found = audit_step(model, Trainer(model, d, after=end), declared(model, d))
    assert found.ok and "as an optimizer began its step" in found.read
    assert all(torch.equal(v, model.state_dict()[k]) for k, v in before.items())
    assert not optimizer.state


def test_a_gradient_scaler_is_undone_by_the_optimizers_step(model):
    d, optimizer, scaler = data(model), torch.optim.SGD(model.parameters()), torch.amp.GradScaler("cpu", 1024.0)

    def scaled(*given):
        return scaler.scale(grpo(*given))

    def end():
        scaler.step(optimizer)

    assert audit_step(model, Trainer(model, d, loss=scaled, after=end), declared(model, d)).ok
    found = audit_step(model, Trainer(model, d, loss=scaled), declared(model, d))
    assert "the scale of a GradScaler?" in said(found, "factor")


def test_frozen_and_tied_parameters(model):
    model = policy(tied=True)
    model.body.bias.requires_grad_(False)
    d = data(model)
    found = audit_step(model, Trainer(model, d), declared(model, d))
    assert found.ok and set(found.factors) == {"embed.weight", "body.weight"}
    assert not model.body.bias.requires_grad and model.head.weight is model.embed.weight


def test_without_grad_and_with_dropout():
    model = policy(dropout=0.5)
    d = data(model)
    with torch.no_grad():
        assert audit_step(model, Trainer(model, d, order=[3, 2, 1, 0]), declared(model, d)).ok
    assert model.drop.p == 0.5


def test_all_is_left_as_found(model):
    d = data(model)
    model.embed.weight.grad = torch.ones_like(model.embed.weight)
    gradient, state = model.embed.weight.grad, copy.deepcopy(model.state_dict())
    model.body.eval()

    def spoil():
        model.train()
        model.embed.weight.grad.add_(5)
        torch.rand(3), random.random(), np.random.rand()
        with torch.no_grad():
            model.head.weight.add_(1)

    torch.manual_seed(3), random.seed(3), np.random.seed(3)
    audit_step(model, Trainer(model, d, after=spoil), declared(model, d), move=0.1)
    drawn = torch.rand(1), random.random(), np.random.rand()
    torch.manual_seed(3), random.seed(3), np.random.seed(3)
    assert drawn == (torch.rand(1), random.random(), np.random.rand())
    assert model.embed.weight.grad is gradient and bool((gradient == 1).all()) and model.head.weight.grad is None
    assert all(torch.equal(v, model.state_dict()[k]) for k, v in state.items())
    assert model.training and not model.body.training


# ------------------------------------------------------------ planted mistakes


def test_a_missing_division_by_accumulation_steps(model):
    d = data(model)
    found = audit_step(model, Trainer(model, d, divide=1), declared(model, d))
    assert found.factor == pytest.approx(K, rel=1e-4)
    assert "4 times the declared one: it is not divided by the accumulation steps, 4" in said(found, "factor")
    with pytest.raises(AuditError, match="4 times the declared one"):
        found.raise_for_status()


def test_a_division_by_accumulation_steps_once_too_often(model):
    d = data(model)
    found = audit_step(model, Trainer(model, d, divide=K * K), declared(model, d))
    assert found.factor == pytest.approx(1 / K, rel=1e-4) and "1/4 times" in said(found, "factor")


def test_a_wrong_sign(model):
    d = data(model)
    found = audit_step(model, Trainer(model, d, divide=-K), declared(model, d))
    assert "the step follows J" in said(found, "factor")


def test_a_parameter_without_gradient(model):
    d = data(model)

    def of(rows):
        ids = d.ids[rows]
        before = torch.cat([torch.zeros_like(ids[:, :1]), ids[:, :-1]], 1)
        hidden = torch.tanh(model.body(model.embed(before)))
        return (hidden @ model.head.weight.detach().T).log_softmax(-1).gather(-1, ids[..., None])[..., 0]

    found = audit_step(model, Trainer(model, d, log_probs=of), declared(model, d))
    assert "head.weight has no gradient" in said(found, "missing")
    assert found.factors["head.weight"] == 0 and found.factor == pytest.approx(1, rel=1e-4)


def test_a_copy_of_the_model_is_trained(model):
    d, other = data(model), copy.deepcopy(model)
    refuses(
        AuditError,
        lambda: audit_step(model, Trainer(other, d), declared(model, d)),
        what="no parameter of the model gets a gradient",
        remedy="a copy of the model",
    )


def test_coefficients_of_older_weights(model):
    """At the first step they are those of now, unless weights move."""
    d = data(model, drift=0.0)
    kept = {}

    def stale(log_probs, old, advantages, mask):
        key = float(advantages.sum())
        ratio = kept.setdefault(key, (log_probs - old).exp().detach())
        return -(ratio * log_probs * advantages[:, None] * mask / mask.sum(-1, keepdim=True)).sum(-1).mean()

    trainer = Trainer(model, d, loss=stale)
    trainer()
    model.zero_grad()
    assert audit_step(model, trainer, declared(model, d)).ok
    found = audit_step(model, trainer, declared(model, d), move=0.05)
    assert "log-probs of other weights" in said(found, "direction") and found.factor is None
    with torch.no_grad():
        model.head.weight.mul_(1.05)
    assert not audit_step(model, trainer, declared(model, d)).ok


def test_a_gradient_that_is_overwritten(model):
    d = data(model)
    found = audit_step(model, Trainer(model, d, between=lambda _: model.zero_grad()), declared(model, d))
    assert "of the last of 4 backward passes alone" in said(found, "accumulation")
    assert "another direction" in said(found, "direction")


def test_a_micro_batch_that_is_left_out(model):
    d = data(model)
    trainer = Trainer(model, d, order=[0, 1, 3])
    found = audit_step(model, trainer, in_parts(model, d))
    assert "micro-batch 3 of 4 of the declared loss is left out" in said(found, "accumulation")
    assert not audit_step(model, trainer, declared(model, d)).ok


@pytest.mark.parametrize("loss", [declared, in_parts])
def test_a_micro_batch_that_comes_twice(model, loss):
    d = data(model)
    found = audit_step(model, Trainer(model, d, order=[0, 1, 1, 2, 3]), loss(model, d))
    assert "backward passes 2 and 3 have the same gradient" in said(found, "accumulation")


def test_a_normaliser_per_micro_batch(model):
    def token_mean(log_probs, old, advantages, mask):
        return grpo(log_probs, old, advantages, mask) * mask.sum(-1).float().mean()

    d = data(model)
    for loss in (declared, in_parts):
        found = audit_step(model, Trainer(model, d, loss=token_mean), loss(model, d))
        assert "each has a normaliser of its own" in said(found, "accumulation")


def test_labels_of_other_rows(model):
    d = data(model)
    found = audit_step(model, Trainer(model, d, advantages=d.advantages.roll(1)), declared(model, d))
    assert "other rows, labels, advantages" in said(found, "direction") and found.factor is None


def test_the_optimizer_steps_after_each_micro_batch(model):
    d, optimizer = data(model), torch.optim.SGD(model.parameters(), 0.1)
    found = audit_step(model, Trainer(model, d, between=lambda _: optimizer.step()), declared(model, d))
    assert "begins 3 steps" in said(found, "optimizer")


def test_a_parameter_that_no_optimizer_has(model):
    d, optimizer = data(model), torch.optim.SGD([p for n, p in model.named_parameters() if n != "body.bias"])
    found = audit_step(model, Trainer(model, d, after=optimizer.step), declared(model, d))
    assert "no optimizer has body.bias" in said(found, "optimizer")


def test_nan_in_one_parameter(model):
    d = data(model)
    trainer = Trainer(model, d, after=lambda: model.body.bias.grad.fill_(float("nan")))
    found = audit_step(model, trainer, declared(model, d))
    assert "body.bias is NaN" in said(found, "finite")


def test_factors_that_differ_from_parameter_to_parameter(model):
    d = data(model)
    found = audit_step(model, Trainer(model, d, after=lambda: model.head.weight.grad.mul_(2)), declared(model, d))
    assert found.factor is None and found.factors["head.weight"] == pytest.approx(2, rel=1e-4)
    assert "2 in head.weight" in said(found, "factor")


def test_a_term_that_the_declared_loss_lacks(model):
    d = data(model)
    model.extra = nn.Parameter(torch.ones(3))
    found = audit_step(model, Trainer(model, d, after=lambda: model.extra.sum().backward()), declared(model, d))
    assert "extra gets a gradient" in said(found, "extra")


def test_bfloat16_does_not_hide_a_factor():
    model = policy(torch.bfloat16)
    d = data(model)
    found = audit_step(model, Trainer(model, d, divide=1), declared(model, d))
    assert "not divided by the accumulation steps" in said(found, "factor")


# ------------------------------------------------------------ what cannot be audited


def test_what_cannot_be_audited_is_refused_in_words(model):
    d = data(model)
    right = Trainer(model, d)
    refuses(AuditError, lambda: audit_step(model, lambda: 1 / 0, right), what="`step` raises ZeroDivisionError")
    refuses(AuditError, lambda: audit_step(model, right, lambda: 1 / 0), what="`loss` raises ZeroDivisionError")
    refuses(AuditError, lambda: audit_step(model, right, lambda: 3.0), what="`loss` raises TypeError")
    refuses(AuditError, lambda: audit_step(model, right, lambda: model(d.ids)), found="shape [8, 6]")
    refuses(AuditError, lambda: audit_step(model, right, lambda: model(d.ids).sum() * 0), what="no gradient in the")
    refuses(AuditError, lambda: audit_step(model, right, lambda: model(d.ids).sum() * torch.nan), what="NaN or inf")
    refuses(AuditError, lambda: audit_step(model.requires_grad_(False), right, right), what="requires grad")


def test_gradients_that_are_gone_are_an_error(model):
    d = data(model)
    trainer = Trainer(model, d, after=model.zero_grad)
    refuses(AuditError, lambda: audit_step(model, trainer, declared(model, d)), what="cleared its gradients")


def test_an_error_leaves_the_model_as_found(model):
    before = model.head.weight.clone()

    def spoil():
        with torch.no_grad():
            model.head.weight.add_(1)
        raise ValueError

    with pytest.raises(AuditError):
        audit_step(model, spoil, lambda: model(torch.zeros(ROWS, 2, dtype=torch.long)).sum())
    assert torch.equal(before, model.head.weight)
