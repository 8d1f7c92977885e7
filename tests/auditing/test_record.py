"""Programs of functions: recorded formulas have autograd's numbers, and equality is proved where it holds."""

import inspect

import numpy as np
import pytest
import torch
from oracles.audited import LABELS, function, parameters
from oracles.loss_functions import MISTAKES, RIGHT, per_token, token_mean

from fibration import audit
from fibration.auditing import formula as f
from fibration.auditing.batch import Padding, drawn
from fibration.auditing.function import Function
from fibration.auditing.prove import equal
from fibration.auditing.reference import numbers_of
from fibration.language.loading import shipped

FUNCTIONS = {
    **{name: lambda name=name: function(name, parameters(name)) for name in shipped() if name not in LABELS},
    **{name: lambda m=m: m.function for name, m in MISTAKES.items()},
    **{name: lambda one=one: one for name, (one, _) in RIGHT.items()},
}
# No program here, or one with other numbers: more than 64 paths, an operator without a rule, 16 bits, NaN.
UNTRACED = {"best_of_group", "kl_cov", "pass_at_k", "of_nested_tensors", "spread_of_one_token"}
UNTRACED |= {"ratio_in_half_precision", "log_ratio_in_bfloat16"}


def test_most_functions_have_a_program():
    assert len(FUNCTIONS) >= 180 and len(UNTRACED) <= 7


@pytest.mark.sampled
@pytest.mark.parametrize("name", [n for n in FUNCTIONS if n not in UNTRACED])
def test_a_program_has_autograds_numbers(name):
    of = Function(FUNCTIONS[name](), name)
    lengths, groups = ((2, 2, 1, 2), (0, 0, 1, 1)) if of.reads_rewards else ((3, 1, 2), (0, 1, 0))
    for padding in (Padding(), Padding(holes=True)):
        one, other = (drawn(s, lengths, 0.5, groups=groups, padding=padding) for s in (1, 7))
        made, found = of.traced(one), of.evaluate(other)
        *mine, value = f.evaluate([*of.formulas(one), made.loss], numbers_of(other, of.per_token))
        np.testing.assert_allclose(np.array(mine, float), found.coefficients, rtol=1e-11, atol=1e-12)
        assert value == pytest.approx(found.value, rel=1e-11, abs=1e-12, nan_ok=True)


def right(log_probs, old_log_probs, advantages, mask):
    return token_mean(per_token(log_probs, old_log_probs, advantages), mask)


def test_a_number_that_leaves_the_tensors_keeps_its_formula():
    def loss(log_probs, old_log_probs, advantages, mask):
        total = right(log_probs, old_log_probs, advantages, mask) * (1 + (old_log_probs * mask).sum().item() ** 2)
        return total * 2 if advantages.sum() > 0 else total

    of = Function(loss, "loss")
    for seed in (1, 2, 3, 4):
        other = drawn(seed, (2, 1), 0.5, advantages=(1.0, (-1) ** seed * 2.0))
        mine = f.evaluate(of.formulas(drawn(9, (2, 1), 0.1)), numbers_of(other, False))
        np.testing.assert_allclose(mine, of.evaluate(other).coefficients, rtol=1e-12)


def test_what_is_equal_in_every_case_that_can_be_is_proved():
    a, x, y = (f.single(f.atom("var", name)) for name in "axy")
    r, low, high = f.exp(x), f.number(0.8), f.number(1.2)
    clipped = f.mul(f.minimum(f.maximum(r, low), high), a)
    top = f.choose(f.less(x, f.number(np.log(1.2))), r, high)
    by_cases = f.choose(f.less(a, 0), f.mul(a, f.maximum(r, low)), f.mul(a, top))
    assert equal(f.minimum(f.mul(r, a), clipped), by_cases)
    assert not equal(clipped, by_cases) and not equal(f.mul(2, by_cases), by_cases)
    never = f.choose(f.less(1, f.add(x, y)), 7, 1)
    one, two = (f.choose(f.less(x, 0), f.choose(f.less(y, 0), inner, 2), 3) for inner in (never, 1))
    assert equal(one, two) and not equal(x, f.neg(x))


def half(log_probs, old_log_probs, advantages, mask):
    return 0.5 * right(log_probs, old_log_probs, advantages, mask)


def leaks(log_probs, old_log_probs, advantages, mask):
    return right(log_probs, old_log_probs + 0.5 * (log_probs - log_probs.detach()), advantages, mask)


@pytest.mark.parametrize("loss", [half, leaks])
def test_a_loss_times_a_factor_is_named_and_fails(loss):
    found = audit(loss)
    assert not found.ok and found.failures[0].name == "factor" and not audit(loss, "dapo").ok
    first = found.losses[0]
    assert (first.name, first.factor, first.strength) == ("dapo", 0.5, "proved")
    assert "'dapo' × 0.5: divided once more by 2" in str(found)


def test_an_engines_weight_with_a_gradient_is_no_other_loss():
    def loss(log_probs, old_log_probs, rollout_log_probs, advantages, mask):
        weight = (log_probs - rollout_log_probs).exp().clamp(max=2)
        return token_mean(weight * per_token(log_probs, old_log_probs, advantages), mask)

    found = audit(loss)
    assert "engine" in [x.name for x in found.failures] and not found.identified and "vespo" not in str(found)


def test_a_report_without_a_program_says_so_in_its_first_line():
    def loss(log_probs, old_log_probs, advantages, mask):
        order = (log_probs - old_log_probs).flatten().argsort().float().mean()
        return right(log_probs, old_log_probs, advantages, mask) * (1 + 0 * order)

    found = audit(loss, "dapo", parameters={"epsilon_low": 0.2, "epsilon_high": 0.2})
    assert "seen on batches alone" in str(found).splitlines()[0] and found.losses[0].strength == "seen"


def test_what_decides_nothing_is_named():
    def loss(log_probs, old_log_probs, ref_log_probs, rollout_log_probs, advantages, mask):
        return right(log_probs, old_log_probs, advantages, mask) + (ref_log_probs.detach() * mask).sum()

    (found,) = (x for x in audit(loss, "dapo").findings if x.name == "reads")
    assert found.status == "note"
    assert found.text == "ref_log_probs decide the loss and no gradient; rollout_log_probs decide nothing"


@pytest.mark.thorough
def test_a_loss_is_not_named_as_the_nearest_with_numbers_that_nobody_takes():
    def loss(log_probs, old_log_probs, advantages, mask):
        ratio, a = (log_probs - old_log_probs).exp(), advantages[:, None]
        return token_mean((-ratio * a).minimum(-ratio.clamp(0.8, 1.2) * a), mask)  # for the maximum

    found = audit(loss)
    assert "sides" in [x.name for x in found.failures] and found.nearest is None and "none is near" in str(found)


def critic(values, old_values, returns, mask):
    clipped = old_values + (values - old_values).clamp(-0.2, 0.2)
    return token_mean((values - returns).square().maximum((clipped - returns).square()), mask)


def distillation(log_probs, teacher_log_probs, mask):
    return token_mean((log_probs - teacher_log_probs).detach() * log_probs, mask)


@pytest.mark.parametrize("loss", [critic, distillation])
def test_losses_without_advantages_are_audited(loss):
    found = audit(loss)
    assert not found.failures and "no shipped loss" in str(found)

    def unmasked(**given):
        return loss(**given | {"mask": torch.ones_like(given["mask"])})

    unmasked.__signature__ = inspect.signature(loss)
    assert {"mask", "padding"} <= {f.name for f in audit(unmasked).failures}
