"""Functions written from papers are identified as the shipped loss of their name, or as one that is the same."""

from pathlib import Path

import pytest
import torch
from oracles.audited import LABELS, function, parameters
from support import refuses

from fibration import AuditError, audit
from fibration.language.loading import shipped

# Losses that are another one for the parameters of these tests, or where each row has one advantage.
SAME = {"bapo": "dapo", "gspo_token": "gspo"}

NOT_EQUAL = {  # and why
    "maxrl": "its source divides by the mean of rewards below 0 too, which the declared loss takes as 0",
    "kl_cov": "at ratio 1 exactly, the slope of |log r| is 0 in torch and 1 in the declared loss",
}
SEEN = {"dcpo", "fspo", "pass_at_k", "reinforce_pp"}  # equal, but not in one normal form; all others are proved
AUDITED = [n for n in shipped() if n not in {*LABELS, *NOT_EQUAL}]


def flat(values):
    return {(k, c): v for k, m in values.items() for c, v in (m.items() if isinstance(m, dict) else [("", m)])}


@pytest.mark.sampled
@pytest.mark.filterwarnings("ignore:.*degrees of freedom:UserWarning")  # of sources, where a group has one row
@pytest.mark.parametrize("name", AUDITED)
def test_a_published_formula_is_identified_with_its_parameters(name):
    given = parameters(name)
    found = audit(function(name, given), name=name)
    assert found.identified, str(found)
    assert found.losses[0].name in (name, SAME.get(name)), str(found)
    own = next(x for x in found.losses if x.name == name)
    assert own.strength == ("seen" if name in SEEN else "proved")
    assert name != "best_of_group" or own.unseen == ("epsilon_low",)  # no answer but the best has an advantage
    values = flat(own.parameters)
    for key, value in flat(given).items():
        assert key[0] in own.unseen or values[key] == pytest.approx(value, rel=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize("name", NOT_EQUAL)
def test_what_differs_at_ratio_1_is_not_called_equal(name):
    found = audit(function(name, parameters(name)), name)
    assert not found.identified and found.losses[0].batch is not None


def test_every_shipped_loss_is_audited_or_lacks_an_argument_and_the_page_counts_them():
    assert len(shipped()) == 85 == len(AUDITED) + len(NOT_EQUAL) + len(LABELS)
    said = f"{len(AUDITED)} are identified from the formula of their source, with its numbers, and {len(AUDITED) - len(SEEN)} are proved"
    assert said in (Path(__file__).parents[2] / "docs" / "how-to" / "audit.md").read_text()


@pytest.mark.parametrize("name", LABELS)
def test_a_loss_that_needs_more_than_an_audit_gives_is_refused(name):
    def loss(log_probs, old_log_probs, advantages, mask, rollout_log_probs, ref_log_probs):
        return -(log_probs * advantages[:, None] * mask).sum()

    refuses(AuditError, lambda: audit(loss, name), what="cannot be")


@pytest.mark.parametrize(
    "name", ["remax", *(pytest.param(n, marks=pytest.mark.thorough) for n in ("hierarchical_grpo", "ppo_gae"))]
)
def test_a_function_that_knows_what_no_argument_says_is_called_no_other_loss(name):
    """Its labels, values or greedy rewards are written into it."""
    given = parameters(name)
    found = audit(function(name, given, hidden=True), name=name)
    assert not found.identified and found.losses[0].batch.tokens <= 8, str(found)


def as_function(name):
    given = parameters(name)
    return function(name, given), given


@pytest.mark.thorough
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


@pytest.mark.thorough
def test_given_parameters_are_not_fitted():
    function, _ = as_function("dapo")
    assert audit(function, "dapo", parameters={"epsilon_high": parameters("dapo")["epsilon_high"]}).identified
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
