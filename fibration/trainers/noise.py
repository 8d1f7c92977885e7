"""What a model draws while it trains: two forward passes of it are two policies."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from types import FunctionType
from typing import Any

from torch import nn


def noise(model: nn.Module) -> Iterator[tuple[str, str, float]]:
    """Every module that draws, what its number is called, and the number.

    Layers of dropout, attention and routers have it as attributes. Of a `config` those numbers count that a method of
    the module names, other than `__init__`, which makes layers of them; they have `config.` before their name. A number
    under a name without "drop" or "jitter" is not seen.
    """
    seen: set[tuple[int, str]] = set()
    for name, module in model.named_modules():
        own, layer = vars(module), isinstance(module, nn.modules.dropout._DropoutNd)
        said = {word: value for word, value in own.items() if _draws(word, value) or (layer and word == "p" and value)}
        config = own.get("config")  # of most modules the model's, of which each number is said once
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
    """The source of a module's methods, without those that every module has, and without how it is made."""
    own = [vars(base) for base in inspect.getmro(kind) if base not in nn.Module.__mro__]
    methods = [f for base in own for f in base.values() if isinstance(f, FunctionType) and f.__name__ != "__init__"]
    return "\n".join(map(inspect.getsource, methods))
