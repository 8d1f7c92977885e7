"""Functions written from papers are identified as the shipped loss of their name, or as one that is the same."""

import pytest
import torch
from oracles.published import PUBLISHED, Rows
from oracles.published_comparison import PARAMETERS

from fibration import audit, load
from fibration.auditing.function import Function
from fibration.auditing.identify import Compared, identify

# Losses that have the gradient of another one for some parameters, or where each row has one advantage.
SAME = {
    "bapo": {"dapo"}, "gspo_token": {"gspo"}, "cispo_absolute": {"cispo"},
}  # fmt: skip

# Thresholds of covariances of the batch, bounds that depend on probabilities, normalisers that count what is kept.
UNFOUND = {"clip_cov", "dcpo", "geometric_mask", "token_veto"}


def as_function(name):
    h = load(name)
    given = {p.name: p.default for p in h.parameters.values()} | PARAMETERS.get(name, {})

    def of(log_probs, old_log_probs, rollout_log_probs, advantages, mask):
        a = advantages[:, None].expand_as(log_probs)
        rows = Rows(log_probs, log_probs.detach(), old_log_probs, rollout_log_probs, a, mask.bool())
        return -PUBLISHED[name](rows, given)[0]

    def without_rollout(log_probs, old_log_probs, advantages, mask):
        return of(log_probs, old_log_probs, old_log_probs, advantages, mask)

    return (of if "rollout" in h.policies else without_rollout), given


@pytest.mark.sampled
@pytest.mark.parametrize("name", [n for n in PUBLISHED if n not in UNFOUND])
def test_a_published_formula_is_identified(name):
    function, given = as_function(name)
    found = identify(Compared(Function(function, name)), (name, "bapo", "dapo", "grpo", "gspo", "reinforce"))
    names = {x.name for x in found}
    assert found[0].has_same_gradient, (found[0].name, found[0].parameters, found[0].differing)
    assert name in names or names & SAME.get(name, set())
    for x in found:
        if x.name == name:
            for key, value in given.items():
                assert x.parameters[key] == pytest.approx(value, rel=1e-6)


def test_the_answer_is_the_same_every_time():
    function, _ = as_function("grpo")
    first, second = (audit(function, "grpo").to_dict() for _ in range(2))
    assert first == second


def test_a_loss_without_a_name_gets_the_nearest_and_the_smallest_batch():
    def loss(log_probs, old_log_probs, advantages, mask):
        r = (log_probs - old_log_probs).exp()
        values = -torch.where(r < 3, r, 3 * r.detach() / r) * advantages[:, None]
        return (values * mask).sum() / mask.sum()

    found = audit(loss)
    assert not found.identified and len(found.losses) == 1
    assert found.losses[0].batch.tokens == 1
    assert "no shipped loss; the nearest is" in str(found)


def test_a_function_that_is_nan_on_some_batch_is_not_the_same():
    function, _ = as_function("dapo")

    def loss(log_probs, old_log_probs, advantages, mask):
        far = ((log_probs - old_log_probs) * mask).abs().max() > 2.5
        return function(log_probs, old_log_probs, advantages, mask) * (torch.nan if far else 1)

    assert not audit(loss, "dapo").identified


def test_given_parameters_are_not_fitted():
    function, _ = as_function("dapo")
    assert audit(function, "dapo", parameters={"epsilon_high": 0.28}).identified
    assert not audit(function, "dapo", parameters={"epsilon_high": 0.3}).identified


def test_a_bound_that_no_ratio_reaches_is_not_made_up():
    """Without a bound it is decoupled PPO; with one far away no batch tells."""

    def loss(log_probs, old_log_probs, rollout_log_probs, advantages, mask):
        weight = (old_log_probs - rollout_log_probs).exp().clamp(max=1e4).detach()
        r, a = (log_probs - old_log_probs).exp(), advantages[:, None]
        return -(weight * (r * a).minimum(r.clamp(0.8, 1.2) * a) * mask).sum() / mask.sum()

    found = audit(loss, "tis")
    assert found.identified and found.losses[0].unseen == ("ceiling",)
    assert "ceiling =" not in str(found) and "no batch here reaches ceiling" in str(found)


def test_a_bound_of_weights_is_found():
    def loss(log_probs, old_log_probs, rollout_log_probs, advantages, mask):
        weight = (old_log_probs - rollout_log_probs).exp().clamp(max=10).detach()
        r, a = (log_probs - old_log_probs).exp(), advantages[:, None]
        return -(weight * (r * a).minimum(r.clamp(0.8, 1.2) * a) * mask).sum() / mask.sum()

    (found,) = audit(loss, "tis").losses
    assert found.has_same_gradient and found.parameters["ceiling"] == pytest.approx(10) and not found.unseen
    assert not audit(loss, "tis", parameters={"ceiling": 2.0}).identified
