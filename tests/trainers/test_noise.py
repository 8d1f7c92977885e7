"""What two forward passes of a model would not share is found, wherever its number is kept."""

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
