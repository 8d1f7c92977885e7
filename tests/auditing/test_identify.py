"""Functions written from papers are identified as the shipped loss of their name, or as one that is the same."""

import pytest
import torch
from oracles.published import PUBLISHED, Rows
from oracles.published_comparison import PARAMETERS
from thorough import ALL

from fibration import audit, load
from fibration.auditing.function import Function
from fibration.auditing.identify import Compared, identify

# Losses that have the gradient of another one for some parameters, or where each row has one advantage.
SAME = {
    "bapo": {"dapo"}, "gspo_token": {"gspo"}, "cispo_absolute": {"cispo"},
}  # fmt: skip

UNFOUND = {"clip_cov"}  # its thresholds are of covariances of the batch


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
    found = identify(Compared(Function(function, name)), None if ALL else (name, "dapo", "grpo", "gspo"))
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
