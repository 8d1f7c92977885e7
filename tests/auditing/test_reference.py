"""A declared loss on the batches of an audit: the operator's numbers, for many batches and parameters at once."""

import numpy as np
import pytest
import torch
from oracles.audited import LABELS, parameters
from support import operator, spec

from fibration.auditing.batch import Batch, drawn
from fibration.auditing.fit import Target, Targets
from fibration.auditing.function import Found
from fibration.auditing.joined import Joined
from fibration.auditing.reference import ARGUMENT_OF, Reference, programs
from fibration.language.loading import shipped

BATCHES = (
    drawn(1, (3, 1, 2, 2, 4, 1), 0.4, 0.2, groups=(0, 1, 0, 1, 0, 0)),
    drawn(2, (2, 2), 0.1, groups=(0, 0)),
    drawn(3, (5, 1, 3, 2), 1.2, groups=(1, 0, 1, 0)),
)
AUDITED = [n for n in shipped() if n not in LABELS]


def expected(h, b: Batch, given, rewards: bool):
    op = operator(h, "torch")
    strata = {s.name for s in (*h.strata, *h.groups)}
    labels = {"prompt_group": [r.group for r in b.rows]} if "prompt_group" in strata else {}
    index = op.index(offsets=np.cumsum([0, *b.lengths]), **labels)
    numbers = torch.tensor([r.reward if rewards else r.advantage for r in b.rows], dtype=torch.float64)
    policies = {p: torch.from_numpy(b.of(a)) for p, a in ARGUMENT_OF.items() if p in h.policies}
    tokens = (torch.from_numpy(b.of(p)) for p in ("log_probs", "old_log_probs"))
    more = {"rewards": numbers} if rewards else {"advantages": numbers}
    found = op.coefficients(*tokens, index=index, parameters=given, policies=policies, metrics=False, **more)
    return found.values.numpy(), -float(found.objective)


@pytest.mark.sampled
@pytest.mark.parametrize("name", AUDITED)
def test_joined_batches_and_parameters_have_the_operators_numbers(name):
    h, given = spec(name), parameters(name)
    rewards = h.advantages is not None
    reference, joined = Reference(h, rewards), Joined(BATCHES)
    assert reference.taken(joined) == (0, 1, 2)
    declared = {p.name: p.default for p in h.parameters.values()}
    coefficients, values = reference.evaluate_each(joined, [declared, given])
    for k, numbers in enumerate((declared, given)):
        each = [expected(h, b, numbers, rewards) for b in BATCHES]
        np.testing.assert_allclose(coefficients[k], np.concatenate([c for c, _ in each]), rtol=1e-9, atol=1e-13)
        np.testing.assert_allclose(values[k], [v for _, v in each], rtol=1e-9, atol=1e-13)


def test_a_batch_that_the_loss_does_not_take_is_left_out():
    alone = drawn(1, (2, 1, 3), 0.1, groups=(0, 0, 1))
    assert Reference(spec("rloo"), True).taken(Joined((alone, BATCHES[1]))) == (1,)
    assert Reference(spec("grpo_rewards"), True).taken(Joined((alone,))) == (0,)


def test_parameters_out_of_bounds_have_no_coefficients():
    reference = Reference(spec("dapo"), False)
    coefficients, _ = reference.evaluate_each(Joined(BATCHES), [{"epsilon_low": 1.5}, {"epsilon_low": 0.5}])
    assert np.isnan(coefficients[0]).all() and np.isfinite(coefficients[1]).all()
    assert reference.evaluate(BATCHES[0], {"epsilon_low": 1.5}) is None


def test_the_programs_of_a_loss_that_breaks_a_law_are_made():
    assert programs(spec("grpo_k3"))[1] is not None and programs(spec("dapo"))[1] is None


def test_shapes_are_compared_up_to_one_factor_of_a_batch():
    one, other = Found(0.0, np.array([1.0, 2.0, 3.0, 0.0]), np.zeros(0)), Found(0.0, np.array([1.0, 1.0]), np.zeros(0))
    batches = drawn(0, (4,), 0.1), drawn(0, (2,), 0.1)
    targets = Targets.of([Target(b, f) for b, f in zip(batches, (one, other), strict=True)])
    same, off, dropped = [2.0, 4, 6, 0, 5, 5], [2.0, 4, 7, 0, 5, 5], [2.0, 4, 6, 0, 0, 0]
    assert list(targets.differ_in_shape(np.array([same, off, dropped]))) == [0, 1, 2]
    assert list((targets.differ(np.array([same, off])) > 1e-6).sum(1)) == [5, 5]
