"""Old log-probs count as those of the current weights by their values: of the requested rows and of all weights."""

import pytest
import torch
from torch import nn

from fibration.trainers.verl.known import Known

ROWS = torch.tensor([[-1.5, -0.25, 0.0, 0.0], [-2.0, -0.5, -0.125, 0.0], [-0.75, -1.0, -3.0, -1.0]])
MASK = ROWS != 0


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3).to(torch.bfloat16))


@pytest.fixture
def known():
    made = Known()
    made.add(model(), 1.0, ROWS)
    return made


def test_log_probs_of_the_same_weights_are_known_in_any_order_width_and_precision(known):
    wide = torch.nn.functional.pad(ROWS[[2, 0]].double(), (0, 3))
    assert known.has(model(), 1.0, wide, wide != 0)


@pytest.mark.parametrize("place", [0, 2])  # weights of both layers, of float32 and of bfloat16
def test_a_weight_that_differs_in_its_last_bit_makes_all_rows_unknown(known, place):
    changed = model()
    weight = list(changed.parameters())[place]
    with torch.no_grad():
        flat = weight.view(-1).view({4: torch.int32, 2: torch.int16}[weight.element_size()])
        flat[-1] += 1
    assert not known.has(changed, 1.0, ROWS, MASK)


def test_another_log_prob_or_temperature_makes_rows_unknown(known):
    other = ROWS.clone()
    other[1, 2] += 1e-6
    assert not known.has(model(), 1.0, other, MASK)
    assert not known.has(model(), 0.9, ROWS, MASK)


def test_masked_tokens_may_be_unknown(known):
    other, mask = ROWS.clone(), MASK.clone()
    other[1], mask[1] = torch.nan, False
    assert known.has(model(), 1.0, other, mask)


def test_known_rows_add_up_until_the_weights_change(known):
    known.add(model(), 1.0, ROWS - 1)
    assert known.has(model(), 1.0, torch.cat([ROWS, ROWS - 1]), torch.cat([MASK, MASK]))
    changed = model()
    with torch.no_grad():
        next(changed.parameters()).add_(1)
    known.add(changed, 1.0, ROWS - 1)
    assert known.has(changed, 1.0, ROWS - 1, MASK)
    assert not known.has(changed, 1.0, ROWS, MASK)


def test_nothing_is_known_before_the_first_rows_and_after_forget(known):
    assert not Known().has(model(), 1.0, ROWS, MASK)
    known.forget()
    assert not known.has(model(), 1.0, ROWS, MASK)
