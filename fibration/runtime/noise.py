"""Randomness in a model's forward pass: two forward passes of such a model are two policies."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from functools import lru_cache
from types import FunctionType
from typing import Any, NamedTuple

from torch import nn


class Rate(NamedTuple):
    """How often a module draws random numbers: a number above 0 that `holder` has under `key`.

    `word`: the name for messages; that of a rate in the module's config begins with `config.`.
    """

    module: str
    word: str
    value: float
    holder: Any
    key: str

    def put(self, value: float) -> None:
        if isinstance(self.holder, MutableMapping):
            self.holder[self.key] = value
        else:
            setattr(self.holder, self.key, value)


@contextmanager
def silenced(model: nn.Module) -> Iterator[None]:
    """While the body runs, all rates that are found are 0: two forward passes are then the same policy."""
    found = list(rates(model))
    for rate in found:
        rate.put(0.0)
    try:
        yield
    finally:
        for rate in found:
            rate.put(rate.value)


def rates(model: nn.Module) -> Iterator[Rate]:
    """The rates at which the modules of a model draw random numbers.

    Dropout, attention and router layers have rates as attributes. A rate in a module's `config` counts if a method of
    the module names it, other than `__init__`, which makes layers from it; its name begins with `config.`. A rate
    without "drop" or "jitter" in its name is not found.
    """
    seen: set[tuple[int, str]] = set()
    for name, module in model.named_modules():
        own, layer = vars(module), isinstance(module, nn.modules.dropout._DropoutNd)
        here = name or type(module).__name__
        for word, value in own.items():
            if _draws(word, value) or (layer and word == "p" and value):
                yield Rate(here, word, value, module, word)
        config = own.get("config")  # most modules share the model's; each rate is yielded once
        fields = config if isinstance(config, Mapping) else getattr(config, "__dict__", {})
        for word in [word for word, value in fields.items() if _draws(word, value) and (id(config), word) not in seen]:
            if re.search(rf"config(\.|\[.){word}\b", _methods(type(module))):  # type: ignore[arg-type]
                seen.add((id(config), word))
                yield Rate(here, f"config.{word}", fields[word], config, word)


def _draws(word: object, value: object) -> bool:
    return isinstance(word, str) and ("drop" in word or "jitter" in word) and isinstance(value, float) and value > 0


@lru_cache
def _methods(kind: Any) -> str:
    """The source of a module's methods, without `nn.Module`'s and without `__init__`."""
    own = [vars(base) for base in inspect.getmro(kind) if base not in nn.Module.__mro__]
    methods = [f for base in own for f in base.values() if isinstance(f, FunctionType) and f.__name__ != "__init__"]
    return "\n".join(map(inspect.getsource, methods))
