"""What a model draws while it trains: two forward passes of it are two policies."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn


def noise(model: nn.Module) -> Iterator[tuple[str, str, float]]:
    """Every module that draws, what its number is called, and the number: of layers for dropout, attention, routers."""
    for name, module in model.named_modules():
        layer = isinstance(module, nn.modules.dropout._DropoutNd)
        for word, value in vars(module).items():
            draws = "drop" in word or "jitter" in word or (layer and word == "p")
            if draws and isinstance(value, float) and value > 0:
                yield name, word, value
