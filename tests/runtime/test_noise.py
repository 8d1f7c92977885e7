"""Dropout and other noise by which two forward passes of a model differ is found, wherever its rate is stored."""

from types import SimpleNamespace

from torch import nn
from torch.nn.functional import dropout

from fibration.runtime.noise import rates, silenced


class Block(nn.Module):
    def __init__(self, attention_dropout: float, router_jitter_noise: float, p: float) -> None:
        super().__init__()
        self.attention_dropout, self.router_jitter_noise, self.p = attention_dropout, router_jitter_noise, p
        self.drop = nn.Dropout(0.0)


def test_dropout_of_layers_attention_and_routers_is_named():
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.25), Block(0.1, 0.01, 0.5))
    assert [r[:3] for r in rates(model)] == [("1", "p", 0.25), ("2", "attention_dropout", 0.1), ("2", "router_jitter_noise", 0.01)]


def test_a_rate_of_0_and_other_attributes_are_not_noise():
    assert [r[:3] for r in rates(nn.Sequential(nn.Dropout(0.0), Block(0.0, 0.0, 0.5)))] == []


class Made(nn.Module):
    """Makes a layer of a number, as transformers' GPT2 does; `disable_dropout` of TRL sets the layer's to 0."""

    def __init__(self, config: object, *inside: nn.Module) -> None:
        super().__init__()
        self.config, self.inside = config, nn.ModuleList(inside)
        self.layer = nn.Dropout(getattr(config, "resid_pdrop", 0.0))


class Reads(Made):
    def forward(self, x):
        return self.noisy(dropout(x, self.config.dropout, self.training))

    def noisy(self, x):
        return x * self.config["router_jitter_noise"]


class Inherits(Reads):
    pass


def test_rates_in_a_config_that_a_forward_pass_reads_are_named_once():
    whole = SimpleNamespace(dropout=0.1, attention_dropout=0.2, layer_norm_eps=1e-5)
    routers = {"router_jitter_noise": 0.01, 0: 0.5, "dropout": "none"}
    model = Made(whole, Inherits(whole), Reads(whole), Reads(routers), Reads(SimpleNamespace(dropout=0.0)))
    found = [("inside.0", "config.dropout", 0.1), ("inside.2", "config.router_jitter_noise", 0.01)]
    assert [r[:3] for r in rates(model)] == found


def test_rates_of_a_config_that_only_build_layers_are_read_from_the_layers():
    model = Made(SimpleNamespace(resid_pdrop=0.1, classifier_dropout=0.1))
    assert [r[:3] for r in rates(model)] == [("layer", "p", 0.1)]
    model.layer.p = 0.0
    assert [r[:3] for r in rates(model)] == []


def test_while_silenced_no_rate_is_left_and_afterwards_all_are_as_before():
    whole = SimpleNamespace(dropout=0.1)
    model = nn.Sequential(nn.Dropout(0.25), Block(0.1, 0.01, 0.5), Reads(whole), Reads({"router_jitter_noise": 0.01}))
    before = [r[:3] for r in rates(model)]
    assert len(before) == 5
    with silenced(model):
        assert [r[:3] for r in rates(model)] == [] and whole.dropout == 0
    assert [r[:3] for r in rates(model)] == before
