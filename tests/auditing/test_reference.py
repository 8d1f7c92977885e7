"""A declared loss on the batches of an audit: its formulas have the operator's numbers."""

import numpy as np
import pytest
import torch
from oracles.audited import LABELS, parameters
from support import operator, spec

from fibration.auditing.batch import Batch, drawn
from fibration.auditing.formula import evaluate
from fibration.auditing.function import numbers_of
from fibration.auditing.reference import ARGUMENT_OF, Reference
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
def test_formulas_have_the_operators_numbers(name):
    h = spec(name)
    rewards = h.advantages is not None
    reference = Reference(h, rewards)
    for b in BATCHES:
        for given in ({p.name: p.default for p in h.parameters.values()}, parameters(name)):
            coefficients, value = expected(h, b, given, rewards)
            found, (made, loss) = reference.evaluate(b, given), reference.formulas(b)
            symbolic = evaluate([loss, *made], {**numbers_of(b, False), **reference.values(given)})
            for mine in ([found.value, *found.coefficients], symbolic):
                np.testing.assert_allclose(np.array(mine, float), [value, *coefficients], rtol=1e-9, atol=1e-13)


def test_what_a_loss_does_not_take_is_none():
    alone = drawn(1, (2, 1, 3), 0.1, groups=(0, 0, 1))
    assert Reference(spec("rloo"), True).evaluate(alone) is None
    assert Reference(spec("grpo_rewards"), True).evaluate(alone) is not None
    assert Reference(spec("dapo"), False).evaluate(BATCHES[0], {"epsilon_low": 1.5}) is None


def test_the_programs_of_a_loss_that_breaks_a_law_are_made():
    made = {name: Reference(spec(name), False).programs[1] for name in ("grpo_k3", "dapo")}
    assert made["grpo_k3"] is not None and made["dapo"] is None
