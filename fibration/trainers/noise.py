"""What a model draws while it trains: two forward passes of it are two policies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import nn

HEADS = ("classif", "summary")  # whose dropout is a layer, in models that have such a head


def noise(model: nn.Module) -> Iterator[tuple[str, str, float]]:
    """Every module that draws, or whose config says so, what its number is called, and the number.

    Layers of dropout, attention and routers have it as attributes. What a forward pass reads of a `config` cannot be
    told from what it leaves alone, so every such number there counts, with `config.` before its name, but those of
    heads; a number under any other name is not seen.
    """
    configs: dict[int, object] = {}
    for name, module in model.named_modules():
        own, layer = vars(module), isinstance(module, nn.modules.dropout._DropoutNd)
        said = {word: value for word, value in own.items() if _draws(word) or (layer and word == "p")}
        config = own.get("config")
        if id(config) not in configs:
            configs[id(config)] = config  # of most modules, the model's
            fields = config if isinstance(config, Mapping) else getattr(config, "__dict__", {})
            said |= {f"config.{word}": value for word, value in fields.items() if _draws(word, HEADS)}
        for word, value in said.items():
            if isinstance(value, float) and value > 0:
                yield name or type(module).__name__, word, value


def _draws(word: object, but: tuple[str, ...] = ()) -> bool:
    return isinstance(word, str) and ("drop" in word or "jitter" in word) and not word.startswith(but)
