"""Which dropout a model has: two forward passes of it are two policies."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn


def dropout(model: nn.Module) -> Iterator[str]:
    """Every probability of dropout that is not 0, in words: of layers for it, and of attention, which has a number."""
    for name, module in model.named_modules():
        for word, value in vars(module).items():
            is_one = "drop" in word or (word == "p" and isinstance(module, nn.modules.dropout._DropoutNd))
            if is_one and isinstance(value, float) and value > 0:
                yield f"{name}.{word}={value:g}".lstrip(".")
