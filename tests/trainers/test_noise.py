"""What two forward passes of a model would not share is found, wherever its number is kept."""

from types import SimpleNamespace

from torch import nn

from fibration.trainers.noise import noise


class Block(nn.Module):
    def __init__(self, attention_dropout: float, router_jitter_noise: float, p: float) -> None:
        super().__init__()
        self.attention_dropout, self.router_jitter_noise, self.p = attention_dropout, router_jitter_noise, p
        self.drop = nn.Dropout(0.0)


def test_layers_attention_and_routers_are_named():
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.25), Block(0.1, 0.01, 0.5))
    assert list(noise(model)) == [("1", "p", 0.25), ("2", "attention_dropout", 0.1), ("2", "router_jitter_noise", 0.01)]


def test_what_is_switched_off_or_means_something_else_is_no_noise():
    assert list(noise(nn.Sequential(nn.Dropout(0.0), Block(0.0, 0.0, 0.5)))) == []


class Configured(nn.Module):
    def __init__(self, config: object, *inside: nn.Module) -> None:
        super().__init__()
        self.config, self.inside = config, nn.ModuleList(inside)


def test_numbers_of_each_config_are_named_once():
    """Whether a forward pass reads them nobody can see."""
    whole = SimpleNamespace(dropout=0.1, attention_dropout=0.0, layer_norm_eps=1e-5)
    tower, routers = SimpleNamespace(resid_pdrop=0.2, dropout="none"), {"router_jitter_noise": 0.01, 0: 0.5}
    model = Configured(whole, Configured(tower), Configured(whole), Configured(routers))
    assert list(noise(model)) == [
        ("Configured", "config.dropout", 0.1),
        ("inside.0", "config.resid_pdrop", 0.2),
        ("inside.2", "config.router_jitter_noise", 0.01),
    ]


def test_configs_that_switch_it_off_or_mean_a_head_are_silent():
    llama = {
        "classifier_dropout": 0.1,
        "attention_dropout": 0.0,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "drop_last": True,
    }
    assert list(noise(Configured(SimpleNamespace(**llama), Configured(None), Configured(object())))) == []
