"""Randomness in a model's forward pass: two forward passes of such a model are two policies."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from types import FunctionType
from typing import Any

from torch import nn


def noise(model: nn.Module) -> Iterator[tuple[str, str, float]]:
    """Every module that draws random numbers, the name of its rate, and the rate.

    Dropout, attention and router layers have rates as attributes. A rate in a module's `config` counts if a method of
    the module names it, other than `__init__`, which makes layers from it; its name begins with `config.`. A rate
    without "drop" or "jitter" in its name is not found.
    """
    seen: set[tuple[int, str]] = set()
    for name, module in model.named_modules():
        own, layer = vars(module), isinstance(module, nn.modules.dropout._DropoutNd)
        said = {word: value for word, value in own.items() if _draws(word, value) or (layer and word == "p" and value)}
        config = own.get("config")  # most modules share the model's; each rate is yielded once
        fields = config if isinstance(config, Mapping) else getattr(config, "__dict__", {})
        for word in [word for word, value in fields.items() if _draws(word, value) and (id(config), word) not in seen]:
            if re.search(rf"config(\.|\[.){word}\b", _methods(type(module))):  # type: ignore[arg-type]
                seen.add((id(config), word))
                said[f"config.{word}"] = fields[word]
        for word, value in said.items():
            yield name or type(module).__name__, word, value


def _draws(word: object, value: object) -> bool:
    return isinstance(word, str) and ("drop" in word or "jitter" in word) and isinstance(value, float) and value > 0


@lru_cache
def _methods(kind: Any) -> str:
    """The source of a module's methods, without `nn.Module`'s and without `__init__`."""
    own = [vars(base) for base in inspect.getmro(kind) if base not in nn.Module.__mro__]
    methods = [f for base in own for f in base.values() if isinstance(f, FunctionType) and f.__name__ != "__init__"]
    return "\n".join(map(inspect.getsource, methods))
