"""Reasons to train on rows without a gradient: something else reads them, and the log says what."""

import logging

import pytest
import support
from torch import nn

from fibration import balanced, strata
from fibration.trainers.intake import log_readers, readers_by_loss, readers_by_model

trajectory, prompt_group = strata("trajectory prompt_group")


class Router(nn.Module):
    expert_capacity = 64  # of the class; an instance has its own

    def __init__(self, capacity=None):
        super().__init__()
        if capacity is not None:
            self.expert_capacity = capacity


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("grpo", []),
        ("gspo", []),
        ("grpo_k3", ["every row gets the penalty 'kl' of 'grpo_k3'"]),
        ("ppo_nll", ["every row gets the penalty 'nll' of 'ppo_nll'"]),
    ],
)
def test_terms_of_a_loss(name, words):
    assert list(readers_by_loss(support.spec(name))) == words


def test_assumptions_of_a_loss():
    h = support.spec("fiberpo_domain").replace(assume=[balanced(trajectory, prompt_group)])
    (words,) = readers_by_loss(h)
    assert words == "'fiberpo_domain' assumes balanced(trajectory, prompt_group) of all rows"


def test_layers_in_which_rows_interact():
    assert list(readers_by_model(nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2), Router()))) == []
    assert list(readers_by_model(nn.Sequential(nn.BatchNorm1d(2), Router(8)))) == [
        "rows share the statistics of the layer '0', a BatchNorm1d",
        "rows share the places of an expert in '1' (expert_capacity=8)",
    ]


def test_they_are_logged(caplog):
    with caplog.at_level(logging.WARNING):
        log_readers([])
        assert not caplog.records
        log_readers(["images are not cut into rows", "TRL adds an entropy bonus"])
    assert caplog.messages == [
        "all rows are trained on, dead rows too: images are not cut into rows; TRL adds an entropy bonus"
    ]
